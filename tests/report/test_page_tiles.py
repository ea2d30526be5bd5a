import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headtree as ht
from headtree.report.page.coded_matrices import Grain, Scale, box_means, coded, nibbles
from headtree.report.page.tiles import AxisBlocks, block_means, folder_blocks
from tests.strategies import partition_trees


def literal_means(values, mask, rows, columns):
    """The mean of the present entries of every product of blocks, entry by entry."""
    result = np.full((len(values), len(rows), len(columns)), np.nan)
    for h in range(len(values)):
        for i, queries in enumerate(rows):
            for j, keys in enumerate(columns):
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


def test_all_leaves_when_they_fit():
    tree = ht.PartitionTree.halving(11)
    np.testing.assert_array_equal(folder_blocks(tree, tree.order(), 11).starts, np.arange(11))
    assert len(folder_blocks(tree, tree.order(), 10).starts) == 10


def test_the_largest_folder_is_split_first():
    tree = ht.PartitionTree([[0] * 6, [0, 0, 0, 0, 1, 1], [0, 0, 1, 1, 2, 2], [0, 1, 2, 3, 4, 5]])
    assert as_sets(folder_blocks(tree, tree.order(), 3)) == {frozenset(s) for s in ((0, 1), (2, 3), (4, 5))}


def test_means_over_blocks_are_the_definition():
    rng = np.random.default_rng(3)
    values = rng.standard_normal((3, 7, 5)).astype(np.float32)
    rows, columns = (
        AxisBlocks(rng.permutation(7), np.array([0, 2, 3])),
        AxisBlocks(rng.permutation(5), np.array([0, 4])),
    )
    sets = [np.split(b.order, b.starts[1:]) for b in (rows, columns)]
    expected = literal_means(values, np.zeros(values.shape, bool), *sets)
    np.testing.assert_allclose(block_means(values, rows, columns), expected, rtol=1e-5, atol=1e-6)  # float32


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 4), st.booleans())
def test_means_over_boxes_are_over_what_is_present(n_rows, n_columns, cell, masked):
    rng = np.random.default_rng(n_rows + 10 * n_columns)
    values = rng.standard_normal((2, n_rows, n_columns)).astype(np.float32)
    mask = rng.random((2, n_rows, n_columns)) < 0.5 if masked else np.zeros(values.shape, bool)
    boxes = [[range(i, min(i + cell, n)) for i in range(0, n, cell)] for n in (n_rows, n_columns)]
    expected = literal_means(values, mask, *boxes)
    np.testing.assert_allclose(box_means(values, ~mask, cell), expected, rtol=1e-5, atol=1e-6)  # float32


def test_a_previous_token_head_keeps_its_diagonal_in_averages():
    values = np.full((1, 64, 64), 0.2 / 63)
    values[0, np.arange(1, 64), np.arange(63)] = 0.8
    for cell in (2, 4, 8):
        means = box_means(values, np.ones((1, 64, 64), bool), cell)[0]
        behind = np.arange(64 // cell) - means.argmax(axis=1)
        assert set(behind.tolist()) <= {0, 1}  # the diagonal crosses from box to box
        assert np.diag(means).min() > 4 * np.median(means)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("power", [1.0, 2.0])
def test_codes_are_within_half_a_step(power, bits):
    rng = np.random.default_rng(11)
    values = rng.random((2, 6, 6)) * np.array([1, 50])[:, None, None]
    values[0, 2, 3] = np.nan
    low, high = np.zeros(2), np.nanmax(values, axis=(1, 2))
    grain = Grain(1, bits)
    codes = coded(values, Scale(low, high, power), grain)
    missing = grain.largest + 1
    assert codes[0, 2, 3] == missing
    assert (codes == missing).sum() == 1
    decoded = high[:, None, None] * (codes / grain.largest) ** power
    on_scale = [(x / high[:, None, None]) ** (1 / power) for x in (values, decoded)]
    apart = np.abs(on_scale[0] - on_scale[1])[codes != missing]
    assert apart.max() <= 0.5 / grain.largest + 1e-6


def test_constant_matrices_have_codes_too():
    scale = Scale(np.array([3.0]), np.array([3.0]), 1.0)
    assert (coded(np.full((1, 2, 2), 3.0), scale, Grain(1, 8)) == 0).all()


@given(st.integers(1, 5), st.integers(1, 5))
def test_two_codes_in_a_byte_come_apart_again(n_rows, n_columns):
    codes = np.random.default_rng(0).integers(0, 16, (3, n_rows, n_columns)).astype(np.uint8)
    packed = nibbles(codes)
    back = np.stack([packed >> 4, packed & 15], axis=2).reshape(3, -1)[:, : n_rows * n_columns]
    np.testing.assert_array_equal(back.reshape(codes.shape), codes)
