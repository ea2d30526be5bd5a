"""Trees by average linkage: the two clusters of largest mean affinity are joined, again and again."""

from __future__ import annotations

from dataclasses import dataclass

import numba
import numpy as np
from jaxtyping import Float, Int

from headtree.trees.tree import PartitionTree

#: Joins whose mean affinities differ by less, beside the range of all of them, are one join; and so are joins that
#: differ by less than the rounding of the means, in units of the last place of the largest affinity for each leaf.
_SAME = 1e-10
_ROUNDING = np.finfo(np.float64).eps


def linkage_tree(affinity: Float[np.ndarray, "leaf leaf"]) -> PartitionTree:
    """Tree of a checked affinity by average linkage (UPGMA); every level is a cut at one affinity.

    All folders that average linkage makes are kept, in as few levels as cuts can hold them: going up, a new level
    begins when a cluster that was made on this level is joined again. Joins at the same affinity are one folder
    with all their parts, so that equal affinities give one flat folder and no tree from nothing. Only where a leaf
    is as near to two others, which are less near to each other, does the order of the leaves decide.
    """
    n = len(affinity)
    parts, first_of_round, _ = _joins(np.array(affinity, dtype=np.float64))
    levels: list[np.ndarray] = []
    clusters, first_of_level = np.arange(n), n
    for first in np.unique(first_of_round).tolist():
        joins = np.flatnonzero(first_of_round == first)
        if ((first_of_level <= parts[joins]) & (parts[joins] < first)).any():
            levels.append(clusters.copy())
            first_of_level = first
        for join in joins.tolist():
            clusters[np.isin(clusters, parts[join])] = n + join
    return PartitionTree(np.stack([clusters, *levels[::-1], np.arange(n)] if n > 1 else [clusters]))


@dataclass(frozen=True)
class Recurrence:
    """Folders of a tree, and how often they recur: all but single leaves, the larger before their parts.

    The leaves of folder f are ``order[start[f] : start[f] + size[f]]``.
    """

    order: Int[np.ndarray, " leaf"]
    start: Int[np.ndarray, " folder"]
    size: Int[np.ndarray, " folder"]
    gap: Float[np.ndarray, " folder"]  #: from the mean affinity at which it is made to that at which it is joined
    count: Int[np.ndarray, " folder"]  #: samples of which all trees have exactly this folder


def recurrence(
    mean: Float[np.ndarray, "leaf leaf"],
    affinities: Float[np.ndarray, "input leaf leaf"],
    weights: Float[np.ndarray, "sample tree input"],
) -> Recurrence:
    """In how many samples a folder of ``linkage_tree(mean)`` is in every tree of the sample.

    Each tree of a sample is that of a weighted sum of affinities. Trees are compared as in Day, Optimal algorithms
    for comparing trees with labeled leaves, 1985: with the leaves in the order of one tree, its folders are
    intervals, and a folder of another tree is one of them if its first and last leaf are those of an interval of
    the same size. Memory is that of a few matrices, whatever the number of samples.
    """
    order, start, size, gap, count = _recurrence(
        np.array(mean, dtype=np.float64),  # a copy, to be overwritten
        np.ascontiguousarray(affinities, dtype=np.float64),
        np.ascontiguousarray(weights, dtype=np.float64),
    )
    folders = np.flatnonzero(size)[::-1]  # the last join is everything
    return Recurrence(order, start[folders], size[folders], gap[folders], count[folders])


@numba.njit(cache=True, error_model="numpy", nogil=True)
def _recurrence(mean, affinities, weights):  # type: ignore[no-untyped-def]
    n_samples, n_trees, _ = weights.shape
    n = len(mean)
    parts, first_of_round, affinity_of_join = _joins(mean)
    first, size = _leaves_side_by_side(parts, first_of_round)
    place, start = first[:n], first[n:]
    folder_of = np.full((n, n), -1)
    for join in range(n - 1):
        if size[join] > 0:
            folder_of[start[join], start[join] + size[join] - 1] = join
    gap = np.full(n - 1, np.inf)
    for join in range(n - 1):
        for part in parts[join]:
            if part >= n:
                gap[part - n] = affinity_of_join[part - n] - affinity_of_join[join]
    count = np.zeros(n - 1, dtype=np.int64)
    trees_with = np.zeros(n - 1, dtype=np.int64)
    for sample in range(n_samples):
        trees_with[:] = 0
        for tree in range(n_trees):
            parts, first_of_round, _ = _joins(_weighted_sum(affinities, weights[sample, tree]))
            _mark_common(parts, first_of_round, place, folder_of, trees_with)
        count += trees_with == n_trees
    return np.argsort(place), start, size, gap, count


