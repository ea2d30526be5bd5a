"""Trees by average linkage: repeatedly join the two clusters with the largest mean affinity."""

from __future__ import annotations

import numba
import numpy as np
from jaxtyping import Float

from headtree.geometry.order_statistics import smallest_and_largest
from headtree.trees.tree import PartitionTree

#: Joins whose mean affinities differ by less than this fraction of the range of all affinities count as one join.
_SAME = 1e-10
#: So do joins that differ by less than the rounding error of the means: this, times the number of leaves, times the
#: largest affinity.
_ROUNDING = np.finfo(np.float64).eps


def linkage_tree(affinity: Float[np.ndarray, "leaf leaf"]) -> PartitionTree:
    """Tree of a checked affinity by average linkage (UPGMA); every level is a cut at one affinity.

    The tree has all folders that average linkage makes, in as few levels as cuts allow: going up, a new level
    begins when a cluster made on the current level is joined again. Joins at the same affinity make one folder, so
    equal affinities give a flat tree rather than spurious structure. The order of the leaves matters in one case
    only: if a leaf is equally close to two others that are less close to each other.
    """
    n = len(affinity)
    joined, first_of_round, _ = linkage_joins(np.array(affinity, dtype=np.float64))
    levels: list[np.ndarray] = []
    clusters, first_of_level = np.arange(n), n
    for first in np.unique(first_of_round).tolist():
        joins = np.flatnonzero(first_of_round == first)
        if ((first_of_level <= joined[joins]) & (joined[joins] < first)).any():
            levels.append(clusters.copy())
            first_of_level = first
        for join in joins.tolist():
            clusters[np.isin(clusters, joined[join])] = n + join
    return PartitionTree(np.stack([clusters, *levels[::-1], np.arange(n)] if n > 1 else [clusters]))


@numba.njit(cache=True, error_model="numpy", nogil=True)
def linkage_joins(affinity):  # type: ignore[no-untyped-def]
    """The two clusters of each join, the number of the first cluster made at the same affinity, and that affinity.

    Clusters 0 … n - 1 are the leaves and join i makes cluster n + i; joins are ordered by decreasing affinity. They
    are found by following chains of nearest neighbours (Müllner, Modern hierarchical, agglomerative clustering
    algorithms, 2011) in O(n²) operations. The affinity is overwritten. It must be exactly symmetric, or a chain may
    never end.
    """
    n = len(affinity)
    low = high = affinity[0, 0]
    for row in range(n):
        least, most = smallest_and_largest(affinity[row, : row + 1])
        low, high = min(low, least), max(high, most)
    tolerance = max(_SAME * (high - low), n * _ROUNDING * max(-low, high))
    slots, affinity_of_join = _nearest_neighbour_joins(affinity)
    parts, first_of_round = np.empty((n - 1, 2), dtype=np.int64), np.empty(n - 1, dtype=np.int64)
    ordered = np.argsort(-affinity_of_join, kind="mergesort")
    above = np.arange(n)  # where the cluster of a slot went when it was joined, as a forest
    cluster = np.arange(n)
    before, first = np.inf, n
    for i, join in enumerate(ordered):
        for side in range(2):
            slot = slots[join, side]
            while above[slot] != slot:
                above[slot] = above[above[slot]]
                slot = above[slot]
            slots[join, side] = slot
            parts[i, side] = cluster[slot]
        above[slots[join, 0]] = slots[join, 1]
        cluster[slots[join, 1]] = n + i
        if before - affinity_of_join[join] > tolerance:
            first = n + i
        before = affinity_of_join[join]
        first_of_round[i] = first
    return parts, first_of_round, affinity_of_join[ordered]


@numba.njit(cache=True, error_model="numpy", nogil=True)
def _nearest_neighbour_joins(affinity):  # type: ignore[no-untyped-def]
    """Pairs of slots whose clusters are each other's nearest neighbours, in the order in which they are found.

    The joined cluster goes into the second slot of the pair.
    """
    n = len(affinity)
    size = np.ones(n)  # size of the cluster in each slot
    used = np.arange(n)  # slots that hold a cluster come first
    chain, length = np.empty(n, dtype=np.int64), 0
    slots, affinity_of_join = np.empty((n - 1, 2), dtype=np.int64), np.empty(n - 1)
    for join in range(n - 1):
        n_used = n - join
        if length == 0:
            chain[0], length = used[0], 1
        while True:
            last = chain[length - 1]
            nearest, best = (chain[length - 2], affinity[last, chain[length - 2]]) if length > 1 else (-1, -np.inf)
            for i in range(n_used):
                slot = used[i]
                if slot != last and affinity[last, slot] > best:
                    nearest, best = slot, affinity[last, slot]
            if length > 1 and nearest == chain[length - 2]:
                break
            chain[length] = nearest
            length += 1
        length -= 2
        slots[join], affinity_of_join[join] = (last, nearest), best
        kept = 0
        for i in range(n_used):
            slot = used[i]
            if slot == last:
                continue
            used[kept] = slot
            kept += 1
            if slot != nearest:
                mean = size[last] * affinity[last, slot] + size[nearest] * affinity[nearest, slot]
                mean /= size[last] + size[nearest]
                affinity[nearest, slot] = affinity[slot, nearest] = mean
        size[nearest] += size[last]
    return slots, affinity_of_join
