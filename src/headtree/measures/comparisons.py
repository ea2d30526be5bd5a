"""Comparisons of columns of numbers that the statistics are made of."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float


def median_of(values: Float[np.ndarray, " head"]) -> float:
    """Median of the finite values; nan if there is none."""
    finite = values[np.isfinite(values)]
    return float(np.median(finite)) if len(finite) else float("nan")


def rank_correlation(a: Float[np.ndarray, " n"], b: Float[np.ndarray, " n"]) -> float:
    """Spearman's correlation over the places where both are finite; nan where one of them ranks nothing."""
    from scipy.stats import rankdata

    known = np.isfinite(a) & np.isfinite(b)
    x, y = (rankdata(values[known]) for values in (a, b))
    if known.sum() < 3 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return float("nan")
    return float(np.corrcoef(x, y)[0, 1])


def mean_ks_distance(rows: Float[np.ndarray, "row n"]) -> float:
    """Mean over pairs of rows of the Kolmogorov-Smirnov distance of their moduli, each row over its norm."""
    moduli = np.abs(rows)
    norms = np.linalg.norm(moduli, axis=1, keepdims=True)
    sorted_ = np.sort(np.divide(moduli, norms, out=np.zeros_like(moduli), where=norms > 0), axis=1)
    n, m = sorted_.shape
    total = 0.0
    for row in sorted_:  # all rows are of one length: the distance is read off the merged order
        both = np.concatenate([np.broadcast_to(row, (n, m)), sorted_], axis=1)
        order = np.argsort(both, axis=1, kind="stable")
        steps = np.cumsum(np.where(order < m, 1, -1), axis=1)
        is_last_of_ties = np.diff(np.take_along_axis(both, order, axis=1), axis=1, append=np.inf) > 0
        total += float(np.where(is_last_of_ties, np.abs(steps), 0).max(axis=1).sum()) / m
    return float(total / max(1, n * (n - 1)))
