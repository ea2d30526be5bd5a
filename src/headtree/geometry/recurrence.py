"""How often each folder of a linkage tree recurs in the trees of resampled affinities."""

from __future__ import annotations

from dataclasses import dataclass

import numba
import numpy as np
from jaxtyping import Float, Int

from headtree.geometry.linkage import linkage_joins


@dataclass(frozen=True)
class Recurrence:
    """The folders of a tree except single leaves, parents before children, and how often each recurs.

    The leaves of folder f are ``order[start[f] : start[f] + size[f]]``.
    """

    order: Int[np.ndarray, " leaf"]
    start: Int[np.ndarray, " folder"]
    size: Int[np.ndarray, " folder"]
    gap: Float[np.ndarray, " folder"]  #: mean affinity at which it is formed minus that at which it is joined
    count: Int[np.ndarray, " folder"]  #: number of samples in which every tree has exactly this folder


def recurrence(
    mean: Float[np.ndarray, "leaf leaf"],
    affinities: Float[np.ndarray, "input leaf leaf"],
    weights: Float[np.ndarray, "sample tree input"],
) -> Recurrence:
    """Count, for each folder of ``linkage_tree(mean)``, the samples in which every tree has that folder.

    Each tree of a sample is the linkage tree of a weighted sum of affinities. Trees are compared as in Day, Optimal
    algorithms for comparing trees with labeled leaves, 1985: with the leaves in the order of one tree, its folders
    are intervals, and a folder of another tree equals one of them if its first leaf, last leaf and size agree with
    those of the interval. The memory used is that of a few matrices, for any number of samples.
    """
    order, start, size, gap, count = _recurrence(
        np.array(mean, dtype=np.float64),  # a copy: it is overwritten
        np.ascontiguousarray(affinities, dtype=np.float64),
        np.ascontiguousarray(weights, dtype=np.float64),
    )
    folders = np.flatnonzero(size)[::-1]  # from the last join, which is the root
    return Recurrence(order, start[folders], size[folders], gap[folders], count[folders])


@numba.njit(cache=True, error_model="numpy", nogil=True)
def _recurrence(mean, affinities, weights):  # type: ignore[no-untyped-def]
    n_samples, n_trees, _ = weights.shape
    n = len(mean)
    parts, first_of_round, affinity_of_join = linkage_joins(mean)
    first, size = _leaves_side_by_side(parts, first_of_round)
    position, start = first[:n], first[n:]
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
            parts, first_of_round, _ = linkage_joins(_weighted_sum(affinities, weights[sample, tree]))
            _mark_common(parts, first_of_round, position, folder_of, trees_with)
        count += trees_with == n_trees
    return np.argsort(position), start, size, gap, count


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
    """Whether another join at the same affinity absorbs each join, which is then not a folder of its own."""
    n = len(parts) + 1
    is_part = np.zeros(n - 1, dtype=np.bool_)
    for join in range(n - 1):
        for part in parts[join]:
            if part >= first_of_round[join]:
                is_part[part - n] = True
    return is_part


@numba.njit(cache=True, error_model="numpy", nogil=True)
def _leaves_side_by_side(parts, first_of_round):  # type: ignore[no-untyped-def]
    """First position of each cluster in a leaf order that keeps clusters together, and the size of each join.

    The size is 0 for joins that are not folders of their own.
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
def _mark_common(parts, first_of_round, position, folder_of, trees_with):  # type: ignore[no-untyped-def]
    """Add one to `trees_with` for each folder of the reference tree that is also a folder of this tree."""
    n = len(parts) + 1
    size = np.ones(2 * n - 1, dtype=np.int64)
    least, largest = np.empty(2 * n - 1, dtype=np.int64), np.empty(2 * n - 1, dtype=np.int64)
    least[:n], largest[:n] = position, position
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
