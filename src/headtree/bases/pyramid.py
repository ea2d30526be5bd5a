"""Averages of a matrix over all products of folders of two trees, and the differences between scales.

Rows are stored level by level, columns with all levels side by side, so one step from a row level to the next
covers every column level at once. A folder is one entry whatever its size: on dyadic trees the whole pyramid has
about four times as many entries as the matrix.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from headtree.trees.tree import PartitionTree


@dataclass(frozen=True, eq=False)
class Ladder:
    """The levels of a tree as index tensors on one device.

    Nodes are numbered as in the tree, by level; *lower* nodes are all nodes except the root.
    """

    tree: PartitionTree
    device: torch.device
    dtype: torch.dtype

    @property
    def depth(self) -> int:
        """Number of steps from the root to the leaves."""
        return self.tree.n_levels - 1

    @cached_property
    def sizes(self) -> list[Float[Tensor, " _folder"]]:
        """Number of leaves of each folder, by level."""
        return [self._real(np.bincount(labels)) for labels in self.tree.labels]

    @cached_property
    def parent(self) -> list[Int[Tensor, " _folder"]]:
        """For each step j, the folder on level j that contains each folder on level j + 1."""
        return [self._index(self._parents(j)) for j in range(self.depth)]

    @cached_property
    def lower_parent(self) -> Int[Tensor, " lower"]:
        """Parent of each node below the root."""
        return self._index(self.tree.parents[1:])

    @cached_property
    def slices(self) -> list[slice]:
        """Range of the nodes on each level."""
        ends = np.cumsum(self.tree.n_folders)
        return [slice(int(end - n), int(end)) for end, n in zip(ends, self.tree.n_folders, strict=True)]

    @cached_property
    def leaf_folder(self) -> list[Int[Tensor, " leaf"]]:
        """Folder of each leaf, by level."""
        return [self._index(labels) for labels in self.tree.labels]

    def means(self, values: Float[Tensor, " ..."], dim: int) -> list[Float[Tensor, " ..."]]:
        """Average over the folders of every level, from the root to the leaves."""
        levels = [values]  # folder i on the last level is leaf i
        shape = [1] * values.ndim
        shape[dim] = -1
        for j in range(self.depth - 1, -1, -1):
            upper = self._sums(levels[-1] * self.sizes[j + 1].reshape(shape), dim, j)
            levels.append(upper / self.sizes[j].reshape(shape))
        return levels[::-1]

    def _sums(self, values: Float[Tensor, " ..."], dim: int, j: int) -> Float[Tensor, " ..."]:
        shape = list(values.shape)
        shape[dim] = int(self.tree.n_folders[j])
        return values.new_zeros(shape).index_add_(dim, self.parent[j], values)

    def _parents(self, j: int) -> Int[np.ndarray, " folder"]:
        parents = np.empty(self.tree.n_folders[j + 1], dtype=np.int64)
        parents[self.tree.labels[j + 1]] = self.tree.labels[j]
        return parents

    def _index(self, array: Int[np.ndarray, " ..."]) -> Int[Tensor, " ..."]:
        return torch.from_numpy(np.array(array, dtype=np.int64)).to(self.device)

    def _real(self, array: np.ndarray) -> Float[Tensor, " ..."]:
        return torch.from_numpy(array.astype(np.float64)).to(self.device, self.dtype)

    def descended(self, values: Float[Tensor, "batch row lower"]) -> Float[Tensor, "batch row leaf"]:
        """Sum `values` over the nodes that contain each leaf, except the root."""
        total = values.new_zeros(*values.shape[:2], 1)
        for j in range(self.depth):
            below = values[:, :, self.slices[j + 1].start - 1 : self.slices[j + 1].stop - 1]
            total = total.index_select(2, self.parent[j]) + below
        return total


@dataclass(frozen=True, eq=False)
class ScaleStep:
    """The step from row level j to j + 1, for all column levels: the differences in eq. (12) of [OA] for fixed j.

    Rows are folders on level j + 1, except in `average`. Columns are nodes of the column tree: *upper* nodes are
    those not on its last level, *lower* nodes those not on its first. The lower nodes on level j' + 1 belong to
    the pair (j, j').
    """

    j: int
    average: Float[Tensor, "batch parent upper"]  #: P^j P'^j' f; rows are folders on level j
    row_difference: Float[Tensor, "batch folder upper"]  #: d = P^(j+1) P'^j' f - P^j P'^j' f
    column_difference: Float[Tensor, "batch folder lower"]  #: d' = P^j P'^(j'+1) f - P^j P'^j' f
    difference: Float[Tensor, "batch folder lower"]  #: dd', the difference along both axes


def averages(
    f: Float[Tensor, "batch row column"], rows: Ladder, columns: Ladder
) -> list[Float[Tensor, "batch _folder node"]]:
    """Compute P^j P'^j' f for every row level j, with the nodes of all column levels j' side by side."""
    return rows.means(torch.cat(columns.means(f, 2), dim=2), 1)


def steps(levels: list[Float[Tensor, "batch _folder node"]], rows: Ladder, columns: Ladder) -> Iterator[ScaleStep]:
    """Iterate over the row levels, with the differences between scales."""
    n_upper = columns.slices[-1].start
    upper_detail = levels[0][:, :, 1:] - levels[0].index_select(2, columns.lower_parent)
    for j in range(rows.depth):
        upper, lower, parent = levels[j][:, :, :n_upper], levels[j + 1], rows.parent[j]
        detail = lower[:, :, 1:] - lower.index_select(2, columns.lower_parent)
        column_difference = upper_detail.index_select(1, parent)
        row_difference = lower[:, :, :n_upper] - upper.index_select(1, parent)
        yield ScaleStep(j, upper, row_difference, column_difference, detail - column_difference)
        upper_detail = detail


@lru_cache(maxsize=8)  # batches of heads have the same trees
def folder_arrays(tree: PartitionTree, scales: frozenset[int], dtype: np.dtype[Any]) -> tuple[np.ndarray, ...]:
    """Describe the distinct folders of a tree for the compiled sums, parents before children.

    Parent, fraction of the parent's leaves, leaf (-1 for inner folders), whether the scale between parent and
    folder is one of `scales`, all folders in depth-first order, and the depth of each. A folder that repeats on the
    next level adds nothing to any sum, so each is listed once.
    """
    folders = tree.distinct
    leaf = np.full(len(folders), -1)
    leaf[folders.of_leaf] = np.arange(tree.n_leaves)
    share = folders.size / folders.size[folders.parent]
    in_scales = np.isin(folders.level - 1, list(scales))
    children, pointers = folders.children
    depth = np.zeros(len(folders), dtype=np.int64)
    order, pending = [], [0]
    while pending:
        folder = pending.pop()
        order.append(folder)
        own = children[pointers[folder] : pointers[folder + 1]]
        depth[own] = depth[folder] + 1
        pending.extend(own.tolist())
    return folders.parent.copy(), share.astype(dtype), leaf, in_scales, np.array(order), depth
