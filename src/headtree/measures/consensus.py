"""One tree of heads for a network, from its organizations on many inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from headtree import _checks
from headtree.errors import InvalidTypeError, InvalidValueError
from headtree.geometry.linkage import linkage_tree
from headtree.measures.support import as_folder, folder_support
from headtree.questionnaire.organization import Organization
from headtree.trees.tree import PartitionTree

#: What a folder without any support counts in the choice of families: little, so that there are some always.
_NO_SUPPORT = 0.01


@dataclass(frozen=True, eq=False)
class Families:
    """A few folders of a consensus tree that have no leaf in common, the largest first."""

    folders: tuple[Int[np.ndarray, " _leaf_of_folder"], ...]  #: leaves of each family
    node: Int[np.ndarray, " family"]  #: uppermost node of each in the consensus tree
    support: Float[np.ndarray, " family"]  #: support of each, whatever it is
    of_leaf: Int[np.ndarray, " leaf"]  #: number of the family of each leaf; -1 for leaves in none

    def __len__(self) -> int:
        return len(self.folders)


@dataclass(frozen=True, eq=False)
class Consensus:
    """A tree from averaged affinities, with the bootstrap support of each folder, as phylogenetics prints it.

    The folders are the distinct ones that are neither everything nor a single leaf, numbered as in
    ``tree.distinct``.
    """

    tree: PartitionTree
    affinity: Float[np.ndarray, "leaf leaf"]  #: mean over the organizations
    share: Float[np.ndarray, " folder"]  #: of resampled sets of inputs in which the folder appears; noise has some
    support: Float[np.ndarray, " folder"]  #: how often it appears in both halves of the inputs, beyond chance
    n_inputs: int
    n_bootstrap: int

    @cached_property
    def folders(self) -> tuple[Int[np.ndarray, " _leaf_of_folder"], ...]:
        """Leaves of each folder."""
        return _leaves(self.tree)

    @cached_property
    def node(self) -> Int[np.ndarray, " folder"]:
        """Uppermost node of each folder in the tree."""
        return np.asarray(self.tree.distinct.node[_inner(self.tree)])

    def supported(self, least: float = 0.5) -> list[Int[np.ndarray, " _leaf_of_folder"]]:
        """Leaves of the folders with at least this support, largest folders first."""
        least = _checks.finite_number(least, "least")
        chosen = [leaves for leaves, support in zip(self.folders, self.support, strict=True) if support >= least]
        return sorted(chosen, key=len, reverse=True)

    def families(self, at_most: int = 8) -> Families:
        r"""The main families of heads: the folders that tell most heads apart, and do so again and again.

        Of all sets of at most `at_most` folders without a common leaf the one with the largest

        .. math:: \sum_F p_F (1 - p_F) (s_F + 0.01),

        :math:`p_F` being the folder's share of the leaves and :math:`s_F` its support. A folder counts for
        little if it is small or nearly everything, or if it does not recur; where no folder has support the
        families are merely large, and their support says so. Leaves outside all of them have none.
        """
        at_most = _checks.at_least_one(at_most, "at_most")
        chosen = _best_folders(self.tree, self.support, at_most)
        chosen.sort(key=lambda i: (-len(self.folders[i]), int(self.folders[i][0])))
        of_leaf = np.full(self.tree.n_leaves, -1)
        for family, i in enumerate(chosen):
            of_leaf[self.folders[i]] = family
        return Families(
            folders=tuple(self.folders[i] for i in chosen),
            node=self.node[chosen],
            support=self.support[chosen],
            of_leaf=of_leaf,
        )

    def to_dict(self) -> dict[str, list[Any]]:
        """Columns of one row per folder."""
        return {
            "node": self.node.tolist(),
            "size": [len(leaves) for leaves in self.folders],
            "share": self.share.tolist(),
            "support": self.support.tolist(),
            "leaves": [leaves.tolist() for leaves in self.folders],
        }


def consensus(
    organizations: Sequence[Organization],
    axis: int | str = 0,
    *,
    n_bootstrap: int = 200,
    rng: int | np.random.Generator = 0,
) -> Consensus:
    r"""Average the head affinities of several inputs into one tree; resample the inputs for its support.

    The tree is made by average linkage of the mean affinity. The flexible tree, which organizes single inputs, is
    not used: it refuses a leaf that comes late to a large folder, the leaf then joins a stray of another folder,
    and no folder recurs exactly, however clear it is.

    A folder's *share* is that of `n_bootstrap` sets of inputs, drawn with replacement, whose tree has exactly this
    folder (Felsenstein). It cannot tell a family of heads from noise: the inputs that happened to bring two heads
    together vote for them again, and the closest heads of pure noise reach a share of 0.9. The *support* can:

    1. The inputs are divided at random into two halves, each half is resampled with replacement, and :math:`s` is
       the share of `n_bootstrap` such divisions in which *both* trees have the folder. Two halves have no input in
       common, so that it must be seen twice, independently (Shah and Samworth).
    2. Of the many folders that there might be, the tree has those that its inputs happen to favour, and some recur
       in noise too. What chance gives, :math:`c`, is found by relabelling the heads of each input at random, which
       leaves every input as it is but nothing that inputs have in common: the largest :math:`s` of any folder of
       comparable size in all but one of 200 such sets of inputs (Westfall and Young), with 20 divisions of each.
       The support is the share beyond chance, as in Cohen's kappa,

       .. math:: \max(0, (s - c) / (1 - c)),

       1 for a folder in every tree and 0 for one that noise might have.
    3. A folder inside a clear family, or a union of clear families, recurs more easily than one of scattered heads.
       So folders are taken by falling *gap*, the difference of the mean affinities at which a folder is made and at
       which it is joined to others, and each is tried given those found before: heads change places only within
       the smallest supported folder around; and if there are supported folders inside, of which it may be a chance
       union, these and all other supported folders move as a whole, with their mean affinity. A folder that is not
       beyond chance among all heads is not tried. If more than 64 heads or folders may change places, 64 of them
       are drawn for each set, since chance hardly depends on their number any more.

    Chance is known in steps of 1/20, so that :math:`s` must be as much larger, or more.

    The sizes that are compared: a folder of at most half of what changes places with all that have as many inside
    and outside, or more; a larger one, which sets a few apart, with those that set as many apart.

    Heads in another order have the same support, but for ties; inputs in another order have other divisions. What
    the same heads do in all inputs is no chance, even if it is only that some are noisier. And inputs must be
    independent: an input given twice agrees with itself, and noise then has support.

    Parameters
    ----------
    organizations : sequence of Organization
        Of the same heads on two or more inputs. Of two inputs there is one division, each :math:`s` is 0 or 1, and
        folders of a size that two unrelated trees may have in common, such as pairs, have no support. From five
        inputs on clear pairs have.
    axis : int or str
        The axis that all have in common; the heads.
    n_bootstrap : int
        Number of resampled sets of inputs, and of divisions. Of fewer than five, noise may have support.

    References
    ----------
    Felsenstein, Confidence limits on phylogenies, 1985; Shah and Samworth, Variable selection with error control:
    another look at stability selection, 2013 (simultaneous selection); Westfall and Young, Resampling-based
    multiple testing, 1993; Cohen, A coefficient of agreement for nominal scales, 1960.
    """
    return consensus_of(_affinities(organizations, axis), n_bootstrap=n_bootstrap, rng=rng)


def consensus_of(
    affinities: Sequence[Float[np.ndarray, "leaf leaf"]], *, n_bootstrap: int, rng: int | np.random.Generator
) -> Consensus:
    """`consensus` from the affinities alone, two or more: they are all of an organization that it needs."""
    table = np.stack([_checks.affinity_matrix(matrix).numpy() for matrix in affinities])
    n_bootstrap = _checks.at_least_one(n_bootstrap, "n_bootstrap")
    mean = table.mean(axis=0)
    tree = linkage_tree(mean)
    found = folder_support(table, n_bootstrap, _checks.generator(rng))
    folders = [as_folder(leaves) for leaves in _leaves(tree)]
    return Consensus(
        tree,
        mean,
        share=np.array([found.share[folder] for folder in folders]),
        support=np.array([found.support[folder] for folder in folders]),
        n_inputs=len(table),
        n_bootstrap=n_bootstrap,
    )


def _affinities(organizations: Sequence[Organization], axis: int | str) -> list[Float[np.ndarray, "leaf leaf"]]:
    organizations = _checks.as_list(organizations, "organizations", "Organization objects")
    for org in organizations:
        if not isinstance(org, Organization):
            raise InvalidTypeError(f"organizations must hold Organization objects, got {type(org).__name__}")
    if len(organizations) < 2:
        raise InvalidValueError(
            f"organizations must be two or more, one for each input, got {len(organizations)}; support is "
            "the share of resampled inputs, and one input cannot disagree with itself"
        )
    matrices = [org.affinities[axis] for org in organizations]
    if len({matrix.shape for matrix in matrices}) > 1:
        raise InvalidValueError(
            f"organizations must have the same leaves along axis {axis!r}, got "
            f"{sorted({matrix.shape[0] for matrix in matrices})}; organize the same network"
        )
    return matrices


def _inner(tree: PartitionTree) -> Int[np.ndarray, " folder"]:
    """Numbers, among the distinct folders, of those that are neither everything nor one leaf."""
    return np.flatnonzero(~tree.distinct.is_leaf)[1:]


def _leaves(tree: PartitionTree) -> tuple[Int[np.ndarray, " _leaf_of_folder"], ...]:
    """Leaves of each inner folder."""
    distinct = tree.distinct
    return tuple(np.flatnonzero(tree.nodes[distinct.level[i]] == distinct.node[i]) for i in _inner(tree))


def _best_folders(tree: PartitionTree, support: Float[np.ndarray, " folder"], at_most: int) -> list[int]:
    """Numbers, among the inner folders, of the families: the best choice below each folder, leaves to root."""
    distinct, inner = tree.distinct, _inner(tree)
    worth = np.zeros(len(distinct))
    share = distinct.size[inner] / tree.n_leaves
    worth[inner] = share * (1 - share) * (np.nan_to_num(support) + _NO_SUPPORT)  # of a single input it is nan
    number = {int(folder): i for i, folder in enumerate(inner)}
    children, pointers = distinct.children
    nothing: _Choices = [(0.0, ())] * (at_most + 1)
    best: list[_Choices] = [nothing] * len(distinct)
    for folder in np.flatnonzero(~distinct.is_leaf)[::-1].tolist():
        below = nothing
        for child in children[pointers[folder] : pointers[folder + 1]].tolist():
            below = _together(below, best[child])
        if folder in number:
            itself = (float(worth[folder]), (number[folder],))
            below = [below[0], *(max(choice, itself, key=lambda c: c[0]) for choice in below[1:])]
        best[folder] = below
    return list(best[0][at_most][1])


#: For m = 0, 1, …: the largest sum that at most m folders reach, and which these are.
_Choices = list[tuple[float, tuple[int, ...]]]


def _together(a: _Choices, b: _Choices) -> _Choices:
    """Best choices from two disjoint parts of a tree."""
    if b[-1][0] == 0:
        return a
    return [
        max(((a[i][0] + b[m - i][0], a[i][1] + b[m - i][1]) for i in range(m, -1, -1)), key=lambda c: c[0])
        for m in range(len(a))
    ]
