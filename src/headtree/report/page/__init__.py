"""The interactive page of a run."""
