import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headtree as ht
from headtree.errors import HeadtreeError
from headtree.geometry.grow_tree import _canonical_coordinates, join_clusters
from headtree.trees.tree import PartitionTree
from tests import oracles


def distances_of(seed, n, kind):
    rng = np.random.default_rng(seed)
    if kind == "lattice":  # many ties
        x = rng.integers(0, 3, (n, 2)).astype(float)
    elif kind == "copies":  # most distances are zero, and so is their median
        x = (rng.random((n, 2)) < 0.15).astype(float)
    elif kind == "clusters":
        x = rng.integers(0, 3, (n, 1)) * 5.0 + rng.standard_normal((n, 2))
    else:
        x = rng.standard_normal((n, 3))
    return np.abs(x[:, None] - x[None]).sum(axis=-1)


def affinity_of(seed, n, kind):
    d = distances_of(seed, n, kind)
    return np.exp(-d / (np.median(d) or 1.0))


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 14),
    st.sampled_from(["normal", "clusters"]),
    st.sampled_from([0.5, 1, 2]),
)
def test_flexible_tree_is_the_literal_algorithm(seed, n, kind, constant):
    affinity = affinity_of(seed, n, kind)
    assert ht.flexible_tree(affinity, constant) == oracles.flexible_tree(affinity, constant)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.integers(2, 12),
    st.sampled_from(["normal", "lattice", "copies"]),
    st.sampled_from([0.5, 1, 3]),
)
def test_one_level_joins_as_the_literal_algorithm_does(seed, n, kind, constant):
    d = distances_of(seed, n, kind)
    groups, _ = join_clusters(d, constant)
    expected = np.empty(n, int)
    for label, group in enumerate(oracles.join_level(d.copy(), constant)):
        expected[list(group)] = label
    np.testing.assert_array_equal(groups, expected)


def test_distances_that_agree_in_ten_digits_tie():
    for difference, n_groups in ((3e-11, 1), (3e-10, 2)):
        distances = np.ones((3, 3))
        distances[0, 1] = distances[1, 0] = 1 - difference
        groups, trials = join_clusters(distances, 1.0)
        assert len(set(groups)) == n_groups
        assert len(trials) == n_groups - 1  # nothing is tried where all are equally far


def test_one_pair_joins_where_the_smallest_distance_is_the_median():
    distances = np.ones((4, 4))
    distances[2, 3] = distances[3, 2] = 1.5
    assert join_clusters(distances, 1.0)[0].tolist() == [0, 0, 1, 2]


def test_the_usual_settings():
    affinity = affinity_of(7, 64, "normal")
    usual, other = ht.flexible_tree(affinity, 1.0), ht.flexible_tree(affinity, 1.5)
    assert ht.flexible_tree(affinity) == usual != other
    assert ht.binary_tree(affinity, balance=1.5) == ht.binary_tree(affinity, balance=1.5, rng=0)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(2, 40), st.booleans())
def test_permuting_points_permutes_the_tree(seed, n, binary):
    affinity = affinity_of(seed, n, "normal")
    order = np.random.default_rng(seed + 1).permutation(n)
    grow = ht.binary_tree if binary else ht.flexible_tree
    tree, permuted = grow(affinity), grow(affinity[np.ix_(order, order)])
    assert permuted == tree.take(order)


def test_clear_clusters_become_folders():
    labels = np.repeat(np.arange(4), 8)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((4, 3))[labels] * 5 + 0.1 * rng.standard_normal((32, 3))
    d = np.linalg.norm(x[:, None] - x[None], axis=-1)
    for tree in (ht.flexible_tree(np.exp(-d / np.median(d))), ht.binary_tree(np.exp(-d / np.median(d)))):
        folders = {frozenset(f) for level in range(tree.n_levels) for f in tree.folders(level)}
        assert {frozenset(np.flatnonzero(labels == k)) for k in range(4)} <= folders


# -- inputs that once hung or gave a different answer every time ---------------------------------------------


@pytest.mark.parametrize("grow", [ht.flexible_tree, ht.binary_tree])
@pytest.mark.parametrize("n", [1, 2, 3, 60])
def test_all_ones_is_one_flat_folder(grow, n):
    assert grow(np.ones((n, n))) == PartitionTree.flat(n)


@pytest.mark.parametrize("grow", [ht.flexible_tree, ht.binary_tree])
@pytest.mark.parametrize("n", [2, 3, 5, 40])
def test_equidistant_points_are_one_flat_folder(grow, n):
    assert grow(np.full((n, n), 0.3) + 0.7 * np.eye(n)) == PartitionTree.flat(n)
    assert grow(np.eye(n)) == PartitionTree.flat(n)
    assert grow(np.zeros((n, n))) == PartitionTree.flat(n)


def test_isolated_points_have_one_answer():
    affinity = affinity_of(5, 40, "normal")
    affinity[:5] = affinity[:, :5] = 0
    np.fill_diagonal(affinity, 1)
    tree = ht.flexible_tree(affinity)
    assert ht.flexible_tree(affinity.copy()) == tree
    order = np.random.default_rng(0).permutation(40)
    permuted = ht.flexible_tree(affinity[np.ix_(order, order)])
    for level in range(tree.n_levels):  # isolated points cannot be told apart: sizes are what is invariant
        assert sorted(map(len, permuted.folders(level))) == sorted(map(len, tree.folders(level)))


