"""Models one can look into: the only package that knows transformers."""
