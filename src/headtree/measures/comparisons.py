"""Comparisons of columns of numbers, from which statistics are built."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float


def median_of(values: Float[np.ndarray, " head"]) -> float:
    """Median of the finite values; nan if there are none."""
    finite = values[np.isfinite(values)]
    return float(np.median(finite)) if len(finite) else float("nan")


def rank_correlation(a: Float[np.ndarray, " n"], b: Float[np.ndarray, " n"]) -> float:
    """Spearman's correlation over the indices where both are finite; nan if either is constant there."""
    from scipy.stats import rankdata

    known = np.isfinite(a) & np.isfinite(b)
    x, y = (rankdata(values[known]) for values in (a, b))
    if known.sum() < 3 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return float("nan")
    return float(np.corrcoef(x, y)[0, 1])


def mean_ks_distance(rows: Float[np.ndarray, "row n"]) -> float:
    """Mean Kolmogorov-Smirnov distance between the absolute values of two rows, each divided by its norm."""
    magnitudes = np.abs(rows)
    norms = np.linalg.norm(magnitudes, axis=1, keepdims=True)
    sorted_ = np.sort(np.divide(magnitudes, norms, out=np.zeros_like(magnitudes), where=norms > 0), axis=1)
    n, m = sorted_.shape
    total = 0.0
    for row in sorted_:  # all rows have the same length, so the merged order gives the distance
        both = np.concatenate([np.broadcast_to(row, (n, m)), sorted_], axis=1)
        order = np.argsort(both, axis=1, kind="stable")
        steps = np.cumsum(np.where(order < m, 1, -1), axis=1)
        is_last_of_ties = np.diff(np.take_along_axis(both, order, axis=1), axis=1, append=np.inf) > 0
        total += float(np.where(is_last_of_ties, np.abs(steps), 0).max(axis=1).sum()) / m
    return float(total / max(1, n * (n - 1)))
