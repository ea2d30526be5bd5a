"""Sums over all products of folders of several trees, a few folders at a time so that they stay in cache."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float, Int
from torch import Tensor

from headtree.geometry.kernels_cpu import BLOCK, folder_sums, padded_length
from headtree.geometry.vector_intrinsics import LANES
from headtree.trees.tree import Folders, PartitionTree

#: Sums computed at a time, over all slices: enough to keep all threads busy, few enough to stay in the shared cache
#: (8 MiB of float32). This bounds the memory independently of the array's size.
_SUMS_AT_A_TIME = 1 << 21


@dataclass(frozen=True)
class Products:
    """Products of an outer folder, from the first tree, and an inner folder, from all other trees together.

    Outer folders are visited as steps in post-order, so unfinished sums lie on one path to the root. Inner folders
    begin with the single leaves.
    """

    leaf: Int[np.ndarray, " outer"]  #: the leaf of the folder; -1 if it has several
    depth: Int[np.ndarray, " outer"]
    is_first: Int[np.ndarray, " outer"]  #: whether the folder is the first of its siblings
    outer_size: Int[np.ndarray, " outer"]
    outer_weight: Float[np.ndarray, " outer"]
    child: Int[np.ndarray, " edge"]  #: each inner folder occurs as a parent before it occurs as a child
    parent: Int[np.ndarray, " edge"]
    inner_size: Int[np.ndarray, " inner"]
    inner_weight: Float[np.ndarray, " inner"]
    n_additions: int  #: most additions that an entry goes through until it is in a sum

    @property
    def total_weight(self) -> float:
        """Sum of the weights of all products."""
        return float(self.outer_weight.sum() * self.inner_weight.sum())

    @classmethod
    def of(cls, trees: Sequence[PartitionTree], weights: Sequence[Float[np.ndarray, " folder"]]) -> Products:
        """Build the products of the distinct folders of `trees` and their weights."""
        steps, leaf, depth, is_first = _post_order(trees[0].distinct)
        of_leaf = np.zeros(1, dtype=np.int64)
        child = parent = np.zeros(0, dtype=np.int64)
        size, weight = np.ones(1, dtype=np.int64), np.ones(1)
        for tree, tree_weight in zip(trees[1:], weights[1:], strict=True):
            of_leaf, child, parent = _times(len(size), of_leaf, child, parent, tree.distinct)
            size = np.outer(size, tree.distinct.size).ravel()
            weight = np.outer(weight, tree_weight).ravel()
        is_single = np.zeros(len(size), dtype=bool)
        is_single[of_leaf] = True
        order = np.concatenate([of_leaf, np.flatnonzero(~is_single)])
        number = np.argsort(order)
        return cls(
            leaf=leaf,
            depth=depth,
            is_first=is_first,
            outer_size=trees[0].distinct.size[steps],
            outer_weight=weights[0][steps],
            child=number[child],
            parent=number[parent],
            inner_size=size[order],
            inner_weight=weight[order],
            n_additions=sum(_most_additions(tree.distinct) for tree in trees),
        )

    def with_one_outer_leaf(self) -> Products:
        """Keep only the inner folders, for an array of length one along the outer axis."""
        nothing, one = np.zeros(1, dtype=np.int64), np.ones(1, dtype=np.int64)
        return replace(self, leaf=nothing, depth=nothing, is_first=one, outer_size=one, outer_weight=np.ones(1))

    def runs(self, n_slices: int) -> list[slice]:
        """Split the steps into runs that are computed together."""
        n_steps, n_inner = len(self.leaf), len(self.inner_size)
        at_a_time = max(1, max(_SUMS_AT_A_TIME // n_slices, BLOCK) // n_inner)
        return [slice(start, min(start + at_a_time, n_steps)) for start in range(0, n_steps, at_a_time)]


class FolderSums:
    """Folder sums of every slice of an array along one axis; runs of steps must be requested in order."""

    def __init__(self, values: Float[Tensor, "..."], axis: int, products: Products, longest_run: int) -> None:
        self._array = values.contiguous().view(-1).numpy()
        self._n, self._strides, self._leaf_offsets = _offsets(tuple(values.shape), axis)
        self._products = products
        n_inner, n_bands = len(products.inner_size), (self._n + LANES - 1) // LANES
        self._stack = np.zeros((n_bands, int(products.depth.max()) + 1, n_inner * LANES), self._array.dtype)
        self._buffer = np.empty(self._n * padded_length(longest_run * n_inner), self._array.dtype)

    def make(
        self,
        steps: slice,
        outer_scale: Float[np.ndarray, " step"],
        scale: Float[np.ndarray, "slice_or_1 step_or_1 inner"],
    ) -> Float[np.ndarray, "slice feature"]:
        """Sums times ``outer_scale * scale``, step by step, padded with zeros; the next call overwrites them."""
        p, kind = self._products, self._array.dtype
        n_features = len(outer_scale) * len(p.inner_size)
        length = padded_length(n_features)
        out = self._buffer[: self._n * length].reshape(self._n, length)
        out[:, n_features:] = 0
        folder_sums(
            self._array,
            self._strides,
            self._leaf_offsets,
            (p.leaf[steps], p.depth[steps], p.is_first[steps]),
            (p.child, p.parent),
            (outer_scale.astype(kind), np.ascontiguousarray(scale, dtype=kind)),
            self._stack,
            out,
        )
        return out


def _post_order(
    folders: Folders,
) -> tuple[
    Int[np.ndarray, " folder"], Int[np.ndarray, " folder"], Int[np.ndarray, " folder"], Int[np.ndarray, " folder"]
]:
    """Folders, children before parents; the leaf (or -1) and depth of each, and whether it is a first child."""
    depth = np.zeros(len(folders), dtype=np.int64)
    for folder in range(1, len(folders)):
        depth[folder] = depth[folders.parent[folder]] + 1
    children, pointers = folders.children
    order: list[int] = []
    pending = [0]
    while pending:  # a pre-order with children reversed, reversed, is a post-order
        folder = pending.pop()
        order.append(folder)
        pending.extend(children[pointers[folder] : pointers[folder + 1]])
    steps = np.array(order[::-1])
    first_children = np.zeros(len(folders), dtype=np.int64)
    first_children[children[pointers[:-1][np.diff(pointers) > 0]]] = 1
    leaf = np.where(folders.is_leaf, folders.first_leaf, -1)
    return steps, leaf[steps], depth[steps], first_children[steps]


def _most_additions(folders: Folders) -> int:
    """Most additions between a leaf and the root if the sums of siblings are added one by one."""
    parents = folders.parent.tolist()
    n_siblings = (np.diff(folders.children[1]) - 1).tolist()
    above = [0] * len(folders)
    for folder in range(1, len(folders)):  # children have larger numbers than their parents
        above[folder] = above[parents[folder]] + n_siblings[parents[folder]]
    return max(above)


def _times(
    n_products: int,
    of_leaf: Int[np.ndarray, " inner_leaf"],
    child: Int[np.ndarray, " edge"],
    parent: Int[np.ndarray, " edge"],
    folders: Folders,
) -> tuple[Int[np.ndarray, " new_leaf"], Int[np.ndarray, " new_edge"], Int[np.ndarray, " new_edge"]]:
    """Products with the folders of one more tree: descend that tree first, then the others from its leaves.

    A product that is not a single entry is the sum of the products with the children of one of its factors; several
    trees are therefore traversed as one. Children have larger numbers than their parents, and edges are ordered by
    decreasing child.
    """
    n = len(folders)
    every = np.arange(n_products)[:, None] * n
    leaves = folders.of_leaf[None, :]
    new_child = np.concatenate([(every + np.arange(1, n)).ravel(), (child[:, None] * n + leaves).ravel()])
    new_parent = np.concatenate([(every + folders.parent[1:]).ravel(), (parent[:, None] * n + leaves).ravel()])
    decreasing = np.argsort(-new_child, kind="stable")
    return (of_leaf[:, None] * n + leaves).ravel(), new_child[decreasing], new_parent[decreasing]


def _offsets(shape: tuple[int, ...], axis: int) -> tuple[int, tuple[int, int], Int[np.ndarray, " inner_leaf"]]:
    """Number of slices, strides of slices and of the outer axis, and offsets of the inner leaves."""
    strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    outer, *inner = (i for i in range(len(shape)) if i != axis)
    offsets = np.zeros(1, dtype=np.int64)
    for i in inner:
        offsets = (offsets[:, None] + np.arange(shape[i]) * strides[i]).ravel()
    return shape[axis], (strides[axis], strides[outer]), offsets
