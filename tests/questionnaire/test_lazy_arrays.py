"""Arrays that are not in memory: organized block by block, with the result of the array in memory."""

import numpy as np
import pytest
import torch

import headtree as ht
from headtree import _lazy_array
from headtree._lazy_array import LazyArray
from headtree.geometry import affinity
from headtree.geometry.sampled_emd import _columns_at_a_time
from headtree.questionnaire import organize as organizing
from headtree.questionnaire import settings as limits


class OnDemand(LazyArray):
    """An array in memory that is handed out in blocks, and counts these and the entries of the largest."""

    def __init__(self, array):
        self.array, self.shape, self.dtype, self.n_reads, self.largest = array, array.shape, array.dtype, 0, 0

    def read(self, index, device="cpu"):
        chosen = [np.arange(n)[each] for each, n in zip(index, self.shape, strict=True)]
        block = torch.from_numpy(self.array[np.ix_(*chosen)])
        self.n_reads += 1
        self.largest = max(self.largest, block.numel())
        return block.to(device)


def array(dtype=np.float32):
    rng = np.random.default_rng(0)
    return (5e3 * (rng.normal(size=(9, 24, 20)) + 2 * rng.normal(size=(1, 24, 20)))).astype(dtype)


MEMORY = 4 * 24 * 20 * 8 * 2  #: bytes for two slices


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("initial", ["cosine", "correlation", "gaussian"])
def test_blocks_give_the_trees_of_the_whole_array(dtype, masked, initial, monkeypatch):
    monkeypatch.setattr(limits, "EXACT_ENTRIES", 1000)
    monkeypatch.setattr(affinity, "_ENTRIES_AT_A_TIME", 40)
    x = array(dtype)
    mask = np.triu(np.ones((24, 20), bool), 1) if masked else None
    settings = ht.Questionnaire(initial=initial, n_iter=2)
    lazy = OnDemand(x)
    ours = ht.organize_array(lazy, settings, mask=mask, memory=MEMORY)
    theirs = ht.organize_array(x, settings, mask=mask)
    assert lazy.largest < x.size
    assert list(ours.trees) == list(theirs.trees)
    for a, b in zip(ours.distances, theirs.distances, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12 if initial == "cosine" else 1e-5)
    assert "axis0" in ours.status.relative_errors


def test_a_matrix_in_blocks(monkeypatch):
    monkeypatch.setattr(limits, "EXACT_ENTRIES", 1000)
    monkeypatch.setattr(affinity, "_ENTRIES_AT_A_TIME", 40)
    rng = np.random.default_rng(1)
    x = (rng.normal(size=(30, 300)) + 3 * rng.normal(size=(1, 300))).astype(np.float32)
    lazy = OnDemand(x)
    assert list(ht.organize_array(lazy, memory=MEMORY).trees) == list(ht.organize_array(x).trees)
    assert lazy.largest < x.size


def test_an_array_that_fits_is_read_at_once():
    x = array()
    lazy = OnDemand(x)
    assert list(ht.organize_array(lazy).trees) == list(ht.organize_array(x).trees)
    assert lazy.largest == x.size


def test_an_array_fits_with_three_copies():
    for memory, is_whole in ((3 * 4 * 9 * 24 * 20, True), (3 * 4 * 9 * 24 * 20 - 1, False)):
        lazy = OnDemand(array())
        ht.organize_array(lazy, ht.Questionnaire(samples=8, n_iter=1), memory=memory)
        assert (lazy.n_reads == 1) == is_whole


def test_an_array_that_does_not_fit_on_a_gpu_is_refused(monkeypatch):
    """Without a GPU: only what is decided before anything is there."""
    monkeypatch.setattr(organizing, "_free_memory", lambda device: 1000)
    monkeypatch.setattr(organizing._checks, "checked_device", torch.device)
    assert organizing._device_for(np.zeros((5, 25)), "cuda").type == "cuda"  # 8 bytes for each of 125 entries
    with pytest.raises(ht.HeadtreeError, match=r"x of shape \(6, 21\) needs about"):
        organizing._device_for(np.zeros((6, 21)), "cuda")
    assert organizing._device_for(OnDemand(np.zeros((6, 21))), "cuda").type == "cuda"  # read in blocks
    assert organizing._device_for(np.zeros((6, 21)), "cpu").type == "cpu"  # there already


def test_a_tensor_on_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "EXACT_ENTRIES", 1000)
    att = ht.AttentionTensor.from_array(array(), mask=np.triu(np.ones((24, 20), bool), 1))
    att.save(tmp_path / "a.zarr")
    stored = ht.AttentionTensor.open(tmp_path / "a.zarr")
    assert list(ht.organize(stored, memory=MEMORY).trees) == list(ht.organize(att).trees)


def test_exact_distances_need_the_whole_array():
    with pytest.raises(ht.HeadtreeError, match=r"memory must hold all of x for exact distances.*samples=256"):
        ht.organize_array(OnDemand(array()), ht.Questionnaire(samples=None), memory=MEMORY)


def test_memory_for_less_than_one_block():
    with pytest.raises(ht.HeadtreeError, match=r"memory must hold a block of x: one of its 9 slices"):
        ht.organize_array(OnDemand(array()), memory=100)
    with pytest.raises(ht.HeadtreeError, match=r"memory must be greater than 0"):
        ht.organize_array(OnDemand(array()), memory=-1)


def test_infinite_entries_of_a_block_are_named():
    x = array()
    x[4, 3, 2] = np.inf
    with pytest.raises(ht.HeadtreeError, match=r"x must be finite unless masked"):
        ht.organize_array(OnDemand(x), memory=MEMORY)


def test_scaling_by_blocks_is_that_of_the_whole(monkeypatch):
    monkeypatch.setattr(_lazy_array, "_CHECKED_AT_A_TIME", 1)
    x = array(np.float64) * 1e-200
    blocks = _lazy_array.scaled_blocks(OnDemand(x), "x", None, torch.device("cpu"), 1e9)
    whole = _lazy_array._checks.scaled_array(x, "x")
    assert blocks.exponent == whole.exponent
    torch.testing.assert_close(blocks.block(*[slice(None)] * 3), whole.values, rtol=0, atol=0)


def test_features_take_at_most_half_the_memory():
    blocks = _lazy_array.scaled_blocks(OnDemand(array()), "x", None, torch.device("cpu"), 2 * 9 * 4 * 5000)
    runs = _columns_at_a_time(blocks, 0, [slice(0, 3000), slice(3000, 12_000)])
    assert max(run.stop - run.start for run in runs) <= 5000
    assert [i for run in runs for i in range(run.start, run.stop)] == list(range(12_000))
