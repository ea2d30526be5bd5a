"""Sums of slices over tuples of folders: of an array in memory, on a GPU, or read block by block."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headtree._lazy_array import AxisIndex, ScaledBlocks, blocks_along, picked
from headtree.geometry.box_sums import box_features
from headtree.geometry.emd import Weights, folder_weights, level_weights, unit_maximum
from headtree.trees.tree import PartitionTree

#: Bytes of sums that are made at a time on a GPU, and slices whose sums are made together where that is possible.
_BYTES_ON_GPU = 1 << 30
_SLICES_ON_GPU = 128

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
    out = _room(values.shape[axis], len(folders), values)
    ends = _ends(shape, axes, folders)
    if values.is_cuda:
        _fill_on_gpu(values, axis, orders, ends, scale, out)
        return out
    if isinstance(values, Tensor):
        _fill_by_box_sums(values.contiguous(), axis, orders, ends, scale, out)
        return out
    n_entries = values.numel() // values.shape[axis]
    at_a_time = max(1, int(values.memory / 2 / (16 * n_entries + 8 * len(folders))))
    for where, block in blocks_along(values, axis, at_a_time):
        some = scale if len(scale.counts) == 1 else replace(scale, counts=scale.counts[where])
        whole = block.movedim(axis, 0).contiguous()
        _fill_by_box_sums(whole, 0, orders, ends, some, out[where])
    return out


def _fill_by_box_sums(
    array: Float[Tensor, "..."],
    axis: int,
    orders: Sequence[Int[np.ndarray, " leaf"]],
    ends: Sequence[Int[np.ndarray, "tuple 2"]],
    scale: TupleScale,
    out: Float[Tensor, "slice tuple"],
) -> None:
    """Fill in the features of slices of an array in memory."""
    strides = array.stride(axis), [array.stride(i) for i in range(array.ndim) if i != axis]
    weight, size, counts, group = (x.numpy() for x in (scale.weight, scale.size, scale.counts, scale.group))
    box_features(
        array.view(-1).numpy(), strides, orders, ends, (weight, size, counts, group, scale.absent), out.numpy()
    )


def _fill_on_gpu(
    values: Tensor | ScaledBlocks,
    axis: int,
    orders: Sequence[Int[np.ndarray, " leaf"]],
    ends: Sequence[Int[np.ndarray, "tuple 2"]],
    scale: TupleScale,
    out: Float[Tensor, "slice tuple"],
) -> None:
    """Fill in the features of slices by prefix sums in float64 along all other axes, a part of the first at a time.

    The sums of a part start from those at the end of the part before it. Only blocks of some slices and some leaves
    of the first other axis exist at a time.
    """
    others = [i for i in range(values.ndim) if i != axis]
    n_rest = math.prod(values.shape[i] for i in others[1:])
    memory = _BYTES_ON_GPU if isinstance(values, Tensor) else min(values.memory / 4, _BYTES_ON_GPU)
    rows = max(1, int(memory / (8 * n_rest)))  # of all slices and leaves in a block
    n_slices = min(values.shape[axis], rows, max(_SLICES_ON_GPU, rows // values.shape[others[0]]))
    n_slices = max(1, min(n_slices, int(memory / (8 * out.shape[1]))))
    n_leaves = max(1, rows // n_slices)
    parts = [
        (leaves, _corners_within(leaves, ends, values.device))
        for leaves in (
            slice(start, min(start + n_leaves, len(orders[0]))) for start in range(0, len(orders[0]), n_leaves)
        )
    ]
    for start in range(0, values.shape[axis], n_slices):
        where = slice(start, min(start + n_slices, values.shape[axis]))
        total = torch.zeros(where.stop - start, out.shape[1], dtype=torch.float64, device=out.device)
        carried = None
        for leaves, corners in parts:
            index: list[AxisIndex] = [orders[0][leaves], *orders[1:]]
            index.insert(axis, where)
            sums = _sums_along(others[1:], *_unscaled(values, index))
            if carried is not None:
                sums.narrow(others[0], 0, 1).add_(carried)
            sums.cumsum_(others[0])
            carried = sums.narrow(others[0], sums.shape[others[0]] - 1, 1).clone()
            by_slice = sums.movedim(axis, 0)
            for tuples, places, sign in corners:
                everywhere: tuple[Any, ...] = (slice(None), *places)
                total.index_add_(1, tuples, by_slice[everywhere].mul_(sign))
        out[where] = total.mul_(scale.rows(where))


def _unscaled(
    values: Tensor | ScaledBlocks, index: Sequence[AxisIndex]
) -> tuple[Float[Tensor, "..."], Bool[Tensor, "..."] | None, float]:
    """A block of an array, which of its entries are missing if they are not zero, and a factor for the others."""
    if not isinstance(values, Tensor):
        if abs(values.exponent) > 1000:  # a power of two that float64 may not have
            return values.block(*index), None, 1.0
        return *values.unscaled_block(*index), 2.0**-values.exponent
    for axis, each in sorted(enumerate(index), key=lambda x: not isinstance(x[1], slice)):
        values = picked(values, axis, each)
    return values, None, 1.0


def _sums_along(
    axes: Sequence[int], block: Float[Tensor, "..."], hidden: Bool[Tensor, "..."] | None, factor: float
) -> Float[Tensor, "..."]:
    """Prefix sums along some axes, in float64 and in new memory, with 0 in place of hidden entries."""
    if block.is_cuda and block.ndim == 3 and len(axes) == 1:
        from headtree.geometry.kernels_gpu import prefix_sums

        return prefix_sums(block, axes[0], hidden, factor)
    sums = block.to(torch.float64, copy=True)
    if hidden is not None:
        sums.masked_fill_(hidden, 0)
    sums *= factor
    for axis in axes:
        sums.cumsum_(axis)
    return sums


def _corners_within(
    leaves: slice, ends: Sequence[Int[np.ndarray, "tuple 2"]], device: torch.device
) -> list[tuple[Int[Tensor, " some"], list[Int[Tensor, " some"]], Float[Tensor, " some"]]]:
    """Corners of folder tuples in a part of the first axis: which tuples, where, and the sign of the sum there.

    The sum up to end e is at place e - 1; up to 0 it is 0, so its sign is 0.
    """
    found = []
    for which in product((0, 1), repeat=len(ends)):
        first = ends[0][:, which[0]]
        tuples = np.flatnonzero((first > leaves.start) & (first <= leaves.stop))
        if not len(tuples):
            continue
        at = [each[tuples, i] for each, i in zip(ends, which, strict=True)]
        sign = np.where(np.all([each > 0 for each in at], axis=0), (-1.0) ** sum(which), 0.0)
        places = [at[0] - leaves.start - 1, *(np.maximum(each - 1, 0) for each in at[1:])]
        on_device = [torch.from_numpy(each).to(device) for each in (tuples, *places, sign)]
        found.append((on_device[0], on_device[1:-1], on_device[-1]))
    return found


def _prefix_sums(x: Float[Tensor, "..."], axis: int) -> Float[Tensor, "..."]:
    """Sums over the first entries along an axis: none of them, one, two, and so on."""
    return torch.cat([torch.zeros_like(x.narrow(axis, 0, 1)), x.cumsum(dim=axis)], dim=axis)


def all_features(
    slices: Float[Tensor, "slice ..."], axes: Sequence[TreeAxis], weights: Sequence[Float[np.ndarray, " folder"]]
) -> Float[Tensor, "slice tuple"]:
    """Weighted means of every slice over all folder tuples, from differences of prefix sums along each axis."""
    n_tuples = math.prod(len(weight) for weight in weights)
    out = _room(len(slices), n_tuples, slices)
    at_a_time = max(1, _BYTES_ON_GPU // (16 * n_tuples))
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


def _room(n_slices: int, n_tuples: int, like: Tensor | ScaledBlocks) -> Float[Tensor, "slice tuple"]:
    """Room for features in the order in which their differences are summed, on the device of the values."""
    dtype = torch.promote_types(like.dtype, torch.float32)
    if like.device.type != "cuda" or n_slices == 1:
        return torch.empty(n_slices, n_tuples, dtype=dtype, device=like.device)
    from headtree.geometry.kernels_gpu import features_side_by_side

    return features_side_by_side(n_slices, n_tuples, dtype, like.device)


def _ends(
    shape: Sequence[int], axes: Sequence[TreeAxis], folders: Int[np.ndarray, "tuple axis"]
) -> list[Int[np.ndarray, "tuple 2"]]:
    """Where the leaves of each folder stop and start in the order of its axis, one leaf standing for all alike."""
    return [
        np.tile([[1, 0]], (len(folders), 1))
        if length == 1
        else np.stack([each.stop[chosen], each.start[chosen]], axis=1)
        for each, length, chosen in zip(axes, shape, folders.T, strict=True)
    ]
