import numpy as np
import pandas as pd
import pytest
from scipy.stats import spearmanr

import headtree as ht
from tests.measures.examples import families


def test_recurrence_is_counted_literally():
    rng = np.random.default_rng(0)
    table = rng.standard_normal((5, 30))
    found = ht.stability(table, share=0.1)
    assert found.n_selected == 3
    top, bottom = np.zeros(30, int), np.zeros(30, int)
    for row in table:
        for head in range(30):
            top[head] += sum(other > row[head] for other in row) < 3
            bottom[head] += sum(other < row[head] for other in row) < 3
    np.testing.assert_array_equal(found.top_counts, top)
    np.testing.assert_array_equal(found.bottom_counts, bottom)
    assert len(found.to_dict()["layer"]) == 30


@pytest.mark.filterwarnings("ignore:An input array is constant")
def test_correlations_are_spearmans():
    table = np.random.default_rng(1).integers(0, 6, (4, 12)).astype(float)  # with ties
    found = ht.stability(table)
    expected = spearmanr(table, axis=1).statistic
    np.testing.assert_allclose(found.correlations, expected)
    assert found.mean_correlation == pytest.approx(expected[np.triu_indices(4, 1)].mean())


def test_table_1_names_layer_and_head():
    scores = np.arange(12.0) + np.zeros((6, 1))
    found = ht.stability(scores, heads=[(i // 4, i % 4) for i in range(12)], share=0.25)
    rows = found.table(3)
    assert [row["top"] for row in rows] == [(2, 1), (2, 2), (2, 3)]
    assert [row["bottom"] for row in rows] == [(0, 0), (0, 1), (0, 2)]
    assert {row["top_count"] for row in rows} == {6}
    assert found.mean_correlation == pytest.approx(1)
    assert found.interval == pytest.approx((1, 1))


def test_interval_covers_stable_rankings_and_noise():
    rng = np.random.default_rng(0)
    heads = rng.standard_normal(60)
    stable = ht.stability(heads + 0.3 * rng.standard_normal((8, 60)))
    low, high = stable.interval
    assert 0.8 < low <= stable.mean_correlation <= high < 1
    low, high = ht.stability(rng.standard_normal((8, 60))).interval
    assert low < 0 < high


def test_the_interval_is_the_same_on_every_run():
    table = np.random.default_rng(0).standard_normal((5, 9))
    assert ht.stability(table, rng=3).interval == ht.stability(table, rng=3).interval


def test_two_inputs_have_no_interval():
    found = ht.stability(np.random.default_rng(0).standard_normal((2, 9)))
    assert np.isnan(found.interval).all()
    assert np.isfinite(found.mean_correlation)


def test_entropies_bring_their_heads():
    atts = [families(seed) for seed in range(3)]
    entropies = [ht.head_entropy(att, ht.organize(att)) for att in atts]
    found = ht.stability(entropies)
    assert found.heads == atts[0].heads
    assert found.n_inputs == 3


def test_a_table_has_an_input_in_each_row():
    table = np.random.default_rng(0).random((3, 7))
    found = ht.stability(pd.DataFrame(table, columns=[f"L0H{i}" for i in range(7)]))
    np.testing.assert_array_equal(found.correlations, ht.stability(table).correlations)


def test_bad_input():
    with pytest.raises(ValueError, match="at least two of each, got \\(1, 4\\)"):
        ht.stability(np.zeros((1, 4)))
    with pytest.raises(ValueError, match="same number of heads"):
        ht.stability([[1.0, 2.0], [1.0, 2.0, 3.0]])
    with pytest.raises(ValueError, match="must be finite"):
        ht.stability([[1.0, np.nan], [1.0, 2.0]])
    with pytest.raises(ValueError, match="share must be"):
        ht.stability(np.zeros((3, 4)), share=0.6)
    with pytest.raises(ValueError, match="confidence must be"):
        ht.stability(np.zeros((3, 4)), confidence=95)
    with pytest.raises(ValueError, match="heads must label the 4 heads"):
        ht.stability(np.zeros((3, 4)), heads=[(0, 0)])
    assert np.isnan(ht.stability(np.zeros((3, 4))).mean_correlation)  # equal heads are not ranked


def test_the_interval_leaves_out_equal_tails_of_the_resampled_means():
    rng = np.random.default_rng(0)
    table = np.arange(20.0) + 6 * rng.standard_normal((9, 20))
    found = ht.stability(table, n_bootstrap=3000, confidence=0.8)
    means = []
    for _ in range(3000):
        draw = rng.integers(9, size=9)
        pairs = [found.correlations[i, j] for i in draw for j in draw if i != j]
        means.append(np.mean(pairs))
    for end, tail in zip(found.interval, (0.1, 0.9), strict=True):
        assert np.mean(np.array(means) < end) == pytest.approx(tail, abs=0.03)  # three standard errors
