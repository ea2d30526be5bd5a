import itertools

import numpy as np
import pytest
from hypothesis import given

from headtree.errors import HeadtreeError
from headtree.trees.compare import tree_distance
from headtree.trees.tree import PartitionTree
from tests.strategies import partition_trees


def literal_distance(a, b):
    n = a.n_leaves

    def meeting(tree, i, j):
        return min(len(f) for level in range(tree.n_levels) for f in tree.folders(level) if i in f and j in f)

    pairs = list(itertools.permutations(range(n), 2))
    return sum(abs(meeting(a, i, j) - meeting(b, i, j)) / n for i, j in pairs) / len(pairs) if pairs else 0.0


@given(partition_trees(6, 6), partition_trees(6, 6), partition_trees(6, 6))
def test_is_the_literal_distance_and_a_metric(a, b, c):
    assert tree_distance(a, b) == pytest.approx(literal_distance(a, b), abs=1e-14)
    assert tree_distance(a, b) == tree_distance(b, a)
    assert tree_distance(a, c) <= tree_distance(a, b) + tree_distance(b, c) + 1e-14
    assert tree_distance(a, b) < 1


@given(partition_trees(5, 5), partition_trees(5, 5))
def test_is_zero_exactly_for_the_same_folders(a, b):
    folders = [{frozenset(f) for level in range(t.n_levels) for f in t.folders(level)} for t in (a, b)]
    assert (tree_distance(a, b) == 0) == (folders[0] == folders[1])


@given(partition_trees(1, 8))
def test_does_not_see_repeated_levels(tree):
    assert tree_distance(PartitionTree(np.repeat(tree.labels, 2, axis=0)), tree) == 0


def test_wants_the_same_leaves():
    with pytest.raises(HeadtreeError, match="same number of leaves, got 3 and 4"):
        tree_distance(PartitionTree.flat(3), PartitionTree.flat(4))
