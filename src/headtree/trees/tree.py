"""A partition tree as one table of integers: `labels[level, leaf]`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from headtree import _checks, _notebook
from headtree.errors import InvalidTypeError, InvalidValueError


@dataclass(frozen=True, init=False, eq=False, repr=False)
class PartitionTree:
    """A sequence of ever finer partitions of n leaves, from one folder with all leaves to single leaves.

    Parameters
    ----------
    labels : integers, shape (levels, n)
        ``labels[level, leaf]`` names the folder of `leaf` on `level`. Level 0 is one folder, every leaf is alone
        on the last level, and each level refines the one above. Any integers will do: on every level they are
        renumbered 0, 1, … in the order of the folders' smallest leaves. Two trees are therefore equal exactly
        when their partitions are.

    Notes
    -----
    A *node* is a folder on one level, numbered by (level, smallest leaf). A set of leaves that does not split
    between two levels is a node on both; `distinct` lists each such set once.

    Examples
    --------
    >>> import headtree as ht
    >>> tree = ht.PartitionTree([[7, 7, 7, 7], [2, 2, 2, 5], [0, 1, 2, 3]])
    >>> tree
    PartitionTree(4 leaves; folders by level: 1 2 4)
    >>> tree.labels
    array([[0, 0, 0, 0],
           [0, 0, 0, 1],
           [0, 1, 2, 3]])
    >>> tree.n_nodes, len(tree.distinct)
    (7, 6)
    """

    labels: Int[np.ndarray, "level leaf"]

    def __init__(self, labels: Any) -> None:
        object.__setattr__(self, "labels", _canonical(labels))

    @classmethod
    def flat(cls, n_leaves: int) -> PartitionTree:
        """Make the tree of two levels: one folder with all leaves, and the leaves.

        Examples
        --------
        >>> import headtree as ht
        >>> ht.PartitionTree.flat(5)
        PartitionTree(5 leaves; folders by level: 1 5)
        """
        leaves = np.arange(_checks.at_least_one(n_leaves, "n_leaves"))
        return cls(leaves[None] if n_leaves == 1 else np.stack([np.zeros_like(leaves), leaves]))

    @classmethod
    def halving(cls, n_leaves: int) -> PartitionTree:
        """Make the tree that halves the leaves in their given order, down to single leaves.

        Its folders are dyadic intervals if n is a power of two. If a folder has an odd number of leaves, its first
        half gets the extra one.

        Examples
        --------
        >>> import headtree as ht
        >>> ht.PartitionTree.halving(5).labels
        array([[0, 0, 0, 0, 0],
               [0, 0, 0, 1, 1],
               [0, 0, 1, 2, 3],
               [0, 1, 2, 3, 4]])
        """
        levels = [np.zeros(_checks.at_least_one(n_leaves, "n_leaves"), dtype=np.int64)]
        while levels[-1][-1] + 1 < n_leaves:
            upper = levels[-1]
            sizes = np.bincount(upper)
            starts = np.cumsum(sizes) - sizes
            second = np.arange(n_leaves) - starts[upper] >= (sizes[upper] + 1) // 2
            levels.append(np.cumsum(np.diff(2 * upper + second, prepend=0) > 0))
        return cls(np.stack(levels))

    # -- size ---------------------------------------------------------------------------------------------

    @property
    def n_leaves(self) -> int:
        """Number of leaves."""
        return int(self.labels.shape[1])

    @property
    def n_levels(self) -> int:
        """Number of levels, root and leaves included."""
        return int(self.labels.shape[0])

    @property
    def n_nodes(self) -> int:
        """Number of nodes: each folder is counted once on every level where it occurs."""
        return int(self.n_folders.sum())

    @cached_property
    def n_folders(self) -> Int[np.ndarray, " level"]:
        """Number of folders on each level."""
        return _frozen(self.labels.max(axis=1) + 1)

    # -- nodes, numbered by (level, smallest leaf) ----------------------------------------------------------

    @cached_property
    def nodes(self) -> Int[np.ndarray, "level leaf"]:
        """Node that contains each leaf on each level."""
        first = np.cumsum(self.n_folders) - self.n_folders
        return _frozen(self.labels + first[:, None])

    @cached_property
    def levels(self) -> Int[np.ndarray, " node"]:
        """Level of each node; the root is on level 0."""
        return _frozen(np.repeat(np.arange(self.n_levels), self.n_folders))

    @cached_property
    def sizes(self) -> Int[np.ndarray, " node"]:
        """Number of leaves of each node."""
        return _frozen(np.bincount(self.nodes.ravel(), minlength=self.n_nodes))

    @cached_property
    def parents(self) -> Int[np.ndarray, " node"]:
        """Parent of each node; -1 for the root."""
        parents = np.full(self.n_nodes, -1)
        parents[self.nodes[1:]] = self.nodes[:-1]
        return _frozen(parents)

    def folders(self, level: int) -> list[Int[np.ndarray, " leaf_of_folder"]]:
        """List the leaves of each folder on a level, in the order of the folders' numbers.

        Examples
        --------
        >>> import headtree as ht
        >>> tree = ht.PartitionTree([[0, 0, 0, 0], [0, 1, 0, 1], [0, 1, 2, 3]])
        >>> [leaves.tolist() for leaves in tree.folders(1)]
        [[0, 2], [1, 3]]
        """
        labels = self.labels[_checks.checked_index(level, self.n_levels, "level", "levels")]
        return np.split(np.argsort(labels, kind="stable"), np.cumsum(np.bincount(labels))[:-1])

    @cached_property
    def distinct(self) -> Folders:
        """Each distinct set of leaves once, parents before children."""
        parents = self.parents
        is_new = np.ones(self.n_nodes, dtype=bool)
        is_new[1:] = self.sizes[1:] < self.sizes[parents[1:]]
        folder_of_node = np.cumsum(is_new) - 1
        for nodes in np.split(np.arange(self.n_nodes), np.cumsum(self.n_folders)[:-1])[1:]:  # level by level
            same = nodes[~is_new[nodes]]
            folder_of_node[same] = folder_of_node[parents[same]]
        top = np.flatnonzero(is_new)
        parent = np.full(len(top), -1)
        parent[1:] = folder_of_node[parents[top[1:]]]
        _, first_leaf = np.unique(self.nodes, return_index=True)
        return Folders(
            node=_frozen(top),
            level=_frozen(self.levels[top]),
            stands_on=_frozen(np.bincount(folder_of_node)),
            size=_frozen(self.sizes[top]),
            parent=_frozen(parent),
            first_leaf=_frozen(first_leaf[top] % self.n_leaves),
            of_leaf=_frozen(folder_of_node[self.nodes[-1]]),
        )

    # -- views ----------------------------------------------------------------------------------------------

    def order(self, key: Float[np.ndarray, " leaf"] | None = None) -> Int[np.ndarray, " leaf"]:
        """List the leaves in depth-first order, which keeps the leaves of every folder together.

        Parameters
        ----------
        key : array (n,), optional
            Siblings are ordered by descending mean of `key` over their leaves, then by smallest leaf.
            Without a key, they are ordered by smallest leaf.

        Examples
        --------
        >>> import headtree as ht
        >>> import numpy as np
        >>> tree = ht.PartitionTree([[0, 0, 0, 0], [0, 1, 0, 1], [0, 1, 2, 3]])
        >>> tree.order()
        array([0, 2, 1, 3])
        >>> tree.order(key=np.array([0.1, 0.9, 0.2, 0.3]))
        array([1, 3, 2, 0])
        """
        if key is not None and np.shape(key) != (self.n_leaves,):
            raise InvalidValueError(
                f"key must contain one number for each of the {self.n_leaves} leaves, got shape {np.shape(key)}"
            )
        rank = np.zeros((self.n_levels, self.n_leaves))
        for level, labels in enumerate(self.labels):
            if key is not None:
                means = np.bincount(labels, weights=key) / np.bincount(labels)
                rank[level] = -means[labels]
        # the last key of lexsort comes first: from the root down, each level's mean and then its number
        keys = [row for level in range(self.n_levels) for row in (rank[level], self.labels[level])]
        return np.lexsort(keys[::-1])

    def take(self, leaves: Any) -> PartitionTree:
        """Reorder the leaves: leaf i of the result is leaf ``leaves[i]`` of this tree.

        Examples
        --------
        >>> import headtree as ht
        >>> ht.PartitionTree.halving(4).take([0, 2, 1, 3]).labels[1]
        array([0, 1, 0, 1])
        """
        leaves = np.asarray(leaves)
        is_row = leaves.shape == (self.n_leaves,) and leaves.dtype.kind in "iu"
        if not is_row or not np.array_equal(np.sort(leaves), np.arange(self.n_leaves)):
            raise InvalidValueError(
                f"leaves must be a permutation of 0..{self.n_leaves - 1}, got an array of shape {leaves.shape} and "
                f"dtype {leaves.dtype}; pass the permutation that was applied to the array's axis"
            )
        return PartitionTree(self.labels[:, leaves])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PartitionTree) and np.array_equal(self.labels, other.labels)

    def __hash__(self) -> int:
        return hash((self.labels.shape, self.labels.tobytes()))

    def __repr__(self) -> str:
        counts = [str(count) for count in self.n_folders]
        if len(counts) > 12:
            counts = [*counts[:6], "…", *counts[-3:]]
        return f"PartitionTree({self.n_leaves} leaves; folders by level: {' '.join(counts)})"

    def _repr_html_(self) -> str:
        picture = _notebook.icicle(self.labels[:, self.order()], "root at the top, leaves at the bottom", 480)
        return _notebook.panel(repr(self), [], [picture])


@dataclass(frozen=True, eq=False)
class Folders:
    """The distinct folders of a tree, in the order of their uppermost nodes: parents before children."""

    node: Int[np.ndarray, " folder"]  #: uppermost node
    level: Int[np.ndarray, " folder"]  #: level of that node; the root is on level 0
    stands_on: Int[np.ndarray, " folder"]  #: number of levels the folder spans
    size: Int[np.ndarray, " folder"]  #: number of leaves
    parent: Int[np.ndarray, " folder"]  #: smallest larger folder that contains it; -1 for the root
    first_leaf: Int[np.ndarray, " folder"]  #: smallest leaf
    of_leaf: Int[np.ndarray, " leaf"]  #: the folder that consists of this leaf only

    def __len__(self) -> int:
        return len(self.node)

    @cached_property
    def is_leaf(self) -> Bool[np.ndarray, " folder"]:
        """Whether the folder is a single leaf."""
        return _frozen(self.size == 1)

    @cached_property
    def children(self) -> tuple[Int[np.ndarray, " edge"], Int[np.ndarray, " folder_plus_1"]]:
        """Children of all folders, by smallest leaf, and the index of each folder's first: (children, pointers)."""
        children = 1 + np.lexsort((self.first_leaf[1:], self.parent[1:]))
        counts = np.bincount(self.parent[1:], minlength=len(self))
        return _frozen(children), _frozen(np.concatenate([[0], np.cumsum(counts)]))


