"""Rank collapse with depth, and the paths through a network."""
