import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headtree.errors import HeadtreeError
from headtree.trees.compare import tree_distance
from headtree.trees.tree import PartitionTree
from tests.strategies import partition_trees


def literal_sets(tree):
    """All nodes as (level, set of leaves), by level and smallest leaf."""
    return [
        (level, frozenset(np.flatnonzero(tree.labels[level] == label)))
        for level in range(tree.n_levels)
        for label in sorted(
            set(tree.labels[level]), key=lambda v, lv=level: np.flatnonzero(tree.labels[lv] == v)[0]
        )
    ]


@given(partition_trees())
def test_nodes_are_numbered_by_level_and_smallest_leaf(tree):
    sets = literal_sets(tree)
    assert tree.n_nodes == len(sets)
    for node, (level, leaves) in enumerate(sets):
        assert tree.levels[node] == level
        assert tree.sizes[node] == len(leaves)
        assert all(tree.nodes[level, leaf] == node for leaf in leaves)
        if node:
            parent_level, parent = sets[tree.parents[node]]
            assert parent_level == level - 1
            assert parent >= leaves
    assert tree.parents[0] == -1


@given(partition_trees())
def test_distinct_folders_are_each_set_once(tree):
    sets = literal_sets(tree)
    folders = tree.distinct
    distinct = [sets[node][1] for node in folders.node]
    assert len(set(distinct)) == len(distinct)
    assert set(distinct) == {leaves for _, leaves in sets}
    assert list(folders.stands_on) == [sum(leaves == d for _, leaves in sets) for d in distinct]
    assert list(folders.level) == [min(level for level, leaves in sets if leaves == d) for d in distinct]
    assert list(folders.first_leaf) == [min(d) for d in distinct]
    for leaf in range(tree.n_leaves):
        assert distinct[folders.of_leaf[leaf]] == {leaf}
    children, pointers = folders.children
    for f, leaves in enumerate(distinct):
        mine = [distinct[c] for c in children[pointers[f] : pointers[f + 1]]]
        assert frozenset().union(*mine) == (leaves if len(leaves) > 1 else frozenset())
        assert [min(child) for child in mine] == sorted(min(child) for child in mine)


@given(partition_trees(), st.randoms(use_true_random=False))
def test_equality_does_not_care_about_numbering(tree, random):
    renamed = tree.labels.copy()
    for level, row in enumerate(tree.labels):
        names = list(range(-50, 50))
        random.shuffle(names)
        renamed[level] = np.array(names)[row]
    assert PartitionTree(renamed) == tree
    assert hash(PartitionTree(renamed)) == hash(tree)
    assert tree_distance(PartitionTree(renamed), tree) == 0


@given(partition_trees(), st.data())
def test_order_keeps_every_folder_together_and_sorts_siblings(tree, data):
    key = np.array(data.draw(st.lists(st.floats(-5, 5), min_size=tree.n_leaves, max_size=tree.n_leaves)))
    position = np.argsort(tree.order(key))
    for level in range(tree.n_levels):
        for leaves in tree.folders(level):
            assert np.ptp(position[leaves]) == len(leaves) - 1
    for level in range(tree.n_levels - 1):
        for leaves in tree.folders(level):
            inside = [child for child in tree.folders(level + 1) if set(child) <= set(leaves)]
            by_position = sorted(inside, key=lambda child: position[child].min())
            means = [np.bincount(np.zeros(len(c), int), weights=key[c])[0] / len(c) for c in by_position]
            assert all(a >= b - 1e-12 for a, b in itertools.pairwise(means))


@given(partition_trees(), st.data())
def test_take_permutes_leaves(tree, data):
    order = np.array(data.draw(st.permutations(range(tree.n_leaves))))
    taken = tree.take(order)
    for level in range(tree.n_levels):
        assert {frozenset(order[f]) for f in taken.folders(level)} == {frozenset(f) for f in tree.folders(level)}


@given(st.integers(1, 40))
def test_halving_splits_consecutive_leaves_evenly(n):
    tree = PartitionTree.halving(n)
    assert tree.n_levels == 1 + int(np.ceil(np.log2(n)))
    for parent, child in itertools.pairwise(tree.labels):
        for label in range(parent.max() + 1):
            leaves = np.flatnonzero(parent == label)
            parts = np.bincount(child[leaves] - child[leaves].min())
            assert len(leaves) == 1 or list(parts) == [(len(leaves) + 1) // 2, len(leaves) // 2]
            assert (np.diff(leaves) == 1).all()


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        ([[0, 0, 1], [0, 1, 2]], "level 0 must be one folder"),
        ([[0, 0, 0], [0, 0, 1]], "every leaf must be alone"),
        ([[0, 0, 0, 0], [0, 0, 1, 1], [0, 1, 1, 2], [0, 1, 2, 3]], "must refine"),
        ([[0.0, 0.0], [0.0, 1.0]], "integers"),
        ([0, 1], "shape"),
        (np.zeros((2, 0), int), "shape"),
    ],
)
def test_a_table_that_is_no_tree_is_refused(labels, said):
    with pytest.raises(HeadtreeError, match=said):
        PartitionTree(labels)


def test_a_tree_cannot_be_changed():
    tree = PartitionTree.flat(3)
    with pytest.raises(ValueError, match="read-only"):
        tree.labels[0, 0] = 1
    with pytest.raises(AttributeError):
        tree.labels = tree.labels


def test_take_wants_a_permutation():
    with pytest.raises(HeadtreeError, match="permutation"):
        PartitionTree.flat(3).take([0, 0, 1])


@pytest.mark.parametrize(("level", "message"), [(3, "between -3 and 2 for 3"), ("a", "an integer")])
def test_levels_that_are_not_there_are_named(level, message):
    with pytest.raises(HeadtreeError, match=f"level must be .*{message}"):
        PartitionTree.halving(4).folders(level)


@given(st.lists(st.integers(-2, 5), min_size=1, max_size=8))
def test_levels_numbered_by_smallest_leaf_are_left_as_they_are(labels):
    numbers: dict[int, int] = {}
    expected = [numbers.setdefault(label, len(numbers)) for label in labels]  # in the order of appearance
    n = len(labels)
    tree = PartitionTree([[0] * n, labels, range(n)])
    assert tree.labels[1].tolist() == expected
    given_again = PartitionTree(tree.labels)
    np.testing.assert_array_equal(given_again.labels, tree.labels)
    assert not np.shares_memory(given_again.labels, tree.labels)
