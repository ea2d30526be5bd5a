import numpy as np
import pandas as pd
import pytest

from headtree.report.page_words import folder_words


@pytest.fixture
def table():
    n = 12
    return pd.DataFrame(
        {
            "name": [f"L{i // 3}H{i % 3}" for i in range(n)],
            "layer": np.arange(n) // 3,
            "head": np.arange(n) % 3,
            "entropy": np.arange(n, 0, -1.0),
            "entropy_rank": np.arange(1, n + 1),
            "place_in_tree": np.arange(n),
            "sink_share": [0.9, 0.91, 0.92] + [0.13] * 9,
            "role": ["previous token"] * 4 + ["none"] * 8,
        }
    )


def test_layers_entropy_roles_and_measures_are_said(table):
    words = folder_words(table, np.array([0, 1, 2]))
    assert words == (
        "3 heads of layer 0. Entropy high (ranks 1 to 3 of 12). Role: previous token (3 of 3). "
        "Sink share high (mean 0.91; all heads 0.325)."
    )


def test_ranges_of_layers_and_where_most_are(table):
    words = folder_words(table, np.array([0, 9, 10, 11, 3]))
    assert words.startswith(
        "5 heads of layers 0–1, 3, 3 of them in layer 3. Entropy mostly low (ranks 1 to 12 of 12)."
    )


def test_all_heads_have_no_standing(table):
    assert folder_words(table, np.arange(12)) == "12 heads of layers 0–3."


def test_one_head_and_missing_numbers(table):
    table.loc[5, "sink_share"] = np.nan
    assert folder_words(table, np.array([11])) == "1 head of layer 3. Entropy low (rank 12 of 12)."
    assert "Sink share" not in folder_words(table, np.array([4, 5]))


def test_a_bare_table_will_do():
    assert folder_words(pd.DataFrame({"layer": [0, 0, 2]}), np.array([0, 2])) == "2 heads of layers 0, 2."


def test_long_words_are_cut(table):
    table["role"] = "r" * 1000
    assert len(folder_words(table, np.array([0]))) < 200
