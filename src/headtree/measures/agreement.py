"""Do the folders of a tree match given labels? Adjusted mutual information with a permutation test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from scipy.special import gammaln, xlogy

from headtree import _checks
from headtree.errors import InvalidTypeError, InvalidValueError
from headtree.trees.tree import PartitionTree

#: Most levels to examine; a tree can have nearly as many levels as leaves, most of them very similar.
_MOST_LEVELS = 12


@dataclass(frozen=True)
class TreeAgreement:
    """How well the folders on the best level of a tree predict labels of its leaves.

    Examples
    --------
    >>> import headtree as ht
    >>> tree = ht.PartitionTree([[0] * 6, [0, 0, 0, 1, 1, 1], [0, 1, 2, 3, 4, 5]])
    >>> found = ht.tree_agreement(tree, ["a", "a", "a", "b", "b", "b"])
    >>> found.level, found.n_folders, round(found.information, 6)
    (1, 2, 1.0)
    """

    information: float  #: adjusted mutual information: 1 if folders equal labels, 0 by chance; nan if undefined
    level: int  #: level where it is largest; -1 if no level qualifies
    n_folders: int  #: number of folders on that level
    n_labels: int  #: number of different labels
    chance: float  #: 95 % quantile, over permuted labels, of the largest information on any level
    p_value: float  #: fraction of permutations that reach the information, counting the labels themselves as one
    reason: str = ""  #: why the information is undefined


def tree_agreement(
    tree: PartitionTree,
    labels: Sequence[Any],
    *,
    within: Sequence[Any] | None = None,
    n_permutations: int = 999,
    rng: int | np.random.Generator = 0,
) -> TreeAgreement:
    """Test whether the folders of a tree agree with labels better than chance.

    The adjusted mutual information of folders and labels (Vinh, Epps and Bailey 2010) is computed on up to twelve
    levels, excluding those with one folder or with every leaf alone. The largest value counts. The null
    distribution takes the largest value over the same levels for permuted labels.

    Parameters
    ----------
    tree : PartitionTree
        A tree of heads, such as the tree of a `Consensus`.
    labels : sequence
        One for each leaf: roles, layers, or any other categories.
    within : sequence, optional
        Permute labels only among leaves that agree in this category. With roles as labels and layers here, the test
        asks whether the tree finds roles beyond what layers explain.
    n_permutations : int
        Number of permutations.
    rng : int or numpy Generator
        Source of the permutations.

    Examples
    --------
    >>> import headtree as ht
    >>> tree = ht.PartitionTree.halving(16)
    >>> layers = [leaf // 4 for leaf in range(16)]
    >>> found = ht.tree_agreement(tree, layers, n_permutations=99)
    >>> found.level, round(found.information, 3), found.p_value
    (2, 1.0, 0.01)
    >>> ht.tree_agreement(tree, [0] * 16).reason
    'all leaves have the same label'
    """
    if not isinstance(tree, PartitionTree):
        raise InvalidTypeError(
            f"tree must be a PartitionTree, got {type(tree).__name__}; for a Consensus, pass its tree"
        )
    coded = _coded(labels, "labels", tree.n_leaves)
    groups = np.zeros(tree.n_leaves, dtype=np.int64) if within is None else _coded(within, "within", tree.n_leaves)
    n_permutations = _checks.at_least_one(n_permutations, "n_permutations")
    generator = _checks.generator(rng)
    n_labels = int(coded.max()) + 1
    levels = _levels(tree)
    if n_labels < 2 or not levels:
        reason = "all leaves have the same label" if n_labels < 2 else "no level has folders of several leaves"
        return TreeAgreement(float("nan"), -1, 0, n_labels, float("nan"), float("nan"), reason)
    scales = [_Level.of(tree.labels[level], coded) for level in levels]
    found = np.array([scale.information(coded[None])[0] for scale in scales])
    best = int(found.argmax())
    shuffled = _permuted(coded, groups, n_permutations, generator)
    largest = np.max([scale.information(shuffled) for scale in scales], axis=0)
    reached = int((largest >= found[best] - 1e-12).sum())
    return TreeAgreement(
        information=float(found[best]),
        level=levels[best],
        n_folders=int(tree.n_folders[levels[best]]),
        n_labels=n_labels,
        chance=float(np.quantile(largest, 0.95)),
        p_value=(reached + 1) / (n_permutations + 1),
    )


def _levels(tree: PartitionTree) -> list[int]:
    """Levels with several folders, not all single leaves; of many, a geometric selection by number of folders."""
    levels = [i for i in range(tree.n_levels) if 1 < tree.n_folders[i] < tree.n_leaves]
    if len(levels) <= _MOST_LEVELS:
        return levels
    counts = tree.n_folders[levels]
    wanted = np.geomspace(counts[0], counts[-1], _MOST_LEVELS)
    return [levels[i] for i in np.unique(np.searchsorted(counts, wanted - 1e-9))]


@dataclass(frozen=True, eq=False)
class _Level:
    """The terms of the adjusted information on one level that do not change when labels are permuted."""

    folders: Int[np.ndarray, " leaf"]
    shape: tuple[int, int]
    expected: float
    range: float  #: mean of the two entropies minus the expected information

    @classmethod
    def of(cls, folders: Int[np.ndarray, " leaf"], labels: Int[np.ndarray, " leaf"]) -> _Level:
        a, b = np.bincount(folders), np.bincount(labels)
        expected = expected_information(a, b)
        return cls(
            folders, (len(a), len(b)), expected, float(_entropy(a[None])[0] + _entropy(b[None])[0]) / 2 - expected
        )

    def information(self, labels: Int[np.ndarray, "draw leaf"]) -> Float[np.ndarray, " draw"]:
        """Adjusted mutual information of the folders on this level and the labels of each draw."""
        n_draws, n_cells = len(labels), self.shape[0] * self.shape[1]
        cells = self.folders * self.shape[1] + labels + n_cells * np.arange(n_draws)[:, None]
        counts = np.bincount(cells.ravel(), minlength=n_draws * n_cells).reshape(n_draws, *self.shape)
        found = mutual_information(counts)
        return (found - self.expected) / self.range if self.range > 1e-12 else np.zeros(n_draws)


def mutual_information(counts: Int[np.ndarray, "draw folder label"]) -> Float[np.ndarray, " draw"]:
    """Mutual information, in nats, of folders and labels, given the number of leaves with each pair of them."""
    joint = _entropy(counts.reshape(len(counts), -1))
    return np.asarray(_entropy(counts.sum(axis=2)) + _entropy(counts.sum(axis=1)) - joint)


def expected_information(a: Int[np.ndarray, " folder"], b: Int[np.ndarray, " label"]) -> float:
    """Mean mutual information of two partitions with these sizes, over all permutations (Vinh et al. 2010, eq. 24).

    The number of leaves in folder i with label j is hypergeometric.
    """
    n = int(a.sum())
    total = 0.0
    logs = gammaln(np.arange(n + 2) + 1.0)  # logarithms of factorials
    for size_a, n_a in zip(*np.unique(a, return_counts=True), strict=True):
        for size_b, n_b in zip(*np.unique(b, return_counts=True), strict=True):
            shared = np.arange(max(1, size_a + size_b - n), min(size_a, size_b) + 1)
            log_share = logs[size_a] + logs[size_b] + logs[n - size_a] + logs[n - size_b] - logs[n]
            log_share = log_share - logs[shared] - logs[size_a - shared] - logs[size_b - shared]
            log_share = log_share - logs[n - size_a - size_b + shared]
            gain = shared / n * np.log(n * shared / (size_a * size_b))
            total += int(n_a * n_b) * float((gain * np.exp(log_share)).sum())
    return total


def _entropy(sizes: Int[np.ndarray, "draw group"]) -> Float[np.ndarray, " draw"]:
    """Entropy of groups with these sizes; n log n is looked up, since there are few different sizes."""
    n_leaves = int(sizes[0].sum())
    possible = np.arange(n_leaves + 1.0)
    logarithms = xlogy(possible, possible)
    return np.asarray((logarithms[n_leaves] - logarithms[sizes].sum(axis=1)) / n_leaves)


def _permuted(
    labels: Int[np.ndarray, " leaf"], groups: Int[np.ndarray, " leaf"], n: int, rng: np.random.Generator
) -> Int[np.ndarray, "draw leaf"]:
    """Permute the labels within each group, n times."""
    keys = rng.random((n, len(labels)))
    result = np.empty(keys.shape, dtype=labels.dtype)
    result[:, np.argsort(groups, kind="stable")] = labels[np.lexsort((keys, np.broadcast_to(groups, keys.shape)))]
    return result


def _coded(labels: Sequence[Any], name: str, n: int) -> Int[np.ndarray, " leaf"]:
    values = [str(label) for label in _checks.as_list(labels, name, "labels, one per leaf")]
    if len(values) != n:
        raise InvalidValueError(f"{name} must contain one label for each of the {n} leaves, got {len(values)}")
    return np.unique(np.array(values), return_inverse=True)[1].astype(np.int64)
