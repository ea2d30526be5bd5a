"""Measures of single heads and layers from the interpretability literature."""
