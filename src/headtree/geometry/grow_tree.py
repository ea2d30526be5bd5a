"""Trees grown from an affinity: the flexible tree, bottom up, and the binary tree, top down."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from headtree import _checks
from headtree.errors import InvalidValueError
from headtree.geometry.diffusion import Spectrum, spectrum
from headtree.geometry.join_on_gpu import groups_of_clusters, mean_cluster_distances
from headtree.geometry.kernels_cpu import join_in_order, mean_distances, rounded_distances
from headtree.trees.tree import PartitionTree

#: Significant digits of cluster distances; those below 10**-_DIGITS of the largest are zero. Rounding them keeps
#: floating-point errors from deciding ties.
_DIGITS = 10
#: Nearest pairs per cluster that are sorted first when clusters are joined.
_PAIRS_FIRST = 4


def flexible_tree(affinity: Any, tree_constant: float = 1.0) -> PartitionTree:
    """Build a tree bottom up by joining clusters that are close in diffusion distance.

    This is the "bottom up flexible tree" of [OA]. Each level joins clusters whose mean diffusion distance is small
    compared with the median. The diffusion time doubles from level to level, so higher up only the slower
    eigenfunctions matter.

    Parameters
    ----------
    affinity : (n, n) array
        Symmetric and nonnegative. Points that no path connects stay apart until the top.
    tree_constant : float
        Larger values make it harder to join a group that already has members: more levels, smaller folders.

    Examples
    --------
    Nine points on a line, in three groups:

    >>> import headtree as ht
    >>> import numpy as np
    >>> points = np.array([0.0, 0.2, 0.5, 4.0, 4.3, 4.4, 9.0, 9.1, 9.4])
    >>> affinity = np.exp(-np.abs(points[:, None] - points))
    >>> tree = ht.flexible_tree(affinity)
    >>> tree
    PartitionTree(9 leaves; folders by level: 1 2 3 9)
    >>> [leaves.tolist() for leaves in tree.folders(2)]
    [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    """
    tree_constant = _checks.positive(tree_constant, "tree_constant")
    return flexible_tree_of(spectrum(_checks.affinity_matrix(affinity)), tree_constant)


def flexible_tree_of(pairs: Spectrum, tree_constant: float) -> PartitionTree:
    """`flexible_tree` of an affinity, given its eigenpairs."""
    n, n_pairs = pairs.functions.shape
    if n_pairs == 0:
        return PartitionTree.flat(n)
    ratios = pairs.eigenvalues.abs() / pairs.eigenvalues[0].abs()
    levels = [np.arange(n)]
    time = 1.0
    while levels[-1].any():
        groups = _joined(pairs.functions * ratios**time, levels[-1], tree_constant)
        levels.append(groups[levels[-1]])
        time = min(2 * time, 1e300)
    return PartitionTree(np.stack(levels[::-1]))


def _joined(
    points: Float[Tensor, "leaf component"], labels: Int[np.ndarray, " leaf"], tree_constant: float
) -> Int[np.ndarray, " cluster"]:
    """The group that each cluster of `labels` joins."""
    if points.is_cuda:
        return groups_of_clusters(mean_cluster_distances(points, labels), tree_constant, _DIGITS, _PAIRS_FIRST)
    return join_clusters(mean_distances(points.T.contiguous().numpy(), labels), tree_constant)[0]


def join_clusters(
    distances: Float[np.ndarray, "cluster cluster"], tree_constant: float
) -> tuple[Int[np.ndarray, " cluster"], Int[np.ndarray, "trial 4"]]:
    """Build one level of the flexible tree: the group of each cluster, and every trial in order.

    A trial is (row, column, number of clusters in the column's group, accepted). The diagonal is not read.
    """
    n = len(distances)
    rounded, smallest, largest = rounded_distances(np.ascontiguousarray(distances, dtype=np.float64), _DIGITS)
    if smallest == largest:
        return np.zeros(n, dtype=np.int64), np.empty((0, 4), dtype=np.int64)
    # of the sorted distances, only the two middle ones and the last of the nearest pairs are needed
    ranks = [(n * n - 1) // 2, n * n // 2, min(_PAIRS_FIRST, n - 1) * n - 1]
    low, high, nearest = np.partition(rounded, ranks, axis=None)[ranks]
    median = (low + high) / 2
    if median == 0:
        median = np.median(rounded[np.isfinite(rounded) & (rounded > 0)])
    # Trials are ordered by distance, row, column. Those at or above the median matter only if nothing has been
    # joined before; then the first of them is accepted and ends the level.
    state = np.arange(n), np.ones(n, dtype=np.int64), np.ones(n, dtype=bool)
    if smallest >= median:
        trials = [join_in_order(np.array([rounded.argmin()]), np.array([smallest]), median / tree_constant, *state)]
    else:
        # most clusters find a partner among the nearest pairs, so only the remaining clusters' pairs are sorted too
        trials = []
        flat = rounded.ravel()
        every_near = np.flatnonzero((rounded <= nearest) & (rounded < median))
        trials.append(_joined_in_order(every_near, flat, median / tree_constant, state))
        left = np.flatnonzero(state[2])
        some = rounded[left]
        row, column = np.nonzero((some > nearest) & (some < median))
        trials.append(_joined_in_order(left[row] * n + column, flat, median / tree_constant, state))
    return np.unique(state[0], return_inverse=True)[1], np.concatenate(trials)


def _joined_in_order(
    pairs: Int[np.ndarray, " pair"],
    distances: Float[np.ndarray, " all_pairs"],
    limit: float,
    state: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> Int[np.ndarray, "trial 4"]:
    """Join some pairs by distance, row and column."""
    values = distances[pairs]
    order = np.argsort(values, kind="stable")
    return np.asarray(join_in_order(pairs[order], values[order], limit, *state))


def binary_tree(affinity: Any, balance: float = 1.0, rng: int | np.random.Generator | None = 0) -> PartitionTree:
    """Build a tree top down by splitting every folder along its first diffusion coordinate.

    The coordinate is recomputed for each folder from the affinity restricted to it.

    Parameters
    ----------
    affinity : (n, n) array
        Symmetric and nonnegative.
    balance : float
        1 splits in the middle: sizes differ by at most one, and the lower half gets the extra leaf. With a larger
        value, the split position is drawn at random among those where larger size / smaller size <= balance.
    rng : int or numpy Generator
        Used only if `balance` is larger than 1.

    Notes
    -----
    Leaves that the affinity cannot distinguish stay in one folder and become single leaves together, so that no
    structure is read into noise. Leaves that tie in the first coordinate, such as those of one connected component
    of a disconnected graph, are separated by the next coordinates.

    Examples
    --------
    >>> import headtree as ht
    >>> import numpy as np
    >>> points = np.array([0.0, 5.0, 0.3, 5.1, 0.4, 5.4])
    >>> affinity = np.exp(-np.abs(points[:, None] - points))
    >>> tree = ht.binary_tree(affinity)
    >>> tree
    PartitionTree(6 leaves; folders by level: 1 2 4 6)
    >>> [leaves.tolist() for leaves in tree.folders(1)]
    [[0, 2, 4], [1, 3, 5]]
    """
    balance = _checks.positive(balance, "balance")
    if balance < 1:
        raise InvalidValueError(f"balance must be at least 1, got {balance}; 1 halves every folder")
    return binary_tree_of(_checks.affinity_matrix(affinity), balance, _checks.generator(rng))


def binary_tree_of(affinity: Float[Tensor, "leaf leaf"], balance: float, rng: np.random.Generator) -> PartitionTree:
    """`binary_tree` of a checked affinity."""
    n = affinity.shape[0]
    levels = [np.zeros(n, dtype=np.int64)]
    while levels[-1].max() + 1 < n:
        upper, lower = levels[-1], np.empty(n, dtype=np.int64)
        n_folders = 0
        for leaves in np.split(np.argsort(upper, kind="stable"), np.cumsum(np.bincount(upper))[:-1]):
            child = _split(affinity, leaves, balance, rng)
            lower[leaves] = n_folders + child
            n_folders += int(child.max()) + 1
        levels.append(lower)
    return PartitionTree(np.stack(levels))


def _split(
    affinity: Float[Tensor, "leaf leaf"],
    leaves: Int[np.ndarray, " leaf_of_folder"],
    balance: float,
    rng: np.random.Generator,
) -> Int[np.ndarray, " leaf_of_folder"]:
    """Child folder of each leaf: 0 or 1, or one for every leaf if they cannot be distinguished."""
    n = len(leaves)
    if n <= 2:
        return np.arange(n)
    index = torch.from_numpy(leaves)
    order = _along_first_coordinate(spectrum(affinity[index][:, index]))
    if order is None:
        return np.arange(n)
    position = (n + 1) // 2
    if balance > 1:
        sizes = np.arange(1, n)
        allowed = sizes[np.maximum(sizes, n - sizes) / np.minimum(sizes, n - sizes) <= balance]
        position = int(rng.choice(allowed)) if len(allowed) else position
    child = np.ones(n, dtype=np.int64)
    child[order[:position]] = 0
    return child


def _along_first_coordinate(pairs: Spectrum) -> Int[np.ndarray, " leaf"] | None:
    """Leaves by increasing first coordinate, ties broken by the next; None if it separates no two leaves."""
    n, n_pairs = pairs.functions.shape
    coordinates: list[Float[np.ndarray, " leaf"]] = []
    while len(coordinates) < n_pairs and len(set(zip(*coordinates, strict=True))) < n:
        group = pairs.functions[:, pairs.same_magnitude(len(coordinates))].numpy()
        if not coordinates and group.shape[1] > 1:
            points = np.ascontiguousarray(group.T)
            _, smallest, largest = rounded_distances(mean_distances(points, np.arange(n)), _DIGITS)
            if smallest == largest:
                return None
        coordinates += _canonical_coordinates(group)
    return np.lexsort(coordinates[::-1]) if coordinates else None


def _canonical_coordinates(functions: Float[np.ndarray, "leaf pair"]) -> list[Float[np.ndarray, " leaf"]]:
    """Coordinates that depend only on the span of `functions`, not on the basis of it that a solver returned.

    Each axis points to the leaf farthest from the span of the previous axes. A single function is unchanged.
    """
    coordinates = []
    rest = functions / np.linalg.norm(functions, axis=1).max()
    for _ in range(functions.shape[1]):
        axis = rest[np.round(np.linalg.norm(rest, axis=1), _DIGITS).argmax()]
        axis = axis / (np.linalg.norm(axis) or 1.0)
        coordinate = rest @ axis
        rest = rest - np.outer(coordinate, axis)
        coordinates.append(np.round(coordinate, _DIGITS))
    return coordinates