def _frozen(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


def _canonical(labels: Any) -> Int[np.ndarray, "level leaf"]:
    """Check the three rules for a tree and renumber the folders of each level by smallest leaf."""
    try:
        table = np.asarray(labels)
    except ValueError as error:
        raise InvalidValueError(f"labels must have the same number of leaves on every level: {error}") from error
    except (TypeError, RuntimeError) as error:  # tensors on other devices, or on none
        raise InvalidTypeError(f"labels must be a table of integers in memory: {error}") from error
    if table.dtype.kind not in "iu":
        raise InvalidTypeError(f"labels must be integers, got {table.dtype}; number the folders of each level")
    if table.ndim != 2 or 0 in table.shape:
        raise InvalidValueError(
            f"labels must have shape (levels, leaves) with at least one of each, got shape {table.shape}; "
            "for a tree without inner folders use PartitionTree.flat(n)"
        )
    n_leaves = table.shape[1]
    result = table.astype(np.int64) if _is_numbered_by_smallest_leaf(table) else _numbered_by_smallest_leaf(table)
    for level in range(1, len(result)):
        if not _refines(result[level], result[level - 1]):
            raise InvalidValueError(
                f"labels: each level must refine the one above, but a folder on level {level} has leaves in "
                f"two folders on level {level - 1}; order the levels from the root to the leaves"
            )
    if result[0].any():
        raise InvalidValueError(
            f"labels: level 0 must be one folder with all leaves, got {result[0].max() + 1} folders; "
            "put a level of equal labels first"
        )
    if result[-1].max() + 1 < n_leaves:
        raise InvalidValueError(
            f"labels: on the last level every leaf must be alone, got {result[-1].max() + 1} folders for "
            f"{n_leaves} leaves; append a level of distinct labels"
        )
    return _frozen(result)


def _is_numbered_by_smallest_leaf(table: Int[np.ndarray, "level leaf"]) -> bool:
    """Whether each level's first leaf has number 0, and every other leaf a number before it or the next one."""
    highest = np.maximum.accumulate(table, axis=1)
    return bool(not table[:, 0].any() and (table >= 0).all() and (np.diff(highest, axis=1) <= 1).all())


def _numbered_by_smallest_leaf(table: Int[np.ndarray, "level leaf"]) -> Int[np.ndarray, "level leaf"]:
    result: np.ndarray = np.empty(table.shape, dtype=np.int64)
    for level, row in enumerate(table):
        _, first, inverse = np.unique(row, return_index=True, return_inverse=True)
        result[level] = np.argsort(np.argsort(first))[inverse]
    return result


def _refines(lower: Int[np.ndarray, " leaf"], upper: Int[np.ndarray, " leaf"]) -> bool:
    parent = np.empty(lower.max() + 1, dtype=np.int64)
    parent[lower] = upper
    return bool((parent[lower] == upper).all())
