"""The heads' numbers against their definitions."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headtree import AttentionTensor
from headtree.study.training.training_watch import head_numbers, mixed_difference, plot_history, structure
from headtree.trees.tree import PartitionTree


def literal_mixed_difference(f: np.ndarray) -> float:
    """Mean over all scales of the mean of |dd'|, with averages over folders written out."""
    row_tree, column_tree = (PartitionTree.halving(n) for n in f.shape)

    def averaged(j, k):
        result = np.empty_like(f)
        for rows in row_tree.folders(j):
            for columns in column_tree.folders(k):
                result[np.ix_(rows, columns)] = f[np.ix_(rows, columns)].mean()
        return result

    means = []
    for j in range(row_tree.n_levels - 1):
        for k in range(column_tree.n_levels - 1):
            dd = averaged(j + 1, k + 1) - averaged(j + 1, k) - averaged(j, k + 1) + averaged(j, k)
            means.append(np.abs(dd).mean())
    return float(np.mean(means))


@pytest.mark.parametrize("shape", [(8, 8), (5, 7), (6, 3)])
def test_mixed_difference_is_its_definition(shape):
    f = np.random.default_rng(0).normal(size=(2, *shape))
    found = mixed_difference(torch.from_numpy(f).float())
    assert found.tolist() == pytest.approx([literal_mixed_difference(head) for head in f], rel=1e-5)


def test_missing_entries_take_their_rows_mean():
    values = np.random.default_rng(0).normal(size=(1, 4, 4))
    mask = np.triu(np.ones((1, 4, 4), bool), 1)
    att = AttentionTensor.from_array(values, mask=mask)
    expected = mixed_difference(att.filled().values)
    assert head_numbers(att)["mixed_difference"] == pytest.approx(expected.item())
    assert mixed_difference(torch.full((1, 4, 4), 2.0)).item() == 0


def test_head_numbers_leave_missing_entries_out():
    values = np.array([[[1.0, 100.0], [2.0, 3.0]]])
    att = AttentionTensor.from_array(values, mask=np.array([[[False, True], [False, False]]]))
    assert head_numbers(att)["head_mean"] == pytest.approx(2.0)


def test_structure_measures_distances_between_attentions():
    uniform = np.full((2, 4, 4), 0.25)
    own = np.stack([np.eye(4), np.eye(4)[::-1]])
    trained, before = (AttentionTensor.from_array(x, kind="probs") for x in (own, uniform))
    found = structure(trained, before)
    assert found["from_uniform"] == found["from_untrained"] == pytest.approx(0.75)
    assert found["from_each_other"] == pytest.approx(1.0)
    assert found["from_uniform_untrained"] == found["from_each_other_untrained"] == 0


def test_the_curve_is_drawn(tmp_path):
    rows = [
        {"step": i, "train_loss": None if i == 0 else 2.0, "valid_loss": 3.0, "mixed_difference": 1, "head_mean": 0}
        for i in range(3)
    ]
    plot_history(rows, tmp_path / "curve.svg", "title")
    assert "<svg" in (tmp_path / "curve.svg").read_text()
