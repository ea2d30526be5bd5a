"""Matrices at screen resolution, in 8 bits: averages over boxes in original order, over folders in tree order."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from headtree.progress import progress
from headtree.tensor.attention_tensor import AttentionTensor
from headtree.trees.tree import PartitionTree

#: Code of a cell in which every entry is missing; values have the codes below.
MISSING = 255
_LARGEST_CODE = 254

_ENTRIES_AT_A_TIME = 1 << 24


@dataclass(frozen=True, eq=False)
class AxisBlocks:
    """The slices of an axis in some order, cut into contiguous blocks."""

    order: Int[np.ndarray, " slice"]
    starts: Int[np.ndarray, " block"]  #: position in `order` where each block begins

    @property
    def sizes(self) -> Int[np.ndarray, " block"]:
        """Number of slices of each block."""
        return np.diff(self.starts, append=len(self.order))


def boxes(n: int, at_most: int, within: AxisBlocks | None = None) -> AxisBlocks:
    """An axis in original order, in blocks of nearly equal length; blocks of `within`, if given, are merged."""
    starts = np.arange(n) if within is None else within.starts
    n_blocks = min(len(starts), at_most)
    return AxisBlocks(np.arange(n), starts[np.arange(n_blocks) * len(starts) // n_blocks])


def folder_blocks(
    tree: PartitionTree, order: Int[np.ndarray, " leaf"], at_most: int, within: AxisBlocks | None = None
) -> AxisBlocks:
    """A cut through the tree: at most this many folders that together hold every leaf once.

    The largest folder is split as long as its children still fit. The folders are then of similar size, and each is
    a folder of the tree; one with too many children stays whole. Blocks of `within`, a finer cut, are merged and
    never split.
    """
    folders = tree.distinct
    children, pointers = folders.children
    first = _first_positions(tree, order)
    allowed = np.ones(tree.n_leaves, dtype=bool)
    if within is not None:
        allowed[:] = False
        allowed[within.starts] = True
    waiting = [(-int(folders.size[0]), int(first[0]), 0)]
    final: list[int] = []
    while waiting:
        _, start, folder = heapq.heappop(waiting)
        own = children[pointers[folder] : pointers[folder + 1]]
        fits = len(final) + len(waiting) + len(own) <= at_most
        if len(own) and fits and allowed[first[own]].all():
            for child in own:
                heapq.heappush(waiting, (-int(folders.size[child]), int(first[child]), int(child)))
        else:
            final.append(start)
    return AxisBlocks(order, np.sort(np.array(final)))


def _first_positions(tree: PartitionTree, order: Int[np.ndarray, " leaf"]) -> Int[np.ndarray, " folder"]:
    """Position in `order` where each distinct folder begins."""
    folders = tree.distinct
    position = np.empty(tree.n_leaves, dtype=np.int64)
    position[order] = np.arange(tree.n_leaves)
    first = np.full(len(folders), tree.n_leaves)
    first[folders.of_leaf] = position
    for folder in range(len(folders) - 1, 0, -1):  # children come after their parents
        parent = folders.parent[folder]
        first[parent] = min(first[parent], first[folder])
    return first


@dataclass(frozen=True, eq=False)
class Tiles:
    """Averages of every head over products of blocks; NaN where every entry is missing."""

    means: Float[np.ndarray, "head row column"]
    present: Float[np.ndarray, "head row column"]  #: number of entries that each mean is over
    rows: AxisBlocks
    columns: AxisBlocks


def tiles(att: AttentionTensor, pairs: Sequence[tuple[AxisBlocks, AxisBlocks]]) -> list[Tiles]:
    """Averages over each pair of row and column blocks; a tensor on disk is read once, some heads at a time."""
    parts: list[list[tuple[np.ndarray, np.ndarray]]] = [[] for _ in pairs]
    per_part = max(1, _ENTRIES_AT_A_TIME // (att.shape[1] * att.shape[2]))
    starts = range(0, att.shape[0], per_part)
    with progress("averaging matrices", len(starts)) as step:
        for start in starts:
            heads = slice(start, start + per_part)
            values, mask = att.block(heads).numpy(), _mask(att.mask, heads)
            for part, (rows, columns) in zip(parts, pairs, strict=True):
                part.append(block_means(values, mask, rows, columns))
            step("")
    result = []
    for part, (rows, columns) in zip(parts, pairs, strict=True):
        means, present = (np.concatenate(arrays) for arrays in zip(*part, strict=True))
        result.append(Tiles(means, present, rows, columns))
    return result


def _mask(mask: Any, heads: slice) -> Bool[np.ndarray, "head query key"] | None:
    if mask is None:
        return None
    part = mask[heads]
    return part.numpy() if isinstance(part, Tensor) else np.asarray(part)


def block_means(
    values: Float[np.ndarray, "head query key"],
    mask: Bool[np.ndarray, "head query key"] | None,
    rows: AxisBlocks,
    columns: AxisBlocks,
) -> tuple[Float[np.ndarray, "head row column"], Float[np.ndarray, "head row column"]]:
    """Mean of the present entries over each product of a block of rows and one of columns, and their number."""
    if mask is None:
        sums = _sums(values, rows, columns)
        present = np.broadcast_to(np.multiply.outer(rows.sizes, columns.sizes), sums.shape)
    else:
        sums = _sums(np.where(mask, 0, values), rows, columns)
        different = mask if (mask != mask[:1]).any() else mask[:1]  # most often all heads lack the same entries
        present = np.broadcast_to(_sums(~different, rows, columns), sums.shape)
    return _means(sums, present), present.astype(np.float32)


def _sums(values: np.ndarray, rows: AxisBlocks, columns: AxisBlocks) -> Float[np.ndarray, "head row column"]:
    """Rows first: whole rows are contiguous in memory, and little is left for the columns."""
    by_row = np.empty((len(values), len(rows.starts), values.shape[2]))
    for block, own in enumerate(np.split(rows.order, rows.starts[1:])):
        values[:, own].sum(axis=1, dtype=np.float64, out=by_row[:, block])
    return np.asarray(np.add.reduceat(by_row[:, :, columns.order], columns.starts, axis=2))


def _means(sums: np.ndarray, present: np.ndarray) -> Float[np.ndarray, "head row column"]:
    means = np.divide(sums, present, out=np.full_like(sums, np.nan), where=present > 0)
    return np.asarray(means, dtype=np.float32)


def coarser(fine: Tiles, rows: AxisBlocks, columns: AxisBlocks) -> Tiles:
    """The same matrices over larger blocks, each a union of finer ones."""
    joins = [np.searchsorted(f.starts, c.starts) for f, c in ((fine.rows, rows), (fine.columns, columns))]

    def joined(values: np.ndarray) -> np.ndarray:
        by_column = np.add.reduceat(values, joins[1], axis=2, dtype=np.float64)
        return np.asarray(np.add.reduceat(by_column, joins[0], axis=1))

    present = joined(fine.present)
    sums = joined(np.nan_to_num(fine.means) * fine.present)
    return Tiles(_means(sums, present), present.astype(np.float32), rows, columns)


@dataclass(frozen=True, eq=False)
class Codes:
    """Values in 8 bits: code c means ``low + (high - low) · (c / 254) ** power``, 255 for missing."""

    codes: UInt8[np.ndarray, "head row column"]
    low: Float[np.ndarray, " head"]
    high: Float[np.ndarray, " head"]
    power: float


def coded(
    values: Float[np.ndarray, "head row column"],
    low: Float[np.ndarray, " head"],
    high: Float[np.ndarray, " head"],
    power: float = 1.0,
) -> Codes:
    """Round to the nearest code; power 2 gives small values more codes, as probabilities need."""
    low, high = np.asarray(low, dtype=np.float32), np.asarray(high, dtype=np.float32)
    extent = np.where(high > low, high - low, 1)[:, None, None]
    share = np.clip((values - low[:, None, None]) / extent, 0, 1)
    codes = np.rint(_LARGEST_CODE * share ** (1 / power))
    return Codes(np.where(np.isnan(values), MISSING, codes).astype(np.uint8), low, high, power)
