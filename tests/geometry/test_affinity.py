import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics.pairwise import nan_euclidean_distances

from headtree.geometry.affinity import distance_affinity, initial_affinity
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
