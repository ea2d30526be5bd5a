import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics.pairwise import nan_euclidean_distances

from headtree.geometry import affinity as affinities
from headtree.geometry.affinity import distance_affinity, initial_affinity, sampled_affinity, slice_powers
from tests import oracles


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(0, 2), st.booleans())
def test_cosine_is_over_entries_present_in_both(seed, axis, masked):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((4, 5, 3))
    x[0] = 0
    missing = rng.random(x.shape) < 0.5 if masked else None
    values = torch.from_numpy(np.where(missing, 0, x) if masked else x)
    actual = initial_affinity("cosine", values, axis, torch.from_numpy(missing) if masked else None)
    np.testing.assert_allclose(actual.numpy(), oracles.cosine(x, axis, missing), atol=1e-14)


@pytest.mark.parametrize("kind", ["cosine", "correlation", "gaussian"])
@pytest.mark.parametrize("same", [1, 2])
def test_a_mask_that_is_the_same_along_another_axis(same, kind):
    """Counted once for all of that axis, to the same numbers."""
    rng = np.random.default_rng(3)
    shape = [7, 5, 6]
    shape[same] = 1
    missing, x = torch.from_numpy(rng.random(shape) < 0.4).expand(7, 5, 6), rng.standard_normal((7, 5, 6))
    values = torch.from_numpy(np.where(missing, 0, x))
    torch.testing.assert_close(
        initial_affinity(kind, values, 0, missing), initial_affinity(kind, values, 0, missing.clone())
    )
    if kind == "cosine":
        np.testing.assert_allclose(
            initial_affinity(kind, values, 0, missing), oracles.cosine(x, 0, missing.numpy()), atol=1e-14
        )


def test_correlation_is_the_cosine_of_centred_slices():
    x = np.random.default_rng(0).standard_normal((6, 7, 8)) + 3
    for axis in range(3):
        flat = np.moveaxis(x, axis, 0).reshape(x.shape[axis], -1)
        expected = np.clip(np.corrcoef(flat), 0, 1)
        actual = initial_affinity("correlation", torch.from_numpy(x), axis)
        np.testing.assert_allclose(actual.numpy(), expected, atol=1e-12)


@pytest.mark.parametrize("masked", [False, True])
def test_gaussian_has_the_median_distance_to_the_fifth_neighbour_as_width(masked):
    rng = np.random.default_rng(1)
    x = rng.standard_normal((9, 4, 5))
    missing = rng.random(x.shape) < 0.3
    flat = (np.where(missing, np.nan, x) if masked else x).reshape(9, -1)
    d = nan_euclidean_distances(flat)
    sigma = np.median([np.sort(row)[5] for row in d])
    values = torch.from_numpy(np.where(missing, 0, x) if masked else x)
    actual = initial_affinity("gaussian", values, 0, torch.from_numpy(missing) if masked else None)
    np.testing.assert_allclose(actual.numpy(), np.exp(-((d / sigma) ** 2)), atol=1e-10)


def test_gaussian_of_copies_tells_only_equality():
    x = torch.tensor([[1.0, 2.0]] * 7 + [[5.0, 0.0]] * 7, dtype=torch.float64)
    actual = initial_affinity("gaussian", x, 0)
    np.testing.assert_array_equal(actual.numpy(), np.kron(np.eye(2), np.ones((7, 7))))


def test_distances_become_affinities_by_the_median_of_the_whole_matrix():
    e = np.array([[0.0, 2.0, 4.0], [2.0, 0.0, 6.0], [4.0, 6.0, 0.0]])
    actual = distance_affinity(torch.from_numpy(e))
    np.testing.assert_allclose(actual.numpy(), np.exp(-e / np.median(e)))


def test_a_zero_median_becomes_that_of_the_positive_entries():
    e = np.zeros((4, 4))
    e[0, 1:] = e[1:, 0] = [1.0, 2.0, 3.0]
    np.testing.assert_allclose(distance_affinity(torch.from_numpy(e)).numpy(), np.exp(-e / 2))
    assert distance_affinity(torch.zeros(3, 3, dtype=torch.float64)) is None


def test_infinite_distances_are_no_affinity():
    e = np.array([[0.0, np.inf, np.inf], [np.inf, 0.0, 1.0], [np.inf, 1.0, 0.0]])
    actual = distance_affinity(torch.from_numpy(e)).numpy()
    np.testing.assert_array_equal(actual[0], [1, 0, 0])
    assert 0 < actual[1, 2] < 1


# -- from part of another axis -------------------------------------------------------------------------------------


def estimated(x, most_products, kind="cosine", mask=None):
    return sampled_affinity(kind, x, 1, mask, slice_powers(x), most_products)


@pytest.mark.parametrize("kind", ["cosine", "correlation", "gaussian"])
@pytest.mark.parametrize("strong", [None, 17])
def test_first_affinities_from_part_of_another_axis(kind, strong):
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.normal(size=(200, 12, 9)) + 2 * rng.normal(size=(1, 12, 9)))
    if strong is not None:
        x[strong] *= 200  # a slice that decides everything is taken for certain
    exact = initial_affinity(kind, x, 1)
    found = estimated(x, 12 * x.numel() // 8, kind)
    assert (found.n_taken, found.other_axis) == (48, 0)
    off = ~torch.eye(12, dtype=torch.bool)
    difference = float((found.affinity - exact)[off].square().mean().sqrt())
    assert difference < 2.5 * found.error + 1e-3
    assert found.error < 0.1


def test_as_many_slices_are_read_as_is_said(monkeypatch):
    """Half of them for certain, and a quarter in each of two halves."""
    numbers, taken = [], affinities.taken
    monkeypatch.setattr(
        affinities, "taken", lambda x, axis, some: numbers.append(len(some)) or taken(x, axis, some)
    )
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(200, 12, 9)))
    assert estimated(x, 12 * x.numel() // 8).n_taken == 48
    assert numbers == [24, 12, 12]


def test_first_affinities_do_not_depend_on_the_order_of_the_other_axis():
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.normal(size=(200, 12, 9)))
    moved = x[torch.from_numpy(rng.permutation(200))]
    ours, theirs = (estimated(y, 12 * y.numel() // 8).affinity for y in (x, moved))
    torch.testing.assert_close(ours, theirs)


def test_powers_are_sums_of_squares():
    for shape in ((4, 5), (3, 4, 5), (2, 3, 4, 5)):
        x = torch.from_numpy(np.random.default_rng(0).normal(size=shape))
        for axis, powers in enumerate(slice_powers(x)):
            others = [i for i in range(x.ndim) if i != axis]
            torch.testing.assert_close(powers, x.square().sum(dim=others))


def test_first_affinities_are_exact_where_they_can_be():
    x = torch.ones(200, 12, 9)
    assert estimated(x, 12 * x.numel() // 2) is None
    mask = torch.zeros(200, 12, 9, dtype=torch.bool)
    mask[0, 0, 0] = mask[1, 1, 1] = True
    assert estimated(x, 100, mask=mask) is None  # no axis along which the mask is the same
