"""Does a similarity know function? It is held against functional similarity by ablation on other inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from headtree.geometry.combined_affinity import InputMatrices
from headtree.measures.comparisons import rank_correlation
from headtree.study.similarities.functional_truth import FunctionalTruth
from headtree.study.similarities.halved_estimates import HalvedEstimate, halvings
from headtree.study.similarities.replication import affinities_of_halves
from headtree.study.similarities.similarity_settings import HEAD_SAMPLES, SEED, SHUFFLES

Square = Float[np.ndarray, "head head"]


def pair_correlation(affinity: Square, function: Square, pairs: Bool[np.ndarray, "head head"]) -> float:
    """Rank correlation over the chosen pairs of heads, each counted once."""
    chosen = pairs & np.triu(np.ones_like(pairs), 1)
    return rank_correlation(affinity[chosen], function[chosen])


def function_agreement(
    inputs: InputMatrices, truth: FunctionalTruth, layers: Sequence[int], *, within_layers: bool
) -> HalvedEstimate:
    """Rank correlation of the affinity with functional similarity, over all pairs or those within a layer."""
    n = inputs.n_leaves
    layer = np.asarray(layers)
    pairs = layer[:, None] == layer if within_layers else np.ones((n, n), dtype=bool)
    affinity = inputs.combined()
    by_draw = [pair_correlation(half, truth.similarity, pairs) for half in affinities_of_halves(inputs)]
    by_heads = []
    for half, _ in halvings(n, HEAD_SAMPLES, SEED):
        index = np.ix_(half, half)
        by_heads.append(pair_correlation(affinity[index], truth.similarity[index], pairs[index]))
    whole = pair_correlation(affinity, truth.similarity, pairs)
    return HalvedEstimate(whole, np.array(by_draw), np.array(by_heads))


@dataclass(frozen=True)
class FamilyFunction:
    """Mean functional similarity within families, and of heads that are shuffled within their layers."""

    within: float
    shuffled: float
    z: float  #: the difference in standard deviations over shuffles

    @property
    def ratio(self) -> float:
        """How many times larger it is within families; nan if shuffled heads have none."""
        return self.within / self.shuffled if self.shuffled > 0 else float("nan")


def family_function(
    labels: Int[np.ndarray, " head"], truth: FunctionalTruth, layers: Sequence[int]
) -> FamilyFunction:
    """Compare the pairs of heads within a family with those after heads changed places within their layers."""
    rng = np.random.default_rng(SEED)
    same = (labels[:, None] == labels) & ~np.eye(len(labels), dtype=bool)
    if not same.any():
        return FamilyFunction(float("nan"), float("nan"), float("nan"))
    within = float(truth.similarity[same].mean())
    layer = np.asarray(layers)
    shuffled = []
    for _ in range(SHUFFLES):
        order = np.arange(len(layer))
        for each in np.unique(layer):
            place = np.flatnonzero(layer == each)
            order[place] = rng.permutation(place)
        shuffled.append(float(truth.similarity[np.ix_(order, order)][same].mean()))
    deviation = float(np.std(shuffled, ddof=1))
    mean = float(np.mean(shuffled))
    return FamilyFunction(within, mean, (within - mean) / deviation if deviation > 0 else float("nan"))
