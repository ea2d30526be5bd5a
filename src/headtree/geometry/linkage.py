"""Trees by average linkage: the two clusters of largest mean affinity are joined, again and again."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from headtree.trees.tree import PartitionTree

#: Joins whose mean affinities differ by less, beside the range of all of them, are one join.
_SAME = 1e-10


@dataclass(frozen=True)
class _Round:
    """Joins at one and the same affinity: the pairs of clusters, and the number of the first one made."""

    pairs: list[tuple[int, int]]
    first_made: int


def linkage_tree(affinity: Float[np.ndarray, "leaf leaf"]) -> PartitionTree:
    """Tree of a checked affinity by average linkage (UPGMA); every level is a cut at one affinity.

    All folders that average linkage makes are kept, in as few levels as cuts can hold them: going up, a new level
    begins when a cluster that was made on this level is joined again. Joins at the same affinity are one folder
    with all their parts, so that equal affinities give one flat folder and no tree from nothing.
    """
    n = len(affinity)
    if n == 1:
        return PartitionTree.flat(1)
    levels: list[np.ndarray] = []
    clusters, first_of_level = np.arange(n), n
    for joins in _rounds(affinity):
        if any(first_of_level <= part < joins.first_made for pair in joins.pairs for part in pair):
            levels.append(clusters.copy())
            first_of_level = joins.first_made
        for made, (a, b) in enumerate(joins.pairs, start=joins.first_made):
            clusters[(clusters == a) | (clusters == b)] = made
    return PartitionTree(np.stack([clusters, *levels[::-1], np.arange(n)]))


def linkage_folders(affinity: Float[np.ndarray, "leaf leaf"]) -> set[int]:
    """The folders of `linkage_tree` but single leaves, each as an integer with bit i set for leaf i."""
    leaves = [1 << leaf for leaf in range(len(affinity))]
    folders = set()
    first_made = len(affinity)
    for made, (is_first, a, b) in enumerate(_joins(affinity), start=len(affinity)):
        if is_first:
            first_made = made
        for part in (a, b):
            if part >= first_made:  # a part of a larger join, no folder of its own
                folders.discard(leaves[part])
        leaves.append(leaves[a] | leaves[b])
        folders.add(leaves[-1])
    return folders


def _rounds(affinity: Float[np.ndarray, "leaf leaf"]) -> list[_Round]:
    rounds: list[_Round] = []
    for made, (is_first, a, b) in enumerate(_joins(affinity), start=len(affinity)):
        if is_first:
            rounds.append(_Round([], made))
        rounds[-1].pairs.append((a, b))
    return rounds


def _joins(affinity: Float[np.ndarray, "leaf leaf"]) -> list[tuple[bool, int, int]]:
    """Whether each join is the first at its affinity, and the two clusters that it joins."""
    from scipy.cluster.hierarchy import linkage
    from scipy.spatial.distance import squareform

    distances = affinity.max() - affinity
    table = linkage(squareform(distances, checks=False), "average")
    is_first = np.diff(table[:, 2], prepend=-np.inf) > _SAME * max(float(np.ptp(distances)), np.finfo(float).tiny)
    return list(zip(is_first.tolist(), *table[:, :2].astype(int).T.tolist(), strict=True))
