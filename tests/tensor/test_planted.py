import numpy as np
import pytest

from headtree.errors import HeadtreeError
from headtree.tensor.planted import planted_array


def test_without_noise_values_are_constant_on_the_finest_families():
    planted = planted_array((13, 12), (3, 2), noise=0.0)
    rows, columns = (tree.labels[2] for tree in planted.trees)
    for a in range(6):
        for b in range(6):
            assert np.ptp(planted.values[np.ix_(rows == a, columns == b)]) < 1e-15
    assert list(planted.trees[0].n_folders) == [1, 3, 6, 13]
    assert len(set(np.bincount(planted.trees[0].labels[1])) - {4, 5}) == 0


def test_too_few_slices_are_refused():
    with pytest.raises(HeadtreeError, match="at least 8 slices"):
        planted_array((8, 7), (4, 2))
