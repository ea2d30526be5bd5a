"""Which heads matter, and models without the others."""
