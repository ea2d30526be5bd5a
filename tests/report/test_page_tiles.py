import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import headtree as ht
from headtree.report.page.tiles import (
    MISSING,
    AxisBlocks,
    block_means,
    boxes,
    coarser,
    coded,
    folder_blocks,
    tiles,
)
from tests.strategies import partition_trees


def literal_means(values, mask, rows, columns):
    """The mean of the present entries of every product of blocks, entry by entry."""
    row_sets, column_sets = (np.split(b.order, b.starts[1:]) for b in (rows, columns))
    result = np.full((len(values), len(row_sets), len(column_sets)), np.nan)
    for h in range(len(values)):
        for i, queries in enumerate(row_sets):
            for j, keys in enumerate(column_sets):
                found = [values[h, q, k] for q in queries for k in keys if not mask[h, q, k]]
                if found:
                    result[h, i, j] = np.mean(found)
    return result


def as_sets(blocks):
    return {frozenset(part.tolist()) for part in np.split(blocks.order, blocks.starts[1:])}


@given(partition_trees(max_leaves=9), st.integers(1, 10))
def test_blocks_are_folders_that_hold_every_leaf_once(tree, at_most):
    blocks = folder_blocks(tree, tree.order(), at_most)
    sets = as_sets(blocks)
    folders = {frozenset(f.tolist()) for level in range(tree.n_levels) for f in tree.folders(level)}
    assert sets <= folders
    assert sorted(leaf for part in sets for leaf in part) == list(range(tree.n_leaves))
    assert len(sets) <= at_most


@given(partition_trees(min_leaves=2, max_leaves=9), st.integers(1, 9), st.integers(1, 9))
def test_a_coarser_cut_joins_blocks_of_the_finer_one(tree, a, b):
    fine = folder_blocks(tree, tree.order(), max(a, b))
    coarse = folder_blocks(tree, tree.order(), min(a, b), fine)
    assert set(coarse.starts) <= set(fine.starts)
    assert as_sets(coarse) <= {frozenset(f.tolist()) for level in range(tree.n_levels) for f in tree.folders(level)}


def test_all_leaves_when_they_fit():
    tree = ht.PartitionTree.halving(11)
    np.testing.assert_array_equal(folder_blocks(tree, tree.order(), 11).starts, np.arange(11))
    assert len(folder_blocks(tree, tree.order(), 10).starts) == 10


def test_the_largest_folder_is_split_first():
    tree = ht.PartitionTree([[0] * 6, [0, 0, 0, 0, 1, 1], [0, 0, 1, 1, 2, 2], [0, 1, 2, 3, 4, 5]])
    assert as_sets(folder_blocks(tree, tree.order(), 3)) == {frozenset(s) for s in ((0, 1), (2, 3), (4, 5))}


@given(st.integers(1, 40), st.integers(1, 40))
def test_boxes_are_even(n, at_most):
    sizes = boxes(n, at_most).sizes
    assert (sizes.sum(), len(sizes)) == (n, min(n, at_most))
    assert np.ptp(sizes) <= 1


@pytest.mark.parametrize("masked", [False, True])
def test_means_are_over_what_is_present(masked):
    rng = np.random.default_rng(3)
    values = rng.standard_normal((3, 7, 5)).astype(np.float32)
    mask = rng.random((3, 7, 5)) < 0.5 if masked else np.zeros((3, 7, 5), bool)
    mask[1, :4] = masked
    rows, columns = (
        AxisBlocks(rng.permutation(7), np.array([0, 2, 3])),
        AxisBlocks(rng.permutation(5), np.array([0, 4])),
    )
    means, present = block_means(values, mask if masked else None, rows, columns)
    expected = literal_means(values, mask, rows, columns)
    np.testing.assert_allclose(means, expected, rtol=1e-5, atol=1e-6)  # float32 results
    assert (present.sum(axis=(1, 2)) == (~mask).sum(axis=(1, 2))).all()


def test_coarser_tiles_are_those_of_the_tensor_itself():
    rng = np.random.default_rng(5)
    values = rng.standard_normal((4, 12, 9))
    mask = np.triu(np.ones((12, 9), bool), 2)
    att = ht.AttentionTensor.from_array(values, mask=mask)
    tree = ht.PartitionTree.halving(12)
    fine = (folder_blocks(tree, tree.order(), 9), boxes(9, 6))
    coarse = (folder_blocks(tree, tree.order(), 4, fine[0]), boxes(9, 3, fine[1]))
    (joined,) = (coarser(t, *coarse) for t in tiles(att, [fine]))
    (direct,) = tiles(att, [coarse])
    np.testing.assert_allclose(joined.means, direct.means, rtol=1e-5, atol=1e-6)  # means are kept in float32
    np.testing.assert_array_equal(joined.present, direct.present)


def test_a_tensor_on_disk_is_read_some_heads_at_a_time(tmp_path, monkeypatch):
    rng = np.random.default_rng(7)
    att = ht.AttentionTensor.from_array(rng.standard_normal((6, 8, 8)), mask=np.tri(8, k=-3, dtype=bool))
    att.save(tmp_path / "a.zarr")
    pair = (boxes(8, 3), boxes(8, 4))
    monkeypatch.setattr("headtree.report.page.tiles._ENTRIES_AT_A_TIME", 2 * 64)
    (stored,), (memory,) = tiles(ht.AttentionTensor.open(tmp_path / "a.zarr"), [pair]), tiles(att, [pair])
    np.testing.assert_array_equal(stored.means, memory.means)


@pytest.mark.parametrize("power", [1.0, 2.0])
def test_codes_are_within_half_a_step(power):
    rng = np.random.default_rng(11)
    values = rng.random((2, 6, 6)) * np.array([1, 50])[:, None, None]
    values[0, 2, 3] = np.nan
    low, high = np.zeros(2), np.nanmax(values, axis=(1, 2))
    codes = coded(values, low, high, power)
    assert codes.codes[0, 2, 3] == MISSING
    assert (codes.codes == MISSING).sum() == 1
    decoded = codes.high[:, None, None] * (codes.codes / 254) ** power
    on_scale = [(x / high[:, None, None]) ** (1 / power) for x in (values, decoded)]
    assert np.nanmax(np.abs(on_scale[0] - on_scale[1])) <= 0.5 / 254 + 1e-6  # the scale is kept in float32


def test_constant_matrices_have_codes_too():
    codes = coded(np.full((1, 2, 2), 3.0), np.array([3.0]), np.array([3.0]))
    assert (codes.codes == 0).all()
    assert torch.tensor(codes.low).item() == 3.0
