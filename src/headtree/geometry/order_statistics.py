"""Entries of given ranks: of a large tensor on any device, and the median inside compiled kernels."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numba
import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

#: Entries up to which all are sorted, and entries of the sample that tells beyond that which need be.
_SORTED_WHOLE = 1 << 25
_SAMPLED = 1 << 20

#: Bins among which the middle of many numbers is looked for.
_BINS = 1024

#: Numbers that are compared side by side.
_LANES = 32


def order_statistics(values: Float[Tensor, " entry"], ranks: Sequence[int]) -> list[float]:
    """The entries that would have these ranks, from 0, if all were sorted.

    Of many entries, only those between two entries of a sample are sorted, if these enclose the rank.
    """
    if len(values) <= _SORTED_WHOLE:
        return values.sort().values[torch.tensor(ranks, device=values.device)].tolist()
    step = len(values) // _SAMPLED
    sample = values[::step].sort().values
    return [_statistic(values, rank, sample) for rank in ranks]


def _statistic(values: Float[Tensor, " entry"], rank: int, sample: Float[Tensor, " some"]) -> float:
    position = rank / len(values) * len(sample)
    for margin in (4 * math.sqrt(len(sample)), len(sample)):
        first, last = int(max(position - margin, 0)), int(min(position + margin, len(sample) - 1))
        low = float(sample[first]) if first else -math.inf
        high = float(sample[last]) if last < len(sample) - 1 else math.inf
        n_below = int((values < low).sum())
        between = values[(values >= low) & (values <= high)]
        if n_below <= rank < n_below + len(between):
            return float(between.sort().values[rank - n_below])
    return float(values.sort().values[rank])


@numba.njit(cache=True, error_model="numpy", nogil=True, fastmath={"nnan", "nsz"})
def smallest_and_largest(values):  # type: ignore[no-untyped-def]
    """The range of finite numbers, for kernels; one vector instruction compares several of them."""
    low, high = np.full(_LANES, values[0]), np.full(_LANES, values[0])
    n_whole = len(values) // _LANES * _LANES
    for first in range(0, n_whole, _LANES):
        for lane in range(_LANES):
            value = values[first + lane]
            low[lane] = value if value < low[lane] else low[lane]
            high[lane] = value if value > high[lane] else high[lane]
    smallest, largest = low.min(), high.max()
    for value in values[n_whole:]:
        smallest, largest = min(smallest, value), max(largest, value)
    return smallest, largest


@numba.njit(cache=True, error_model="numpy", nogil=True)
def median(values):  # type: ignore[no-untyped-def]
    """The median of finite numbers as numpy has it, for kernels.

    Only the numbers in the bins around the middle are sorted. A selection compares all of them, and no processor
    can predict how these comparisons come out.
    """
    n, (low, high) = len(values), smallest_and_largest(values)
    scale = _BINS / (high - low)
    if not 0 < scale < np.inf:  # all equal, or too close together or far apart for bins
        return np.median(values)
    bins = np.empty(n, dtype=np.int32)
    for i in range(n):
        bins[i] = np.int32((values[i] - low) * scale)
    counts = np.zeros(_BINS + 1, dtype=np.int64)
    for i in range(n):
        counts[bins[i]] += 1
    first, n_below = 0, 0
    while n_below + counts[first] <= (n - 1) // 2:
        n_below += counts[first]
        first += 1
    last, n_with = first, n_below + counts[first]
    while n_with <= n // 2:
        last += 1
        n_with += counts[last]
    between, found = np.empty(n_with - n_below), 0
    for i in range(n):
        if first <= bins[i] <= last:
            between[found] = values[i]
            found += 1
    between.sort()
    middle = between[n // 2 - n_below]
    return middle if n % 2 else (between[n // 2 - 1 - n_below] + middle) / 2
