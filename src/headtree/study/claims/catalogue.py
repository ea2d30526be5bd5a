"""The claims about one network, each with its statistic and limit; the list was fixed before any results.

Statistics are computed per input, over all heads; `Finding.measured` is their mean over inputs. Where the paper
says "similar" or "the same" and prints no numbers, the limit is an effect size: a half or a fifth.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from headtree.measures.comparisons import mean_ks_distance, median_of, rank_correlation
from headtree.measures.jackknife import Estimate, Statistic, jackknife, mean_of, mean_over_pairs
from headtree.study.claims.evidence import Evidence
from headtree.study.claims.verdict import Claim, Finding

#: Two distributions are called similar if their Kolmogorov-Smirnov distance is below this.
SIMILAR = 0.2
#: Error below which an approximation is said to describe a matrix; `paraproduct` warns above it.
DESCRIBES = 0.25


@dataclass(frozen=True)
class NetworkTest:
    """A claim and its statistic, which is computed from the evidence of a network's inputs."""

    claim: Claim
    statistic: Callable[[Sequence[Evidence]], Statistic]
    needs_scores: bool = False

    def of(self, network: str, inputs: Sequence[Evidence]) -> Finding:
        """Test the claim on a network."""
        if self.needs_scores and any(item.beyond.softmax is None for item in inputs):
            nothing = Estimate(float("nan"), (float("nan"), float("nan")), (len(inputs),))
            return Finding(self.claim, network, nothing, "needs scores, the input of softmax")
        return Finding(self.claim, network, jackknife(self.statistic(inputs), len(inputs)))


def findings(network: str, inputs: Sequence[Evidence]) -> list[Finding]:
    """Test all claims about one network."""
    own = SAID_OF.get(network, {})
    return [own.get(test.claim.key, test).of(network, inputs) for test in TESTS]


# -- statistics --------------------------------------------------------------------------------------------------


def _per_input(number: Callable[[Evidence], float]) -> Callable[[Sequence[Evidence]], Statistic]:
    return lambda inputs: mean_of([number(item) for item in inputs])


def _median_gain(order: str) -> Callable[[Evidence], float]:
    """Median over heads of (exponent on the learned trees − exponent in another order)."""

    def gain(item: Evidence) -> float:
        exponent = item.beyond.exponent
        return median_of(exponent["organized"] - exponent[order])

    return gain


def _fewer(order: str) -> Callable[[Evidence], float]:
    """log2 of how many times more coefficients another order needs for 99 % of the energy."""

    def ratio(item: Evidence) -> float:
        by_order = item.measured.sparsity.by_order
        return float(np.log2(max(1, by_order[order].n_for_99) / max(1, by_order["organized"].n_for_99)))

    return ratio


def _of_softmax(column: str) -> Callable[[Evidence], Float[np.ndarray, " head"]]:
    return lambda item: np.asarray(getattr(item.beyond.softmax, column), dtype=np.float64)


def _pairwise(
    compare: Callable[[Evidence, Evidence], float],
) -> Callable[[Sequence[Evidence]], Statistic]:
    """Mean over pairs of inputs."""

    def statistic(inputs: Sequence[Evidence]) -> Statistic:
        return mean_over_pairs(np.array([[compare(a, b) for b in inputs] for a in inputs]))

    return statistic


