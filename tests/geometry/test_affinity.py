import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics.pairwise import nan_euclidean_distances

from headtree._lazy_array import scaled_blocks
from headtree.geometry import affinity as affinities
from headtree.geometry.affinity import distance_affinity, initial_affinity, sampled_affinity, slice_powers
from tests import oracles
from tests.questionnaire.test_lazy_arrays import OnDemand


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


def test_cosines_of_parallel_slices_are_one_and_never_more():
    lengths, direction = (
        torch.arange(1, 21, dtype=torch.float64),
        torch.tensor([0.1, 0.7, 0.3], dtype=torch.float64),
    )
    cosines = initial_affinity("cosine", lengths[:, None] * direction, 0)
    torch.testing.assert_close(cosines, torch.ones(20, 20, dtype=torch.float64))
    assert cosines.max() == 1
    unit = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    np.testing.assert_array_equal(initial_affinity("cosine", unit, 0), [[1, 1, 0], [1, 1, 0], [0, 0, 1]])


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_affinities_do_not_depend_on_how_much_is_multiplied_at_a_time(axis, monkeypatch):
    x = torch.from_numpy(np.random.default_rng(4).standard_normal((5, 6, 7)))
    whole = initial_affinity("cosine", x, axis)
    monkeypatch.setattr(affinities, "_ENTRIES_AT_A_TIME", 8)
    torch.testing.assert_close(initial_affinity("cosine", x, axis), whole)


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


@pytest.mark.parametrize("in_blocks", [False, True])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_correlation_is_centred_by_the_entries_a_slice_has(axis, in_blocks):
    rng = np.random.default_rng(5)
    x, missing = rng.standard_normal((6, 7, 8)) + 3, rng.random((6, 7, 8)) < 0.4
    missing.swapaxes(0, axis)[2] = True
    missing.swapaxes(0, axis)[2, 1, 1] = False  # of one entry, nothing is left
    others = tuple(i for i in range(3) if i != axis)
    centred = x - np.nanmean(np.where(missing, np.nan, x), axis=others, keepdims=True)
    expected = oracles.cosine(centred, axis, missing)
    if in_blocks:
        values = scaled_blocks(OnDemand(x), "x", missing, torch.device("cpu"), 1e9)
    else:
        values = torch.from_numpy(np.where(missing, 0, x))
    actual = initial_affinity("correlation", values, axis, torch.from_numpy(missing))
    np.testing.assert_allclose(actual, expected, atol=1e-12)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_affinities_and_powers_of_blocks_are_those_of_the_whole(axis):
    x = np.random.default_rng(6).standard_normal((4, 5, 6)) + 3
    blocks = scaled_blocks(OnDemand(x), "x", None, torch.device("cpu"), 1e9)
    whole = torch.from_numpy(x)
    torch.testing.assert_close(
        initial_affinity("correlation", blocks, axis), initial_affinity("correlation", whole, axis)
    )
    torch.testing.assert_close(slice_powers(blocks)[axis] * 4.0**blocks.exponent, slice_powers(whole)[axis])


@pytest.mark.parametrize(("steps", "correlation"), [(3, 0), (8, 1)])
def test_entries_as_near_to_their_mean_as_rounding_are_equal(steps, correlation):
    """The mean of two entries is off by up to (2 + 1) u, and an entry by u: 2 eps in all; those here are 2 or 4."""
    eps = torch.finfo(torch.float64).eps
    x = torch.tensor([[1.0, 1 + steps * eps], [0.0, 1.0]], dtype=torch.float64)
    assert float(initial_affinity("correlation", x, 0)[0, 1]) == pytest.approx(correlation)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("n", "unit"), [(9, 1.0), (9, 1e-3), (4, 1.0)])
def test_gaussian_has_the_median_distance_to_the_fifth_neighbour_as_width(n, unit, masked):
    """In any unit; of fewer slices, the farthest is taken."""
    rng = np.random.default_rng(1)
    x = unit * rng.standard_normal((n, 4, 5))
    missing = rng.random(x.shape) < 0.3
    flat = (np.where(missing, np.nan, x) if masked else x).reshape(n, -1)
    d = nan_euclidean_distances(flat)
    sigma = np.median([np.sort(row)[min(5, n - 1)] for row in d])
    values = torch.from_numpy(np.where(missing, 0, x) if masked else x)
    actual = initial_affinity("gaussian", values, 0, torch.from_numpy(missing) if masked else None)
    np.testing.assert_allclose(actual.numpy(), np.exp(-((d / sigma) ** 2)), atol=1e-10)


def test_gaussian_of_copies_tells_only_equality():
    x = torch.tensor([[1.0, 2.0]] * 7 + [[5.0, 0.0]] * 7, dtype=torch.float64)
    actual = initial_affinity("gaussian", x, 0)
    np.testing.assert_array_equal(actual.numpy(), np.kron(np.eye(2), np.ones((7, 7))))


def test_distances_become_affinities_by_the_median_of_the_whole_matrix():
    e = np.array([[0.0, 2.0, 4.0], [2.0, 0.0, 6.0], [4.0, 6.0, 0.0]])
    for unit in (1.0, 0.1):
        actual = distance_affinity(torch.from_numpy(unit * e))
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


@pytest.mark.parametrize("kind", ["cosine", "gaussian"])
def test_slices_that_are_drawn_stand_for_those_between_them(kind):
    """8 of 32 for certain; of the others, the middle one of every 3 by power counts three times, in a half six."""
    x = torch.from_numpy(np.random.default_rng(2).normal(size=(32, 6, 5)) + 1)
    ranked = x.square().sum(dim=(1, 2)).argsort(descending=True)
    certain, drawn = x[ranked[:8]], x[ranked[8:][1::3]]

    def expected(some, times):
        return initial_affinity(kind, torch.cat([certain, some * times**0.5]), 1)

    found = estimated(x, 1, kind)
    torch.testing.assert_close(found.affinity, expected(drawn, 3))
    off = ~torch.eye(6, dtype=torch.bool)
    difference = (expected(drawn[::2], 6) - expected(drawn[1::2], 6))[off]
    assert found.error == pytest.approx(float(difference.square().mean().sqrt()) / 2)


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


@pytest.mark.parametrize("order", [1, -1])
def test_powers_are_sums_of_squares_in_whatever_order_threads_add_them(order, monkeypatch):
    monkeypatch.setattr(affinities, "for_each_task", lambda task, n: [task(i) for i in range(n)[::order]])
    for shape in ((4, 5), (3, 4, 5), (2, 3, 4, 5)):
        x = torch.from_numpy(np.random.default_rng(0).normal(size=shape))
        for axis, powers in enumerate(slice_powers(x)):
            others = [i for i in range(x.ndim) if i != axis]
            torch.testing.assert_close(powers, x.square().sum(dim=others))


def test_first_affinities_are_exact_where_they_can_be():
    x = torch.ones(201, 12, 9)
    assert estimated(x, 12 * x.numel() // 2) is None
    assert estimated(x[:16], 1) is None  # no fewer than 16 slices are taken
    x = x[:200]
    mask = torch.zeros(200, 12, 9, dtype=torch.bool)
    mask[0, 0, 0] = mask[1, 1, 1] = True
    assert estimated(x, 100, mask=mask) is None  # no axis along which the mask is the same
