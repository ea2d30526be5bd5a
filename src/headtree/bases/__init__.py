"""Bases on trees, and what is expanded in them."""
