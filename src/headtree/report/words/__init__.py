"""Results in words: sections, summaries and the one way numbers are written."""
