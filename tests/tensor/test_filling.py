"""Tensors without gaps, logarithms of probabilities, and some heads of a tensor."""

import numpy as np
import pytest
import torch

import headtree as ht
from headtree.errors import HeadtreeError
from headtree.tensor.stored_array import StoredArray


def numbers(*shape):
    return np.random.default_rng(0).normal(size=shape)


def test_missing_scores_take_their_rows_mean_and_missing_probabilities_are_0():
    values, mask = numbers(5, 9, 8), np.triu(np.ones((9, 8), bool), 1)
    hidden = np.where(mask, np.nan, values)
    full = ht.AttentionTensor.from_array(hidden, mask=mask).filled()
    assert full.n_filled == 5 * mask.sum()
    for head, query in np.ndindex(5, 9):
        present = values[head, query][~mask[query]]
        np.testing.assert_allclose(full.values[head, query][mask[query]], present.mean())
        np.testing.assert_array_equal(full.values[head, query][~mask[query]], present)
    probs = ht.AttentionTensor.from_array(hidden, mask=mask, kind="probs").filled()
    np.testing.assert_array_equal(probs.values, np.where(mask, 0, values))


def test_rows_and_heads_without_entries():
    values = np.arange(24.0).reshape(2, 3, 4)
    mask = np.zeros((2, 3, 4), dtype=bool)
    mask[0, 1] = mask[1] = True
    full = ht.AttentionTensor.from_array(values, mask=mask).filled().values
    np.testing.assert_allclose(full[0, 1], values[0, [0, 2]].mean())
    np.testing.assert_allclose(full[1], 0)


def test_a_full_tensor_is_not_copied():
    values = torch.from_numpy(numbers(2, 3, 3))
    full = ht.AttentionTensor.from_array(values).filled()
    assert full.values.data_ptr() == values.data_ptr()
    assert full.n_filled == 0
    with pytest.raises(HeadtreeError, match="must be finite"):
        ht.AttentionTensor.from_array(values / 0).filled()


def probabilities(mask=None):
    logits = 5 * torch.from_numpy(numbers(3, 4, 4))
    return torch.softmax(logits if mask is None else logits.masked_fill(torch.from_numpy(mask), -torch.inf), dim=2)


def test_log_probs_are_scores_up_to_a_constant_per_row():
    mask = np.triu(np.ones((4, 4), bool), 1)
    probs = probabilities(mask)
    logs = ht.AttentionTensor.from_array(probs, kind="probs", mask=mask).log_probs()
    present = ~torch.from_numpy(mask).expand(3, 4, 4)
    torch.testing.assert_close(logs[present].exp(), probs[present])
    np.testing.assert_allclose(logs[:, 1, 2], logs[:, 1, :2].mean(dim=1))
    assert logs.dtype == torch.float64
    with pytest.raises(HeadtreeError, match="needs another kind than 'scores'"):
        ht.AttentionTensor.from_array(probs).log_probs()


def test_zeros_take_the_smallest_logarithm_of_their_head():
    probs = probabilities()
    probs[0, 2, 1] = 0
    probs[1] = 0
    logs = ht.AttentionTensor.from_array(probs.float(), kind="probs").log_probs()
    others = probs[0].float().double()
    assert logs[0, 2, 1] == others[others > 0].min().log()
    np.testing.assert_array_equal(logs[1], 0)  # a head without any attention
    np.testing.assert_array_equal(logs[2], probs[2].float().double().log())
    assert torch.isfinite(logs).all()


def labelled(own_masks=True):
    mask = np.triu(np.ones((5, 4), bool), 1)
    masks = np.stack([mask, ~mask, mask, np.zeros_like(mask), mask | True, mask]) if own_masks else mask
    return ht.AttentionTensor(
        numbers(6, 5, 4),
        heads=[(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)],
        queries="abcde",
        keys="abcd",
        mask=masks,
        sinks=np.arange(6.0),
        provenance={"model": "m"},
    )


@pytest.mark.parametrize("on_disk", [False, True])
@pytest.mark.parametrize("own_masks", [False, True])
@pytest.mark.parametrize(
    ("heads", "indices"),
    [
        ([4, 0, 1], [4, 0, 1]),
        (np.array([5, 2]), [5, 2]),
        (["L1H0", (2, 1), ht.HeadId(0, 0), -1], [2, 5, 0, 5]),
        ("L1H1", [3]),
        (ht.HeadId(1, 1), [3]),
        ((3, 1), [3, 1]),
        (4, [4]),
        (torch.arange(6), [0, 1, 2, 3, 4, 5]),
    ],
)
def test_some_heads(tmp_path, on_disk, own_masks, heads, indices):
    att = labelled(own_masks)
    if on_disk:
        att.save(tmp_path / "a.zarr")
    some = (ht.AttentionTensor.open(tmp_path / "a.zarr") if on_disk else att).take(heads)
    assert some.heads == tuple(att.heads[i] for i in indices)
    assert not isinstance(some.values, StoredArray)
    mask = att.mask.numpy()[indices]
    np.testing.assert_array_equal(np.where(mask, 0, some.values), np.where(mask, 0, att.values[indices]))
    np.testing.assert_array_equal(np.zeros_like(mask) if some.mask is None else some.mask, mask)
    np.testing.assert_array_equal(some.sinks, indices)
    assert (some.queries, some.keys, some.kind, dict(some.provenance)) == (
        att.queries,
        att.keys,
        att.kind,
        {"model": "m"},
    )
    np.testing.assert_array_equal(some.filled().values, att.filled().values[indices])


def test_only_the_chosen_heads_are_read(tmp_path, monkeypatch):
    att = labelled()
    att.save(tmp_path / "a.zarr")
    back = ht.AttentionTensor.open(tmp_path / "a.zarr")
    read = []
    getitem = StoredArray.__getitem__
    monkeypatch.setattr(
        StoredArray, "__getitem__", lambda self, index: (read.append(index), getitem(self, index))[1]
    )
    back.take([1, 2, 5])
    assert read == [slice(1, 3), slice(5, 6)] * 2  # mask and values


@pytest.mark.parametrize("heads", [6, -7, "L0H2", [(3, 0)], [True], [1.5], [(0, 0, 0)], ["x"], []])
def test_unknown_heads_are_named(heads):
    with pytest.raises(HeadtreeError, match="heads must"):
        labelled().take(heads)
