import math

import numpy as np
import ot
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import pdist, squareform

import headtree as ht
from headtree.errors import HeadtreeError
from headtree.geometry import folder_sums as averages
from headtree.geometry.emd import folder_weights
from headtree.geometry.kernels_cpu import add_pairwise_l1
from headtree.trees.tree import PartitionTree
from tests import oracles
from tests.strategies import partition_trees


@st.composite
def arrays_with_trees(draw, masked=False):
    """An array of 2 to 4 axes, the axis to compare, trees on the others, perhaps a mask."""
    n_axes = draw(st.integers(2, 4))
    trees = [draw(partition_trees(1, 7 if n_axes < 4 else 3)) for _ in range(n_axes)]
    axis = draw(st.integers(0, n_axes - 1))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shape = tuple(tree.n_leaves for tree in trees)
    x = rng.standard_normal(shape)
    missing = rng.random(shape) < draw(st.sampled_from([0.2, 0.7])) if masked else None
    others = [tree for i, tree in enumerate(trees) if i != axis]
    return x, axis, others, missing


# Sums of at most a few hundred float64 terms of size one, in another order: 1e-12 is ample.
@settings(max_examples=60, deadline=None)
@given(arrays_with_trees(), st.floats(-1, 1), st.floats(-1, 2), st.sampled_from(["levels", "distinct"]))
def test_is_the_literal_sum_over_all_tuples_of_nodes(case, alpha, beta, weights):
    x, axis, trees, _ = case
    expected = oracles.tree_emd(x, axis, trees, alpha, beta, distinct=weights == "distinct")
    np.testing.assert_allclose(
        ht.tree_emd(x, axis, trees, alpha, beta, weights=weights), expected, rtol=1e-12, atol=1e-12
    )


