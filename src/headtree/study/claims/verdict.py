"""Claims of the paper, the result measured for each, and the verdict that follows from a rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headtree.measures.jackknife import Estimate

Verdict = Literal["agrees", "differs", "cannot be decided"]

#: The rule, as reports print it.
RULE = (
    "Each claim is stated as a statistic that exceeds a limit, the same for all networks. The interval is the 95 % "
    "jackknife interval over inputs (Student's t; for means over inputs the usual interval). Verdict: agrees if "
    "the whole interval is above the limit, differs if the whole interval is below it, cannot be decided "
    "otherwise or with fewer than three inputs."
)


@dataclass(frozen=True)
class Claim:
    """A claim of the paper and how it is tested."""

    key: str  #: short name, such as "regularity-given"
    part: str  #: figure, table or section of the paper
    says: str  #: the claim, in our words
    printed: str  #: numbers or words that the paper prints for it
    statistic: str  #: what is computed; the claim holds if it exceeds the limit
    limit: float


@dataclass(frozen=True)
class Finding:
    """The result for one claim and one network, or a pair of networks."""

    claim: Claim
    network: str
    measured: Estimate
    note: str = ""  #: why nothing could be measured, or another remark

    @property
    def verdict(self) -> Verdict:
        """The verdict that follows from `RULE`."""
        low, high = self.measured.interval
        if low > self.claim.limit:
            return "agrees"
        return "differs" if high < self.claim.limit else "cannot be decided"
