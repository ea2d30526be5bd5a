"""No tree grows from rounding errors: what is equal has distance 0, to the last bit, however it is computed."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

import headtree as ht
from headtree.geometry import folder_sums
from headtree.geometry.affinity import initial_affinity
from headtree.geometry.emd import _without_rounding_errors, emd_matrix
from headtree.geometry.folder_sums import Products
from headtree.trees.tree import PartitionTree
from tests.questionnaire.test_lazy_arrays import OnDemand

pytestmark = pytest.mark.filterwarnings("ignore:all slices along")

SHAPES = [(3, 25, 37), (24, 5, 21), (17, 16), (2, 3, 4, 5)]


def random_trees(rng, shape, axis):
    return [PartitionTree.halving(n).take(rng.permutation(n)) for i, n in enumerate(shape) if i != axis]


def assert_flat(org):
    assert all(tree.n_levels <= 2 for tree in (*org.trees, *(t for t in org.initial_trees if t is not None)))
    assert not any(np.where(np.isfinite(d), d, 0).any() for d in org.distances)
    assert len([note for note in org.status.notes if "its tree is flat" in note]) == len(org.shape)


@pytest.mark.parametrize("initial", ["cosine", "correlation", "gaussian"])
@pytest.mark.parametrize("value", [1.0, -3.5, 0.1, 1e-300, 3e38])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_constant_array_is_flat(shape, value, initial):
    assert_flat(ht.organize_array(np.full(shape, value), ht.Questionnaire(initial=initial)))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("alpha", "beta"), [(0, 1), (2, 1), (0, 2), (2, 2), (-1, 0.5)])
@pytest.mark.parametrize("seed", range(3))
def test_a_constant_array_with_missing_entries_is_flat(seed, alpha, beta, dtype):
    rng = np.random.default_rng(seed)
    shape = [(6, 7, 8), (24, 5, 21), (33, 18)][seed]
    org = ht.organize_array(
        np.full(shape, 0.7, dtype),
        ht.Questionnaire(alpha=alpha, beta=beta),
        mask=rng.random(shape) < 0.3,
    )
    assert_flat(org)


@pytest.mark.parametrize(("dtype", "exponent"), [(np.float32, -23), (np.float64, -52)])
def test_entries_that_differ_in_the_last_bit_are_flat(dtype, exponent):
    rng = np.random.default_rng(0)
    x = (1 + 2.0**exponent * (rng.random((9, 20, 17)) < 0.5)).astype(dtype)
    assert_flat(ht.organize_array(x))


def test_differences_above_rounding_are_found():
    """A bound, not a larger cut: blocks of relative size 1e-11 in float64 and 1e-5 in float32 are organized."""
    blocks = np.kron(np.random.default_rng(1).standard_normal((4, 4)), np.ones((8, 8)))
    for dtype, size in ((np.float64, 1e-11), (np.float32, 1e-5)):
        trees = ht.organize_array((1 + size * blocks).astype(dtype)).trees
        for tree in trees:
            assert {frozenset(range(8 * i, 8 * i + 8)) for i in range(4)} <= {
                frozenset(leaves.tolist()) for level in range(tree.n_levels) for leaves in tree.folders(level)
            }


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_equal_slices_have_distance_zero(axis, masked, dtype, monkeypatch):
    """Wherever they are: in whole bands of 16 slices or the last few, in any tile, in any number of runs."""
    monkeypatch.setattr(folder_sums, "_SUMS_AT_A_TIME", 1 << 12)
    rng = np.random.default_rng(3)
    shape = (40, 37, 35)
    x, mask = rng.standard_normal(shape).astype(dtype), rng.random(shape) < 0.4
    copies = rng.integers(0, 5, size=shape[axis])
    x, mask = np.take(x, copies, axis), np.take(mask, copies, axis)
    for trees in (random_trees(rng, shape, axis), [PartitionTree.flat(n) for n in np.delete(shape, axis)]):
        distances = ht.tree_emd(x, axis, trees, mask=mask if masked else None)
        np.testing.assert_array_equal(distances == 0, copies[:, None] == copies)
        np.testing.assert_array_equal(distances, distances.T)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_constant_slices_with_different_masks_have_distance_zero(dtype):
    rng = np.random.default_rng(4)
    x = np.broadcast_to(rng.choice([0.3, 0.7, 0.1], size=30)[:, None, None], (30, 20, 21)).astype(dtype)
    distances = ht.tree_emd(x, 0, random_trees(rng, x.shape, 0), alpha=2, beta=2, mask=rng.random(x.shape) < 0.5)
    same = x[:, 0, 0][:, None] == x[:, 0, 0]
    np.testing.assert_array_equal(distances == 0, same)


@pytest.mark.parametrize("seed", range(4))
def test_masked_distances_are_symmetric(seed):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((70, 9, 11)).astype(np.float32 if seed % 2 else np.float64)
    distances = ht.tree_emd(x, 0, random_trees(rng, x.shape, 0), alpha=1, mask=rng.random(x.shape) < 0.9)
    np.testing.assert_array_equal(distances, distances.T)


def test_slices_that_share_no_folder_are_infinitely_far():
    x, mask = np.arange(8.0).reshape(2, 2, 2), np.zeros((2, 2, 2), bool)
    mask[0] = True
    trees = [PartitionTree.halving(2)] * 2
    np.testing.assert_array_equal(ht.tree_emd(x, 0, trees, mask=mask), [[0, np.inf], [np.inf, 0]])


def test_the_bound_covers_the_errors_of_float32():
    """Sums in float32 differ from those in float64 by less than the bound says."""
    rng = np.random.default_rng(5)
    shape = (20, 60, 50)
    x = torch.from_numpy(rng.random(shape).astype(np.float32) + 1)
    trees = [PartitionTree.flat(60), PartitionTree.halving(50)]
    products = Products.of(trees, [np.ones(len(tree.distinct)) for tree in trees])
    assert products.n_additions == 59 + 6
    exact = ht.tree_emd(x.double().numpy(), 0, trees)
    rounded = ht.tree_emd(x.numpy(), 0, trees)
    norms = ht.tree_emd(np.concatenate([x.numpy(), np.zeros((1, 60, 50))]), 0, trees)[-1, :-1]
    assert (np.abs(exact - rounded) <= (59 + 6 + 8) * 2.0**-24 * (norms[:, None] + norms)).all()


def test_sums_above_the_bound_are_unchanged():
    rng = np.random.default_rng(6)
    x = torch.from_numpy(rng.random((5, 6, 7)))
    products = Products.of([PartitionTree.flat(6), PartitionTree.flat(7)], [np.ones(7), np.ones(8)])
    sums = torch.from_numpy(1 + rng.random((5, 5)))
    assert _without_rounding_errors(sums, x, None, 0, products) is sums


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sums_up_to_the_bound_are_zero(dtype):
    """Means of ones are 1, so that two slices have 2 * 7 * 8 together; in float32, zeros then prove to be zeros."""
    x = torch.ones(5, 6, 7, dtype=dtype)
    products = Products.of([PartitionTree.flat(6), PartitionTree.flat(7)], [np.ones(7), np.ones(8)])
    assert products.n_additions == 5 + 6
    bound = (5 + 6 + 8) * torch.finfo(dtype).eps / 2 * 2 * 7 * 8
    for share, is_left in ((0.999, False), (1.001, True)):
        sums = torch.full((5, 5), share * bound, dtype=torch.float64)
        assert _without_rounding_errors(sums, x, None, 0, products).all() == is_left
        assert _without_rounding_errors(sums, x, None, 0, products).any() == is_left


def test_the_most_additions_are_those_on_the_longest_way_up():
    """The first leaf is added to two others of its folder, and their sum to the leaf next to it."""
    tree = PartitionTree([[0, 0, 0, 0], [0, 0, 0, 1], [0, 1, 2, 3]])
    assert Products.of([tree], [np.ones(len(tree.distinct))]).n_additions == 3


def test_float32_has_the_distances_that_its_entries_have_in_float64():
    """Also if they are below the errors of sums in float32, and small beside other slices."""
    rng = np.random.default_rng(8)
    x = (1 + 2e-6 * rng.standard_normal((6, 999))).astype(np.float32)
    x[:3] *= np.float32(2.0**-10)
    trees = [PartitionTree.flat(999)]
    exact = ht.tree_emd(x.astype(np.float64), 0, trees)
    np.testing.assert_allclose(ht.tree_emd(x, 0, trees), exact, rtol=1e-5)


@pytest.mark.parametrize("n_first", [1, 4])
def test_rows_of_the_first_slices_have_no_rounding_errors_either(n_first):
    """Equal entries, of which slices have different ones; slices that are not among the first count as well."""
    rng = np.random.default_rng(7)
    x, missing = np.full((9, 60, 50), 0.7, np.float32), rng.random((9, 60, 50)) < 0.5
    x[6] = 0.3
    values, mask = (torch.from_numpy(each) for each in (np.where(missing, 0, x), missing))
    trees = [PartitionTree.flat(60), PartitionTree.flat(50)]
    found = emd_matrix(values, 0, trees, 0.0, 1.0, "levels", mask, n_first)
    np.testing.assert_array_equal(found > 0, np.arange(9)[None] == [[6]] * n_first)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_correlation_of_constant_slices_is_none(dtype):
    x = torch.full((6, 30, 7), 0.1, dtype=dtype)
    x[3:] = torch.arange(210, dtype=dtype).reshape(30, 7)
    affinity = initial_affinity("correlation", x, 0)
    np.testing.assert_array_equal(affinity[:3], np.eye(6)[:3])
    torch.testing.assert_close(affinity[3:, 3:], torch.ones(3, 3, dtype=torch.float64))


def test_the_correlation_of_slices_that_differ_in_the_last_bit_is_none():
    """Half a unit in the last place of entries just below 2, which a mean in float32 is rounded to."""
    x = (2 - 2.0**-22 + 2.0**-23 * (np.random.default_rng(0).random((5, 20, 21)) < 0.5)).astype(np.float32)
    np.testing.assert_array_equal(initial_affinity("correlation", torch.from_numpy(x), 0), np.eye(5))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("entry", [1, 0.1, 1.7])
@pytest.mark.parametrize("is_lazy", [False, True])
def test_entries_that_differ_in_the_last_bit_give_flat_first_trees(dtype, entry, is_lazy):
    low = dtype(entry)
    x = np.where(np.random.default_rng(0).random((24, 7, 21)) < 0.5, low, np.nextafter(low, dtype(9)))
    settings = ht.Questionnaire(initial="correlation", samples=16)
    given, options = (OnDemand(x), {"memory": 8000}) if is_lazy else (x, {})
    with pytest.warns(ht.HeadtreeWarning, match="its tree is flat"):
        org = ht.organize_array(given, settings, **options)
    assert all(tree == ht.PartitionTree.flat(n) for tree, n in zip(org.trees, x.shape, strict=True))
    assert all(tree is None or tree == ht.PartitionTree.flat(tree.n_leaves) for tree in org.initial_trees)


THREADS = """
import sys, numpy as np, torch, headtree as ht
rng = np.random.default_rng(0)
x, mask = rng.standard_normal((130, 12, 300)).astype(np.float32), rng.random((130, 12, 300)) < 0.4
before, masked = rng.standard_normal((64, 40, 200)).astype(np.float32), rng.standard_normal((131, 33, 77))
for n in (1, 2, 3):
    torch.set_num_threads(n)
    ht.organize_array(before, ht.Questionnaire(n_iter=1))  # what ran before must not matter either
    other = ht.organize_array(masked, ht.Questionnaire(n_iter=1), mask=masked < -1)
    org = ht.organize_array(x, ht.Questionnaire(n_iter=1), mask=mask)
    trees = [ht.PartitionTree.halving(k) for k in x.shape[1:]]
    d = ht.tree_emd(x, 0, trees, mask=mask)
    found = *org.distances, *org.affinities, *other.distances, *other.affinities
    print(hash(d.tobytes()), *(hash(a.tobytes()) for a in found))
    print(*(hash(t.labels.tobytes()) for t in (*org.trees, *other.trees)))
"""


def test_results_do_not_depend_on_the_number_of_threads():
    """In processes with 1, 2 and 3 threads, and after any other number of threads was used in the same process."""
    said = set()
    for n in ("1", "3"):
        env = os.environ | {"OMP_NUM_THREADS": n, "OPENBLAS_NUM_THREADS": n, "PYTHONHASHSEED": "0"}
        done = subprocess.run([sys.executable, "-c", THREADS], env=env, capture_output=True, text=True, check=True)
        lines = done.stdout.splitlines()
        said |= set(zip(lines[::2], lines[1::2], strict=True))
    assert len(said) == 1
