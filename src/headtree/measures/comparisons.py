"""Comparisons of columns of numbers, from which statistics are built."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float, Int


def finite(values: Any) -> Float[np.ndarray, " n"]:
    """The values that are neither nan nor infinite, in a row."""
    table = np.asarray(values, dtype=np.float64)
    return table[np.isfinite(table)]


def median_of(values: Any) -> float:
    """Median of the finite values; nan if there are none."""
    known = finite(values)
    return float(np.median(known)) if len(known) else float("nan")


def rank_correlation(a: Float[np.ndarray, " n"], b: Float[np.ndarray, " n"]) -> float:
    """Spearman's correlation over the entries where both are finite.

    nan for fewer than three of them, and where one of the two ranks nothing.
    """
    known = np.isfinite(a) & np.isfinite(b)
    if known.sum() < 3:
        return float("nan")
    return float(rank_correlations(a[None, known], b[None, known])[0])


def rank_correlations(a: Float[np.ndarray, "row n"], b: Float[np.ndarray, "row n"]) -> Float[np.ndarray, " row"]:
    """Spearman's correlation of each row of one table with that of another; nan where a row ranks nothing."""
    from scipy.stats import rankdata

    return _correlations(rankdata(a, axis=1), rankdata(b, axis=1))


def resampled_rank_correlations(
    a: Float[np.ndarray, " n"], b: Float[np.ndarray, " n"], draws: Int[np.ndarray, "draw n"]
) -> Float[np.ndarray, " draw"]:
    """Spearman's correlation of two columns in each draw of their rows."""
    return _correlations(_ranks_in_draws(a, draws), _ranks_in_draws(b, draws))


def adjusted_rand_index(a: Int[np.ndarray, " n"], b: Int[np.ndarray, " n"]) -> float:
    """Agreement of two partitions given as labels (Hubert and Arabie 1985): 1 if equal, 0 by chance."""
    _, first = np.unique(a, return_inverse=True)
    _, second = np.unique(b, return_inverse=True)
    table = np.zeros((first.max() + 1, second.max() + 1))
    np.add.at(table, (first, second), 1)

    def pairs(counts: Any) -> float:
        return float((counts * (counts - 1)).sum() / 2)

    both, of_a, of_b = pairs(table), pairs(table.sum(axis=1)), pairs(table.sum(axis=0))
    all_pairs = len(first) * (len(first) - 1) / 2
    expected = of_a * of_b / all_pairs if all_pairs else 0.0
    largest = (of_a + of_b) / 2
    return 1.0 if largest == expected else (both - expected) / (largest - expected)


def _correlations(a: Float[np.ndarray, "row n"], b: Float[np.ndarray, "row n"]) -> Float[np.ndarray, " row"]:
    """Pearson's correlation of rows of ranks, whose mean is known."""
    middle = (a.shape[1] + 1) / 2
    x, y = a - middle, b - middle
    scale = np.sqrt((x * x).sum(axis=1) * (y * y).sum(axis=1))
    return np.asarray(np.divide((x * y).sum(axis=1), scale, out=np.full(len(x), np.nan), where=scale > 0))


def _ranks_in_draws(
    values: Float[np.ndarray, " n"], draws: Int[np.ndarray, "draw n"]
) -> Float[np.ndarray, "draw n"]:
    """Ranks from 1 within each draw, ties sharing their mean: ``scipy.stats.rankdata(values[draws], axis=1)``.

    The values are sorted once for all draws: how often a draw has each of them gives their ranks, in a third of the
    time.
    """
    distinct, number = np.unique(values, return_inverse=True)
    cells = number[draws] + len(distinct) * np.arange(len(draws))[:, None]
    counts = np.bincount(cells.ravel(), minlength=len(draws) * len(distinct)).reshape(len(draws), -1)
    mean_rank = np.cumsum(counts, axis=1) - (counts - 1) / 2
    return np.asarray(mean_rank.ravel()[cells])


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
