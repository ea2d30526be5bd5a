"""The toy tasks of the paper on rank collapse."""
