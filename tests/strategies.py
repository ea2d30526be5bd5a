"""Hypothesis strategies shared by the tests."""

import numpy as np
from hypothesis import strategies as st

from headtree.trees.tree import PartitionTree


@st.composite
def partition_trees(draw, min_leaves=1, max_leaves=9):
    """Any tree, folders that stand on several levels included."""
    n = draw(st.integers(min_leaves, max_leaves))
    levels = [np.arange(n)]
    while levels[-1].max() > 0:
        k = int(levels[-1].max()) + 1
        merged = np.array(draw(st.lists(st.integers(0, k - 1), min_size=k, max_size=k)))
        if draw(st.booleans()) or len(levels) > 4:
            merged = merged * 0
        levels.append(np.unique(merged, return_inverse=True)[1][levels[-1]])
    order = np.array(draw(st.permutations(range(n))))
    return PartitionTree(np.stack(levels[::-1])[:, order])
