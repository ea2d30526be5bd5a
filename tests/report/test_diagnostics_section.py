import json
from dataclasses import replace

import numpy as np
import pytest

import headtree as ht
from headtree.report.words.diagnostics_section import diagnostics_section, tree_agreements
from tests.measures.attention_examples import WORDS, previous, probs, to_key, uniform

N = len(WORDS)


@pytest.fixture(scope="module")
def example():
    """Twelve heads in three layers; the tree puts heads of one role together."""
    kinds = [previous(N), to_key(N, 0), uniform(N)]
    heads = [0.9 * kinds[i % 3] + 0.1 * uniform(N) for i in range(12)]
    ids = [(i // 4, i % 4) for i in range(12)]
    found = ht.diagnostics(probs(*heads, heads=ids, queries=WORDS, keys=WORDS))
    role = np.arange(12) % 3
    tree = ht.PartitionTree(np.stack([np.zeros(12, int), role, np.arange(12)]))
    return found, ht.Consensus(
        "attention", tree, np.eye(12), np.ones(3), np.ones(3), None, (), n_inputs=4, n_bootstrap=10
    )


def contained(heads, found):
    return ht.overlap(heads[["name", "structure"]].merge(found.heads, on="name"))


def test_roles_families_and_what_the_tree_knows(example):
    found, consensus = example
    content = diagnostics_section(found, consensus=consensus)
    tables = {table.caption: table for table in content.tables}
    assert content.text[0].startswith("8 of 12 heads have a role")
    shown = "L0H0 (0.91), L0H3 (0.91), L1H2 (0.91), L2H1 (0.91)"
    assert tables["Heads by role"].rows[0] == ("previous token", 4, 0, "0-2", shown)
    folders = next(table for caption, table in tables.items() if caption.startswith("Largest folders")).rows
    assert sorted(row[0] for row in folders) == [
        "4 heads, layers 0-2, first token",
        "4 heads, layers 0-2, previous token",
    ]
    families = [row[1] for row in next(table for caption, table in tables.items() if "Families" in caption).rows]
    assert sorted(families) == [
        "4 heads, layers 0-2",
        "4 heads, layers 0-2, first token",
        "4 heads, layers 0-2, previous token",
    ]
    assert "predict roles better than chance" in content.text[1]
    assert "predict layers no better than chance" in content.text[1]
    agreements = tree_agreements(found, consensus)
    assert agreements["roles"].information == pytest.approx(1)
    assert agreements["roles within layers"].p_value < 0.05


def test_what_the_structure_score_contains_is_said_in_words_and_numbers(example):
    found, _ = example
    heads = found.heads[["name"]].assign(structure=found.heads["confidence"] ** 2)
    content = diagnostics_section(found, overlap=contained(heads, found))
    table = next(table for table in content.tables if "contains each measure" in table.caption)
    assert "confidence" in content.text[1].split("partly")[0]
    rows = {row[0]: row for row in table.rows}
    assert rows["confidence"][1] == 1
    assert rows["confidence"][-1] == "largely"


def test_every_table_is_rectangular_plain_and_explained(example):
    found, consensus = example
    heads = found.heads[["name"]].assign(structure=np.arange(12.0))
    content = diagnostics_section(found, overlap=contained(heads, found), consensus=consensus)
    plain = content.to_dict()
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    for table in content.tables:
        assert all(len(row) == len(table.columns) for row in table.rows)
    shown = {row[0] for row in content.tables[-2].rows}
    assert "previous_token" in shown
    assert ("next_token", "x") not in content.tables[-1].rows
    assert {"qk_rank", "sink_logit_mass"} <= {row[0] for row in content.tables[-1].rows}


def test_induction_is_said_in_numbers_where_it_was_measured(example):
    found, _ = example
    assert "Induction" not in " ".join(diagnostics_section(found).text)
    scores = np.full(12, 0.02)
    scores[[3, 7]] = 0.9, 0.5
    heads = found.heads.assign(prefix_matching=scores, copying=scores / 2)
    said = diagnostics_section(replace(found, heads=heads)).text[1]
    assert (
        "L0H3 attends most to what followed the earlier copy (0.90 of its attention, the median head 0.02" in said
    )
    assert "copying 0.45). 2 heads give at least 40% of their attention" in said
    none = found.heads.assign(prefix_matching=np.full(12, 0.02), copying=np.nan)
    assert "No head gives at least 40%" in diagnostics_section(replace(found, heads=none)).text[1]


def test_heads_without_roles_are_no_error():
    found = ht.diagnostics(probs(uniform(4), uniform(4)))
    tree = ht.Consensus(
        "attention",
        ht.PartitionTree.flat(2),
        np.eye(2),
        np.zeros(0),
        np.zeros(0),
        None,
        (),
        n_inputs=2,
        n_bootstrap=1,
    )
    content = diagnostics_section(found, consensus=tree)
    assert "cannot be tested" in content.text[1]
