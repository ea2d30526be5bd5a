"""A statistic of a similarity with its errors over inputs and over heads, and the difference of two of them.

Errors come from half samples (McCarthy 1969): over random halves of the inputs, or of the heads, a statistic varies
as it would over new inputs, or heads. All similarities of a network see the same halves, so their differences have
errors of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from headtree.study.similarities.similarity_settings import CLEAR


@dataclass(frozen=True, eq=False)
class HalvedEstimate:
    """What one similarity scores in one question on one network."""

    value: float
    over_inputs: Float[np.ndarray, " draw"]  #: in random halves of the inputs; empty if inputs do not matter
    over_heads: Float[np.ndarray, " draw"]  #: in random halves of the heads

    @property
    def error_inputs(self) -> float:
        """Standard error over inputs."""
        return _spread(self.over_inputs)

    @property
    def error_heads(self) -> float:
        """Standard error over heads."""
        return _spread(self.over_heads)

    @property
    def error(self) -> float:
        """Standard error over inputs and heads, which are independent."""
        return float(np.hypot(self.error_inputs, self.error_heads))

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval."""
        return self.value - 1.96 * self.error, self.value + 1.96 * self.error

    def minus(self, other: HalvedEstimate) -> HalvedEstimate:
        """The difference of two similarities in the same halves."""
        return HalvedEstimate(
            self.value - other.value, self.over_inputs - other.over_inputs, self.over_heads - other.over_heads
        )

    @property
    def is_clear(self) -> bool:
        """Whether a difference is at least two standard errors."""
        return abs(self.value) >= CLEAR * self.error and self.value != 0


def _spread(values: Float[np.ndarray, " draw"]) -> float:
    known = values[np.isfinite(values)]
    return float(known.std(ddof=1)) if len(known) > 1 else 0.0


@dataclass(frozen=True)
class MeanDifference:
    """The mean over networks of a difference; networks are independent."""

    value: float
    error: float
    is_clear: bool

    @classmethod
    def of(cls, differences: Sequence[HalvedEstimate]) -> MeanDifference:
        """Mean over networks."""
        value = float(np.mean([difference.value for difference in differences]))
        error = float(np.sqrt(sum(difference.error**2 for difference in differences))) / len(differences)
        return cls(value, error, abs(value) >= CLEAR * error and value != 0)


def halvings(n: int, n_draws: int, seed: int) -> list[tuple[Int[np.ndarray, " half"], Int[np.ndarray, " half"]]]:
    """Random divisions of n things into two disjoint halves; of an odd number one is left out."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(n_draws):
        order = rng.permutation(n)
        found.append((np.sort(order[: n // 2]), np.sort(order[n // 2 : 2 * (n // 2)])))
    return found
