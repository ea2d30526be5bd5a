"""Do sampled tree distances find the families that exact ones find? Measured beside what other inputs change."""

from __future__ import annotations

import numpy as np

import headtree as ht
from headtree.measures.comparisons import adjusted_rand_index, rank_correlation
from headtree.measures.families import Families
from headtree.study.similarities.evidence_networks import evidence_network
from headtree.study.similarities.replication import labels_of

#: Folders drawn of each tuple of levels; what `"auto"` begins with.
DRAWS = 256


def main(check: bool = False) -> None:
    for name in ("txl",) if check else ("txl", "minilm", "vit"):
        compare(name, n=2 if check else 10)


def compare(name: str, n: int) -> None:
    """Print how far families from sampled and exact distances agree, and those of two disjoint sets of inputs."""
    network = evidence_network(name)
    atts = network.view.capture(inputs=[dict(item) for item in network.inputs[: 2 * n]], kind="probs")
    exact = [ht.organize(att, ht.Questionnaire(samples=None)) for att in atts]
    sampled = [ht.organize(att, ht.Questionnaire(samples=DRAWS)) for att in atts[:n]]
    first, second, drawn = (_families(orgs) for orgs in (exact[:n], exact[n:], sampled))
    likeness = [
        rank_correlation(_pairs(one.affinities[0]), _pairs(other.affinities[0]))
        for one, other in zip(exact, sampled, strict=False)
    ]
    print(
        f"{name}, {n} inputs: ARI of families of heads, sampled and exact {_agreement(first, drawn):.2f}, two sets "
        f"of inputs {_agreement(first, second):.2f}; rank correlation of affinities {np.mean(likeness):.4f}; "
        f"{sampled[0].status.distances}",
        flush=True,
    )


def _families(organizations: list[ht.Organization]) -> Families:
    return ht.consensus(organizations).families()


def _agreement(one: Families, other: Families) -> float:
    return adjusted_rand_index(labels_of(one), labels_of(other))


def _pairs(affinity: np.ndarray) -> np.ndarray:
    affinity = np.asarray(affinity)
    return affinity[np.triu_indices(len(affinity), 1)]
