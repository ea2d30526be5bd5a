"""Corollary 1 along training: what happens to the same heads while a network learns."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from headtree.measures.comparisons import rank_correlation
from headtree.measures.invariance import SoftmaxInvariance
from headtree.measures.jackknife import jackknife, mean_of
from headtree.study.claims.verdict import Claim, Finding

GROWING = Claim(
    "training-mixed",
    "corollary 1",
    "Mixed differences grow while the network learns.",
    "assumed",
    "mean over heads of the rank correlation of the size of the mixed differences with the stage of training",
    0.0,
)
CLOSER = Claim(
    "training-closer",
    "corollary 1",
    "Eq. (17) and eq. (18) come closer along training, as mixed differences grow.",
    "in the limit",
    "mean over heads of minus the rank correlation, over stages of training, of their distance with the size of "
    "the mixed differences",
    0.0,
)


def training_findings(network: str, stages: Sequence[Sequence[SoftmaxInvariance]]) -> list[Finding]:
    """Test the corollary along training.

    Parameters
    ----------
    network : str
        Name of the network.
    stages : sequence of sequences of SoftmaxInvariance
        Results on the same inputs for every stage of training, from first to last.
    """
    mixed, distance = (_table(stages, column) for column in ("mixed", "distance"))
    order = np.arange(len(stages), dtype=np.float64)
    growing, closer = [], []
    for i in range(mixed.shape[1]):
        by_head = range(mixed.shape[2])
        growing.append(_mean([rank_correlation(order, mixed[:, i, h]) for h in by_head]))
        closer.append(_mean([-rank_correlation(mixed[:, i, h], distance[:, i, h]) for h in by_head]))
    return [
        Finding(claim, network, jackknife(mean_of(values), len(values)))
        for claim, values in ((GROWING, growing), (CLOSER, closer))
    ]


def _mean(values: Sequence[float]) -> float:
    finite = [value for value in values if np.isfinite(value)]
    return float(np.mean(finite)) if finite else float("nan")


def _table(stages: Sequence[Sequence[SoftmaxInvariance]], column: str) -> Float[np.ndarray, "stage input head"]:
    return np.array([[getattr(item, column) for item in inputs] for inputs in stages], dtype=np.float64)
