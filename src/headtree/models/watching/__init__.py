"""How a model's attention is seen while it runs."""
