import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.cluster.hierarchy import linkage
from scipy.spatial.distance import squareform

from headtree.geometry.linkage import linkage_joins, linkage_tree


def random_affinity(n, seed):
    x = np.random.default_rng(seed).random((n, n))
    return (x + x.T) / 2 + np.eye(n)


def literal_joins(affinity):
    """Average linkage in plain loops: the clusters joined, and the mean affinity at which they were."""
    clusters = [[i] for i in range(len(affinity))]
    joins = []
    while len(clusters) > 1:
        pairs = [(i, j) for i in range(len(clusters)) for j in range(i)]
        i, j = max(pairs, key=lambda p: affinity[np.ix_(clusters[p[0]], clusters[p[1]])].mean())
        joins.append((affinity[np.ix_(clusters[i], clusters[j])].mean(), sorted(clusters[i] + clusters[j])))
        clusters = [c for k, c in enumerate(clusters) if k not in (i, j)] + [joins[-1][1]]
    return joins


def folders_of(tree):
    """All distinct folders of more than one leaf."""
    return {
        tuple(folder.tolist())
        for level in range(tree.n_levels)
        for folder in tree.folders(level)
        if len(folder) > 1
    }


@given(n=st.integers(2, 12), seed=st.integers(0, 99))
def test_folders_are_those_of_literal_average_linkage(n, seed):
    affinity = random_affinity(n, seed)
    expected = {tuple(folder) for _, folder in literal_joins(affinity)}
    assert folders_of(linkage_tree(affinity)) == expected


@given(n=st.integers(2, 12), seed=st.integers(0, 99))
def test_every_level_is_a_cut_at_one_affinity_and_no_level_is_idle(n, seed):
    affinity = random_affinity(n, seed)
    at = {tuple(folder): value for value, folder in literal_joins(affinity)}
    tree = linkage_tree(affinity)
    for level in range(1, tree.n_levels):
        below = folders_of_level(tree, level)
        above = folders_of_level(tree, level - 1) - below
        assert above
        made = [at[folder] for folder in above]
        before = [at[folder] for folder in below if len(folder) > 1]
        assert not before or max(made) < min(before)


def folders_of_level(tree, level):
    return {tuple(folder.tolist()) for folder in tree.folders(level)}


def test_levels_are_few():
    """Joins that do not build on each other share a level: 8 pairs, then 4 fours, and so on."""
    n = 16
    meeting = np.array([[(i ^ j).bit_length() for j in range(n)] for i in range(n)])
    jitter = random_affinity(n, 0) * 1e-3
    assert linkage_tree(2.0**-meeting + jitter).n_folders.tolist() == [1, 2, 4, 8, 16]


@given(n=st.integers(2, 10), seed=st.integers(0, 99))
def test_equivariance_under_relabelling(n, seed):
    affinity, order = random_affinity(n, seed), np.random.default_rng(seed).permutation(n)
    assert linkage_tree(affinity[np.ix_(order, order)]) == linkage_tree(affinity).take(order)


@pytest.mark.parametrize("n", [1, 2, 7, 64, 200])
def test_equal_affinities_are_one_flat_folder(n):
    for affinity in (np.ones((n, n)), np.full((n, n), 0.1) + 0.9 * np.eye(n), np.full((n, n), 0.1)):
        tree = linkage_tree(affinity)
        assert tree.n_levels == min(n, 2)


def test_joins_at_one_affinity_are_one_folder():
    """Two families, equal inside: no folders within them, whatever the order of the joins."""
    labels = np.array([0, 1, 0, 0, 1, 1, 0, 1])
    affinity = np.where(labels[:, None] == labels, 0.7, 0.2) + 1e-14 * random_affinity(8, 0)
    assert linkage_tree(affinity).n_folders.tolist() == [1, 2, 8]
    assert folders_of(linkage_tree(affinity)) == {(0, 2, 3, 6), (1, 4, 5, 7), tuple(range(8))}


@given(n=st.integers(2, 40), seed=st.integers(0, 99))
def test_joins_are_those_of_scipy(n, seed):
    affinity = random_affinity(n, seed)
    table = linkage(squareform(2 - affinity, checks=False), "average")
    parts, first_of_round, affinity_of_join = linkage_joins(affinity.copy())
    np.testing.assert_allclose(affinity_of_join, 2 - table[:, 2], rtol=1e-12)
    np.testing.assert_array_equal(np.sort(parts, axis=1), np.sort(table[:, :2].astype(int), axis=1))
    np.testing.assert_array_equal(first_of_round, np.arange(n, 2 * n - 1))  # no two are equal
