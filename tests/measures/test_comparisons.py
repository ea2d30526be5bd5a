import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from headtree.measures.comparisons import mean_ks_distance, median_of, rank_correlation


@given(n=st.integers(3, 30), seed=st.integers(0, 99))
def test_rank_correlation_is_scipys(n, seed):
    a, b = np.random.default_rng(seed).integers(0, 9, (2, n)).astype(np.float64)
    with np.errstate(all="ignore"):
        expected = stats.spearmanr(a, b).statistic if np.ptp(a) and np.ptp(b) else np.nan
    assert rank_correlation(a, b) == pytest.approx(expected, nan_ok=True)


def test_what_is_not_finite_is_left_out():
    a, b = np.array([1, 2, np.nan, 4, 5.0]), np.array([2, 3, 9, 8, np.inf])
    assert rank_correlation(a, b) == pytest.approx(1)
    assert median_of(b) == 5.5
    assert np.isnan(median_of(np.array([np.nan])))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of the p-value, which is not used
@given(rows=st.integers(2, 4), n=st.integers(1, 20), seed=st.integers(0, 99))
def test_ks_distance_is_scipys_mean_over_pairs(rows, n, seed):
    x = np.random.default_rng(seed).integers(-3, 4, (rows, n)) + 0.5
    unit = np.abs(x) / np.linalg.norm(x, axis=1, keepdims=True)
    expected = [stats.ks_2samp(unit[i], unit[j]).statistic for i in range(rows) for j in range(rows) if i != j]
    # equal moduli of different rows differ by rounding once they are over their norms
    assert mean_ks_distance(x) == pytest.approx(np.mean(expected), abs=1e-12)


def test_size_and_sign_play_no_part():
    x = np.random.default_rng(0).standard_normal(50)
    assert mean_ks_distance(np.stack([x, -4 * x])) == 0
    assert mean_ks_distance(np.zeros((2, 5))) == 0
