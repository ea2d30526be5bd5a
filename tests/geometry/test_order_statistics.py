import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headtree.geometry.order_statistics import median

KINDS = {
    "normal": lambda rng, n: rng.normal(size=n),
    "ties": lambda rng, n: rng.integers(0, 3, n).astype(float),
    "equal": lambda rng, n: np.full(n, rng.normal()),
    "last bit": lambda rng, n: 1 + rng.integers(0, 2, n) * 2.0**-52,
    "skewed": lambda rng, n: np.exp(50 * rng.normal(size=n)),
    "denormal": lambda rng, n: 1e-310 * rng.normal(size=n),
    "huge": lambda rng, n: 1.7e308 * rng.uniform(-1, 1, n),
    "one far away": lambda rng, n: np.append(rng.normal(size=n), 1e12),
}


@pytest.mark.parametrize("kind", KINDS)
@given(n=st.integers(1, 300), seed=st.integers(0, 9))
@example(n=3, seed=4)  # twice the middle of the huge ones is out of range
def test_medians_are_those_of_numpy(kind, n, seed):
    values = KINDS[kind](np.random.default_rng(seed), n)
    before = values.copy()
    with np.errstate(over="ignore"):
        assert median(values) == np.median(values)
    np.testing.assert_array_equal(values, before)
