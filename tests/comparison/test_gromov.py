import itertools

import numpy as np
import ot
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import pdist, squareform

from headtree.comparison.gromov import between_geometries, coupling_distance, gromov_wasserstein, profile_bound


def geometry(n, seed):
    return squareform(pdist(np.random.default_rng(seed).normal(size=(n, 3))))


def literal(a, b, coupling):
    """The definition: a sum over pairs of pairs."""
    total = 0.0
    for i, k in itertools.product(range(len(a)), repeat=2):
        for j, m in itertools.product(range(len(b)), repeat=2):
            total += (a[i, k] - b[j, m]) ** 2 * coupling[i, j] * coupling[k, m]
    return np.sqrt(total)


@given(st.integers(2, 6), st.integers(2, 6), st.integers(0, 99), st.booleans())
@settings(max_examples=25, deadline=None)
def test_the_distance_of_a_coupling_is_the_definition(n, m, seed, is_sparse):
    a, b = geometry(n, seed), geometry(m, seed + 1)
    coupling = np.outer(np.ones(n) / n, np.ones(m) / m)
    if is_sparse:
        coupling = profile_bound(a, b).coupling
    assert coupling_distance(a, b, coupling) == pytest.approx(literal(a, b, coupling), abs=1e-12)


def test_dense_and_sparse_couplings_are_summed_alike():
    a, b = geometry(20, 0), geometry(25, 1)
    coupling = np.full((20, 25), 1 / 500)  # 500 entries, more than 4 · 45
    assert coupling_distance(a, b, coupling) == pytest.approx(literal(a, b, coupling))


@given(st.integers(2, 12), st.integers(0, 999))
@settings(max_examples=40, deadline=None)
def test_heads_in_another_order_are_at_zero(n, seed):
    a = geometry(n, seed)
    order = np.random.default_rng(seed).permutation(n)
    found = gromov_wasserstein(a, a[np.ix_(order, order)])
    assert found.distance == 0
    if n > 3:  # three points can be symmetric
        assert (found.coupling.argmax(axis=0) == order).all()


def test_heads_that_are_the_same_do_not_confuse_it():
    a = geometry(6, 0)[np.ix_([0, 0, 1, 2, 2, 3, 4, 5], [0, 0, 1, 2, 2, 3, 4, 5])]
    order = np.random.default_rng(1).permutation(8)
    assert gromov_wasserstein(a, a[np.ix_(order, order)]).distance == 0


@pytest.mark.parametrize("seed", range(5))
def test_no_permutation_is_much_better(seed):
    """The solver finds local optima, from starts that are good enough for points without any structure."""
    a, b = geometry(6, seed), geometry(6, seed + 50)
    best = min(
        np.sqrt(np.mean((a - b[np.ix_(order, order)]) ** 2))
        for order in map(list, itertools.permutations(range(6)))
    )
    assert gromov_wasserstein(a, b).distance <= 1.05 * best


@given(st.integers(2, 8), st.integers(2, 8), st.integers(0, 99))
@settings(max_examples=25, deadline=None)
def test_the_profile_bound_is_that_of_the_definition_and_below_the_distance(n, m, seed):
    a, b = geometry(n, seed), geometry(m, seed + 1)
    cost = np.array([[ot.wasserstein_1d(row, other, p=2) for other in b] for row in a])
    expected = np.sqrt(ot.emd2(np.ones(n) / n, np.ones(m) / m, cost))
    bound = profile_bound(a, b)
    assert bound.distance == pytest.approx(expected, abs=1e-7)
    assert bound.coupling.sum(axis=1) == pytest.approx(np.full(n, 1 / n))
    assert bound.distance <= gromov_wasserstein(a, b).distance + 1e-9


@given(st.integers(2, 8), st.integers(0, 99))
@settings(max_examples=20, deadline=None)
def test_quick_distances_do_not_see_the_order_and_exceed_the_bound(n, seed):
    a, b = geometry(n, seed), geometry(n, seed + 1)
    order = np.random.default_rng(seed).permutation(n)
    found = between_geometries([a, a[np.ix_(order, order)], b])
    assert found[0, 1] == pytest.approx(0, abs=1e-12)
    assert found[0, 2] == pytest.approx(found[1, 2])
    assert found[0, 2] >= profile_bound(a, b).distance - 1e-9


def test_quick_distances_repeat_heads_of_the_smaller_network():
    a = geometry(4, 0)
    twice = np.repeat(np.repeat(a, 2, axis=0), 2, axis=1)  # the same heads, each twice
    assert between_geometries([a, twice])[0, 1] == pytest.approx(0, abs=1e-12)
    assert gromov_wasserstein(a, twice).distance == pytest.approx(0, abs=1e-9)
