import numpy as np
import pytest
from scipy import stats

from headtree.measures.jackknife import Estimate, difference_of, jackknife, mean_of, mean_over_pairs
from headtree.study.claims.verdict import Claim, Finding

CLAIM = Claim("key", "fig. 0", "says", "printed", "statistic", limit=0.5)


def test_of_a_mean_it_is_students_interval():
    values = np.random.default_rng(0).standard_normal(7)
    found = jackknife(mean_of(values), 7)
    expected = stats.t.interval(0.95, 6, values.mean(), stats.sem(values))
    assert found.number == pytest.approx(values.mean())
    np.testing.assert_allclose(found.interval, expected)


def test_of_a_difference_it_is_welchs_interval():
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal(6), 3 * rng.standard_normal(9)
    found = jackknife(difference_of(mean_of(a), mean_of(b)), 6, 9)
    expected = stats.ttest_ind(a, b, equal_var=False).confidence_interval(0.95)
    np.testing.assert_allclose(found.interval, expected)
    assert found.n_inputs == (6, 9)


def test_intervals_over_pairs_cover():
    """A mean over pairs of inputs: of 300 draws about 95 % of the intervals hold the true value, 5."""
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(300):
        x = 1 + rng.standard_normal((8, 5))
        low, high = jackknife(mean_over_pairs(x @ x.T), 8).interval
        hits += low <= 5 <= high
    assert 0.88 <= hits / 300 <= 0.99


def test_pairs_leave_out_the_diagonal():
    table = np.array([[9.0, 1, 2], [3, 9, 4], [5, 6, 9]])
    assert mean_over_pairs(table)(np.arange(3)) == pytest.approx(3.5)
    assert mean_over_pairs(table)(np.array([0, 2])) == pytest.approx(3.5)
    assert np.isnan(mean_over_pairs(table)(np.array([1])))


@pytest.mark.parametrize(
    ("interval", "verdict"),
    [
        ((0.51, 0.9), "agrees"),
        ((-1.0, 0.49), "differs"),
        ((0.4, 0.6), "cannot be decided"),
        ((0.5, 0.6), "cannot be decided"),
        ((np.nan, np.nan), "cannot be decided"),
    ],
)
def test_the_verdict_follows_from_interval_and_limit(interval, verdict):
    assert Finding(CLAIM, "net", Estimate(0.5, interval, (6,))).verdict == verdict


@pytest.mark.parametrize("n", [1, 2])
def test_two_inputs_decide_nothing(n):
    found = jackknife(mean_of(np.full(n, 7.0)), n)
    assert found.number == 7
    assert np.isnan(found.interval).all()


def test_equal_inputs_have_a_point_for_an_interval():
    assert jackknife(mean_of([2.0, 2.0, 2.0]), 3).interval == (2.0, 2.0)
