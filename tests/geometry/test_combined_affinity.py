"""Affinities from several inputs: section 15 of ALGORITHMS once more, in plain numpy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headtree.geometry.combined_affinity import InputMatrices, centred_kernel


def kernels(n, n_inputs=3, n_parts=2, seed=0):
    """Cosines of random vectors."""
    x = np.random.default_rng(seed).standard_normal((n_parts, n_inputs, n, 5)) + 1
    x /= np.linalg.norm(x, axis=-1, keepdims=True)
    return x @ x.swapaxes(2, 3)


def literal_similarity(parts, weights):
    """The sum of both kernels: centred, with unit diagonal, and standardized over pairs."""
    n = parts.shape[2]
    pairs = [(a, b) for a in range(n) for b in range(n) if a != b]
    total = np.zeros((n, n))
    for part in parts:
        kernel = sum(w * matrix for w, matrix in zip(weights, part, strict=True))
        centring = np.eye(n) - np.ones((n, n)) / n
        centred = centring @ kernel @ centring
        unit = np.zeros((n, n))
        for a, b in np.ndindex(n, n):
            if min(centred[a, a], centred[b, b]) > 1e-9:
                unit[a, b] = centred[a, b] / np.sqrt(centred[a, a] * centred[b, b])
        off = np.array([unit[pair] for pair in pairs])
        total += (unit - off.mean()) / off.std()
    return total, pairs


def literal_affinity(parts, weights):
    total, pairs = literal_similarity(parts, weights)
    largest = max(total[pair] for pair in pairs)
    distance = largest - total
    median = np.median([distance[pair] for pair in pairs])
    affinity = np.exp(-distance / median)
    np.fill_diagonal(affinity, 1)
    return affinity


@given(n=st.integers(4, 9), n_inputs=st.integers(1, 4), n_parts=st.integers(1, 3), seed=st.integers(0, 99))
def test_kernels_are_combined_as_the_definition_says(n, n_inputs, n_parts, seed):
    parts = kernels(n, n_inputs, n_parts, seed)
    weights = np.random.default_rng(seed).dirichlet(np.ones(n_inputs))
    found = InputMatrices(parts, True)
    np.testing.assert_allclose(found.combined(weights), literal_affinity(parts, weights), rtol=1e-9)
    total, pairs = literal_similarity(parts, weights)
    similarity = found.similarity(weights)
    np.testing.assert_allclose([similarity[p] for p in pairs], [total[p] for p in pairs], rtol=1e-7, atol=1e-9)
    np.testing.assert_array_equal(np.diag(similarity), 0)


def test_a_leaf_that_equals_the_mean_is_like_no_other():
    points = np.array([[1.0, 0], [-1, 0], [0, 1], [0, -1], [0, 0]]) + 3
    centred = centred_kernel(points @ points.T)
    np.testing.assert_array_equal(centred[4], 0)
    np.testing.assert_allclose(np.diag(centred)[:4], 1)
    affinity = InputMatrices((points @ points.T)[None, None], True).combined()
    assert np.isfinite(affinity).all()
    np.testing.assert_allclose(affinity[4, :4], affinity[4, 0])


@pytest.mark.parametrize("n", [1, 2, 3, 6])
def test_equal_leaves_have_affinity_1(n):
    np.testing.assert_array_equal(InputMatrices(np.ones((2, 3, n, n)), True).combined(), 1)


@given(n=st.integers(2, 9), n_inputs=st.integers(1, 4), seed=st.integers(0, 99))
def test_affinities_are_averaged_and_one_input_alone_is_itself(n, n_inputs, seed):
    x = np.random.default_rng(seed).random((1, n_inputs, n, n))
    x = x + x.swapaxes(2, 3)
    found = InputMatrices(x, False)
    weights = np.random.default_rng(seed).dirichlet(np.ones(n_inputs))
    np.testing.assert_allclose(found.combined(weights), np.average(x[0], axis=0, weights=weights))
    np.testing.assert_allclose(found.combined(), x[0].mean(axis=0))
    for i, alone in enumerate(np.eye(n_inputs)):
        np.testing.assert_array_equal(found.combined(alone), x[0, i])
    kernel = InputMatrices(kernels(n, n_inputs, seed=seed), True)
    for i, alone in enumerate(np.eye(n_inputs)):
        np.testing.assert_array_equal(kernel.combined(alone), kernel.of_inputs([i]).combined())


@pytest.mark.parametrize("is_kernel", [True, False])
def test_relabelling_leaves_relabels_the_affinity(is_kernel):
    parts = kernels(8)[: 2 if is_kernel else 1]
    order = np.random.default_rng(1).permutation(8)
    moved = np.ascontiguousarray(parts[:, :, order][..., order])
    expected = InputMatrices(parts, is_kernel).combined()[np.ix_(order, order)]
    found = InputMatrices(moved, is_kernel).combined()
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    np.testing.assert_array_equal(found, found.T)


def test_affinity_of_items_is_their_mean_and_exactly_symmetric():
    """Chains of nearest neighbours end only if affinities are the same both ways, to the last bit."""
    labels = np.repeat(np.arange(12), [2, 3, 5, 7, 6, 3, 7, 3, 5, 6, 7, 5])
    x = np.where(labels[:, None] == labels, 0.9, np.where(labels[:, None] // 6 == labels // 6, 0.3, 0.1))[None]
    items = [np.flatnonzero(labels == item) for item in range(12)]
    found = InputMatrices(x[None], False).of_items([item.tolist() for item in items])
    expected = [[x[0][np.ix_(a, b)].mean() for b in items] for a in items]
    np.testing.assert_allclose(found.parts[0, 0], expected, rtol=1e-14)
    np.testing.assert_array_equal(found.parts, found.parts.swapaxes(2, 3))
    assert (found.n_leaves, found.n_inputs, found.is_kernel) == (12, 1, False)


def test_relabelled_leaves_are_those_of_each_input_in_its_order():
    parts = kernels(7, n_inputs=4)
    orders = np.array([np.random.default_rng(i).permutation(7)[:5] for i in range(4)])
    found = InputMatrices(parts, True).relabelled(orders)
    for part in range(2):
        for i, order in enumerate(orders):
            np.testing.assert_array_equal(found.parts[part, i], parts[part, i][np.ix_(order, order)])
