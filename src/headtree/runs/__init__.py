"""The folder of a run: what is in it, how it is written, and `open_run` to read it."""
