import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headtree.bases.energies import LargestFirst, energies_by_level, energy_after_coarsest, medians, norms

KINDS = {
    "normal": lambda rng, n: rng.standard_normal(n),
    "float32": lambda rng, n: rng.standard_normal(n).astype(np.float32),
    "many zeros": lambda rng, n: rng.standard_normal(n) * (rng.random(n) < 0.3),
    "equal": lambda rng, n: np.full(n, -2.5),
    "few values": lambda rng, n: rng.integers(-2, 3, n).astype(np.float64),
    "many sizes": lambda rng, n: np.exp(30 * rng.standard_normal(n)),
    "nearly out of range": lambda rng, n: 1e300 * rng.standard_normal(n),
}


@pytest.mark.parametrize("kind", KINDS)
@given(n=st.integers(1, 3000), seed=st.integers(0, 999))
def test_sums_are_those_of_sorted_energies(kind, n, seed):
    values = KINDS[kind](np.random.default_rng(seed), n)
    counts = np.random.default_rng(seed).integers(1, n + 1, 5)
    energies = np.sort((values.astype(np.float64) / (np.abs(values).max() or 1)) ** 2)[::-1]
    left_out, fewest, total = LargestFirst.of(values).sums(counts, (0.9, 0.99))
    assert total == pytest.approx(energies.sum())
    np.testing.assert_allclose(left_out, [energies[count:][::-1].sum() for count in counts], rtol=1e-12)
    for found, share in zip(fewest, (0.9, 0.99), strict=True):
        if total == 0:
            assert found == 0
        else:  # a share may end within rounding of an energy
            assert energies[:found].sum() >= share * total * (1 - 1e-12)
            assert energies[: found - 1].sum() < share * total * (1 + 1e-12)


@given(shape=st.lists(st.integers(1, 9), min_size=1, max_size=3), seed=st.integers(0, 999))
def test_energy_after_the_coarsest_is_that_of_a_stable_sort(shape, seed):
    rng = np.random.default_rng(seed)
    supports = tuple(rng.integers(1, 5, n) for n in shape)
    values = np.exp(10 * rng.standard_normal(int(np.prod(shape))))
    product = np.ones(1, dtype=np.int64)
    for support in supports:
        product = np.outer(product, support).ravel()
    counts = rng.integers(1, len(values) + 1, 6)
    energies = (values / np.abs(values).max()) ** 2
    by_support = energies[np.argsort(-product, kind="stable")]
    expected = [by_support[count:].sum() for count in counts]
    found = energy_after_coarsest(LargestFirst.of(values), supports, counts)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@given(rows=st.integers(1, 4), n=st.integers(1, 50), seed=st.integers(0, 99))
def test_medians_are_those_of_numpy(rows, n, seed):
    values = np.random.default_rng(seed).integers(-9, 9, (rows, n)).astype(np.float64)
    np.testing.assert_array_equal(medians(values), np.median(values, axis=1))


@pytest.mark.parametrize("size", [0.0, 1.0, 1e-200, 1e200])
def test_norms_are_in_range_where_squares_are_not(size):
    values = size * np.array([[3.0, -4.0, 0.0], [0.0, 0.0, 1.0]])
    np.testing.assert_allclose(norms(values), [5 * size, size], rtol=1e-15)


def test_norms_are_summed_in_double_precision():
    values = np.full((1, 10**5), 0.1, np.float32)
    assert norms(values)[0] == pytest.approx(np.linalg.norm(values.astype(np.float64)), rel=1e-11)


def test_energies_by_level_are_literal_sums():
    rng = np.random.default_rng(0)
    c = rng.standard_normal((2, 6, 5))
    rows, columns = np.array([-1, 0, 0, 1, 3, 3]), np.array([-1, 0, 1, 1, 1])
    found = energies_by_level(c, (rows, columns), (4, 2))
    for j, k in np.ndindex(4, 2):
        np.testing.assert_allclose(found[:, j, k], (c[:, rows == j][:, :, columns == k] ** 2).sum(axis=(1, 2)))
