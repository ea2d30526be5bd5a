"""The attention tensor: heads × queries × keys with labels, in memory and on disk."""
