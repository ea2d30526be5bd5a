"""Do other inputs show the same tree and the same families? Those of two disjoint halves of the inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform

from headtree.geometry.combined_affinity import InputMatrices
from headtree.geometry.resampled_trees import LinkageFolders, ResampledTrees
from headtree.measures.comparisons import adjusted_rand_index
from headtree.measures.consensus import consensus_of
from headtree.measures.families import Families
from headtree.study.similarities.halved_estimates import HalvedEstimate, halvings
from headtree.study.similarities.similarity_settings import (
    BOOTSTRAP,
    FAMILY_HALVINGS,
    HALVINGS,
    HEAD_SAMPLES,
    PLAIN_CLUSTERS,
    SEED,
    SMALLEST_FOLDER,
)

#: Labels of heads: their family, or a number of their own.
Labels = Int[np.ndarray, " head"]


def transfer_of_trees(inputs: InputMatrices, first: Sequence[int], second: Sequence[int]) -> float:
    """TBE: how much of the folders of the tree of some inputs that of others has, mean of both directions.

    The transfer of a folder F is 1 - min |F Δ C| / (|F| - 1) over the folders C of the other tree, leaves included;
    of all folders of 3 to half of the heads the mean. 0 if there are none.
    """
    weights = np.zeros((2, inputs.n_inputs))
    weights[0, list(first)], weights[1, list(second)] = 1 / len(first), 1 / len(second)
    found = []
    for one, other in ((0, 1), (1, 0)):
        members = LinkageFolders.of(inputs.combined(weights[one])).members
        size = members.sum(axis=1)
        chosen = members[(size >= SMALLEST_FOLDER) & (size <= inputs.n_leaves // 2)]
        transfer = ResampledTrees.grow(inputs, weights[other]).transfer(chosen) if len(chosen) else np.zeros(1)
        found.append(float(transfer.mean()))
    return float(np.mean(found))


def of_heads(inputs: InputMatrices, heads: Sequence[int]) -> InputMatrices:
    """The matrices of some of the heads."""
    index = np.ix_(range(len(inputs.parts)), range(inputs.n_inputs), list(heads), list(heads))
    return InputMatrices(np.ascontiguousarray(inputs.parts[index]), inputs.is_kernel)


def transfer_by_draw(inputs: InputMatrices) -> Float[np.ndarray, " draw"]:
    """TBE in each random division of the inputs into halves."""
    draws = halvings(inputs.n_inputs, HALVINGS, SEED)
    return np.array([transfer_of_trees(inputs, a.tolist(), b.tolist()) for a, b in draws])


def tree_replication(inputs: InputMatrices) -> HalvedEstimate:
    """TBE between the trees of disjoint halves of the inputs: mean of random divisions."""
    by_draw = transfer_by_draw(inputs)
    first, second = halvings(inputs.n_inputs, 1, SEED)[0]
    by_heads = [
        transfer_of_trees(of_heads(inputs, list(half)), list(first), list(second))
        for half, _ in halvings(inputs.n_leaves, HEAD_SAMPLES, SEED)
    ]
    return HalvedEstimate(float(by_draw.mean()), by_draw, np.array(by_heads))


@dataclass(frozen=True, eq=False)
class FamilyReplication:
    """The families of all inputs, and of both halves in each of several divisions."""

    families: Labels  #: of all inputs; heads in none have a number of their own
    is_member: Int[np.ndarray, " head"]  #: 1 for heads in a family of all inputs
    of_halves: Int[np.ndarray, "draw 2 head"]
    support: float  #: mean over families of a half, weighted by size; mean over halves
    coverage: float  #: share of heads in a family of a half; mean over halves
    plain: float  #: adjusted Rand index of both halves if their trees are just cut into clusters; mean of divisions


def family_replication(inputs: InputMatrices) -> FamilyReplication:
    """Families of all inputs and of halves, each by `consensus`, which knows nothing of the other half."""
    whole = _families(inputs)
    halves, supports, coverages, plain = [], [], [], []
    for pair in halvings(inputs.n_inputs, FAMILY_HALVINGS, SEED):
        parts = [inputs.of_inputs(half.tolist()) for half in pair]
        found = [_families(part) for part in parts]
        plain.append(adjusted_rand_index(*(plain_clusters(part.combined()) for part in parts)))
        halves.append([labels_of(families) for families in found])
        supports += [mean_support(families) for families in found]
        coverages += [families.coverage for families in found]
    return FamilyReplication(
        families=labels_of(whole),
        is_member=(whole.of_leaf >= 0).astype(np.int64),
        of_halves=np.array(halves, dtype=np.int64),
        support=float(np.mean(supports)),
        coverage=float(np.mean(coverages)),
        plain=float(np.mean(plain)),
    )


def plain_clusters(affinity: Float[np.ndarray, "head head"]) -> Labels:
    """Average linkage of the mean affinity, cut into a fixed number of clusters."""
    distance = squareform(1 - affinity, checks=False)
    return np.asarray(fcluster(linkage(distance, "average"), PLAIN_CLUSTERS, "maxclust"))


def _families(inputs: InputMatrices) -> Families:
    return consensus_of(inputs, "", n_bootstrap=BOOTSTRAP, rng=SEED, halved=False).families()


def labels_of(families: Families) -> Labels:
    """The family of each head; a head in none has a number of its own."""
    n = len(families.of_leaf)
    return np.where(families.of_leaf >= 0, families.of_leaf, len(families) + np.arange(n))


def mean_support(families: Families) -> float:
    """Mean support over families, weighted by their sizes; 0 if there are none."""
    sizes = [len(leaves) for leaves in families.folders]
    return float(np.average(families.support, weights=sizes)) if sizes else 0.0


def family_agreement(found: FamilyReplication) -> HalvedEstimate:
    """Adjusted Rand index of the families of two disjoint halves: mean of the divisions."""
    by_draw = np.array([adjusted_rand_index(a, b) for a, b in found.of_halves])
    by_heads = [_mean_agreement(found.of_halves[..., half]) for half, _ in _head_samples(found)]
    return HalvedEstimate(float(by_draw.mean()), by_draw, np.array(by_heads))


def _mean_agreement(labels: Int[np.ndarray, "draw 2 head"]) -> float:
    return float(np.mean([adjusted_rand_index(a, b) for a, b in labels]))


def _head_samples(found: FamilyReplication) -> list[tuple[Labels, Labels]]:
    return halvings(len(found.families), HEAD_SAMPLES, SEED)


def affinities_of_halves(inputs: InputMatrices) -> list[Float[np.ndarray, "head head"]]:
    """The affinity of the first half of the inputs in each division."""
    found = []
    for half, _ in halvings(inputs.n_inputs, HALVINGS, SEED):
        weights = np.zeros(inputs.n_inputs)
        weights[half] = 1 / len(half)
        found.append(inputs.combined(weights))
    return found