def _overlap(largest: bool) -> Callable[[Evidence, Evidence], float]:
    """Share of the extreme tenth of heads on one input that are in the extreme tenth on another."""

    def share(a: Evidence, b: Evidence) -> float:
        n = max(1, len(a.measured.entropy) // 10)
        sign = -1 if largest else 1
        first, second = (
            set(np.argsort(sign * item.measured.entropy, kind="stable")[:n].tolist()) for item in (a, b)
        )
        return len(first & second) / n

    return share


def _network_ks(a: Evidence, b: Evidence) -> float:
    return mean_ks_distance(np.stack([a.measured.network_coefficients, b.measured.network_coefficients]))


#: The statistic of claims about clusters of heads.
_SILHOUETTE = (
    "best silhouette of the heads in diffusion coordinates minus the mean of Gaussian clouds of the same "
    "covariance, in standard deviations of the clouds"
)


# -- the list ----------------------------------------------------------------------------------------------------

TESTS: tuple[NetworkTest, ...] = (
    NetworkTest(
        Claim(
            "regular",
            "fig. 1",
            "Organized heads have mixed Hölder regularity.",
            "no number; “smoothness in the right column”",
            "median over heads of the exponent on the network's query and key trees",
            0.0,
        ),
        _per_input(lambda item: median_of(item.beyond.exponent["organized"])),
    ),
    NetworkTest(
        Claim(
            "regularity-given",
            "fig. 1",
            "Organizing makes heads more regular than they are in the original order.",
            "no number; “smoothness in the right column in contrast to the left”",
            "median over heads of (exponent on the learned trees − exponent on dyadic trees over the original "
            "order)",
            0.0,
        ),
        _per_input(_median_gain("given")),
    ),
    NetworkTest(
        Claim(
            "regularity-random",
            "fig. 1",
            "Organizing makes heads more regular than a random order does.",
            "not tested",
            "median over heads of (exponent on the learned trees − exponent on the same trees with shuffled "
            "leaves)",
            0.0,
        ),
        _per_input(_median_gain("shuffled")),
    ),
    NetworkTest(
        Claim(
            "sparsity-given",
            "2.4, 3.2",
            "The organized tensor is sparser than in the original order.",
            "no number",
            "log2 of the ratio of the numbers of coefficients for 99 % of the energy: original order over "
            "organized",
            0.0,
        ),
        _per_input(_fewer("given")),
    ),
    NetworkTest(
        Claim(
            "sparsity-random",
            "2.4, 3.2",
            "The organized tensor is sparser than in a random order.",
            "not tested",
            "log2 of the ratio of the numbers of coefficients for 99 % of the energy: learned trees with shuffled "
            "leaves over organized",
            0.0,
        ),
        _per_input(_fewer("shuffled")),
    ),
    NetworkTest(
        Claim(
            "residual",
            "theorem 1, 2",
            "The residual is smoother than softmax(f).",
            "exponent 2α for α < 1/2",
            "median over heads of (exponent of the residual − exponent of softmax(f))",
            0.0,
        ),
        _per_input(
            lambda item: median_of(_of_softmax("exponent_residual")(item) - _of_softmax("exponent_softmax")(item))
        ),
        needs_scores=True,
    ),
    NetworkTest(
        Claim(
            "approximation-printed",
            "fig. 2",
            "Eq. (12), as printed, approximates softmax(f).",
            "no number; “approximation of attention head”",
            "0.25 − median over heads of the relative error",
            0.0,
        ),
        _per_input(lambda item: DESCRIBES - median_of(_of_softmax("error_printed")(item))),
        needs_scores=True,
    ),
    NetworkTest(
        Claim(
            "approximation-complete",
            "fig. 2",
            "Eq. (12) with its boundary terms approximates softmax(f).",
            "not in the paper, which leaves the boundary out",
            "0.25 − median over heads of the relative error",
            0.0,
        ),
        _per_input(lambda item: DESCRIBES - median_of(_of_softmax("share_residual")(item))),
        needs_scores=True,
    ),
    NetworkTest(
        Claim(
            "oversquashing",
            "fig. 2",
            "The decomposition separates entries that softmax squashes together.",
            "no number; softmax “oversquashes”, the approximation “preserves some of the structure”",
            "median over heads of the share, among entries of softmax(f) within 1 % of the range from its median, "
            "that are farther from the median in the decomposition",
            0.5,
        ),
        _per_input(lambda item: median_of(_of_softmax("kept")(item))),
        needs_scores=True,
    ),
    NetworkTest(
        Claim(
            "invariance",
            "corollary 1",
            "Eq. (17) and eq. (18) agree: attention is invariant to softmax.",
            "equality in the limit",
            "share of heads whose eq. (18) is within 25 % of eq. (17) in norm",
            0.5,
        ),
        _per_input(lambda item: float(np.mean(_of_softmax("distance")(item) <= DESCRIBES))),
        needs_scores=True,
    ),
    NetworkTest(
        Claim(
            "invariance-mixed",
            "corollary 1",
            "Eq. (17) and eq. (18) come closer as mixed differences grow.",
            "in the limit",
            "minus the rank correlation over heads of their distance with the size of the mixed differences",
            0.0,
        ),
        _per_input(lambda item: -rank_correlation(_of_softmax("distance")(item), _of_softmax("mixed")(item))),
        needs_scores=True,
    ),
    NetworkTest(
        Claim(
            "invariance-mean",
            "corollary 1",
            "Eq. (17) and eq. (18) come closer as the mean vanishes.",
            "in the limit",
            "rank correlation over heads of their distance with |mean|",
            0.0,
        ),
        _per_input(lambda item: rank_correlation(_of_softmax("distance")(item), np.abs(_of_softmax("mean")(item)))),
        needs_scores=True,
    ),
    NetworkTest(
        Claim(
            "mean-vanishes",
            "corollary 1, proof",
            "The mean of a head vanishes as its mixed differences grow.",
            "in the limit",
            "minus the rank correlation over heads of |mean| with the size of the mixed differences",
            0.0,
        ),
        _per_input(lambda item: -rank_correlation(np.abs(_of_softmax("mean")(item)), _of_softmax("mixed")(item))),
        needs_scores=True,
    ),
    NetworkTest(
        Claim(
            "clusters",
            "fig. 3",
            "The heads are clustered.",
            "no number; of ViT “more clustered and contains some outliers”",
            f"{_SILHOUETTE}; a cloud itself exceeds 2 about once in forty",
            2.0,
        ),
        _per_input(lambda item: item.beyond.clusters.excess),
    ),
    NetworkTest(
        Claim(
            "coefficients-alike",
            "fig. 4",
            "The distribution of expansion coefficients is similar for all heads.",
            "no number; two heads shown of each network",
            "0.2 − mean Kolmogorov-Smirnov distance between the normalized absolute coefficients of two heads",
            0.0,
        ),
        _per_input(lambda item: SIMILAR - mean_ks_distance(item.beyond.coefficients)),
    ),
    NetworkTest(
        Claim(
            "spread",
            "fig. 5",
            "Different inputs rank the heads alike by entropy.",
            "no number; “consistent spread” over 3 inputs",
            "mean over pairs of inputs of the rank correlation of head entropies",
            0.5,
        ),
        _pairwise(lambda a, b: rank_correlation(a.measured.entropy, b.measured.entropy)),
    ),
    NetworkTest(
        Claim(
            "sharp-transitions",
            "fig. 5",
            "High entropy means sharp transitions.",
            "no number",
            "rank correlation over heads of entropy with total variation in organized order",
            0.0,
        ),
        _per_input(lambda item: rank_correlation(item.measured.entropy, item.beyond.variation)),
    ),
    NetworkTest(
        Claim(
            "sharp-transitions-relative",
            "fig. 5",
            "High entropy means sharp transitions, independent of the size of a head's entries.",
            "not tested",
            "the same rank correlation, both divided by the head's norm",
            0.0,
        ),
        _per_input(lambda item: rank_correlation(item.measured.entropy_relative, item.beyond.variation_relative)),
    ),
    NetworkTest(
        Claim(
            "same-top",
            "table 1",
            "The same heads have the largest entropies on every input.",
            "top 3 of both networks in 6 of 6 batches",
            "mean over pairs of inputs of the share of the top tenth of one that is in the top tenth of the other; "
            "0.1 by chance",
            0.5,
        ),
        _pairwise(_overlap(largest=True)),
    ),
    NetworkTest(
        Claim(
            "same-bottom",
            "table 1",
            "The same heads have the smallest entropies on every input.",
            "bottom 3 of both networks in 6 of 6 batches",
            "mean over pairs of inputs of the share of the bottom tenth of one that is in the bottom tenth of the "
            "other; 0.1 by chance",
            0.5,
        ),
        _pairwise(_overlap(largest=False)),
    ),
    NetworkTest(
        Claim(
            "network-coefficients",
            "fig. 6",
            "The distribution of the network's coefficients is the same for all inputs.",
            "no number; “relatively consistent” over 5 inputs",
            "0.2 − mean over pairs of inputs of the Kolmogorov-Smirnov distance between the normalized absolute "
            "coefficients",
            0.0,
        ),
        _pairwise(lambda a, b: SIMILAR - _network_ks(a, b)),
    ),
)

#: Claims about a particular network, which replace the common claim with the same key.
SAID_OF: dict[str, dict[str, NetworkTest]] = {
    "txl": {
        "clusters": NetworkTest(
            Claim(
                "continuum",
                "fig. 3",
                "The heads form a continuum.",
                "no number; of TXL “some continuous structure”",
                f"2 − the {_SILHOUETTE}; below 0 the heads are clustered",
                0.0,
            ),
            _per_input(lambda item: 2.0 - item.beyond.clusters.excess),
        )
    }
}