def test_three_blocks_are_the_uppermost_folders():
    labels = np.repeat(np.arange(3), [10, 14, 9])
    affinity = np.where(labels[:, None] == labels[None], affinity_of(6, 33, "normal"), 0)
    tree = ht.flexible_tree(affinity)
    folders = {frozenset(f) for level in range(tree.n_levels) for f in tree.folders(level)}
    assert {frozenset(np.flatnonzero(labels == k)) for k in range(3)} <= folders
    order = np.random.default_rng(0).permutation(33)
    assert ht.flexible_tree(affinity[np.ix_(order, order)]) == tree.take(order)


@pytest.mark.parametrize("sizes", [(10, 14, 9), (4, 1), (12, 3, 5, 7), (16, 1, 8)])
def test_halves_of_a_disconnected_graph_do_not_depend_on_the_order_of_its_points(sizes):
    labels = np.repeat(np.arange(len(sizes)), sizes)
    affinity = affinity_of(6, len(labels), "normal") * (labels[:, None] == labels)
    tree = ht.binary_tree(affinity)
    for seed in range(5):
        order = np.random.default_rng(seed).permutation(len(labels))
        assert ht.binary_tree(affinity[np.ix_(order, order)]) == tree.take(order)


@given(st.integers(2, 70), st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
def test_halves_differ_by_at_most_one(n, seed):
    tree = ht.binary_tree(affinity_of(seed, n, "normal"))
    assert tree.n_levels == 1 + int(np.ceil(np.log2(n)))
    for level in range(tree.n_levels - 1):
        for leaves in tree.folders(level):
            sizes = [len(f) for f in tree.folders(level + 1) if set(f) <= set(leaves)]
            assert len(sizes) == min(2, len(leaves))
            assert max(sizes) - min(sizes) <= 1


def test_the_lower_half_gets_the_extra_leaf():
    t = np.array(
        [0.0, 1.0, 2.1, 3.3, 9.0]
    )  # the far point has the largest modulus, so it is positive: the upper end
    tree = ht.binary_tree(np.exp(-np.abs(t[:, None] - t[None])))
    assert [list(folder) for folder in tree.folders(1)] == [[0, 1, 2], [3, 4]]


def test_balance_draws_from_the_given_generator():
    affinity = affinity_of(7, 64, "normal")
    trees = [ht.binary_tree(affinity, balance=1.5, rng=seed) for seed in (0, 0, 1)]
    assert trees[0] == trees[1]
    assert trees[0] != trees[2]
    for level in range(trees[0].n_levels - 1):
        for leaves in trees[0].folders(level):
            sizes = [len(f) for f in trees[0].folders(level + 1) if set(f) <= set(leaves)]
            assert max(sizes) <= 1.5 * min(sizes) or len(leaves) <= 3


def test_balance_allows_every_split_up_to_the_ratio():
    affinity = affinity_of(7, 4, "normal")
    trees = [ht.binary_tree(affinity, balance=3, rng=seed) for seed in range(20)]
    assert {tuple(sorted(map(len, tree.folders(1)))) for tree in trees} == {(1, 3), (2, 2)}
    lower = ht.binary_tree(affinity).folders(1)[0]
    assert any(len(folder) == 1 and folder[0] in lower for tree in trees for folder in tree.folders(1))
    assert any(len(folder) == 1 and folder[0] not in lower for tree in trees for folder in tree.folders(1))


@pytest.mark.parametrize("unit", [1e-8, 1.0, 1e8])
def test_coordinates_do_not_depend_on_the_basis_of_a_span(unit):
    rng = np.random.default_rng(0)
    functions, turn = rng.standard_normal((9, 3)), np.linalg.qr(rng.standard_normal((3, 3)))[0]
    coordinates = np.array(_canonical_coordinates(functions))
    np.testing.assert_allclose(_canonical_coordinates(unit * functions @ turn), coordinates, atol=1e-9)
    lengths = np.linalg.norm(functions, axis=1)
    np.testing.assert_allclose(np.linalg.norm(coordinates, axis=0), lengths / lengths.max(), atol=1e-9)


def test_wrong_settings_are_named():
    for call, said in [
        (lambda: ht.flexible_tree(np.eye(3), 0), "tree_constant"),
        (lambda: ht.flexible_tree(np.eye(3), float("nan")), "tree_constant"),
        (lambda: ht.binary_tree(np.eye(3), 0.5), "balance must be at least 1"),
        (lambda: ht.binary_tree(np.eye(3), "1"), "balance must be a number"),
    ]:
        with pytest.raises(HeadtreeError, match=said):
            call()


def test_any_balance_is_a_ratio():
    """Products with it would be out of range."""
    affinity = np.exp(-np.abs(np.subtract.outer(np.arange(9.0), np.arange(9.0))))
    assert ht.binary_tree(affinity, balance=1e308) == ht.binary_tree(affinity, balance=8)
