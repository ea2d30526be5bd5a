"""Haar bases on partition trees, and the paraproduct: for any array, knowing nothing of attention."""
