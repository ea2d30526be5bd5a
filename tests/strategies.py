"""Random partition trees for property tests."""

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from headtree import PartitionTree

# the first call of a compiled kernel takes longer than any deadline, and so does a busy machine
settings.register_profile("headtree", deadline=None)
settings.load_profile("headtree")


@st.composite
def partition_trees(draw, min_leaves=1, max_leaves=12):
    """Trees of any shape: folders standing on several levels, many children, branches of different depth."""
    n = draw(st.integers(min_leaves, max_leaves))
    levels = [np.zeros(n, dtype=np.int64)]
    for _ in range(draw(st.integers(0, 4))):
        part = np.array(draw(st.lists(st.integers(0, 2), min_size=n, max_size=n)))
        # most levels leave most folders whole: only leaves whose folder is chosen may part
        chosen = draw(st.sets(st.integers(0, int(levels[-1].max()))))
        part = np.where(np.isin(levels[-1], list(chosen)), part, 0)
        levels.append(np.unique(levels[-1] * 3 + part, return_inverse=True)[1])
    return PartitionTree(np.stack([*levels, np.arange(n)]))
