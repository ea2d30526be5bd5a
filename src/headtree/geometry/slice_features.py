"""Sums of slices over tuples of folders: of an array in memory, on a GPU, or read block by block."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from headtree._lazy_array import AxisIndex, ScaledBlocks
from headtree.geometry.emd import Weights, folder_weights, level_weights, unit_maximum
from headtree.geometry.kernels_cpu import prefix_features
from headtree.trees.tree import PartitionTree

#: Bytes of prefix sums that are made at a time on a GPU.
_BYTES_ON_GPU = 1 << 31

#: The folders on one level of a tree, in the order of their leaves, and their weights.
Level = tuple[Int[np.ndarray, " folder"], Float[np.ndarray, " folder"]]


@dataclass(frozen=True, eq=False)
class TreeAxis:
    """A tree on another axis: which leaves a folder has, and the folders on each level with their weights."""

    order: Int[np.ndarray, " leaf"]
    start: Int[np.ndarray, " folder"]  #: of a distinct folder's leaves in the order
    stop: Int[np.ndarray, " folder"]
    levels: list[Level]
    unit: float  #: weights are in this unit

    @classmethod
    def of(
        cls,
        tree: PartitionTree,
        order: Int[np.ndarray, " leaf"],
        alpha: float,
        beta: float,
        weights: Weights,
    ) -> TreeAxis:
        """A tree whose leaves are in an order that keeps every folder together."""
        folders = tree.distinct
        _, unit = unit_maximum(folder_weights(tree, alpha, beta, weights))
        first = np.empty(tree.n_nodes, dtype=np.int64)
        first[tree.nodes[:, order[::-1]]] = np.arange(tree.n_leaves)[
            ::-1
        ]  # of a node's leaves, the first is set last
        start = first[folders.node]
        size_weight = (folders.size / tree.n_leaves) ** beta
        levels = []
        for level, level_weight in enumerate(level_weights(tree, alpha)):
            is_on = folders.level == level
            if weights == "levels":
                is_on = (folders.level <= level) & (level < folders.level + folders.stands_on)
            chosen = np.flatnonzero(is_on)
            chosen = chosen[np.argsort(start[chosen])]
            if len(chosen):
                levels.append((chosen, size_weight[chosen] * level_weight / unit))
        return cls(np.asarray(order), start, start + folders.size, levels, unit)


@dataclass(frozen=True, eq=False)
class TupleScale:
    """What the sums of slices over folder tuples are multiplied by: ``weight / (count * size)``.

    The entries that a slice has in a tuple are a count, which many tuples have in common, times a size.
    """

    weight: Float[Tensor, " tuple"]
    size: Float[Tensor, " tuple"]
    counts: Float[Tensor, "slice_or_1 group"]  #: one row if all slices have the same entries
    group: Int[Tensor, " tuple"]  #: which count
    absent: float = 0.0  #: stands for a tuple in which a slice has no entries

    @classmethod
    def one(cls, n: int, device: torch.device) -> TupleScale:
        """Sums as they are."""
        ones = torch.ones(n, dtype=torch.float64, device=device)
        return cls(ones, ones, ones[None, :1], torch.zeros(n, dtype=torch.int64, device=device))

    def of(self, columns: slice) -> TupleScale:
        """Those of some tuples."""
        return replace(self, weight=self.weight[columns], size=self.size[columns], group=self.group[columns])

    def rows(self, where: slice) -> Float[Tensor, "slice_or_1 tuple"]:
        """The factors of some slices."""
        entries = (self.counts if len(self.counts) == 1 else self.counts[where])[:, self.group] * self.size
        return torch.where(entries > 0, self.weight / entries, self.absent)

    def totals(self) -> tuple[Float[Tensor, " slice_or_1"], Float[Tensor, " slice_or_1"]]:
        """Sums over the tuples that a slice has: of the factors, and of the weights."""
        of_groups = torch.zeros(2, self.counts.shape[1], dtype=torch.float64, device=self.weight.device)
        of_groups.index_add_(1, self.group, torch.stack([self.weight / self.size, self.weight]))
        is_there = self.counts > 0
        inverse = torch.where(is_there, 1 / self.counts, 0.0)
        return inverse @ of_groups[0], is_there.double() @ of_groups[1]


def features_of(
    values: Tensor | ScaledBlocks,
    axis: int,
    axes: Sequence[TreeAxis],
    folders: Int[np.ndarray, "tuple axis"],
    scale: TupleScale,
) -> Float[Tensor, "slice tuple"]:
    """Sums of every slice over folder tuples, times `scale`."""
    shape = [n for i, n in enumerate(values.shape) if i != axis]
    orders = [
        each.order if length > 1 else np.zeros(1, dtype=np.int64) for each, length in zip(axes, shape, strict=True)
    ]
    corners, signs = _corners(shape, axes, folders)
    dtype = torch.promote_types(values.dtype, torch.float32)
    out = torch.empty(values.shape[axis], len(folders), dtype=dtype, device=values.device)
    if isinstance(values, Tensor) and not values.is_cuda:
        _fill_by_prefix_sums(values.contiguous(), axis, orders, corners, signs, scale, out)
        return out
    in_orders = orders if values.is_cuda else [slice(None)] * len(orders)
    for where, block in _blocks_of_slices(values, axis, in_orders, len(corners)):
        if values.is_cuda:
            out[where] = _box_sums(block, torch.from_numpy(corners).to(block.device), signs) * scale.rows(where)
        else:
            some = scale if len(scale.counts) == 1 else replace(scale, counts=scale.counts[where])
            _fill_by_prefix_sums(block, 0, orders, corners, signs, some, out[where])
    return out


def _blocks_of_slices(
    values: Tensor | ScaledBlocks, axis: int, orders: Sequence[AxisIndex], n_tuples: int
) -> Iterator[tuple[slice, Float[Tensor, "slice ..."]]]:
    """Slices along an axis in blocks, with the other axes in the given orders."""
    n, n_entries = values.shape[axis], values.numel() // values.shape[axis]
    bytes_at_a_time = float(_BYTES_ON_GPU)
    if isinstance(values, ScaledBlocks):
        bytes_at_a_time = min(values.memory / 2, _BYTES_ON_GPU if values.is_cuda else values.memory)
    at_a_time = max(1, int(bytes_at_a_time / (16 * n_entries + 8 * n_tuples)))
    for start in range(0, n, at_a_time):
        where = slice(start, min(start + at_a_time, n))
        if isinstance(values, ScaledBlocks):
            index: list[AxisIndex] = list(orders)
            index.insert(axis, where)
            yield where, values.block(*index).movedim(axis, 0).contiguous()
        else:
            block = values.narrow(axis, start, where.stop - start).movedim(axis, 0)
            yield where, _in_orders(block, orders)


def _in_orders(slices: Float[Tensor, "slice ..."], orders: Sequence[AxisIndex]) -> Float[Tensor, "slice ..."]:
    for j, order in enumerate(orders):
        slices = slices.index_select(j + 1, torch.from_numpy(np.array(order)).to(slices.device))
    return slices


def _fill_by_prefix_sums(
    array: Float[Tensor, "..."],
    axis: int,
    orders: Sequence[Int[np.ndarray, " leaf"]],
    corners: Int[np.ndarray, "tuple corner"],
    signs: Float[np.ndarray, " corner"],
    scale: TupleScale,
    out: Float[Tensor, "slice tuple"],
) -> None:
    """Fill in the features of slices of an array in memory."""
    strides = array.stride(axis), [array.stride(i) for i in range(array.ndim) if i != axis]
    weight, size, counts, group = (x.numpy() for x in (scale.weight, scale.size, scale.counts, scale.group))
    factors = weight, size, counts, group, scale.absent
    prefix_features(array.view(-1).numpy(), strides, orders, corners, signs, factors, out.numpy())


def _box_sums(
    slices: Float[Tensor, "slice ..."], corners: Int[Tensor, "tuple corner"], signs: Float[np.ndarray, " corner"]
) -> Float[Tensor, "slice tuple"]:
    """`prefix_features` by operations of torch, of slices whose other axes are in the order of their trees."""
    sums = slices.double()
    for axis in range(1, sums.ndim):
        sums = _prefix_sums(sums, axis)
    flat = sums.reshape(len(sums), -1)
    total = torch.zeros(len(sums), len(corners), dtype=torch.float64, device=sums.device)
    for corner, sign in enumerate(signs.tolist()):
        total.add_(flat.index_select(1, corners[:, corner]), alpha=sign)
    return total


def _prefix_sums(x: Float[Tensor, "..."], axis: int) -> Float[Tensor, "..."]:
    """Sums over the first entries along an axis: none of them, one, two, and so on."""
    return torch.cat([torch.zeros_like(x.narrow(axis, 0, 1)), x.cumsum(dim=axis)], dim=axis)


def all_features(
    slices: Float[Tensor, "slice ..."], axes: Sequence[TreeAxis], weights: Sequence[Float[np.ndarray, " folder"]]
) -> Float[Tensor, "slice tuple"]:
    """Weighted means of every slice over all folder tuples, from differences of prefix sums along each axis."""
    n_tuples = math.prod(len(weight) for weight in weights)
    dtype = torch.promote_types(slices.dtype, torch.float32)
    out = torch.empty(len(slices), n_tuples, dtype=dtype, device=slices.device)
    at_a_time = max(1, _BYTES_ON_GPU // (32 * n_tuples))
    for start in range(0, len(slices), at_a_time):
        sums = slices[start : start + at_a_time].double()
        for j, (each, weight) in enumerate(zip(axes, weights, strict=True), 1):
            order, first, end = (
                torch.from_numpy(np.array(x)).to(sums.device) for x in (each.order, each.start, each.stop)
            )
            sums = _prefix_sums(sums.index_select(j, order), j)
            sums = sums.index_select(j, end).sub_(sums.index_select(j, first))
            mean = torch.from_numpy(weight / (each.stop - each.start)).to(sums.device)
            sums *= mean.reshape([-1 if i == j else 1 for i in range(sums.ndim)])
        out[start : start + at_a_time] = sums.reshape(len(sums), -1)
    return out


def _corners(
    shape: Sequence[int], axes: Sequence[TreeAxis], folders: Int[np.ndarray, "tuple axis"]
) -> tuple[Int[np.ndarray, "tuple corner"], Float[np.ndarray, " corner"]]:
    """Places in the array of sums over all first leaves whose signed sum is that over a folder tuple."""
    places, signs = np.zeros((len(folders), 1), dtype=np.int64), np.ones(1)
    for j, (each, length) in enumerate(zip(axes, shape, strict=True)):
        stride = math.prod(n + 1 for n in shape[j + 1 :])
        if length == 1:  # the same for all leaves
            ends = np.tile([[1, 0]], (len(folders), 1))
        else:
            ends = np.stack([each.stop[folders[:, j]], each.start[folders[:, j]]], axis=1)
        places = (places[:, :, None] + ends[:, None, :] * stride).reshape(len(folders), -1)
        signs = np.outer(signs, [1, -1]).ravel()
    return places, signs
