import numpy as np
import pandas as pd
import pytest

from headtree.report.words.folder_sentences import folder_sentences


@pytest.fixture
def table():
    n = 12
    return pd.DataFrame(
        {
            "name": [f"L{i // 3}H{i % 3}" for i in range(n)],
            "layer": np.arange(n) // 3,
            "head": np.arange(n) % 3,
            "structure": np.arange(n, 0, -1.0),
            "structure_rank": np.arange(1, n + 1),
            "place_in_tree": np.arange(n),
            "sink_share": [0.9, 0.91, 0.92] + [0.13] * 9,
            "role": ["previous token"] * 4 + [np.nan] * 8,
        }
    )


def sentence(table, heads):
    return folder_sentences(table, [np.array(heads)])[0]


def test_layers_structure_roles_and_measures_are_said(table):
    assert sentence(table, [0, 1, 2]) == (
        "3 heads, layer 0, previous token. Structure score high (ranks 1 to 3 of 12). "
        "Sink share high (mean 0.91; all heads 0.325)."
    )


def test_every_folder_has_its_own_words(table):
    folders = [np.array([0, 1, 2]), np.array([9, 10]), np.array([4])]
    assert folder_sentences(table, folders) == [sentence(table, folder) for folder in folders]


def test_ranges_of_layers_and_mixed_scores(table):
    assert sentence(table, [0, 9, 10, 11, 3]).startswith(
        "5 heads, layers 0-1, 3. Structure score mostly low (ranks 1 to 12 of 12)."
    )


def test_all_heads_have_no_standing(table):
    assert sentence(table, range(12)) == "12 heads, layers 0-3."


def test_one_head_and_missing_numbers(table):
    table.loc[5, "sink_share"] = np.nan
    table.loc[6, "sink_share"] = np.inf
    assert sentence(table, [11]) == "1 head, layer 3. Structure score low (rank 12 of 12)."
    assert "Sink share" not in sentence(table, [4, 5])
    assert "Sink share" not in sentence(table, [6, 7])
    assert "Sink share high" in sentence(table, [0, 1])


def test_a_bare_table_will_do():
    assert sentence(pd.DataFrame({"layer": [0, 0, 2], "head": [0, 1, 0]}), [0, 2]) == "2 heads, layers 0 and 2."


def test_long_words_are_cut(table):
    table["role"] = "r" * 1000
    assert len(sentence(table, [0])) < 200
