"""A forward pass as a graph of operations, and what is read off it."""
