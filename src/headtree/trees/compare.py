"""How far two trees on the same leaves are from each other."""

from __future__ import annotations

import numpy as np
from jaxtyping import Int

from headtree.errors import InvalidTypeError, InvalidValueError
from headtree.trees.tree import PartitionTree


def meeting_sizes(tree: PartitionTree) -> Int[np.ndarray, "leaf leaf"]:
    """Size of the smallest folder that holds both leaves: the tree as an ultrametric (1 on the diagonal)."""
    sizes = np.full((tree.n_leaves, tree.n_leaves), tree.n_leaves)
    for labels in tree.labels[1:]:
        together = labels[:, None] == labels[None, :]
        sizes = np.where(together, np.bincount(labels)[labels][:, None], sizes)
    return sizes


def tree_distance(a: PartitionTree, b: PartitionTree) -> float:
    r"""Distance between two trees on the same leaves, from 0 (same folders) to less than 1.

    .. math:: d(S, T) = \frac{1}{n(n-1)} \sum_{i \ne j} \frac{|s_{ij} - t_{ij}|}{n},

    with :math:`s_{ij}` the size of the smallest folder of S that holds leaves i and j. A metric on sets of
    folders: symmetric, zero exactly when both trees have the same distinct folders, and it obeys the triangle
    inequality. Neither the numbering of nodes nor a folder's standing on several levels plays a part.
    """
    for name, tree in (("a", a), ("b", b)):
        if not isinstance(tree, PartitionTree):
            raise InvalidTypeError(f"{name} must be a PartitionTree, got {type(tree).__name__}")
    if a.n_leaves != b.n_leaves:
        raise InvalidValueError(
            f"a and b must have the same leaves, got {a.n_leaves} and {b.n_leaves}; compare trees of the same axis"
        )
    n = a.n_leaves
    if n == 1:
        return 0.0
    return float(np.abs(meeting_sizes(a) - meeting_sizes(b)).sum() / (n * (n - 1) * n))
