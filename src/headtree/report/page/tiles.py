"""Averages of matrices over folders of queries × folders of keys."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from headtree.trees.tree import PartitionTree


@dataclass(frozen=True, eq=False)
class AxisBlocks:
    """The slices of an axis in some order, cut into contiguous blocks."""

    order: Int[np.ndarray, " slice"]
    starts: Int[np.ndarray, " block"]  #: position in `order` where each block begins

    @property
    def sizes(self) -> Int[np.ndarray, " block"]:
        """Number of slices of each block."""
        return np.diff(self.starts, append=len(self.order))


def folder_blocks(tree: PartitionTree, order: Int[np.ndarray, " leaf"], at_most: int) -> AxisBlocks:
    """A cut through the tree: at most this many folders that together hold every leaf once.

    The largest folder is split as long as its children still fit. The folders are then of similar size, and each is
    a folder of the tree; one with too many children stays whole.
    """
    folders = tree.distinct
    children, pointers = folders.children
    first = _first_positions(tree, order)
    waiting = [(-int(folders.size[0]), int(first[0]), 0)]
    final: list[int] = []
    while waiting:
        _, start, folder = heapq.heappop(waiting)
        own = children[pointers[folder] : pointers[folder + 1]]
        if len(own) and len(final) + len(waiting) + len(own) <= at_most:
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


def block_means(
    values: Float[np.ndarray, "head query key"], rows: AxisBlocks, columns: AxisBlocks
) -> Float[np.ndarray, "head row column"]:
    """Mean over each product of a block of rows and one of columns."""
    by_row = np.empty((len(values), len(rows.starts), values.shape[2]))
    for block, own in enumerate(np.split(rows.order, rows.starts[1:])):  # whole rows are contiguous in memory
        values[:, own].sum(axis=1, dtype=np.float64, out=by_row[:, block])
    sums = np.add.reduceat(by_row[:, :, columns.order], columns.starts, axis=2)
    return np.asarray(sums / np.multiply.outer(rows.sizes, columns.sizes), dtype=np.float32)
