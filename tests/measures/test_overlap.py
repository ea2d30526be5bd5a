import numpy as np
import pandas as pd
import pytest
from scipy.stats import spearmanr

import headtree as ht
from headtree.measures.overlap import overlap


@pytest.fixture(scope="module")
def heads():
    rng = np.random.default_rng(0)
    structure = rng.standard_normal(80)
    return pd.DataFrame(
        {
            "name": [f"L0H{i}" for i in range(80)],
            "layer": 0,
            "structure": structure,
            "same": np.exp(3 * structure),
            "opposite": -(structure**3),
            "related": structure + 1.2 * rng.standard_normal(80),
            "against": 1.2 * rng.standard_normal(80) - structure,
            "other": rng.standard_normal(80),
            "tied": rng.integers(0, 3, 80),
            "constant": 1.0,
            "gaps": np.where(np.arange(80) < 60, structure, np.nan),
        }
    )


def test_it_tells_what_is_contained_from_what_is_not(heads):
    table = overlap(heads).set_index("measure")
    assert table.loc["same", "correlation"] == pytest.approx(1)
    assert table.loc["opposite", "correlation"] == pytest.approx(-1)
    assert table["contained"].to_dict() == {
        "same": "largely",
        "opposite": "largely",
        "gaps": "largely",
        "related": "partly",
        "against": "partly",
        "other": "no",
        "tied": "no",
        "constant": "",
    }
    assert table.loc["gaps", "n_heads"] == 60
    assert table.index[-1] == "constant"
    strength = table["correlation"].abs().to_numpy()[:-1]
    assert (np.diff(strength) <= 0).all()


def test_correlations_are_scipys(heads):
    table = overlap(heads).set_index("measure")
    for name in ("related", "other", "tied"):
        assert table.loc[name, "correlation"] == pytest.approx(spearmanr(heads[name], heads["structure"]).statistic)
        assert table.loc[name, "low"] < table.loc[name, "correlation"] < table.loc[name, "high"]


def test_the_interval_is_the_literal_bootstrap(heads):
    table = overlap(heads, columns=["tied"], n_bootstrap=50, confidence=0.9, rng=5)
    draws = np.random.default_rng(5).integers(80, size=(50, 80))
    values = [spearmanr(heads["tied"][draw], heads["structure"][draw]).statistic for draw in draws]
    np.testing.assert_allclose(table.loc[0, ["low", "high"]].astype(float), np.quantile(values, [0.05, 0.95]))


def test_intervals_cover_the_truth():
    """Normal pairs have a Spearman correlation of 6/π asin(ρ/2), which 95 % intervals cover 95 times of 100."""
    rng, covered = np.random.default_rng(1), 0
    for _ in range(100):
        x = rng.standard_normal(100)
        table = overlap(
            pd.DataFrame({"structure": x, "y": 0.6 * x + 0.8 * rng.standard_normal(100)}), n_bootstrap=200, rng=rng
        )
        covered += table.loc[0, "low"] <= 6 / np.pi * np.arcsin(0.3) <= table.loc[0, "high"]
    assert 86 <= covered <= 100


def test_bad_input(heads):
    with pytest.raises(ht.HeadtreeError, match="DataFrame"):
        overlap([1, 2])
    with pytest.raises(ht.HeadtreeError, match="reference must be a numeric column"):
        overlap(heads, "name")
    with pytest.raises(ht.HeadtreeError, match="columns must be numeric"):
        overlap(heads, columns=["nothing"])
    with pytest.raises(ht.HeadtreeError, match="confidence"):
        overlap(heads, confidence=2)
    short = overlap(heads.iloc[:2], columns=["other"])
    assert np.isnan(short.loc[0, "correlation"])
