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


def test_many_leaves_are_compared_in_bands():
    """Three bands of leaves, the last one cut short."""
    rng, n = np.random.default_rng(0), 150
    trees = []
    for _ in range(2):
        coarse = rng.integers(0, 7, n)
        levels = [np.zeros(n, int), coarse, coarse * 9 + rng.integers(0, 9, n), np.arange(n)]
        trees.append(PartitionTree(np.stack(levels)))
    meeting = np.full((2, n, n), n)
    for found, tree in zip(meeting, trees, strict=True):
        for labels in tree.labels:
            size = np.broadcast_to(np.bincount(labels)[labels], (n, n))
            np.copyto(found, size, where=labels == labels[:, None])
    expected = np.abs(meeting[0] - meeting[1]).sum() / n / (n * (n - 1))
    assert tree_distance(*trees) == pytest.approx(expected, rel=1e-14)


@given(partition_trees(1, 8))
def test_does_not_see_repeated_levels(tree):
    assert tree_distance(PartitionTree(np.repeat(tree.labels, 2, axis=0)), tree) == 0


def test_wants_the_same_leaves():
    with pytest.raises(HeadtreeError, match="same number of leaves, got 3 and 4"):
        tree_distance(PartitionTree.flat(3), PartitionTree.flat(4))
