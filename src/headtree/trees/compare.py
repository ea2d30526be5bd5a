"""A distance between two trees on the same leaves."""

from __future__ import annotations

import numba
import numpy as np
from jaxtyping import Int

from headtree._threads import for_each_task
from headtree.errors import InvalidTypeError, InvalidValueError
from headtree.trees.tree import PartitionTree

#: Leaves that a thread compares with all later ones at a time.
_LEAVES_AT_A_TIME = 64


def tree_distance(a: PartitionTree, b: PartitionTree) -> float:
    r"""Distance between two trees on the same leaves, at least 0 (same folders) and below 1.

    .. math:: d(S, T) = \frac{1}{n(n-1)} \sum_{i \ne j} \frac{|s_{ij} - t_{ij}|}{n},

    where :math:`s_{ij}` is the size of the smallest folder of S that contains leaves i and j. This is a metric on
    sets of folders: it is symmetric, zero exactly when both trees have the same distinct folders, and obeys the
    triangle inequality. It depends neither on how nodes are numbered nor on how many levels a folder spans.

    Parameters
    ----------
    a, b : PartitionTree
        Trees with the same number of leaves; leaf i is the same object in both.

    Examples
    --------
    >>> import headtree as ht
    >>> pairs = ht.PartitionTree([[0, 0, 0, 0], [0, 0, 1, 1], [0, 1, 2, 3]])
    >>> crossed = ht.PartitionTree([[0, 0, 0, 0], [0, 1, 0, 1], [0, 1, 2, 3]])
    >>> ht.tree_distance(pairs, pairs)
    0.0
    >>> round(ht.tree_distance(pairs, crossed), 3)
    0.333
    """
    for name, tree in (("a", a), ("b", b)):
        if not isinstance(tree, PartitionTree):
            raise InvalidTypeError(f"{name} must be a PartitionTree, got {type(tree).__name__}")
    if a.n_leaves != b.n_leaves:
        raise InvalidValueError(
            f"a and b must have the same number of leaves, got {a.n_leaves} and {b.n_leaves}; "
            "compare trees of the same axis"
        )
    n = a.n_leaves
    if n == 1:
        return 0.0
    differences = np.zeros(n, dtype=np.int64)
    for_each_task(_add_differences, -(-n // _LEAVES_AT_A_TIME), *_by_leaf(a), *_by_leaf(b), differences)
    return float(2 * differences.sum() / (n * (n - 1) * n))


def _by_leaf(tree: PartitionTree) -> tuple[Int[np.ndarray, "leaf level"], Int[np.ndarray, "leaf level"]]:
    """The folder of each leaf on each level, and that folder's size."""
    sizes = np.stack([np.bincount(labels)[labels] for labels in tree.labels], axis=1)
    return np.ascontiguousarray(tree.labels.T), sizes


@numba.njit(cache=True, error_model="numpy", nogil=True)
def _add_differences(band, labels_a, sizes_a, labels_b, sizes_b, total):  # type: ignore[no-untyped-def]
    """For each leaf of a band, sum the differences of the sizes of smallest common folders over later leaves."""
    n = len(labels_a)
    for leaf in range(band * _LEAVES_AT_A_TIME, min((band + 1) * _LEAVES_AT_A_TIME, n)):
        for other in range(leaf + 1, n):
            level = 1  # on the last, every leaf is alone
            while labels_a[leaf, level] == labels_a[other, level]:
                level += 1
            in_a = sizes_a[leaf, level - 1]
            level = 1
            while labels_b[leaf, level] == labels_b[other, level]:
                level += 1
            total[leaf] += abs(in_a - sizes_b[leaf, level - 1])
