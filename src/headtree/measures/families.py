"""Families of heads: large disjoint folders of a consensus tree that other inputs show again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from headtree._threads import for_each_task
from headtree.geometry.combined_affinity import InputMatrices
from headtree.geometry.linkage import linkage_tree
from headtree.geometry.resampled_trees import ResampledTrees
from headtree.measures.comparisons import adjusted_rand_index
from headtree.measures.support import LEAST_SUPPORT, Chance, Transfer, divisions, tree_closeness
from headtree.trees.tree import PartitionTree

#: Divisions of the inputs into halves whose families are compared, and divisions of each half that find these.
_HALVINGS = 20
_QUICK_DIVISIONS = 30

#: Random choices of some of the inputs.
_SUBSETS = 5

#: Heads do alike if they look alike and write alike: both mean cosines, without what all heads share, above this.
#: Chosen on validation and training text; `docs/similarities.md` has the numbers.
_LEAST_LIKENESS = 0.12

#: Families that are chosen by default, and those of heads that do alike, which are smaller.
_FAMILIES, _FUNCTIONAL_FAMILIES = 8, 12

#: Exponents of a folder's share of the leaves: the larger, the coarser are the families. The second is for families
#: that leave out too many leaves with the first. Chosen on validation inputs of 14 networks; `docs/similarities.md`
#: has the numbers.
_FINE, _COARSE = 1.0, 2.0
_MOST_LEAVES = 0.85


class Replication(NamedTuple):
    """Agreement of the families of two halves of the inputs, over random divisions into halves.

    The adjusted Rand index is 1 for the same families and 0 for what chance gives. Heads in no family count as
    families of their own. A half has half of the inputs, so the families of all of them hold better.
    """

    rand_index: float  #: mean over divisions
    low: float  #: 2.5 % quantile
    high: float  #: 97.5 % quantile


class Growth(NamedTuple):
    """What some of the inputs say of the families of all, means over random choices of inputs."""

    n_inputs: int
    support: float  #: mean support of the families, weighted by their size
    coverage: float  #: share of the leaves in a family that these inputs support


@dataclass(frozen=True, eq=False)
class Families:
    """A few disjoint folders of a consensus tree that have support, the largest first; there may be none.

    Examples
    --------
    >>> import headtree as ht
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> groups = np.repeat(rng.normal(size=(3, 8, 8)), 4, axis=0)  # 12 heads of three kinds
    >>> inputs = [ht.AttentionTensor.from_array(2 * groups + rng.normal(size=(12, 8, 8))) for _ in range(10)]
    >>> families = ht.consensus(ht.head_similarity(inputs), n_bootstrap=50).families()
    >>> [leaves.tolist() for leaves in families.folders]
    [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    >>> families.coverage, round(families.replication.rand_index, 1)
    (1.0, 1.0)
    """

    folders: tuple[Int[np.ndarray, " _leaf_of_folder"], ...]  #: leaves of each family
    node: Int[np.ndarray, " family"]  #: uppermost node of each family in the consensus tree
    support: Float[np.ndarray, " family"]  #: how much of it other inputs put together, beyond chance; above 0
    medoid: Int[np.ndarray, " family"]  #: the leaf that is most alike to the others of its family
    of_leaf: Int[np.ndarray, " leaf"]  #: index of the family of each leaf; -1 for leaves in none
    replication: Replication | None  #: None without families, for fewer than four inputs, or another `at_most`

    def __len__(self) -> int:
        return len(self.folders)

    @property
    def coverage(self) -> float:
        """Share of the leaves that are in a family."""
        return float((self.of_leaf >= 0).mean())


def replication_of_families(
    inputs: InputMatrices, chance: Chance, at_most: int, exponent: float, rng: np.random.Generator
) -> Replication | None:
    """Compare the families of two halves of the inputs; None for fewer than four inputs.

    The null distribution is that of all inputs, and not conditional: what is asked is whether the same folders are
    chosen, not whether each holds. Families are as fine or coarse as those of all inputs: those of a few inputs
    hold fewer leaves, and would be coarse for that.
    """
    if inputs.n_inputs < 4 or inputs.n_leaves < 3:
        return None
    halves: list[_Drawn] = []
    for _ in range(_HALVINGS):
        halves += [_Drawn.of(half, rng) for half in np.array_split(rng.permutation(inputs.n_inputs), 2)]
    labels = _quick_families(inputs, halves, chance, at_most, exponent)
    found = [adjusted_rand_index(*pair) for pair in zip(labels[::2], labels[1::2], strict=True)]
    low, high = np.quantile(found, [0.025, 0.975])
    return Replication(float(np.mean(found)), float(low), float(high))


def growth_of_support(
    inputs: InputMatrices,
    chance: Chance,
    families: Sequence[Int[np.ndarray, " _leaf_of_folder"]],
    support: Float[np.ndarray, " family"],
    rng: np.random.Generator,
) -> tuple[Growth, ...]:
    """Support that a quarter and a half of the inputs, four at least, and all of them give one or more families.

    Of a quarter and a half the null distribution is that of all inputs, and not conditional, as in
    `replication_of_families`. The last is the support of the families itself.
    """
    n, sizes = inputs.n_inputs, np.array([len(leaves) for leaves in families])
    members = _members(families, inputs.n_leaves)

    def row(n_inputs: int, found: Float[np.ndarray, "sample family"]) -> Growth:
        coverage = (sizes * (found > 0)).sum(axis=1).mean() / inputs.n_leaves
        return Growth(n_inputs, float(np.average(found.mean(axis=0), weights=sizes)), float(coverage))

    growth = []
    for n_inputs in sorted({size for size in (n // 4, n // 2) if size >= 4}):
        subsets = [_Drawn.of(rng.permutation(n)[:n_inputs], rng) for _ in range(_SUBSETS)]
        growth.append(row(n_inputs, np.stack([_support_by(inputs, drawn, chance, members) for drawn in subsets])))
    return (*growth, row(n, support[None]))


class _Drawn(NamedTuple):
    """Some of the inputs, and divisions of them."""

    inputs: Int[np.ndarray, " _input"]
    divisions: Float[np.ndarray, "_sample 2 _input"]

    @classmethod
    def of(cls, inputs: Int[np.ndarray, " _input"], rng: np.random.Generator) -> _Drawn:
        return cls(inputs, divisions(len(inputs), _QUICK_DIVISIONS, rng))


def _members(
    folders: Sequence[Int[np.ndarray, " _leaf_of_folder"]], n_leaves: int
) -> Bool[np.ndarray, "folder leaf"]:
    members = np.zeros((len(folders), n_leaves), dtype=bool)
    for row, leaves in zip(members, folders, strict=True):
        row[leaves] = True
    return members


def _support_by(
    inputs: InputMatrices, drawn: _Drawn, chance: Chance, members: Bool[np.ndarray, "folder leaf"]
) -> Float[np.ndarray, " folder"]:
    """Support of folders by some of the inputs; the test is not conditional."""
    trees = ResampledTrees.grow(inputs.of_inputs(drawn.inputs.tolist()), drawn.divisions)
    return _supported(Transfer.to_halves(trees, members), chance, members)


def _supported(
    transfer: Transfer, chance: Chance, members: Bool[np.ndarray, "folder leaf"]
) -> Float[np.ndarray, " folder"]:
    sizes, n = members.sum(axis=1), members.shape[1]
    support = np.array([chance.beyond(transfer.of(i), int(size), n) for i, size in enumerate(sizes)])
    return np.where(support < LEAST_SUPPORT, 0, support)


def _quick_families(
    inputs: InputMatrices, drawn: Sequence[_Drawn], chance: Chance, at_most: int, exponent: float
) -> list[Int[np.ndarray, " leaf"]]:
    """The family of each leaf, by several choices of inputs; leaves in no family are families of their own."""
    found: dict[int, Int[np.ndarray, " leaf"]] = {}

    def find(i: int) -> None:
        some = inputs.of_inputs(drawn[i].inputs.tolist())
        found[i] = _families_of(some, drawn[i].divisions, chance, at_most, exponent)

    for_each_task(find, len(drawn))
    return [found[i] for i in range(len(drawn))]


def _families_of(
    inputs: InputMatrices,
    weights: Float[np.ndarray, "_sample 2 _input"],
    chance: Chance,
    at_most: int,
    exponent: float,
) -> Int[np.ndarray, " leaf"]:
    trees = ResampledTrees.grow(inputs, weights)
    tree = linkage_tree(tree_closeness(inputs, trees))
    folders = leaves_of_inner(tree)
    labels = np.arange(inputs.n_leaves) + len(folders)
    if folders:
        members = _members(folders, inputs.n_leaves)
        transfer = Transfer.to_halves(trees, members)
        support = _supported(transfer, chance, members)
        for i in best_folders(tree, transfer.mean, support, at_most, exponent, likeness_of(inputs, folders)):
            labels[folders[i]] = i
    return labels


def inner_folders(tree: PartitionTree) -> Int[np.ndarray, " folder"]:
    """Indices, among the distinct folders, of all except the root and the single leaves."""
    return np.flatnonzero(~tree.distinct.is_leaf)[1:]


def leaves_of_inner(tree: PartitionTree) -> tuple[Int[np.ndarray, " _leaf_of_folder"], ...]:
    """Leaves of each inner folder."""
    distinct = tree.distinct
    return tuple(np.flatnonzero(tree.nodes[distinct.level[i]] == distinct.node[i]) for i in inner_folders(tree))


def likeness_of(
    inputs: InputMatrices, folders: Sequence[Int[np.ndarray, " _leaf_of_folder"]]
) -> Float[np.ndarray, " folder"] | None:
    """Mean cosine of the pairs of leaves of each folder, the smallest of all kernels; None for affinities.

    Affinities have no scale of their own: theirs is the median over all pairs.
    """
    if not inputs.is_kernel:
        return None
    cosines = inputs.cosines()
    cosines[:, np.arange(inputs.n_leaves), np.arange(inputs.n_leaves)] = 0
    of_pairs = [cosines[:, f][:, :, f].sum(axis=(1, 2)).min() / (len(f) * (len(f) - 1)) for f in folders]
    return np.array(of_pairs)


def usual_number(likeness: Float[np.ndarray, " folder"] | None) -> int:
    """How many families are chosen by default."""
    return _FAMILIES if likeness is None else _FUNCTIONAL_FAMILIES


def exponent_of_families(
    tree: PartitionTree,
    transfer: Float[np.ndarray, " folder"],
    support: Float[np.ndarray, " folder"],
    at_most: int,
) -> float:
    """Fine, if eight families, or `at_most` if that is more, then hold most leaves; else coarse."""
    fine = best_folders(tree, transfer, support, max(at_most, _FAMILIES), _FINE)
    covered = tree.distinct.size[inner_folders(tree)][fine].sum()
    return _FINE if covered >= _MOST_LEAVES * tree.n_leaves else _COARSE


def best_folders(
    tree: PartitionTree,
    transfer: Float[np.ndarray, " folder"],
    support: Float[np.ndarray, " folder"],
    at_most: int,
    exponent: float,
    likeness: Float[np.ndarray, " folder"] | None = None,
) -> list[int]:
    """Indices, among the inner folders, of the families.

    A folder with support is worth w (t + s), with transfer t and support s. If likeness is known, w is the sum over
    the pairs inside of what they have beyond the least likeness. Otherwise it is pᵃ (1 - p) for a fraction p of the
    leaves and the exponent a.
    """
    size = tree.distinct.size[inner_folders(tree)]
    value = np.where(support > 0, transfer + support, 0)
    if likeness is not None:
        weight = size * (size - 1) / 2 * np.maximum(likeness - _LEAST_LIKENESS, 0)
    else:
        fraction = size / tree.n_leaves
        weight = fraction**exponent * (1 - fraction)
    return list(_best_choices(tree, weight * value, at_most)[at_most][1])


def _best_choices(tree: PartitionTree, worth_of_inner: Float[np.ndarray, " folder"], at_most: int) -> _Choices:
    """The best choice of disjoint folders below each folder, from leaves to root; that of the root is returned."""
    distinct, inner = tree.distinct, inner_folders(tree)
    worth = np.zeros(len(distinct))
    worth[inner] = worth_of_inner
    number = {int(folder): i for i, folder in enumerate(inner)}
    children, pointers = distinct.children
    nothing: _Choices = [(0.0, ())] * (at_most + 1)
    best: list[_Choices] = [nothing] * len(distinct)
    for folder in np.flatnonzero(~distinct.is_leaf)[::-1].tolist():
        below = nothing
        for child in children[pointers[folder] : pointers[folder + 1]].tolist():
            below = _together(below, best[child])
        if folder in number and worth[folder] > 0:
            itself = (float(worth[folder]), (number[folder],))
            below = [below[0], *(max(choice, itself, key=lambda c: c[0]) for choice in below[1:])]
        best[folder] = below
    return best[0]


#: For m = 0, 1, …: the largest sum for at most m folders, and those folders.
_Choices = list[tuple[float, tuple[int, ...]]]


def _together(a: _Choices, b: _Choices) -> _Choices:
    """Combine the best choices from two disjoint subtrees."""
    if b[-1][0] == 0:
        return a
    return [
        max(((a[i][0] + b[m - i][0], a[i][1] + b[m - i][1]) for i in range(m, -1, -1)), key=lambda c: c[0])
        for m in range(len(a))
    ]
