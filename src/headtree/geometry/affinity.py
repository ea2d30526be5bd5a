"""Affinities between the slices of an array, and affinities from distances."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headtree import _checks
from headtree._lazy_array import ScaledBlocks, blocks_along, taken
from headtree._threads import for_each_task, product_by_rows
from headtree.geometry.first_rows import add_products, mirrored_lower
from headtree.geometry.order_statistics import order_statistics

InitialAffinity = Literal["cosine", "correlation", "gaussian"]

#: Entries of a slice, and at most of all slices together, that are multiplied at a time, in float64. Cosines of
#: equal slices are then 1 up to rounding for every dtype, and no tree grows from the difference.
_ENTRIES_AT_A_TIME, _MOST_AT_A_TIME = 4096, 1 << 23
#: Entries of all slices together that are multiplied at a time on a GPU.
_ENTRIES_ON_GPU = 1 << 27
#: Slices that a thread copies at a time.
_SLICES_AT_A_TIME = 128
#: Fewest leaves of another axis from which an affinity is estimated.
_FEWEST_TAKEN = 16


def initial_affinity(
    kind: InitialAffinity,
    values: Float[Tensor, "..."] | ScaledBlocks,
    axis: int,
    missing: Bool[Tensor, "..."] | None = None,
) -> Float[Tensor, "slice slice"]:
    """Affinity between slices along `axis` before any tree is known.

    ``"cosine"`` is the cosine of the flattened slices and ``"correlation"`` the cosine of the centred slices. Both
    use the entries present in both slices, and negative values become 0; a slice that is zero or entirely missing
    has affinity 0 with others and 1 with itself. ``"gaussian"`` is exp(-d²/σ²), where d is the Euclidean distance
    over the entries present in both, rescaled to all entries, and σ the median distance to the fifth neighbour.
    """
    if kind == "correlation":
        values = _centred(values, axis, missing)
    return _affinity_of_products(kind, *_products(values, axis, missing))


def _affinity_of_products(
    kind: InitialAffinity,
    products: Float[Tensor, "slice slice"],
    powers: Float[Tensor, "slice slice"],
    common: Float[Tensor, "slice slice"],
) -> Float[Tensor, "slice slice"]:
    if kind == "gaussian":
        return _gaussian(products, powers, common)
    norms = (powers * powers.T).sqrt_()
    is_zero = norms == 0
    cosines = products / norms.clamp_(min=torch.finfo(norms.dtype).tiny)
    return cosines.masked_fill_(is_zero, 0).clamp_(0, 1).fill_diagonal_(1)


class SampledAffinity(NamedTuple):
    """An affinity from part of another axis, and the root mean square of its standard errors."""

    affinity: Float[Tensor, "slice slice"]
    error: float
    n_taken: int  #: leaves of the other axis that were taken
    other_axis: int


def sampled_affinity(
    kind: InitialAffinity,
    values: Float[Tensor, "..."] | ScaledBlocks,
    axis: int,
    missing: Bool[Tensor, "..."] | None,
    powers: Sequence[Float[Tensor, " _slice"]],
    most_products: int,
) -> SampledAffinity | None:
    """`initial_affinity` of an array that would need too many products, from part of another axis.

    Of the first other axis along which the mask is the same, the slices of largest power are taken for certain, and
    as many others at equal steps of their rank, which stand for those between them. Two halves of these give the
    standard error. `powers` are `slice_powers`. None if there are few enough products, or no such axis.
    """
    n_products = values.shape[axis] * values.numel() // 2
    axes = [i for i in range(values.ndim) if i != axis and (missing is None or _checks.is_shared(missing, i))]
    if n_products <= most_products or not axes:
        return None
    other = axes[0]
    n_taken = max(_FEWEST_TAKEN, int(most_products / n_products * values.shape[other])) // 4 * 4
    if n_taken >= values.shape[other]:
        return None
    if kind == "correlation":
        values = _centred(values, axis, missing)
    ranked = powers[other].argsort(descending=True).to(values.device)
    certain, others = ranked[: n_taken // 2], ranked[n_taken // 2 :]
    n_drawn = n_taken // 2
    drawn = others[((torch.arange(n_drawn, device=values.device) + 0.5) * len(others) / n_drawn).long()]

    def sums(leaves: Int[Tensor, " _leaf"]) -> tuple[Tensor, Tensor]:
        some = taken(values, other, leaves)
        products = _gram(some, axis)
        return products, products.diagonal()[:, None] if present is None else _squares(some, other, present)

    # two halves: what is certain, and half of those drawn, each standing for twice as many
    each = 2 * len(others) / n_drawn
    present = (
        None if missing is None or _checks.is_shared(missing, axis) else _present(missing, other, values.device)
    )
    of_certain, squares_of_certain = sums(certain)
    common = _share(of_certain, missing) if present is None else _common(present, axis)
    halves = []
    for leaves in (drawn[::2], drawn[1::2]):
        products, squares = sums(leaves)
        squares = (squares * each).add_(squares_of_certain)  # may share its memory with the products
        powers_of_both = (
            squares.expand_as(products) if present is None else _powers(_blocks(squares, axis), present, axis)
        )
        halves.append((products.mul_(each).add_(of_certain), powers_of_both))
    del of_certain, squares_of_certain, products, squares, powers_of_both
    difference = _affinity_of_products(kind, *halves[0], common)
    difference -= _affinity_of_products(kind, *halves[1], common)
    n = len(difference)
    error = float(difference.fill_diagonal_(0).square_().sum().div_(max(1, n * (n - 1))).sqrt()) / 2
    del difference
    products, of_both = ((first + second).div_(2) for first, second in zip(*halves, strict=True))
    return SampledAffinity(_affinity_of_products(kind, products, of_both, common), error, n_taken, other)


def slice_powers(values: Float[Tensor, "..."] | ScaledBlocks) -> list[Float[Tensor, " _slice"]]:
    """Sum of squares of every slice along each axis, from one pass over the array."""
    first, *rest = values.shape
    parts = [torch.zeros(first, n, dtype=values.dtype, device=values.device) for n in (1, *rest)]

    def add(where: slice, block: Float[Tensor, "..."]) -> None:
        squares = block.square()
        parts[0][where, 0] = squares.flatten(1).sum(dim=1)
        for axis, part in enumerate(parts[1:], 1):
            others = [j for j in range(1, squares.ndim) if j != axis]
            part[where] = squares.sum(dim=others) if others else squares

    if isinstance(values, ScaledBlocks) or values.is_cuda:
        n_rows = max(1, _ENTRIES_ON_GPU // math.prod(rest)) if values.is_cuda else 1
        for where, block in blocks_along(values, 0, n_rows):
            add(where, block)
    else:
        for_each_task(lambda i: add(slice(i, i + 1), values[i : i + 1]), first)
    return [parts[0][:, 0], *(part.sum(dim=0) for part in parts[1:])]


def distance_affinity(distances: Float[Tensor, "slice slice"]) -> Float[Tensor, "slice slice"] | None:
    """``exp(-E / median(E))``, with the median over the full square matrix; None if all slices are equal.

    If the median is zero, the median of the positive entries is used. Infinite distances (slices without entries)
    do not count in the median and get affinity 0.
    """
    eps = median_distance(distances)
    return None if eps is None else torch.exp(-distances / eps)


def median_distance(distances: Float[Tensor, "slice slice"]) -> float | None:
    """The median by which `distance_affinity` divides; None if all slices are equal."""
    finite = distances[torch.isfinite(distances)]
    median = _median(finite)
    if median > 0:
        return median
    return _median(finite[finite > 0]) if finite.any() else None


def perturbed(
    pairs: Float[Tensor, "slice slice"], size: float, rng: np.random.Generator
) -> Float[Tensor, "slice slice"]:
    """Affinities or distances multiplied by 1 + size · z, z standard normal for every pair, but not negative."""
    if pairs.is_cuda:
        on_gpu = torch.Generator(pairs.device).manual_seed(int(rng.integers(2**63)))
        z = torch.randn(pairs.shape, generator=on_gpu, dtype=pairs.dtype, device=pairs.device)
    else:
        z = torch.from_numpy(rng.standard_normal(tuple(pairs.shape))).to(pairs)
    z = z.tril(-1)
    changed = (pairs * (1 + size * (z + z.T))).clamp_(min=0)
    return torch.where(pairs.isinf(), pairs, changed)


def _median(values: Float[Tensor, " entry"]) -> float:
    """Median as numpy has it: of an even number, the mean of the two in the middle."""
    if not values.is_cuda:
        return float(np.median(values.numpy()))
    return sum(order_statistics(values, [(len(values) - 1) // 2, len(values) // 2])) / 2


def _products(
    values: Float[Tensor, "..."] | ScaledBlocks, axis: int, missing: Bool[Tensor, "..."] | None
) -> tuple[Float[Tensor, "slice slice"], Float[Tensor, "slice slice"], Float[Tensor, "slice slice"]]:
    """Over entries present in both slices i, j: sum of x_i x_j, sum of x_i², fraction of entries present."""
    products = _gram(values, axis)
    if missing is None or _checks.is_shared(missing, axis):
        return products, products.diagonal()[:, None].expand_as(products), _share(products, missing)
    same = next((i for i in range(values.ndim) if _checks.is_shared(missing, i)), None)
    if same is None:
        present = missing.logical_not().to(values.device)
        squares = (block.square_() for block in _blocks(values, axis))
        return products, _powers(squares, present, axis), _common(present, axis)
    present = _present(missing, same, values.device)
    every = _blocks(_squares(values, same, present), axis)
    return products, _powers(every, present, axis), _common(present, axis)


def _gram(values: Tensor | ScaledBlocks, axis: int) -> Float[Tensor, "slice slice"]:
    """Products of slices, summed over all entries."""
    n = values.shape[axis]
    products = torch.zeros(n, n, dtype=torch.float64, device=values.device)
    for block in _blocks(values, axis):
        add_products(products, block, block)
    return mirrored_lower(products)


def _share(like: Float[Tensor, "slice slice"], missing: Bool[Tensor, "..."] | None) -> Float[Tensor, "slice slice"]:
    """Fraction of the entries that slices with a common mask have, the same for all."""
    share = 1.0 if missing is None else 1 - float(_checks.unshared(missing).double().mean())
    return torch.tensor(share, dtype=like.dtype, device=like.device).expand_as(like)


def _powers(
    squares: Iterable[Float[Tensor, "slice entry"]], present: Bool[Tensor, "..."], axis: int
) -> Float[Tensor, "slice slice"]:
    """Sum of x_i² over the entries that slice j has, from blocks of squares."""
    n = present.shape[axis]
    powers = torch.zeros(n, n, dtype=torch.float64, device=present.device)
    for block, here in zip(squares, _blocks(present, axis), strict=True):
        powers += block @ here.T if powers.is_cuda else product_by_rows(block, here)
    return powers


def _common(present: Bool[Tensor, "..."], axis: int) -> Float[Tensor, "slice slice"]:
    """Fraction of the entries that both slices have."""
    return _gram(present, axis) * present.shape[axis] / present.numel()


def _present(missing: Bool[Tensor, "..."], same: int, device: torch.device) -> Bool[Tensor, "..."]:
    """Which entries there are, with length 1 along an axis along which that is the same."""
    return missing.narrow(same, 0, 1).logical_not().to(device)


def _squares(
    values: Float[Tensor, "..."] | ScaledBlocks, same: int, present: Bool[Tensor, "..."]
) -> Float[Tensor, "..."]:
    """Squares, summed over an axis along which the mask is the same."""
    squares = torch.zeros(present.shape, dtype=torch.float64, device=values.device)
    for _, layer in blocks_along(values, same, 1):
        wide = layer.double()
        squares.addcmul_(wide, wide)
    return squares


def _blocks(values: Tensor | ScaledBlocks, axis: int) -> Iterator[Float[Tensor, "slice entry"]]:
    """Iterate over blocks of columns of the matrix of flattened slices."""
    n = values.shape[axis]
    second = 1 if axis == 0 else 0
    at_a_time = _ENTRIES_ON_GPU // n if values.is_cuda else min(_ENTRIES_AT_A_TIME, _MOST_AT_A_TIME // n)
    step = max(1, at_a_time // max(1, values.numel() // n // values.shape[second]))
    for _, block in blocks_along(values, second, step):
        yield _wide(block.movedim(axis, 0)).reshape(n, -1)


def _wide(slices: Tensor) -> Float[Tensor, "slice ..."]:
    """A copy in float64, made by all threads."""
    copied = torch.empty(slices.shape, dtype=torch.float64, device=slices.device)
    if copied.is_cuda:
        return copied.copy_(slices)

    def copy_band(band: int) -> None:
        rows = slice(band * _SLICES_AT_A_TIME, (band + 1) * _SLICES_AT_A_TIME)
        copied[rows] = slices[rows]

    for_each_task(copy_band, -(-len(slices) // _SLICES_AT_A_TIME))
    return copied


def _centred(
    values: Float[Tensor, "..."] | ScaledBlocks, axis: int, missing: Bool[Tensor, "..."] | None
) -> Float[Tensor, "..."] | ScaledBlocks:
    """Subtract from each slice the mean of the entries it has; missing entries stay 0.

    The computed mean of n entries is off by at most (n + 1) u times the mean of their absolute values, u being the
    unit roundoff, and rounding it and the entries to their dtype changes each by at most the dtype's u. A slice
    whose entries all differ from the mean by no more than that is constant, and becomes zero.
    """
    others = [i for i in range(values.ndim) if i != axis]
    n_entries = values.numel() // values.shape[axis]
    roundoff = (n_entries + 1) * torch.finfo(torch.float64).eps / 2 + torch.finfo(values.dtype).eps
    if isinstance(values, ScaledBlocks):
        sums, sizes, farthest = torch.zeros(3, values.shape[axis], dtype=torch.float64, device=values.device)
        for where, block in blocks_along(values, 0, 1):
            here = where if axis == 0 else slice(None)
            sums[here] += block.sum(dim=others, dtype=torch.float64)
            sizes[here] += block.abs_().sum(dim=others, dtype=torch.float64)
        n_present = torch.full_like(sums, n_entries)
        if missing is not None:
            n_present = missing.logical_not().sum(dim=others).clamp(min=1).to(values.device)
        for where, block in blocks_along(values.shifted(axis, sums / n_present), 0, 1):
            here = where if axis == 0 else slice(None)
            farthest[here] = torch.maximum(farthest[here], block.abs_().amax(dim=others).double())
        return values.shifted(axis, sums / n_present, farthest <= roundoff * sizes / n_present)
    present: int | Tensor = n_entries
    if missing is not None:
        present = missing.logical_not().sum(dim=others, keepdim=True).clamp(min=1).to(values.device)
    mean, mean_size = (
        x.sum(dim=others, keepdim=True, dtype=torch.float64) / present for x in (values, values.abs())
    )
    centred = values - mean.to(values.dtype)
    if missing is not None:
        centred.masked_fill_(_checks.unshared(missing).to(values.device), 0)
    is_constant = centred.abs().amax(dim=others, keepdim=True) <= roundoff * mean_size
    return centred.masked_fill_(is_constant, 0)


def _gaussian(
    products: Float[Tensor, "slice slice"],
    powers: Float[Tensor, "slice slice"],
    common: Float[Tensor, "slice slice"],
) -> Float[Tensor, "slice slice"]:
    n = products.shape[0]
    squares = (powers + powers.T - 2 * products).clamp_(min=0) / common  # inf or nan without common entries
    squares = squares.nan_to_num(nan=torch.inf).fill_diagonal_(0)
    # cancellation leaves equal slices at a distance of the size of rounding errors: set it to zero
    squares[squares <= 1e-12 * (powers + powers.T)] = 0
    distances = squares.sqrt().cpu().numpy()
    fifth = np.sort(distances, axis=1)[:, min(5, n - 1)]  # column 0 is the slice itself
    fifth = fifth[np.isfinite(fifth) & (fifth > 0)]
    if not len(fifth):  # at least six copies of every slice: only equality can distinguish them
        return torch.from_numpy((distances == 0).astype(np.float64)).to(squares.device)
    return torch.exp(-squares / float(np.median(fifth)) ** 2)
