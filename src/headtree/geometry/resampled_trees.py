"""Linkage trees of resampled inputs: what they have in common, and how far a folder transfers to them.

A tree is stored as its joins. ``joins[tree, i]`` are the two clusters of join i, which makes cluster n + i, and
``is_folder[tree, i]`` is False for joins that another one at the same affinity absorbs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numba
import numpy as np
from jaxtyping import Bool, Float, Int

from headtree.geometry.combined_affinity import InputMatrices, unpacked
from headtree.geometry.linkage import linkage_joins

#: Trees whose affinities are made before they are grown: few enough for a processor's cache.
_AT_A_TIME = 10


@dataclass(frozen=True, eq=False)
class ResampledTrees:
    """The trees of several weightings of the same inputs."""

    joins: Int[np.ndarray, "tree join 2"]
    is_folder: Bool[np.ndarray, "tree join"]

    @classmethod
    def grow(
        cls,
        inputs: InputMatrices,
        weights: Float[np.ndarray, "*sample input"],
    ) -> ResampledTrees:
        """Grow the average-linkage tree of each weighting of the inputs."""
        rows = np.ascontiguousarray(weights.reshape(-1, inputs.n_inputs))
        found = [
            _grow(inputs.packed_affinities(rows[first : first + _AT_A_TIME]), inputs.n_leaves)
            for first in range(0, max(1, len(rows)), _AT_A_TIME)
        ]
        return cls(*(np.concatenate(each) for each in zip(*found, strict=True)))

    def closeness(self) -> Float[np.ndarray, "leaf leaf"]:
        """How closely the trees join two leaves: 1 minus the mean share of the leaves in their smallest folder.

        The diagonal is 1. Two leaves that only the root joins have 0.
        """
        return np.asarray(_closeness(self.joins, self.is_folder))

    def transfer(self, members: Bool[np.ndarray, "folder leaf"]) -> Float[np.ndarray, "tree folder"]:
        r"""The transfer of each folder to each tree.

        For a folder F with p of the n leaves and a tree T this is
        :math:`1 - \min_C |F \triangle C| / \min(p - 1, n - p)` over all folders C of T, leaves and root included
        (Lemoine et al. 2018): 1 if T has the folder, 0 if no folder of T is closer to it than a leaf or the root.
        Folders have 2 to n - 1 leaves.
        """
        by_leaf = np.ascontiguousarray(members.T.astype(np.int32))
        return np.asarray(_transfer(self.joins, self.is_folder, by_leaf))


@dataclass(frozen=True, eq=False)
class LinkageFolders:
    """The folders of a linkage tree, except the root and single leaves, in the order in which they are made."""

    members: Bool[np.ndarray, "folder leaf"]
    gap: Float[np.ndarray, " folder"]  #: mean affinity of the two clusters that form it, minus that to its sibling

    @classmethod
    def of(
        cls, closeness: Float[np.ndarray, "leaf leaf"], affinity: Float[np.ndarray, "leaf leaf"] | None = None
    ) -> LinkageFolders:
        """The folders of ``linkage_tree(closeness)``; gaps are of `affinity`, by default the closeness itself."""
        gaps_of = np.array(closeness if affinity is None else affinity, dtype=np.float64)
        return cls(*_folders(np.array(closeness, dtype=np.float64), gaps_of))


@numba.njit(cache=True, error_model="numpy", nogil=True)
def _is_folder(joins, first_of_round):  # type: ignore[no-untyped-def]
    n = len(joins) + 1
    is_folder = np.ones(n - 1, dtype=np.bool_)
    for join in range(n - 1):
        for side in joins[join]:
            if side >= first_of_round[join]:
                is_folder[side - n] = False
    return is_folder


@numba.njit(cache=True, error_model="numpy", nogil=True)
def _grow(affinities, n):  # type: ignore[no-untyped-def]
    """The tree of each packed affinity of n leaves."""
    n_trees = len(affinities)
    joins = np.empty((n_trees, n - 1, 2), dtype=np.int64)
    is_folder = np.empty((n_trees, n - 1), dtype=np.bool_)
    for tree in range(n_trees):
        joins[tree], first_of_round, _ = linkage_joins(unpacked(affinities[tree], n))
        is_folder[tree] = _is_folder(joins[tree], first_of_round)
    return joins, is_folder


@numba.njit(cache=True, error_model="numpy", nogil=True)
def _closeness(joins, is_folder):  # type: ignore[no-untyped-def]
    n_trees, n = len(joins), joins.shape[1] + 1
    total = np.zeros((n, n), dtype=np.int64)  # sizes of smallest common folders
    for tree in range(n_trees):
        _add_common_sizes(joins[tree], is_folder[tree], total)
    closeness = np.eye(n)
    for a in range(n):
        for b in range(a):
            closeness[a, b] = closeness[b, a] = 1 - (total[a, b] + total[b, a]) / (n_trees * n)
    return closeness


@numba.njit(cache=True, error_model="numpy", nogil=True)
def _add_common_sizes(joins, is_folder, total):  # type: ignore[no-untyped-def]
    """Add the size of the smallest folder with both leaves to one of ``total[a, b]`` and ``total[b, a]``."""
    n = len(joins) + 1
    size = np.ones(2 * n - 1, dtype=np.int64)
    for join in range(n - 1):
        size[n + join] = size[joins[join, 0]] + size[joins[join, 1]]
    common = size[n:].copy()  # of the folder that a join belongs to
    for join in range(n - 2, -1, -1):
        for side in joins[join]:
            if side >= n and not is_folder[side - n]:
                common[side - n] = common[join]
    first, last = np.arange(2 * n - 1), np.arange(2 * n - 1)
    after = np.full(n, -1)  # the leaves of a cluster as a chain
    for join in range(n - 1):
        left, right = joins[join]
        a = first[left]
        while a >= 0:
            b = first[right]
            while b >= 0:
                total[a, b] += common[join]
                b = after[b]
            a = after[a]
        after[last[left]] = first[right]
        first[n + join], last[n + join] = first[left], last[right]


@numba.njit(cache=True, error_model="numpy", nogil=True)
def _transfer(joins, is_folder, by_leaf):  # type: ignore[no-untyped-def]
    n_trees, n, n_folders = len(joins), len(by_leaf), by_leaf.shape[1]
    size = np.zeros(n_folders, dtype=np.int64)
    for leaf in range(n):
        size += by_leaf[leaf]
    found = np.empty((n_trees, n_folders))
    common = np.empty((n - 1, n_folders), dtype=np.int32)  # leaves that a cluster shares with each folder
    for tree in range(n_trees):
        # |F Δ C| = |F| - (2 |F ∩ C| - |C|); the best C maximizes the bracket, which is 1 for a leaf of F
        best = np.ones(n_folders, dtype=np.int32)
        size_of = np.ones(2 * n - 1, dtype=np.int32)
        for join in range(n - 1):
            left, right = joins[tree, join]
            size_of[n + join] = size_of[left] + size_of[right]
            a = by_leaf[left] if left < n else common[left - n]
            b = by_leaf[right] if right < n else common[right - n]
            own = common[join]
            for f in range(n_folders):
                own[f] = a[f] + b[f]
            if is_folder[tree, join]:
                outside = size_of[n + join]
                for f in range(n_folders):
                    best[f] = max(best[f], 2 * own[f] - outside)
        for f in range(n_folders):
            found[tree, f] = 1 - (size[f] - best[f]) / min(size[f] - 1, n - size[f])
    return found


@numba.njit(cache=True, error_model="numpy", nogil=True)
def _folders(closeness, affinity):  # type: ignore[no-untyped-def]
    n = len(closeness)
    joins, first_of_round, _ = linkage_joins(closeness)
    is_folder = _is_folder(joins, first_of_round)
    members = np.zeros((2 * n - 1, n), dtype=np.bool_)
    gap, formed = np.zeros(n - 1), np.zeros(n - 1)
    row, size = np.arange(2 * n - 1), np.ones(2 * n - 1)  # row of a cluster's sums of affinities
    for leaf in range(n):
        members[leaf, leaf] = True
    for join in range(n - 1):
        a, b = joins[join]
        formed[join] = affinity[row[a], row[b]] / (size[a] * size[b])
        for side in (a, b):
            members[n + join] |= members[side]
            if side >= n:
                gap[side - n] = formed[side - n] - formed[join]
        affinity[row[a]] += affinity[row[b]]
        affinity[:, row[a]] += affinity[:, row[b]]
        row[n + join], size[n + join] = row[a], size[a] + size[b]
    chosen = np.flatnonzero(is_folder[: n - 2]) if n > 1 else np.empty(0, dtype=np.int64)
    return members[n:][chosen], gap[chosen]
