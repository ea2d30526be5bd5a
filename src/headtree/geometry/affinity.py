"""Affinities between the slices of an array, and affinities from distances."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headtree import _checks
from headtree._lazy_array import ScaledBlocks, blocks_along, taken
from headtree._threads import for_each_task, product_by_rows
from headtree.geometry.first_rows import mirrored_lower
from headtree.geometry.order_statistics import order_statistics

InitialAffinity = Literal["cosine", "correlation", "gaussian"]

#: Entries of a slice that are multiplied at a time, in float64. Cosines of equal slices are then 1 up to rounding
#: for every dtype, and no tree grows from the difference.
_ENTRIES_AT_A_TIME = 1024
#: Entries of all slices together that are multiplied at a time on a GPU.
_ENTRIES_ON_GPU = 1 << 27
#: Slices multiplied at a time with themselves and all earlier slices; the other products follow by symmetry.
_SLICES_AT_A_TIME = 64
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

    def sums(leaves: Int[Tensor, " _leaf"]) -> tuple[Tensor, Tensor, Tensor]:
        mask = None if missing is None else missing.narrow(other, 0, len(leaves))
        return _products(taken(values, other, leaves), axis, mask)

    # two halves: what is certain, and half of those drawn, each standing for twice as many
    each = 2 * len(others) / n_drawn
    of_certain, power_of_certain, common = sums(certain)
    halves = []
    for leaves in (drawn[::2], drawn[1::2]):
        products, of_both, _ = sums(leaves)
        of_both = (of_both * each).add_(power_of_certain)  # may share its memory with the products
        halves.append((products.mul_(each).add_(of_certain), of_both))
    del of_certain, power_of_certain, products, of_both
    difference = _affinity_of_products(kind, *halves[0], common)
    difference -= _affinity_of_products(kind, *halves[1], common)
    n = len(difference)
    error = float(difference.fill_diagonal_(0).square_().sum().div_(max(1, n * (n - 1))).sqrt()) / 2
    del difference
    products, of_both = (first.add_(second).div_(2) for first, second in zip(*halves, strict=True))
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
    n = values.shape[axis]
    products = torch.zeros(n, n, dtype=torch.float64, device=values.device)
    for block in _blocks(values, axis):
        _add_lower(products, block)
    products = mirrored_lower(products)
    if missing is None or _checks.is_shared(missing, axis):
        share = 1.0 if missing is None else 1 - float(_checks.unshared(missing).double().mean())
        everywhere = torch.tensor(share, dtype=products.dtype, device=products.device).expand(n, n)
        return products, products.diagonal()[:, None].expand(n, n), everywhere
    powers, common = torch.zeros_like(products), torch.zeros_like(products)
    squares, present = _squares(values, missing)
    every = _blocks(squares, axis) if squares is not None else (x.square() for x in _blocks(values, axis))
    for block, here in zip(every, _blocks(present, axis), strict=True):
        powers += block @ here.T if powers.is_cuda else product_by_rows(block, here)
        _add_lower(common, here)
    return products, powers, mirrored_lower(common) * n / present.numel()


def _add_lower(total: Float[Tensor, "slice slice"], block: Float[Tensor, "slice entry"]) -> None:
    """Add ``block @ block.T`` on and below the diagonal."""
    if total.is_cuda:
        total.addmm_(block, block.T)
        return

    def add_band(band: int) -> None:
        rows = slice(band * _SLICES_AT_A_TIME, (band + 1) * _SLICES_AT_A_TIME)
        total[rows, : rows.stop].addmm_(block[rows], block[: rows.stop].T)

    for_each_task(add_band, -(-len(block) // _SLICES_AT_A_TIME))


def _squares(
    values: Float[Tensor, "..."] | ScaledBlocks, missing: Bool[Tensor, "..."]
) -> tuple[Float[Tensor, "..."] | None, Bool[Tensor, "..."]]:
    """Squared values and presence, reduced over the first axis along which the mask is constant.

    If there is none, None and the whole presence.
    """
    for axis in range(values.ndim):
        if _checks.is_shared(missing, axis):
            present = missing.narrow(axis, 0, 1).logical_not().to(values.device)
            squares = torch.zeros(present.shape, dtype=torch.float64, device=values.device)
            for _, layer in blocks_along(values, axis, 1):
                squares += layer.double().square()
            return squares, present
    return None, missing.logical_not().to(values.device)


def _blocks(values: Tensor | ScaledBlocks, axis: int) -> Iterator[Float[Tensor, "slice entry"]]:
    """Iterate over blocks of columns of the matrix of flattened slices."""
    n = values.shape[axis]
    second = 1 if axis == 0 else 0
    at_a_time = _ENTRIES_ON_GPU // n if values.is_cuda else _ENTRIES_AT_A_TIME
    step = max(1, at_a_time // max(1, values.numel() // n // values.shape[second]))
    for _, block in blocks_along(values, second, step):
        yield block.movedim(axis, 0).reshape(n, -1).double()


def _centred(
    values: Float[Tensor, "..."] | ScaledBlocks, axis: int, missing: Bool[Tensor, "..."] | None
) -> Float[Tensor, "..."] | ScaledBlocks:
    """Subtract from each slice the mean of the entries it has; missing entries stay 0.

    The computed mean of n entries is off by at most (n + 1) u times the mean of their absolute values, u being the
    unit roundoff. A slice whose entries all differ from it by no more than that is constant, and becomes zero.
    """
    others = [i for i in range(values.ndim) if i != axis]
    if isinstance(values, ScaledBlocks):
        sums = torch.zeros(values.shape[axis], dtype=torch.float64, device=values.device)
        for where, block in blocks_along(values, 0, 1):
            part = block.double().sum(dim=others)
            if axis == 0:
                sums[where] = part
            else:
                sums += part
        n_present = torch.full_like(sums, values.numel() / values.shape[axis])
        if missing is not None:
            n_present = missing.logical_not().sum(dim=others).clamp(min=1).to(values.device)
        return values.shifted(axis, sums / n_present)
    n_entries = values.numel() // values.shape[axis]
    present: int | Tensor = n_entries
    if missing is not None:
        present = missing.logical_not().sum(dim=others, keepdim=True).clamp(min=1).to(values.device)
    mean, mean_size = (
        x.sum(dim=others, keepdim=True, dtype=torch.float64) / present for x in (values, values.abs())
    )
    centred = values - mean.to(values.dtype)
    if missing is not None:
        centred.masked_fill_(_checks.unshared(missing).to(values.device), 0)
    roundoff = ((n_entries + 1) * torch.finfo(torch.float64).eps + torch.finfo(values.dtype).eps) / 2
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
