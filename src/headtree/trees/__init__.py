"""Partition trees as tables of integers, and distances between them."""
