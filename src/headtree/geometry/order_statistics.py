"""Entries of given ranks of a large tensor, on any device."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

#: Entries up to which all are sorted, and entries of the sample that tells beyond that which need be.
_SORTED_WHOLE = 1 << 25
_SAMPLED = 1 << 20


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
