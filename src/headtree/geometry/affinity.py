"""Affinities between the slices of an array, and affinities from distances."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from headtree import _checks

InitialAffinity = Literal["cosine", "correlation", "gaussian"]

#: Entries of a slice that are multiplied at a time, in float64. Cosines of equal slices are then 1 up to rounding
#: for every dtype, and no tree grows from the difference.
_ENTRIES_AT_A_TIME = 1024
#: Slices multiplied at a time with themselves and all earlier slices; the other products follow by symmetry.
_SLICES_AT_A_TIME = 64


def initial_affinity(
    kind: InitialAffinity,
    values: Float[Tensor, "..."],
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
    products, powers, common = _products(values, axis, missing)
    if kind == "gaussian":
        return _gaussian(products, powers, common)
    norms = torch.sqrt(powers * powers.T)
    cosines = torch.where(norms > 0, products / norms.clamp(min=torch.finfo(norms.dtype).tiny), 0.0)
    return cosines.clamp_(0, 1).fill_diagonal_(1)


def distance_affinity(distances: Float[Tensor, "slice slice"]) -> Float[Tensor, "slice slice"] | None:
    """``exp(-E / median(E))``, with the median over the full square matrix; None if all slices are equal.

    If the median is zero, the median of the positive entries is used. Infinite distances (slices without entries)
    do not count in the median and get affinity 0.
    """
    finite = distances[torch.isfinite(distances)].numpy()
    eps = np.median(finite)
    if eps == 0:
        if not finite.any():
            return None
        eps = np.median(finite[finite > 0])
    return torch.exp(-distances / eps)


def _products(
    values: Float[Tensor, "..."], axis: int, missing: Bool[Tensor, "..."] | None
) -> tuple[Float[Tensor, "slice slice"], Float[Tensor, "slice slice"], Float[Tensor, "slice slice"]]:
    """Over entries present in both slices i, j: sum of x_i x_j, sum of x_i², fraction of entries present."""
    n = values.shape[axis]
    products = torch.zeros(n, n, dtype=torch.float64)
    for block in _blocks(values, axis):
        _add_lower(products, block)
    products = _mirrored(products)
    if missing is None or _checks.is_shared(missing, axis):
        share = 1.0 if missing is None else 1 - float(_checks.unshared(missing).double().mean())
        return products, products.diagonal()[:, None].expand(n, n), torch.full_like(products, share)
    powers, common = torch.zeros_like(products), torch.zeros_like(products)
    squares, present = _squares(values, missing)
    for block, here in zip(_blocks(squares, axis), _blocks(present, axis), strict=True):
        powers.addmm_(block, here.T)
        _add_lower(common, here)
    return products, powers, _mirrored(common) * n / present.numel()


def _add_lower(total: Float[Tensor, "slice slice"], block: Float[Tensor, "slice entry"]) -> None:
    """Add ``block @ block.T`` on and below the diagonal."""
    for start in range(0, len(block), _SLICES_AT_A_TIME):
        stop = start + _SLICES_AT_A_TIME
        total[start:stop, :stop].addmm_(block[start:stop], block[:stop].T)


def _mirrored(lower: Float[Tensor, "slice slice"]) -> Float[Tensor, "slice slice"]:
    """Fill in the upper triangle of a symmetric matrix from its lower triangle."""
    return lower.tril() + lower.tril(-1).T


def _squares(
    values: Float[Tensor, "..."], missing: Bool[Tensor, "..."]
) -> tuple[Float[Tensor, "..."], Bool[Tensor, "..."]]:
    """Squared values and presence, reduced over the first axis along which the mask is constant, if any."""
    present = missing.logical_not()
    for axis in range(values.ndim):
        if _checks.is_shared(missing, axis):
            squares = torch.zeros(present.narrow(axis, 0, 1).shape, dtype=torch.float64)
            for layer in values.split(1, dim=axis):
                squares += layer.double().square()
            return squares, present.narrow(axis, 0, 1)
    return values.double().square(), present


def _blocks(values: Tensor, axis: int) -> Iterator[Float[Tensor, "slice entry"]]:
    """Iterate over blocks of columns of the matrix of flattened slices."""
    slices = values.movedim(axis, 0)
    step = max(1, _ENTRIES_AT_A_TIME // max(1, slices[0, 0].numel()))
    for start in range(0, slices.shape[1], step):
        yield slices[:, start : start + step].reshape(slices.shape[0], -1).double()


def _centred(values: Float[Tensor, "..."], axis: int, missing: Bool[Tensor, "..."] | None) -> Float[Tensor, "..."]:
    """Subtract from each slice the mean of the entries it has; missing entries stay 0."""
    others = [i for i in range(values.ndim) if i != axis]
    if missing is None:
        return values - values.mean(dim=others, keepdim=True)
    n_present = missing.logical_not().sum(dim=others, keepdim=True).clamp(min=1)
    return (values - values.sum(dim=others, keepdim=True) / n_present).masked_fill(missing, 0)


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
    distances = squares.sqrt().numpy()
    fifth = np.sort(distances, axis=1)[:, min(5, n - 1)]  # column 0 is the slice itself
    fifth = fifth[np.isfinite(fifth) & (fifth > 0)]
    if not len(fifth):  # at least six copies of every slice: only equality can distinguish them
        return torch.from_numpy((distances == 0).astype(np.float64))
    return torch.exp(-squares / float(np.median(fifth)) ** 2)
