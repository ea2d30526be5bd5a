"""Claims of the paper, what was measured for each, and the verdict that follows by rule."""

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
    measured: Estimate
    note: str = ""  #: why nothing could be measured, or what else to know

    @property
    def verdict(self) -> Verdict:
        """By `RULE`."""
        low, high = self.measured.interval
        if low > self.claim.limit:
            return "agrees"
        return "differs" if high < self.claim.limit else "cannot be decided"
