"""From a model to its organized attention: the steps of a run, each written whole or not at all."""
