import numpy as np
import pytest

import headtree as ht
from headtree.report.words.folder_words import describe_folders, folder_words

HEADS = [ht.HeadId(layer, head) for layer in range(6) for head in range(4)]


def test_folders_are_described_as_people_would():
    roles = [""] * 24
    for place in range(8, 24):
        roles[place] = "previous token"
    assert folder_words(range(8, 20), HEADS, roles) == "12 heads, layers 2-4, previous token"
    assert folder_words([0], HEADS, roles) == "1 head, layer 0"
    assert folder_words([0, 1, 23], HEADS, roles) == "3 heads, layers 0 and 5"
    assert folder_words([0, 1, 2, 3], HEADS, ["a", "b", "c", ""]) == "4 heads, layer 0, mixed roles"
    assert folder_words([6, 7, 8, 9], HEADS, roles) == "4 heads, layers 1-2, mostly previous token"
    assert folder_words([3, 4], HEADS, roles) == "2 heads, layers 0-1"
    assert folder_words([0, 4, 9, 20], HEADS, roles) == "4 heads, layers 0-2, 5, mostly previous token"
    assert folder_words([0, 8], HEADS, None) == "2 heads, layers 0 and 2"


def test_a_row_for_every_folder_of_several_heads():
    roles = ["first token"] * 12 + ["previous token"] * 11 + [""]
    table = describe_folders(ht.PartitionTree.halving(24), HEADS, roles)
    assert table.loc[0, "words"] == "12 heads, layers 0-2, first token"
    assert table.loc[1, "words"] == "12 heads, layers 3-5, previous token"
    assert table["n_heads"].tolist()[:6] == [12, 12, 6, 6, 6, 6]
    assert table.loc[1, "share_of_role"] == pytest.approx(11 / 12)
    assert table["support"].isna().all()
    assert table.loc[0, "heads"].split()[:2] == ["L0H0", "L0H1"]


def test_a_consensus_brings_support():
    tree = ht.PartitionTree.halving(24)
    support = np.linspace(0, 1, 22)
    found = ht.Consensus("attention", tree, np.eye(24), support, support, None, (), n_inputs=3, n_bootstrap=10)
    table = describe_folders(found, HEADS, ["a"] * 24)
    assert table["support"].tolist() == support.tolist()
    assert table["words"].tolist() == [folder_words(folder, HEADS, ["a"] * 24) for folder in found.folders]


def test_a_tree_without_inner_folders_has_no_rows():
    table = describe_folders(ht.PartitionTree.flat(3), HEADS[:3], ["", "", ""])
    assert len(table) == 0
    assert "words" in table


def test_bad_input():
    with pytest.raises(ht.HeadtreeError, match="5 leaves, got 4 and 5"):
        describe_folders(ht.PartitionTree.halving(5), HEADS[:4], [""] * 5)
    with pytest.raises(ht.HeadtreeError, match="PartitionTree or a Consensus"):
        describe_folders("tree", HEADS, [""])