@numba.njit(cache=True, error_model="numpy", nogil=True)
def _weighted_sum(affinities, weights):  # type: ignore[no-untyped-def]
    n_inputs, n, _ = affinities.shape
    total = np.zeros((n, n))
    for i in range(n_inputs):
        if weights[i] != 0:
            for row in range(n):
                for column in range(n):
                    total[row, column] += weights[i] * affinities[i, row, column]
    return total


@numba.njit(cache=True, error_model="numpy", nogil=True)
def _is_part_of_its_round(parts, first_of_round):  # type: ignore[no-untyped-def]
    """Of each join whether another one at the same affinity takes it in, so that it is no folder of its own."""
    n = len(parts) + 1
    is_part = np.zeros(n - 1, dtype=np.bool_)
    for join in range(n - 1):
        for part in parts[join]:
            if part >= first_of_round[join]:
                is_part[part - n] = True
    return is_part


@numba.njit(cache=True, error_model="numpy", nogil=True)
def _leaves_side_by_side(parts, first_of_round):  # type: ignore[no-untyped-def]
    """First place of each cluster in an order of the leaves that keeps clusters together, and sizes of folders.

    The size is that of each join; 0 for those that are no folder of their own.
    """
    n = len(parts) + 1
    size = np.ones(2 * n - 1, dtype=np.int64)
    for join in range(n - 1):
        size[n + join] = size[parts[join, 0]] + size[parts[join, 1]]
    first = np.zeros(2 * n - 1, dtype=np.int64)
    for join in range(n - 2, -1, -1):
        left, right = parts[join]
        first[left] = first[n + join]
        first[right] = first[n + join] + size[left]
    is_part = _is_part_of_its_round(parts, first_of_round)
    return first, np.where(is_part, 0, size[n:])


@numba.njit(cache=True, error_model="numpy", nogil=True)
def _mark_common(parts, first_of_round, place, folder_of, trees_with):  # type: ignore[no-untyped-def]
    """Add one to `trees_with` of each folder of one tree that is also a folder of another."""
    n = len(parts) + 1
    size = np.ones(2 * n - 1, dtype=np.int64)
    least, largest = np.empty(2 * n - 1, dtype=np.int64), np.empty(2 * n - 1, dtype=np.int64)
    least[:n], largest[:n] = place, place
    is_part = _is_part_of_its_round(parts, first_of_round)
    for join in range(n - 1):
        a, b = parts[join]
        made = n + join
        size[made] = size[a] + size[b]
        least[made], largest[made] = min(least[a], least[b]), max(largest[a], largest[b])
        if not is_part[join] and largest[made] - least[made] + 1 == size[made]:
            folder = folder_of[least[made], largest[made]]
            if folder >= 0:
                trees_with[folder] += 1


@numba.njit(cache=True, error_model="numpy", nogil=True)
def _joins(affinity):  # type: ignore[no-untyped-def]
    """The two clusters of each join, the number of the first cluster made at the same affinity, and this affinity.

    Clusters 0 … n - 1 are the leaves, join i makes cluster n + i, the joins of largest affinity come first. Found
    by chains of nearest neighbours (Müllner, Modern hierarchical, agglomerative clustering algorithms, 2011) in
    O(n²) operations. The affinity is overwritten; it must be symmetric to the last bit, or chains may never end.
    """
    n = len(affinity)
    tolerance = max(_SAME * (affinity.max() - affinity.min()), n * _ROUNDING * np.abs(affinity).max())
    slots, affinity_of_join = _nearest_neighbour_joins(affinity)
    parts, first_of_round = np.empty((n - 1, 2), dtype=np.int64), np.empty(n - 1, dtype=np.int64)
    ordered = np.argsort(-affinity_of_join, kind="mergesort")
    above = np.arange(n)  # slots whose cluster has been taken in, as a forest
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
    """Pairs of slots, each with its cluster, that are nearest to each other, in the order in which they are found.

    The joined cluster stays in the second slot of the pair.
    """
    n = len(affinity)
    size = np.ones(n)  # of the cluster in each slot
    used = np.arange(n)  # the slots that hold a cluster come first
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