@settings(max_examples=60, deadline=None)
@given(arrays_with_trees(masked=True), st.floats(-1, 1), st.floats(-1, 2))
def test_missing_entries_are_left_out_and_the_rest_rescaled(case, alpha, beta):
    x, axis, trees, missing = case
    if missing.all():
        return
    expected = oracles.tree_emd(x, axis, trees, alpha, beta, missing=missing)
    junk = np.where(missing, np.nan, x)
    actual = ht.tree_emd(junk, axis, trees, alpha, beta, mask=missing)
    np.testing.assert_allclose(actual, expected, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_mask_that_all_slices_share(axis):
    rng = np.random.default_rng(5)
    x, missing = rng.standard_normal((4, 6, 6)), np.triu(np.ones((6, 6), bool), 1)
    trees = [PartitionTree.halving(n) for i, n in enumerate(x.shape) if i != axis]
    expected = oracles.tree_emd(x, axis, trees, 0.3, 1.0, missing=np.broadcast_to(missing, x.shape))
    np.testing.assert_allclose(
        ht.tree_emd(x, axis, trees, 0.3, 1.0, mask=missing), expected, rtol=1e-11, atol=1e-12
    )


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_an_axis_of_length_one_shares_its_mask(axis):
    x, missing = np.random.default_rng(6).standard_normal((1, 6, 5)), np.array([True, False, True, False, False])
    trees = [PartitionTree.halving(n) for i, n in enumerate(x.shape) if i != axis]
    expected = oracles.tree_emd(x, axis, trees, 0.0, 1.0, missing=np.broadcast_to(missing, x.shape))
    np.testing.assert_allclose(ht.tree_emd(x, axis, trees, mask=missing), expected, rtol=1e-11)


def test_two_slices_with_different_entries():
    x, missing = np.array([[1.0, 2.0, 4.0, 8.0], [3.0, 5.0, 7.0, 9.0]]), np.zeros((2, 4), bool)
    missing[0, 1] = missing[1, 2] = missing[1, 3] = True
    found = ht.tree_emd(x, 0, [PartitionTree.halving(4)], mask=missing)
    # root |13/3 - 4|, left half |1 - 4| / 2, first leaf |1 - 3| / 4; they have 7/4 of the weight 3
    assert found[0, 1] == pytest.approx((1 / 3 + 3 / 2 + 2 / 4) * 3 / (7 / 4))


def test_equals_exact_transport_on_the_tree_metric():
    """With alpha = 0 and beta = 1 a node's term is |difference of masses| / n, the flow through the edge above.

    So n/2 times the distance is the cost of transport when every edge has length 1/2: two leaves are as far apart
    as there are levels on which their folders differ.
    """
    rng = np.random.default_rng(0)
    tree = PartitionTree(np.array([[0] * 8, [0] * 4 + [1] * 4, [0, 0, 1, 1, 2, 2, 2, 3], np.arange(8)]))
    p = rng.dirichlet(np.ones(8), size=5)
    cost = np.zeros((8, 8))
    for level in range(tree.n_levels):
        cost += tree.labels[level][:, None] != tree.labels[level][None, :]
    emd = ht.tree_emd(p, 0, [tree], alpha=0.0, beta=1.0) * tree.n_leaves / 2
    for i in range(5):
        for j in range(5):
            assert emd[i, j] == pytest.approx(ot.emd2(p[i], p[j], cost), abs=1e-12)


def test_levels_and_distinct_differ_by_the_repeated_folders():
    tree = PartitionTree([[0, 0, 0], [0, 0, 1], [0, 0, 1], [0, 1, 2]])
    x = np.array([[0.0, 0.0, 0.0], [3.0, 3.0, 6.0]])
    levels, distinct = (ht.tree_emd(x, 0, [tree], weights=w)[0, 1] for w in ("levels", "distinct"))
    # root 4; {0, 1} 3·2/3 on two levels; {2} 6/3 on three; {0}, {1} 3/3 each
    assert levels == pytest.approx(4 + 2 * 2 + 3 * 2 + 2)
    assert distinct == pytest.approx(4 + 2 + 2 + 2)


@pytest.mark.parametrize("alpha", [8.0, 30.0, -30.0, -140.0])
def test_weights_by_level_do_not_cancel(alpha):
    """Exactly 2^(-alpha level), summed over the levels of a folder, also where that is 2^-56 of the root's."""
    labels = np.stack([np.minimum(np.arange(8), level) for level in range(8)])  # one leaf leaves on every level
    tree = PartitionTree(labels)
    folders = tree.distinct
    for folder, weight in enumerate(folder_weights(tree, alpha, 0.0, "levels")):
        levels = range(folders.level[folder], folders.level[folder] + folders.stands_on[folder])
        assert weight == pytest.approx(math.fsum(2.0 ** (-alpha * level) for level in levels), rel=1e-14)
    x = np.random.default_rng(0).standard_normal((5, 8))
    assert (ht.tree_emd(x, 0, [tree], alpha=alpha) > 0).sum() == 20
    assert ht.organize_array(x, ht.Questionnaire(alpha=alpha)).trees[0].n_leaves == 5


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(1, 5), (3, 1), (33, 1025), (65, 4100), (130, 7), (70, 4096)])
def test_pairwise_l1_equals_scipy(shape, dtype):
    x = np.random.default_rng(1).standard_normal(shape).astype(dtype)
    total = np.zeros((shape[0], shape[0]))
    add_pairwise_l1(x, total)
    expected = squareform(pdist(x.astype(np.float64), "cityblock")) if shape[0] > 1 else np.zeros((1, 1))
    # float32: partial sums of 1024 terms in 8 or more lanes
    np.testing.assert_allclose(total + total.T, expected, rtol=2e-6 if dtype == np.float32 else 1e-13)
    assert not np.tril(total).any()
    for n_first in {1, -(-shape[0] // 2), shape[0] - 1} - {0}:
        few = np.zeros((n_first, shape[0]))
        add_pairwise_l1(x, few)
        np.testing.assert_array_equal(few, total[:n_first])


def dense_emd(x, axis, trees, missing):
    """Weighted means over all pairs of nodes from products with membership matrices, then pair by pair."""
    members = [np.concatenate([np.equal.outer(np.unique(k), k) for k in tree.labels]) * 1.0 for tree in trees]
    weights = np.outer(*[m.mean(axis=1) for m in members]).ravel()
    here = ~np.moveaxis(missing, axis, 0)
    sums, counts = (
        np.einsum("iab,ja,kb->ijk", v, *members, optimize=True).reshape(len(here), -1)
        for v in (np.where(here, np.moveaxis(x, axis, 0), 0), here * 1.0)
    )
    means, present = sums / np.maximum(counts, 1), counts > 0
    result = np.zeros((len(here), len(here)))
    for i in range(len(here)):
        both = present[i] & present
        kept = both @ weights
        terms = (np.abs(means[i] - means) * both) @ weights
        with np.errstate(divide="ignore"):
            result[i] = np.where(kept > 0, terms * weights.sum() / np.where(kept > 0, kept, 1), np.inf)
    np.fill_diagonal(result, 0)
    return result


MASKS = {
    "nothing": lambda rng, shape: np.zeros(shape, bool),
    "anything": lambda rng, shape: rng.random(shape) < 0.5,
    "shared by axis 0": lambda rng, shape: np.triu(np.ones(shape[1:], bool), 1),
    "shared by axis 1": lambda rng, shape: rng.random((shape[0], 1, shape[2])) < 0.5,
    "shared by axis 2": lambda rng, shape: rng.random((*shape[:2], 1)) < 0.5,
    "shared by two axes": lambda rng, shape: rng.random((shape[1], 1)) < 0.5,
}


# Slices in whole bands of 16 and in a part of one, entries next to each other in memory along each of the axes,
# and runs of outer folders that must carry unfinished sums over.
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize(("shape", "at_a_time"), [((40, 35, 50), 1 << 14), ((16, 33, 48), 1)])
def test_many_slices_and_many_runs(shape, at_a_time, axis, mask, monkeypatch):
    monkeypatch.setattr(averages, "_SUMS_AT_A_TIME", at_a_time)
    monkeypatch.setattr(averages, "BLOCK", 1)
    rng = np.random.default_rng(2)
    x = rng.standard_normal(shape)
    missing = mask(rng, shape)
    trees = [PartitionTree.halving(n).take(rng.permutation(n)) for i, n in enumerate(shape) if i != axis]
    expected = dense_emd(x, axis, trees, np.broadcast_to(missing, shape))
    for same in (missing, np.broadcast_to(missing, shape).copy()):
        np.testing.assert_allclose(ht.tree_emd(x, axis, trees, mask=same), expected, rtol=1e-10)


@pytest.mark.parametrize(("n_slices", "at_a_time"), [(1, 1000), (10, 100), (500, 2), (10**6, 1)])
def test_runs_bound_the_memory(n_slices, at_a_time, monkeypatch):
    """10,000 sums at a time, of 10 inner folders in every slice; but one step at least."""
    monkeypatch.setattr(averages, "_SUMS_AT_A_TIME", 10_000)
    monkeypatch.setattr(averages, "BLOCK", 8)
    trees = [PartitionTree.halving(128), PartitionTree.flat(9)]
    products = averages.Products.of(trees, [np.ones(len(tree.distinct)) for tree in trees])
    runs = products.runs(n_slices)
    assert [run.start for run in runs] == list(range(0, 255, at_a_time))
    assert [run.stop for run in runs] == [*(run.start for run in runs[1:]), 255]


def test_kind_of_array_is_kept():
    x = np.random.default_rng(3).standard_normal((4, 6))
    trees = [PartitionTree.halving(6)]
    reference = ht.tree_emd(x, 0, trees)
    assert isinstance(reference, np.ndarray)
    as_tensor = ht.tree_emd(torch.from_numpy(x), 0, trees)
    assert isinstance(as_tensor, torch.Tensor)
    assert as_tensor.dtype == torch.float64
    np.testing.assert_array_equal(as_tensor.numpy(), reference)
    np.testing.assert_array_equal(ht.tree_emd(np.asfortranarray(x), 0, trees), reference)
    np.testing.assert_array_equal(ht.tree_emd(x[::-1], 0, trees), reference[::-1, ::-1])
    np.testing.assert_array_equal(ht.tree_emd(x.T, 1, trees), reference)
    np.testing.assert_array_equal(ht.tree_emd(x, 0, [PartitionTree.flat(4), *trees]), reference)
    read_only = x.copy()
    read_only.flags.writeable = False
    np.testing.assert_array_equal(ht.tree_emd(read_only, -2, trees), reference)


@pytest.mark.parametrize("factor", [2.0**100, 2.0**-100, 2.0**-140, 2.0**900, 2.0**-1060])
def test_scaling_by_a_power_of_two_is_exact(factor):
    x = np.random.default_rng(4).integers(-8, 8, (5, 7)).astype(np.float64)
    trees = [PartitionTree.halving(7)]
    if 2.0**-149 <= factor < 2.0**120:
        assert (ht.tree_emd((x * factor).astype(np.float32), 0, trees) > 0).any()
    np.testing.assert_array_equal(ht.tree_emd(x * factor, 0, trees), ht.tree_emd(x, 0, trees) * factor)


def test_the_largest_numbers_have_distances():
    x = np.array([[1.7e308, 0.0], [1.6e308, 0.0], [-1.7e308, 1.0]])
    emd = ht.tree_emd(x, 0, [PartitionTree.flat(2)])
    np.testing.assert_array_equal(emd.diagonal(), 0)
    assert emd[0, 1] == pytest.approx(1e307)
    assert emd[0, 2] == np.inf  # out of range, not nan


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"trees": []}, "one tree for each axis"),
        ({"trees": [PartitionTree.flat(4)]}, "has 4 leaves, its axis has length 3"),
        ({"trees": ["tree"]}, "PartitionTree objects, got str"),
        ({"axis": 2}, "axis must be between -2 and 1"),
        ({"axis": "0"}, "axis must be an integer"),
        ({"weights": "all"}, "weights must be one of"),
        ({"alpha": 1e9}, "finite, positive folder weights"),
        ({"x": np.zeros(4)}, "at least 2 axes"),
        ({"x": np.array([["a", "b", "c"]])}, "real numbers"),
        ({"x": np.zeros((2, 3), complex)}, "real numbers"),
        ({"x": torch.zeros(2, 3, dtype=torch.complex64)}, "dense real array"),
        ({"mask": np.ones((4, 3), int)}, "mask must be boolean"),
        ({"mask": np.ones((5, 3), bool)}, "broadcast"),
        ({"mask": np.ones((4, 3), bool)}, "hides every entry"),
    ],
)
def test_wrong_arguments_are_named(change, said):
    arguments = {"x": np.eye(4, 3), "axis": 0, "trees": [PartitionTree.flat(3)]} | change
    with pytest.raises(HeadtreeError, match=said):
        ht.tree_emd(**arguments)
