"""How different networks are: distances between runs, and what changed between runs of the same heads."""
