"""The tree earth mover's distance from a sample of folders, for arrays too large for all of them.

For a tuple of levels, one of each tree on the other axes, the distance is a sum over tuples of folders on these
levels. It is estimated from some of them, drawn with probabilities proportional to their weights; where there are
no more than that, all are taken. The number of terms then depends on the number of levels, not on the size of the
array. Only the weight that a pair of slices has in common, by which distances with missing entries are rescaled, is
summed over all folders of the axes along which the mask varies.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headtree import _checks
from headtree._lazy_array import ScaledBlocks, slice_magnitudes
from headtree.geometry.emd import Weights, folder_weights, unit_maximum
from headtree.geometry.first_rows import add_products, mirrored_lower, mirrored_upper
from headtree.geometry.folder_sums import FolderSums, Products
from headtree.geometry.kernels_cpu import BLOCK, add_pairwise_l1, padded_length
from headtree.geometry.slice_features import Level, TreeAxis, TupleScale, all_features, features_of
from headtree.trees.tree import PartitionTree

#: Features that are copied at a time for the kernel of differences.
_COPIED_AT_A_TIME = 8 * BLOCK

#: Most bytes of features of an array in memory that are made together.
_FEATURES_AT_A_TIME = 1 << 30

#: Most folder tuples of all slices whose entries are counted together on a GPU.
_COUNTS_ON_GPU = 1 << 26

#: Multiplications and conversions between the sum over a tuple of folders and its weighted mean.
_MULTIPLICATIONS = 8


class SampledDistances(NamedTuple):
    """Estimated distances, and the root mean square of their standard errors relative to their mean.

    The error is None if nothing had to be drawn or there are no pairs, and nan if the sample shows no difference.
    With few slices it is a rough estimate itself, since it comes from two halves of the sample.
    """

    distances: Float[Tensor, "first slice"]
    relative_error: float | None


def n_differences(n_slices: int, trees: Sequence[PartitionTree], n_first: int | None = None) -> int:
    """Number of differences of folder means in the exact distances between slices, or the first ones and all."""
    n_first = n_slices if n_first is None else n_first
    n_pairs = n_first * (n_first - 1) // 2 + n_first * (n_slices - n_first)
    return n_pairs * math.prod(len(tree.distinct) for tree in trees)


def sampled_emd(
    values: Float[Tensor, "..."] | ScaledBlocks,
    axis: int,
    trees: Sequence[PartitionTree],
    orders: Sequence[Int[np.ndarray, " leaf"]],
    alpha: float,
    beta: float,
    weights: Weights,
    missing: Bool[Tensor, "..."] | None,
    *,
    samples: int | None,
    rng: np.random.Generator,
    n_first: int | None = None,
) -> SampledDistances:
    """Estimate `emd_matrix` from `samples` folder tuples of each tuple of levels, two or more; None takes all.

    `values` may be on a GPU, and the distances are then too. Of those that are not in memory, slices are read in
    blocks. With `n_first`, distances are only between the first slices and all.

    `orders` are orders of the leaves of each tree that keep every folder together. Draws depend on them and on
    `rng` only: slices of other axes in another order give the same distances if the orders follow.

    The sample is drawn as two independent halves. Half the difference of the two estimates that they give is the
    standard error of their mean.
    """
    axes = [TreeAxis.of(*each, alpha, beta, weights) for each in zip(trees, orders, strict=True)]
    n_first = values.shape[axis] if n_first is None else n_first
    if samples is None and missing is None and isinstance(values, Tensor):
        weights_and_units = [unit_maximum(folder_weights(tree, alpha, beta, weights)) for tree in trees]
        of_folders = [weight for weight, _ in weights_and_units]
        features = all_features(values.movedim(axis, 0), axes, of_folders)
        every = torch.zeros(n_first, len(features), dtype=torch.float64, device=features.device)
        _add_pairwise(every, features)
        every = every if every.is_cuda else mirrored_upper(every)
        means = [weight / (each.stop - each.start) for weight, each in zip(of_folders, axes, strict=True)]
        totals = (math.prod(float(each.sum()) for each in factors) for factors in (means, of_folders))
        every = _without_rounding_errors(every, values, axis, *(torch.tensor([x]).double() for x in totals))
        return SampledDistances(every * math.prod(unit for _, unit in weights_and_units), None)
    if samples is None:
        parts = _everything(trees, [unit_maximum(folder_weights(tree, alpha, beta, weights))[0] for tree in trees])
    else:
        parts = _drawn(axes, samples, rng)
    certain, *halves = _both_present(values, missing, axis, axes, parts, n_first)
    total = certain + halves[0] + halves[1]
    scale: float | Tensor = math.prod(each.unit for each in axes)
    if missing is not None:
        of_folders = [folder_weights(tree, alpha, beta, weights) for tree in trees]
        kept = _kept_weight(missing, axis, trees, axes, of_folders, values.device, n_first)
        scale = scale * math.prod(float(weight.sum()) for weight in of_folders) / kept
    distances = torch.where(torch.as_tensor(scale) == torch.inf, torch.inf, total * scale).fill_diagonal_(0)
    known = torch.isfinite(distances).fill_diagonal_(False)
    errors, mean = ((halves[0] - halves[1]) * scale)[known], distances[known].mean()
    is_drawn = any(len(part.weight) for part in parts[1:]) and bool(known.any())
    return SampledDistances(distances, float(errors.square().mean().sqrt() / mean) if is_drawn else None)


# -- drawing ------------------------------------------------------------------------------------------------------


def _everything(
    trees: Sequence[PartitionTree], weights: Sequence[Float[np.ndarray, " folder"]]
) -> tuple[_Part, _Part, _Part]:
    """All folder tuples, taken for certain."""
    shape = tuple(len(weight) for weight in weights)
    weight = _products_of(weights)
    nothing = _merged([], shape)
    return _Part(np.stack(np.unravel_index(np.arange(len(weight)), shape), axis=1), weight), nothing, nothing


def _products_of(weights: Sequence[Float[np.ndarray, " folder"]]) -> Float[np.ndarray, " tuple"]:
    """Weights of all tuples of folders, one of each axis; those of the last axis next to each other."""
    result = np.ones(1)
    for each in weights:
        result = np.outer(result, each).ravel()
    return result


class _Part(NamedTuple):
    """Some folder tuples, with their weights in the estimate."""

    folders: Int[np.ndarray, "tuple axis"]
    weight: Float[np.ndarray, " tuple"]


def _drawn(axes: Sequence[TreeAxis], samples: int, rng: np.random.Generator) -> tuple[_Part, _Part, _Part]:
    """Folder tuples that are taken for certain, and two independent halves of those drawn."""
    shape = tuple(len(each.start) for each in axes)
    found: tuple[list[_Part], ...] = ([], [], [])
    for levels in product(*(each.levels for each in axes)):
        n_tuples = math.prod(len(folders) for folders, _ in levels)
        if n_tuples <= samples:
            folders = np.stack([f.ravel() for f in np.meshgrid(*(f for f, _ in levels), indexing="ij")], axis=1)
            found[0].append(_Part(folders, _products_of([weight for _, weight in levels])))
            continue
        whole = math.prod(float(weight.sum()) for _, weight in levels)
        for half, n_drawn in ((1, samples - samples // 2), (2, samples // 2)):
            found[half].append(_Part(_lattice(levels, n_drawn, rng), np.full(n_drawn, whole / 2 / n_drawn)))
    certain, first_half, second_half = (_merged(parts, shape) for parts in found)
    return certain, first_half, second_half


def _lattice(levels: Sequence[Level], n: int, rng: np.random.Generator) -> Int[np.ndarray, "draw axis"]:
    """`n` folder tuples drawn by weight: points of a lattice with a random shift, which makes them unbiased.

    Points are k/n along the first axis and k/g, k/g², … along the others, modulo 1, where g is the root of
    g^d = g + 1 for d axes, two or more: the golden ratio for two. They cover all axes together more evenly than
    chance does.
    """
    ratio = 2.0
    for _ in range(64):
        ratio = (1 + ratio) ** (1 / len(levels))
    drawn = []
    for j, (folders, weight) in enumerate(levels):
        step = 1 / n if j == 0 else ratio**-j
        ends = np.cumsum(weight)
        at = (np.arange(n) * step + rng.random()) % 1 * ends[-1]
        drawn.append(folders[np.minimum(np.searchsorted(ends, at, side="right"), len(folders) - 1)])
    return np.stack(drawn, axis=1)


def _merged(parts: Sequence[_Part], shape: tuple[int, ...]) -> _Part:
    """Equal folder tuples as one, with the sum of their weights."""
    if not parts:
        return _Part(np.zeros((0, len(shape)), dtype=np.int64), np.zeros(0))
    folders, weight = (np.concatenate(each) for each in zip(*parts, strict=True))
    numbers, inverse = np.unique(np.ravel_multi_index(tuple(folders.T), shape), return_inverse=True)
    return _Part(np.stack(np.unravel_index(numbers, shape), axis=1), np.bincount(inverse, weight))


# -- sums over drawn folders --------------------------------------------------------------------------------------


def _both_present(
    values: Float[Tensor, "..."] | ScaledBlocks,
    missing: Bool[Tensor, "..."] | None,
    axis: int,
    axes: Sequence[TreeAxis],
    parts: Sequence[_Part],
    n_first: int,
) -> list[Float[Tensor, "first slice"]]:
    """Sums of weighted differences of means over the folder tuples of each part that both slices have."""
    folders, weight = (np.concatenate(each) for each in zip(*parts, strict=True))
    scale = _scale_of(values, missing, axis, axes, folders, weight)
    ends = np.cumsum([len(part.weight) for part in parts])
    of_parts = [slice(int(end) - len(part.weight), int(end)) for part, end in zip(parts, ends, strict=True)]
    found = [torch.zeros(n_first, values.shape[axis], dtype=torch.float64, device=values.device) for _ in parts]
    for columns in _columns_at_a_time(values, axis, of_parts):
        features = features_of(values, axis, axes, folders[columns], scale.of(columns))
        for sums, of_part in zip(found, of_parts, strict=True):
            start, stop = max(columns.start, of_part.start), min(columns.stop, of_part.stop)
            if start < stop:
                own = features[:, start - columns.start : stop - columns.start]
                _add_pairwise(sums, own, has_gaps=len(scale.counts) > 1)
    for i, of_part in enumerate(of_parts):
        sums = found[i] if values.is_cuda else mirrored_upper(found[i])
        found[i] = _without_rounding_errors(sums, values, axis, *scale.of(of_part).totals())
    return found


def _columns_at_a_time(
    values: Float[Tensor, "..."] | ScaledBlocks, axis: int, parts: Sequence[slice]
) -> list[slice]:
    """The tuples in runs whose features fit into memory: all, or multiples of the kernel's block of each part."""
    memory = _FEATURES_AT_A_TIME if isinstance(values, Tensor) else values.memory / 2
    most = int(memory / (values.dtype.itemsize * values.shape[axis]))
    if parts[-1].stop <= most:
        return [slice(0, parts[-1].stop)]
    step = max(1, most // BLOCK) * BLOCK
    return [
        slice(start, min(start + step, part.stop)) for part in parts for start in range(part.start, part.stop, step)
    ]


def _scale_of(
    values: Float[Tensor, "..."] | ScaledBlocks,
    missing: Bool[Tensor, "..."] | None,
    axis: int,
    axes: Sequence[TreeAxis],
    folders: Int[np.ndarray, "tuple axis"],
    weight: Float[np.ndarray, " tuple"],
) -> TupleScale:
    """What turns sums over folder tuples into weighted means over the entries that slices have.

    Entries are counted by the folders on the axes along which the mask varies.
    """
    varies = [False] * len(axes) if missing is None else _varying(missing, axis)
    size = _sizes(axes, folders, [not each for each in varies])
    columns = [j for j, each in enumerate(varies) if each]
    numbers = np.zeros(len(folders), dtype=np.int64)
    if columns:
        shape = tuple(len(axes[j].start) for j in columns)
        numbers = np.ravel_multi_index(tuple(folders[:, j] for j in columns), shape)
    _, first, group = np.unique(numbers, return_index=True, return_inverse=True)
    counts = torch.ones(1, len(first), dtype=torch.float64, device=values.device)
    if missing is not None:
        present = _present(missing).to(values.device, torch.float64)
        counts = features_of(present, axis, axes, folders[first], TupleScale.one(len(first), values.device)).round()
    weight_, size_, group_ = (torch.from_numpy(x).to(values.device) for x in (weight, size, group))
    # nobody has a folder that is missing from slices with a common mask: it adds nothing
    return TupleScale(weight_, size_, counts, group_, math.nan if len(counts) > 1 else 0.0)


def _add_pairwise(
    total: Float[Tensor, "first slice"], features: Float[Tensor, "slice feature"], *, has_gaps: bool = False
) -> None:
    """Add L1 distances between rows, on the CPU above the diagonal only.

    With gaps, a feature that is NaN in either row adds nothing.
    """
    n, n_features = features.shape
    if features.is_cuda:
        from headtree.geometry.kernels_gpu import pairwise_l1

        total += pairwise_l1(features, n_first=len(total), has_gaps=has_gaps)
        return
    for start in range(0, n_features, _COPIED_AT_A_TIME):
        some = features[:, start : start + _COPIED_AT_A_TIME].numpy()
        padded = np.zeros((n, padded_length(some.shape[1])), dtype=some.dtype)
        padded[:, : some.shape[1]] = some
        add_pairwise_l1(padded, total.numpy(), has_gaps=has_gaps)


def _without_rounding_errors(
    sums: Float[Tensor, "first slice"],
    values: Float[Tensor, "..."] | ScaledBlocks,
    axis: int,
    scale: Float[Tensor, " slice_or_1"],
    weight: Float[Tensor, " slice_or_1"],
) -> Float[Tensor, "first slice"]:
    r"""Set sums to zero that rounding errors alone may explain: there is no structure to be found in them.

    The sum over a tuple of folders is made of :math:`2^d` prefix sums in float64 over the d other axes, in which an
    entry has gone through at most as many additions as these axes have leaves. It is therefore off by at most
    :math:`2^d k u` times the sum of the slice's absolute values, u being the unit roundoff and k the number of
    additions and multiplications, and a weighted mean by that times what turns a sum into it: `scale` is the sum of
    this over folders. Entries and means are rounded in their own dtype, each by at most u times the largest entry;
    `weight` is the sum of the weights of the means.
    """
    shape = [n for i, n in enumerate(values.shape) if i != axis]
    n_corners = 2 ** len(shape)
    of_sum = n_corners * (sum(shape) + n_corners + _MULTIPLICATIONS) * torch.finfo(torch.float64).eps / 2 * scale
    of_largest = torch.finfo(values.dtype).eps * weight
    most = 2 * float((of_sum * math.prod(shape) + of_largest).max())  # entries are at most 1
    if not bool(((sums > 0) & (sums <= most)).any()):
        return sums
    sizes = slice_magnitudes(values, axis)
    bound = of_sum.to(sums.device) * sizes.total + of_largest.to(sums.device) * sizes.largest
    return sums.masked_fill(sums <= bound[: len(sums), None] + bound[None, :], 0)


def _sizes(
    axes: Sequence[TreeAxis], folders: Int[np.ndarray, "tuple axis"], counted: Sequence[bool]
) -> Float[np.ndarray, " tuple"]:
    """Number of entries in each folder tuple, counting some of the axes."""
    size = np.ones(len(folders))
    for each, chosen, is_counted in zip(axes, folders.T, counted, strict=True):
        if is_counted:
            size *= each.stop[chosen] - each.start[chosen]
    return size


# -- missing entries ----------------------------------------------------------------------------------------------


def _varying(missing: Bool[Tensor, "..."], axis: int) -> list[bool]:
    """Whether the mask varies along each axis other than `axis`."""
    return [not _checks.is_shared(missing, i) for i in range(missing.ndim) if i != axis]


def _present(missing: Bool[Tensor, "..."]) -> Bool[Tensor, "..."]:
    """Whether entries are present, with length 1 along the axes along which that is the same."""
    return _checks.unshared(missing).logical_not()


def _kept_weight(
    missing: Bool[Tensor, "..."],
    axis: int,
    trees: Sequence[PartitionTree],
    axes: Sequence[TreeAxis],
    weights: Sequence[Float[np.ndarray, " folder"]],
    device: torch.device,
    n_first: int,
) -> Float[Tensor, "first_or_1 slice_or_1"]:
    """Weight of all folder tuples in which both slices have entries: exactly, since the rescaling is by it."""
    varies = _varying(missing, axis)
    factor = math.prod(float(weight.sum()) for weight, is_here in zip(weights, varies, strict=True) if not is_here)
    chosen = [i for i, is_here in enumerate(varies) if is_here]
    present = _present(missing)
    shape = [present.shape[axis], *(trees[i].n_leaves for i in chosen)]
    if not chosen:
        each = present.reshape(-1).to(device, torch.float64)
        return factor * each[:n_first, None] * each[None, :]
    counted = present.movedim(axis, 0).reshape(shape)
    kept = torch.zeros(min(n_first, shape[0]), shape[0], dtype=torch.float64, device=device)
    for is_there, weight in _presence(counted, [(trees[i], axes[i], weights[i]) for i in chosen], device):
        weighted = is_there[: len(kept)] * torch.from_numpy(weight).to(device)
        add_products(kept, weighted, is_there)
    return mirrored_lower(kept) * factor


def _presence(
    counted: Bool[Tensor, "slice ..."],
    of_axes: Sequence[tuple[PartitionTree, TreeAxis, Float[np.ndarray, " folder"]]],
    device: torch.device,
) -> Iterator[tuple[Float[Tensor, "slice tuple"], Float[np.ndarray, " tuple"]]]:
    """Whether slices have entries in folder tuples, some tuples at a time, and the weights of the tuples."""
    trees, axes, weights = zip(*of_axes, strict=True)
    n_tuples = math.prod(len(weight) for weight in weights)
    if device.type == "cuda" and len(counted) * n_tuples <= _COUNTS_ON_GPU:
        sums = all_features(
            counted.to(device, torch.float32), axes, [(each.stop - each.start).astype(np.float64) for each in axes]
        )
        yield (sums > 0.5).double(), _products_of(weights)
        return
    products = Products.of(trees, weights)
    runs = products.runs(len(counted))
    sums_of = FolderSums(counted.to(torch.float32), 0, products, runs[0].stop)
    for steps in runs:
        n_steps, n_inner = steps.stop - steps.start, len(products.inner_size)
        counts = sums_of.make(steps, np.ones(n_steps), np.ones((1, 1, n_inner)))[:, : n_steps * n_inner]
        weight = np.outer(products.outer_weight[steps], products.inner_weight).ravel()
        yield torch.from_numpy(counts > 0).to(device, torch.float64), weight
