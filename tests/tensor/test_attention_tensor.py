import copy
import multiprocessing
import pickle

import numpy as np
import pytest
import torch

import headtree as ht
from headtree.errors import HeadtreeError


def test_heads_are_numbered_in_layers():
    att = ht.AttentionTensor.from_array(np.zeros((6, 2, 3)), heads_per_layer=3)
    assert att.heads == ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2))
    assert str(att.heads[4]) == "L1H1"
    assert att.queries == ("0", "1")
    assert att.shape == (6, 2, 3)
    assert "6 heads in 2 layers × 2 queries × 3 keys, scores" in repr(att)


def test_mask_is_broadcast_and_empty_masks_are_none():
    mask = np.triu(np.ones((3, 3), bool), 1)
    att = ht.AttentionTensor.from_array(torch.zeros(2, 3, 3), mask=mask, kind="probs")
    assert tuple(att.mask.shape) == (2, 3, 3)
    assert "33% missing" in repr(att)
    assert ht.AttentionTensor.from_array(np.zeros((2, 3, 3)), mask=np.zeros((3, 3), bool)).mask is None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"x": np.zeros((2, 3))}, "three axes"),
        ({"x": np.zeros((2, 0, 3))}, "none of them empty"),
        ({"heads": [(0, 0)]}, "heads must label the 2 slices"),
        ({"queries": ["a"]}, "queries must label the 3 slices"),
        ({"kind": "logits"}, "kind must be one of"),
        ({"heads_per_layer": 3}, "heads_per_layer must divide the 2 heads"),
        ({"heads_per_layer": 1, "heads": [(0, 0), (0, 1)]}, "not both"),
        ({"mask": np.zeros((2, 2), bool)}, "broadcast"),
        ({"x": np.zeros((2, 3, 4)).astype(str)}, "x must be a dense array of real numbers, got ndarray of <U"),
        ({"x": np.zeros((2, 3, 4), complex)}, "real numbers, got ndarray of complex128"),
        ({"x": torch.zeros(2, 3, 4, dtype=torch.complex64)}, "real numbers, got Tensor of torch.complex64"),
        ({"x": torch.zeros(2, 3, 4).to_sparse()}, "must be a dense array"),
        ({"heads": []}, "heads must label the 2 slices of its axis, got 0"),
        ({"heads": [("a", "b")] * 2}, "heads must be pairs"),
        ({"heads": [1, 2]}, "heads must be pairs"),
        ({"heads": [(0,)] * 2}, "heads must be pairs"),
        ({"heads": [(0.0, 1.0)] * 2}, "heads must be pairs"),
        ({"heads_per_layer": 2.0}, "heads_per_layer must be an integer, got 2.0"),
        ({"heads_per_layer": "2"}, "heads_per_layer must be an integer, got '2'"),
        ({"heads_per_layer": 0}, "heads_per_layer must be at least 1"),
        ({"queries": 5}, "queries must be a sequence of labels"),
    ],
)
def test_wrong_labels_are_named(arguments, said):
    with pytest.raises(HeadtreeError, match=said):
        ht.AttentionTensor.from_array(**({"x": np.zeros((2, 3, 4))} | arguments))


@pytest.mark.parametrize("given", [None, [[False, True, False]]])
def test_what_a_masked_array_hides_is_missing(given):
    x = np.ma.masked_array(np.arange(12.0).reshape(2, 2, 3), mask=False)
    x[1, 0, 2] = np.ma.masked
    expected = x.mask | (False if given is None else np.array(given))
    made = ht.AttentionTensor.from_array(x, mask=given)
    built = ht.AttentionTensor(x, [(0, 0), (0, 1)], "ab", "abc", mask=given)
    for att in (made, built):
        np.testing.assert_array_equal(att.mask.numpy(), expected)
        assert type(att.values) is np.ndarray
        np.testing.assert_array_equal(att.values, x.data)


def test_heads_and_labels_of_other_types():
    att = ht.AttentionTensor(
        np.zeros((2, 3, 4)).tolist(), np.array([[0, 1], [1, 0]]), torch.arange(3), keys=np.arange(4)
    )
    assert att.heads == ((0, 1), (1, 0))
    assert type(att.heads[0].layer) is int
    assert att.queries == ("0", "1", "2")
    assert att.keys == ("0", "1", "2", "3")
    assert att.shape == (2, 3, 4)
    assert ht.AttentionTensor.from_array(np.zeros((4, 1, 1)), heads_per_layer=np.int64(2)).heads[3] == (1, 1)


def _in_another_process(att):
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(copy.copy, (att,))


@pytest.mark.parametrize(
    "copied",
    [copy.copy, copy.deepcopy, lambda att: pickle.loads(pickle.dumps(att)), _in_another_process],
    ids=["copy", "deepcopy", "pickle", "process"],
)
def test_tensors_are_copied_and_sent(copied):
    values = torch.randn(2, 3, 3, requires_grad=True) * 2
    mask = np.triu(np.ones((3, 3), bool), 1)
    att = ht.AttentionTensor(values, [(0, 0), (0, 1)], "abc", "abc", mask=mask, provenance={"a": {"b": 1}})
    back = copied(att)
    assert torch.equal(back.values, values)
    assert torch.equal(back.mask, att.mask)
    assert (back.heads, back.queries, back.keys, back.kind) == (att.heads, att.queries, att.keys, att.kind)
    assert dict(back.provenance) == {"a": {"b": 1}}
    with pytest.raises(TypeError):
        back.provenance["a"] = 2
