"""Trees of resampled inputs: transfer, closeness and gaps, each in plain loops."""

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headtree.geometry.combined_affinity import InputMatrices
from headtree.geometry.linkage import linkage_tree
from headtree.geometry.resampled_trees import LinkageFolders, ResampledTrees
from tests.geometry.test_linkage import literal_joins, random_affinity


def inputs_of(n, n_inputs, seed, has_ties=False):
    x = np.stack([random_affinity(n, [seed, i]) for i in range(n_inputs)])
    return InputMatrices((np.round(2 * x) if has_ties else x)[None], False)


def weights_of(n_inputs, seed, n_trees=6):
    return np.random.default_rng(seed).dirichlet(np.ones(n_inputs), n_trees)


def all_folders(tree):
    """Every folder, leaves and root included."""
    return {frozenset(f.tolist()) for level in range(tree.n_levels) for f in tree.folders(level)}


def literal_trees(inputs, weights):
    return [all_folders(linkage_tree(inputs.combined(row))) for row in weights]


def literal_transfer(folder, tree, n):
    return 1 - min(len(folder ^ other) for other in tree) / min(len(folder) - 1, n - len(folder))


SIZES = {"n": st.integers(3, 9), "n_inputs": st.integers(1, 4), "seed": st.integers(0, 99)}


@given(**SIZES, has_ties=st.booleans())
def test_transfer_is_that_of_the_definition(n, n_inputs, seed, has_ties):
    inputs, weights = inputs_of(n, n_inputs, seed, has_ties), weights_of(n_inputs, seed)
    rng = np.random.default_rng(seed)
    folders = [frozenset(rng.permutation(n)[: rng.integers(2, n)].tolist()) for _ in range(8)]
    members = np.array([[leaf in folder for leaf in range(n)] for folder in folders])
    found = ResampledTrees.grow(inputs, weights).transfer(members)
    expected = [[literal_transfer(f, tree, n) for f in folders] for tree in literal_trees(inputs, weights)]
    np.testing.assert_allclose(found, expected, atol=1e-12)


@given(**SIZES)
def test_transfer_is_1_exactly_for_folders_of_the_tree_and_never_negative(n, n_inputs, seed):
    inputs, weights = inputs_of(n, n_inputs, seed), weights_of(n_inputs, seed, 1)
    folders = [frozenset(f) for k in range(2, n) for f in itertools.combinations(range(n), k)]
    members = np.array([[leaf in folder for leaf in range(n)] for folder in folders])
    (found,) = ResampledTrees.grow(inputs, weights).transfer(members)
    (tree,) = literal_trees(inputs, weights)
    np.testing.assert_array_equal(found == 1, [folder in tree for folder in folders])
    assert found.min() >= 0


@given(**SIZES, has_ties=st.booleans())
def test_closeness_is_1_minus_the_mean_share_in_the_smallest_common_folder(n, n_inputs, seed, has_ties):
    inputs, weights = inputs_of(n, n_inputs, seed, has_ties), weights_of(n_inputs, seed)
    found = ResampledTrees.grow(inputs, weights).closeness()
    trees = literal_trees(inputs, weights)
    for a, b in itertools.combinations(range(n), 2):
        sizes = [min(len(folder) for folder in tree if {a, b} <= folder) for tree in trees]
        np.testing.assert_allclose(found[a, b], 1 - np.mean(sizes) / n, atol=1e-12)
    np.testing.assert_array_equal(found, found.T)
    np.testing.assert_array_equal(np.diag(found), 1)


@given(n=st.integers(1, 10), seed=st.integers(0, 99))
def test_gaps_are_of_the_affinity_at_which_a_folder_is_formed_and_joined(n, seed):
    closeness, affinity = random_affinity(n, seed), random_affinity(n, [seed, 1])
    found = LinkageFolders.of(closeness, affinity)
    folders = [tuple(np.flatnonzero(row).tolist()) for row in found.members]
    made = [tuple(folder) for _, folder in literal_joins(closeness)]
    assert folders == made[:-1]
    everything = {*made, *((leaf,) for leaf in range(n))}

    def parts(folder):
        inside = [set(f) for f in everything if set(f) < set(folder)]
        return [sorted(f) for f in inside if not any(f < other for other in inside)]

    def formed(folder):
        a, b = parts(folder)
        return np.mean([affinity[i, j] for i in a for j in b])

    for folder, gap in zip(folders, found.gap, strict=True):
        above = min((f for f in made if set(f) > set(folder)), key=len)
        np.testing.assert_allclose(gap, formed(folder) - formed(above), atol=1e-12)
    np.testing.assert_array_equal(found.gap.shape, max(0, n - 2))


@given(n=st.integers(2, 9), seed=st.integers(0, 99))
def test_folders_are_those_of_the_tree(n, seed):
    affinity = np.round(2 * random_affinity(n, seed))  # with ties
    found = {frozenset(np.flatnonzero(row).tolist()) for row in LinkageFolders.of(affinity).members}
    assert found == {folder for folder in all_folders(linkage_tree(affinity)) if 1 < len(folder) < n}
