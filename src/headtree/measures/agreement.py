"""Whether a tree's folders know something: adjusted mutual information with given labels, against permutations."""

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

#: Levels that are looked at; a binary tree has as many as leaves, most of them nearly alike.
_MOST_LEVELS = 12


@dataclass(frozen=True)
class TreeAgreement:
    """How well the folders of a tree's best level predict labels of its leaves."""

    information: float  #: adjusted mutual information, 1 if folders and labels are the same, 0 by chance; nan: none
    level: int  #: where it is largest; -1 if there is no level to look at
    n_folders: int  #: on that level
    n_labels: int
    chance: float  #: 95 % quantile of the largest information over levels, of permuted labels
    p_value: float  #: share of permutations that reach it, itself counted in
    reason: str = ""  #: why there is none


def tree_agreement(
    tree: PartitionTree,
    labels: Sequence[Any],
    *,
    within: Sequence[Any] | None = None,
    n_permutations: int = 999,
    rng: int | np.random.Generator = 0,
) -> TreeAgreement:
    """Test whether the folders of a tree agree with labels better than chance.

    On every level that has more than one folder and not each leaf alone, at most twelve of them, the adjusted
    mutual information (Vinh, Epps and Bailey 2010) of folders and labels; the largest counts, and permuted labels
    have the same choice.

    Parameters
    ----------
    tree : PartitionTree
        Of heads, for instance that of a `Consensus`.
    labels : sequence
        One for each leaf: roles, layers, or anything else that can be told apart.
    within : sequence, optional
        Permute labels only among leaves that agree in this: whether roles are found beyond what layers explain.
    n_permutations : int
        Number of permutations.
    """
    if not isinstance(tree, PartitionTree):
        raise InvalidTypeError(f"tree must be a PartitionTree, got {type(tree).__name__}; of a Consensus, its tree")
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
    """Levels with folders of several leaves; of a tree with many, some with ever more folders."""
    levels = [i for i in range(tree.n_levels) if 1 < tree.n_folders[i] < tree.n_leaves]
    if len(levels) <= _MOST_LEVELS:
        return levels
    counts = tree.n_folders[levels]
    wanted = np.geomspace(counts[0], counts[-1], _MOST_LEVELS)
    return [levels[i] for i in np.unique(np.searchsorted(counts, wanted - 1e-9))]


@dataclass(frozen=True, eq=False)
class _Level:
    """What of one level's information does not change when labels are permuted."""

    folders: Int[np.ndarray, " leaf"]
    shape: tuple[int, int]
    expected: float
    range: float  #: mean of both entropies minus what is expected

    @classmethod
    def of(cls, folders: Int[np.ndarray, " leaf"], labels: Int[np.ndarray, " leaf"]) -> _Level:
        a, b = np.bincount(folders), np.bincount(labels)
        expected = expected_information(a, b)
        return cls(
            folders, (len(a), len(b)), expected, float(_entropy(a[None])[0] + _entropy(b[None])[0]) / 2 - expected
        )

    def information(self, labels: Int[np.ndarray, "draw leaf"]) -> Float[np.ndarray, " draw"]:
        """Adjusted mutual information of the level's folders and the labels of each draw."""
        n_draws, n_cells = len(labels), self.shape[0] * self.shape[1]
        cells = self.folders * self.shape[1] + labels + n_cells * np.arange(n_draws)[:, None]
        counts = np.bincount(cells.ravel(), minlength=n_draws * n_cells).reshape(n_draws, *self.shape)
        found = mutual_information(counts)
        return (found - self.expected) / self.range if self.range > 1e-12 else np.zeros(n_draws)


def mutual_information(counts: Int[np.ndarray, "draw folder label"]) -> Float[np.ndarray, " draw"]:
    """In nats, of two partitions given by how many leaves each folder shares with each label."""
    joint = _entropy(counts.reshape(len(counts), -1))
    return np.asarray(_entropy(counts.sum(axis=2)) + _entropy(counts.sum(axis=1)) - joint)


def expected_information(a: Int[np.ndarray, " folder"], b: Int[np.ndarray, " label"]) -> float:
    """Mean mutual information of two partitions with these sizes, over all permutations (Vinh et al. 2010, eq. 24).

    The number of leaves in folder i with label j is hypergeometric.
    """
    n = int(a.sum())
    total = 0.0
    logs = gammaln(np.arange(n + 2) + 1.0)  # of factorials
    for size_a in a:
        for size_b in b:
            shared = np.arange(max(1, size_a + size_b - n), min(size_a, size_b) + 1)
            log_share = logs[size_a] + logs[size_b] + logs[n - size_a] + logs[n - size_b] - logs[n]
            log_share = log_share - logs[shared] - logs[size_a - shared] - logs[size_b - shared]
            log_share = log_share - logs[n - size_a - size_b + shared]
            gain = shared / n * np.log(n * shared / (size_a * size_b))
            total += float((gain * np.exp(log_share)).sum())
    return total


def _entropy(sizes: Int[np.ndarray, "draw part"]) -> Float[np.ndarray, " draw"]:
    shares = sizes / sizes.sum(axis=1, keepdims=True)
    return np.asarray(-xlogy(shares, shares).sum(axis=1))


def _permuted(
    labels: Int[np.ndarray, " leaf"], groups: Int[np.ndarray, " leaf"], n: int, rng: np.random.Generator
) -> Int[np.ndarray, "draw leaf"]:
    """Labels permuted within each group, n times."""
    lots = rng.random((n, len(labels)))
    result = np.empty(lots.shape, dtype=labels.dtype)
    result[:, np.argsort(groups, kind="stable")] = labels[np.lexsort((lots, np.broadcast_to(groups, lots.shape)))]
    return result


def _coded(labels: Sequence[Any], name: str, n: int) -> Int[np.ndarray, " leaf"]:
    values = [str(label) for label in _checks.as_list(labels, name, "labels, one for each leaf")]
    if len(values) != n:
        raise InvalidValueError(f"{name} must be one for each of the {n} leaves, got {len(values)}")
    return np.unique(np.array(values), return_inverse=True)[1].astype(np.int64)
