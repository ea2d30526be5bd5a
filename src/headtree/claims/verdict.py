"""One number with its interval, and the verdict that follows from it by rule."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float, Int

Verdict = Literal["agrees", "differs", "cannot be decided"]
Statistic = Callable[..., float]

#: The rule, as reports print it.
RULE = (
    "A claim becomes a statistic and a limit, the same for all networks, such that the claim says: the "
    "statistic exceeds the limit. The interval is the 95 % interval of the jackknife over inputs (Student's t; for "
    "means over inputs the usual one). Verdict: agrees if the whole interval is above the limit, differs if the "
    "whole interval is below it, cannot be decided otherwise, and when there are fewer than three inputs."
)

_CONFIDENCE = 0.95


@dataclass(frozen=True)
class Measured:
    """A number, its 95 % interval (nan where none can be had), and how many inputs it is from."""

    number: float
    interval: tuple[float, float]
    n_inputs: tuple[int, ...]  #: of each network


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, and how it was tested."""

    key: str  #: short name, such as "regularity-given"
    part: str  #: figure, table or section of the paper
    says: str  #: the claim, in our words
    printed: str  #: numbers or words that the paper prints for it
    statistic: str  #: what is computed; the claim says that it exceeds the limit
    limit: float


@dataclass(frozen=True)
class Finding:
    """What came out for one claim and one network, or two."""

    claim: Claim
    network: str
    measured: Measured
    note: str = ""  #: why nothing could be measured, or what else to know

    @property
    def verdict(self) -> Verdict:
        """By `RULE`."""
        low, high = self.measured.interval
        if low > self.claim.limit:
            return "agrees"
        return "differs" if high < self.claim.limit else "cannot be decided"


def jackknife(statistic: Statistic, *sizes: int) -> Measured:
    """A statistic of one or more sets of inputs with its jackknife interval.

    Parameters
    ----------
    statistic : function
        Takes, for each set, the numbers of the inputs that it is to use.
    sizes : int
        Number of inputs of each set. Sets are independent: their variances add up, and the degrees of freedom are
        those of Welch and Satterthwaite.
    """
    everything = [np.arange(n) for n in sizes]
    number = float(statistic(*everything))
    if min(sizes) < 3 or not math.isfinite(number):
        return Measured(number, (math.nan, math.nan), tuple(sizes))
    variances = []
    for which, n in enumerate(sizes):
        without = [
            statistic(*(np.delete(all_, i) if s == which else all_ for s, all_ in enumerate(everything)))
            for i in range(n)
        ]
        pseudo = n * number - (n - 1) * np.array(without, dtype=np.float64)
        variances.append(float(pseudo.var(ddof=1)) / n)
    return Measured(number, _interval(number, variances, sizes), tuple(sizes))


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
    """Statistic: the mean over inputs."""
    array = np.asarray(values, dtype=np.float64)
    return lambda inputs: float(array[inputs].mean())


def mean_over_pairs(matrix: Float[np.ndarray, "input input"]) -> Statistic:
    """Statistic: the mean over pairs of different inputs; nan of a single one."""

    def statistic(inputs: Int[np.ndarray, " draw"]) -> float:
        part = matrix[np.ix_(inputs, inputs)]
        return float(part[~np.eye(len(inputs), dtype=bool)].mean()) if len(inputs) > 1 else math.nan

    return statistic


def difference_of(a: Statistic, b: Statistic) -> Statistic:
    """Statistic of two sets of inputs: the first's less the second's."""
    return lambda of_a, of_b: a(of_a) - b(of_b)
