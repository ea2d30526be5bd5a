"""Claims that compare two networks; the list was fixed before any results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from headtree.measures.comparisons import median_of
from headtree.measures.jackknife import Estimate, difference_of, jackknife, mean_of
from headtree.study.claims.evidence import Evidence
from headtree.study.claims.verdict import Claim, Finding

#: Table 2 of [OA]: network entropies of five batches.
PRINTED_ENTROPIES = {"txl": (1200.20, 2473.37, 2476.25, 1902.98, 2188.69), "vit": (6.84, 3.30, 2.47, 5.47, 9.77)}


@dataclass(frozen=True)
class PairTest:
    """A claim that a number is larger for the first network (in the paper TXL) than for the second (ViT)."""

    claim: Claim
    number: Callable[[Evidence], float]
    first_is_larger: bool = True
    needs_scores: bool = False

    def of(self, names: tuple[str, str], first: Sequence[Evidence], second: Sequence[Evidence]) -> Finding:
        """Test the claim on two networks."""
        network = " and ".join(names)
        if self.needs_scores and any(item.beyond.softmax is None for item in (*first, *second)):
            nothing = Estimate(float("nan"), (float("nan"), float("nan")), (len(first), len(second)))
            return Finding(self.claim, network, nothing, "needs scores, the input of softmax")
        a, b = (mean_of([self.number(item) for item in inputs]) for inputs in (first, second))
        if not self.first_is_larger:
            measured = jackknife(lambda x, y: b(y) - a(x), len(first), len(second))
        else:
            measured = jackknife(difference_of(a, b), len(first), len(second))
        return Finding(self.claim, network, measured)


def pair_findings(names: tuple[str, str], first: Sequence[Evidence], second: Sequence[Evidence]) -> list[Finding]:
    """Test all claims about two networks."""
    return [test.of(names, first, second) for test in PAIR_TESTS]


PAIR_TESTS: tuple[PairTest, ...] = (
    PairTest(
        Claim(
            "entropy-raw",
            "table 2, fig. 6",
            "TXL has a larger network entropy than ViT.",
            "TXL 1200.20, 2473.37, 2476.25, 1902.98, 2188.69; ViT 6.84, 3.30, 2.47, 5.47, 9.77",
            "difference of the mean log10 of network entropies, top 100 functions",
            0.0,
        ),
        lambda item: float(np.log10(max(item.measured.network_entropy, 1e-300))),
    ),
    PairTest(
        Claim(
            "entropy-relative",
            "table 2",
            "TXL has a larger network entropy than ViT once normalised.",
            "not tested; the paper prints raw values only",
            "difference of the mean network entropies, each divided by the norm of its tensor",
            0.0,
        ),
        lambda item: item.measured.network_entropy_relative,
    ),
    PairTest(
        Claim(
            "high-frequency",
            "appendix B.2",
            "TXL carries more high-frequency content than ViT, normalised.",
            "no number; read off the raw entropies",
            "difference of the mean shares of energy outside the coarsest 1 % of functions",
            0.0,
        ),
        lambda item: item.measured.fine_share,
    ),
    PairTest(
        Claim(
            "more-clustered",
            "fig. 3",
            "The heads of ViT are more clustered than those of TXL.",
            "no number; by eye",
            "difference of the mean excess silhouettes, in standard deviations of chance",
            0.0,
        ),
        lambda item: item.beyond.clusters.excess,
        first_is_larger=False,
    ),
    PairTest(
        Claim(
            "more-squashed",
            "fig. 2",
            "Softmax squashes more of TXL than of ViT.",
            "no number; for ViT “less pronounced”",
            "difference of the means over inputs of the median over heads of the share of squashed entries",
            0.0,
        ),
        lambda item: median_of(item.beyond.softmax.squashed) if item.beyond.softmax is not None else float("nan"),
        needs_scores=True,
    ),
)
