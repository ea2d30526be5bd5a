"""A distance between two trees on the same leaves."""

from __future__ import annotations

import numpy as np
from jaxtyping import Int

from headtree.errors import InvalidTypeError, InvalidValueError
from headtree.trees.tree import PartitionTree


def meeting_sizes(tree: PartitionTree) -> Int[np.ndarray, "leaf leaf"]:
    """Size of the smallest folder that contains both leaves: the tree as an ultrametric (1 on the diagonal)."""
    sizes = np.full((tree.n_leaves, tree.n_leaves), tree.n_leaves)
    for labels in tree.labels[1:]:
        together = labels[:, None] == labels[None, :]
        sizes = np.where(together, np.bincount(labels)[labels][:, None], sizes)
    return sizes


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
    return float(np.abs(meeting_sizes(a) - meeting_sizes(b)).sum() / (n * (n - 1) * n))
