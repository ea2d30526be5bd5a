"""Trees from an affinity: the flexible tree, bottom up, and the binary tree, top down."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from headtree import _checks
from headtree.errors import InvalidValueError
from headtree.geometry.diffusion import Spectrum, spectrum
from headtree.geometry.kernels_cpu import join_in_order, mean_distances, rounded_distances
from headtree.trees.tree import PartitionTree

#: Cluster distances under this share of the largest are zero, the others are rounded to as many digits, so
#: that rounding errors do not decide ties.
_DIGITS = 10
#: Pairs for each cluster that are sorted first when clusters are joined.
_PAIRS_FIRST = 4


def flexible_tree(affinity: Any, tree_constant: float = 1.0) -> PartitionTree:
    """Build a tree bottom up by joining what is near in diffusion distance ([OA] "bottom up flexible tree").

    Each level joins clusters whose mean diffusion distance is small beside the median; the time of the diffusion
    doubles from level to level, so that only slower eigenfunctions count further up.

    Parameters
    ----------
    affinity : (n, n) array
        Symmetric and not negative. Points that no path connects stay apart until the top.
    tree_constant : float
        Larger values make it harder to join a group that has members already: more levels, smaller folders.
    """
    tree_constant = _checks.positive(tree_constant, "tree_constant")
    return flexible_tree_of(spectrum(_checks.affinity_matrix(affinity)), tree_constant)


def flexible_tree_of(pairs: Spectrum, tree_constant: float) -> PartitionTree:
    """`flexible_tree` of an affinity whose eigenpairs are known."""
    n, n_pairs = pairs.functions.shape
    if n_pairs == 0:
        return PartitionTree.flat(n)
    ratios = pairs.eigenvalues.abs() / pairs.eigenvalues[0].abs()
    levels = [np.arange(n)]
    time = 1.0
    while levels[-1].any():
        points = (pairs.functions * ratios**time).T.contiguous().numpy()
        groups = join_clusters(mean_distances(points, levels[-1]), tree_constant)[0]
        levels.append(groups[levels[-1]])
        time = min(2 * time, 1e300)
    return PartitionTree(np.stack(levels[::-1]))


def join_clusters(
    distances: Float[np.ndarray, "cluster cluster"], tree_constant: float
) -> tuple[Int[np.ndarray, " cluster"], Int[np.ndarray, "trial 4"]]:
    """One level of the flexible tree: the group of each cluster, and every trial in order.

    A trial is (row, column, number of clusters in the column's group, accepted). The diagonal is not read.
    """
    n = len(distances)
    rounded, smallest, largest = rounded_distances(np.ascontiguousarray(distances, dtype=np.float64), _DIGITS)
    if smallest == largest:
        return np.zeros(n, dtype=np.int64), np.empty((0, 4), dtype=np.int64)
    # of the sorted distances only the two middle ones and the last of the nearest pairs are needed
    places = [(n * n - 1) // 2, n * n // 2, min(_PAIRS_FIRST, n - 1) * n - 1]
    low, high, nearest = np.partition(rounded, places, axis=None)[places]
    median = (low + high) / 2
    if median == 0:
        median = np.median(rounded[np.isfinite(rounded) & (rounded > 0)])
    # Trials go by rising distance, row, column. Those at the median and beyond only matter if nothing was joined
    # before, and then the first of them is accepted and is the last.
    state = np.arange(n), np.ones(n, dtype=np.int64), np.ones(n, dtype=bool)
    if smallest >= median:
        trials = [join_in_order(np.array([rounded.argmin()]), rounded, median / tree_constant, *state)]
    else:
        # most clusters find a partner among the nearest pairs: only the others' pairs are sorted further
        trials = []
        for near in (rounded <= nearest, rounded > nearest):
            left = np.flatnonzero(near & (rounded < median) & state[2][:, None])
            left = left[np.argsort(rounded.ravel()[left], kind="stable")]
            trials.append(join_in_order(left, rounded, median / tree_constant, *state))
    return np.unique(state[0], return_inverse=True)[1], np.concatenate(trials)


def binary_tree(affinity: Any, balance: float = 1.0, rng: int | np.random.Generator | None = 0) -> PartitionTree:
    """Build a tree top down by halving every folder along its first diffusion coordinate.

    The coordinate is computed anew from the affinity restricted to the folder.

    Parameters
    ----------
    affinity : (n, n) array
        Symmetric and not negative.
    balance : float
        1 splits in the middle: sizes differ by at most one, and the lower half gets the extra leaf. With a larger
        value the position is drawn among those with larger/smaller <= balance.
    rng : int or numpy Generator
        Used only if `balance` is larger than 1.

    Notes
    -----
    Leaves that the affinity cannot tell apart stay in one folder and become single leaves together: no tree is
    made from noise. Leaves that tie in the first coordinate, as the parts of a disconnected graph do, are told
    apart by the next ones.
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
            part = _split(affinity, leaves, balance, rng)
            lower[leaves] = n_folders + part
            n_folders += int(part.max()) + 1
        levels.append(lower)
    return PartitionTree(np.stack(levels))


def _split(
    affinity: Float[Tensor, "leaf leaf"],
    leaves: Int[np.ndarray, " leaf_of_folder"],
    balance: float,
    rng: np.random.Generator,
) -> Int[np.ndarray, " leaf_of_folder"]:
    """Part of each leaf: 0 or 1, or every leaf its own if they cannot be told apart."""
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
        allowed = sizes[np.maximum(sizes, n - sizes) <= balance * np.minimum(sizes, n - sizes)]
        position = int(rng.choice(allowed)) if len(allowed) else position
    part = np.ones(n, dtype=np.int64)
    part[order[:position]] = 0
    return part


def _along_first_coordinate(pairs: Spectrum) -> Int[np.ndarray, " leaf"] | None:
    """Leaves by rising first coordinate, ties by the next ones; None if the first cannot tell any two apart."""
    n, n_pairs = pairs.functions.shape
    coordinates: list[Float[np.ndarray, " leaf"]] = []
    while len(coordinates) < n_pairs and len(set(zip(*coordinates, strict=True))) < n:
        group = pairs.functions[:, pairs.same_modulus(len(coordinates))].numpy()
        if not coordinates and group.shape[1] > 1:
            points = np.ascontiguousarray(group.T)
            _, smallest, largest = rounded_distances(mean_distances(points, np.arange(n)), _DIGITS)
            if smallest == largest:
                return None
        coordinates += _basis_of_its_own(group)
    return np.lexsort(coordinates[::-1]) if coordinates else None


def _basis_of_its_own(functions: Float[np.ndarray, "leaf pair"]) -> list[Float[np.ndarray, " leaf"]]:
    """Coordinates in a basis that depends on what `functions` span, and not on which functions a solver returned.

    Each axis points to the leaf that is farthest off the axes before. A single function stays as it is.
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
