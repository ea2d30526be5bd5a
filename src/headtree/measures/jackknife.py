"""Statistics over inputs with jackknife intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

Statistic = Callable[..., float]

_CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """A number, its 95 % interval (nan if it cannot be computed), and the number of inputs behind it."""

    number: float
    interval: tuple[float, float]
    n_inputs: tuple[int, ...]  #: one number per network


def jackknife(statistic: Statistic, *sizes: int) -> Estimate:
    """Estimate a statistic of one or more sets of inputs, with its jackknife interval.

    Parameters
    ----------
    statistic : function
        Takes one array of indices per set: the inputs to use.
    sizes : int
        Number of inputs of each set. The sets are independent: their variances add up, with the degrees of freedom
        of Welch and Satterthwaite.
    """
    everything = [np.arange(n) for n in sizes]
    number = float(statistic(*everything))
    if min(sizes) < 3 or not math.isfinite(number):
        return Estimate(number, (math.nan, math.nan), tuple(sizes))
    variances = []
    for which, n in enumerate(sizes):
        without = [
            statistic(*(np.delete(all_, i) if s == which else all_ for s, all_ in enumerate(everything)))
            for i in range(n)
        ]
        pseudo = n * number - (n - 1) * np.array(without, dtype=np.float64)
        variances.append(float(pseudo.var(ddof=1)) / n)
    return Estimate(number, _interval(number, variances, sizes), tuple(sizes))


def _interval(number: float, variances: Sequence[float], sizes: Sequence[int]) -> tuple[float, float]:
    from scipy.stats import t

    total = sum(variances)
    if not math.isfinite(total):
        return math.nan, math.nan
    if total == 0:
        return number, number
    freedom = total**2 / sum(v**2 / (n - 1) for v, n in zip(variances, sizes, strict=True))
    half = float(t.ppf((1 + _CONFIDENCE) / 2, freedom)) * math.sqrt(total)
    return number - half, number + half


def mean_of(values: Sequence[float] | Float[np.ndarray, " input"]) -> Statistic:
    """Make the statistic "mean over inputs"."""
    array = np.asarray(values, dtype=np.float64)
    return lambda inputs: float(array[inputs].mean())


def mean_over_pairs(matrix: Float[np.ndarray, "input input"]) -> Statistic:
    """Make the statistic "mean over pairs of different inputs"; nan for a single input."""

    def statistic(inputs: Int[np.ndarray, " draw"]) -> float:
        chosen = matrix[np.ix_(inputs, inputs)]
        return float(chosen[~np.eye(len(inputs), dtype=bool)].mean()) if len(inputs) > 1 else math.nan

    return statistic


def difference_of(a: Statistic, b: Statistic) -> Statistic:
    """Make the statistic of two sets of inputs "`a` of the first minus `b` of the second"."""
    return lambda of_a, of_b: a(of_a) - b(of_b)
