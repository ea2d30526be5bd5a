"""One tree of heads for a network, from its organizations on several inputs."""

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

#: Added to the support when families are chosen, so that large folders are returned even if none has support.
_NO_SUPPORT = 0.01


@dataclass(frozen=True, eq=False)
class Families:
    """A few disjoint folders of a consensus tree, the largest first."""

    folders: tuple[Int[np.ndarray, " _leaf_of_folder"], ...]  #: leaves of each family
    node: Int[np.ndarray, " family"]  #: uppermost node of each family in the consensus tree
    support: Float[np.ndarray, " family"]  #: support of each family; it may be 0
    of_leaf: Int[np.ndarray, " leaf"]  #: index of the family of each leaf; -1 for leaves in none

    def __len__(self) -> int:
        return len(self.folders)


@dataclass(frozen=True, eq=False)
class Consensus:
    """A tree from averaged affinities, with a support for each folder, as in phylogenetics.

    The folders are the distinct ones except the root and the single leaves, in the order of ``tree.distinct``.

    Examples
    --------
    Three inputs on which the same two groups of heads stand out:

    >>> import headtree as ht
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> groups = rng.normal(size=(2, 6, 6)).repeat(4, axis=0)
    >>> orgs = [ht.organize_array(groups + rng.normal(size=(8, 6, 6)) / 4) for _ in range(3)]
    >>> found = ht.consensus(orgs, n_bootstrap=20)
    >>> found.n_inputs, found.tree.n_leaves, len(found.folders) == len(found.support)
    (3, 8, True)
    """

    tree: PartitionTree
    affinity: Float[np.ndarray, "leaf leaf"]  #: mean of the organizations' affinities
    share: Float[np.ndarray, " folder"]  #: fraction of resampled sets of inputs with the folder; noise has some too
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
        """List the leaves of each folder with at least this support, largest folders first.

        Examples
        --------
        Six heads of which 0, 2, 4 and 1, 3, 5 belong together on every input:

        >>> import headtree as ht
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> groups = np.tile(rng.normal(size=(2, 8, 8)), (3, 1, 1))
        >>> orgs = [ht.organize_array(groups + rng.normal(size=(6, 8, 8)) / 2) for _ in range(6)]
        >>> [leaves.tolist() for leaves in ht.consensus(orgs, n_bootstrap=50).supported(0.5)]
        [[0, 2, 4], [1, 3, 5]]
        """
        least = _checks.finite_number(least, "least")
        chosen = [leaves for leaves, support in zip(self.folders, self.support, strict=True) if support >= least]
        return sorted(chosen, key=len, reverse=True)

    def families(self, at_most: int = 8) -> Families:
        r"""Choose the main families of heads: large folders that recur from input to input.

        Of all sets of at most `at_most` disjoint folders, this is the one that maximizes

        .. math:: \sum_F p_F (1 - p_F) (s_F + 0.01),

        where :math:`p_F` is the folder's fraction of the leaves and :math:`s_F` its support. A folder counts for
        little if it is small, if it contains almost all leaves, or if it does not recur. If no folder has support,
        the families are merely large folders, and their support of 0 says so. Leaves outside all families have
        none.

        Examples
        --------
        >>> import headtree as ht
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> groups = np.tile(rng.normal(size=(2, 8, 8)), (3, 1, 1))
        >>> orgs = [ht.organize_array(groups + rng.normal(size=(6, 8, 8)) / 2) for _ in range(6)]
        >>> families = ht.consensus(orgs, n_bootstrap=50).families(at_most=2)
        >>> families.of_leaf
        array([0, 1, 0, 1, 0, 1])
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
        """Return the folders as columns of a table, one row per folder.

        Examples
        --------
        >>> import headtree as ht
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> orgs = [ht.organize_array(rng.normal(size=(6, 8, 8))) for _ in range(3)]
        >>> list(ht.consensus(orgs, n_bootstrap=20).to_dict())
        ['node', 'size', 'share', 'support', 'leaves']
        """
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
    r"""Average the head affinities of several inputs into one tree, and resample the inputs to find its support.

    The tree is made by average linkage of the mean affinity. The flexible tree that organizes single inputs is not
    suitable here: it rejects a leaf that arrives late at a large folder, the leaf then joins a stray leaf of
    another folder, and no folder recurs exactly, however clear it is.

    The *share* of a folder is the fraction of `n_bootstrap` sets of inputs, drawn with replacement, whose tree has
    exactly this folder (Felsenstein). It cannot distinguish a family of heads from noise: inputs that happen to
    bring two heads together do so again in every resample, and the closest heads in pure noise reach a share of
    0.9. The *support* can:

    1. The inputs are divided at random into two halves, and each half is resampled with replacement. :math:`s` is
       the fraction of `n_bootstrap` such divisions in which *both* trees have the folder. The halves have no input
       in common, so the folder must be found twice, independently (Shah and Samworth).
    2. Of the many possible folders, the tree contains those that its inputs happen to favour, and some of these
       recur in noise too. The level expected by chance, :math:`c`, comes from relabelling the heads of each input
       at random. This leaves every input intact but destroys everything that the inputs have in common. In 200 such
       sets of inputs, with 20 divisions each, :math:`c` is the second largest of the 200 maxima of :math:`s` over
       folders of comparable size (Westfall and Young). The support is the excess over chance, as in Cohen's kappa,

       .. math:: \max(0, (s - c) / (1 - c)),

       1 for a folder in every tree and 0 for one that could be noise.
    3. A folder inside a clear family, or a union of clear families, recurs more easily than one of scattered heads.
       Folders are therefore tested in order of decreasing *gap*, the mean affinity at which a folder is formed
       minus the mean affinity at which it is joined to others, and each test is conditional on the folders already
       supported. Heads are permuted only within the smallest supported folder that contains the candidate. If there
       are supported folders inside the candidate, which may then be a chance union of them, these and all other
       supported folders are permuted as units, with their mean affinity. A folder that is not beyond chance among
       all heads is not tested further. If more than 64 heads or folders could be permuted, 64 of them are drawn for
       each set; beyond that number the null distribution barely changes.

    The null distribution has a resolution of 1/20, so :math:`s` must exceed :math:`c` by at least that much.

    Sizes are compared as follows. A folder with at most half of the permuted items is compared with all folders
    that have at least as many items inside and at least as many outside. A larger folder, which separates a few
    items from the rest, is compared with those that separate the same number.

    Reordering the heads does not change the support, except for ties; reordering the inputs changes the random
    divisions. Anything shared by all inputs counts as signal, even if it is only that some heads are consistently
    noisier. And inputs must be independent: an input given twice agrees with itself, and then noise has support.

    Parameters
    ----------
    organizations : sequence of Organization
        The same heads on two or more inputs. Two inputs have only one division, so each :math:`s` is 0 or 1, and
        folders of a size that two unrelated trees may share by chance, such as pairs, get no support. With five or
        more inputs, clear pairs do.
    axis : int or str
        The axis that all organizations have in common: the heads.
    n_bootstrap : int
        Number of resampled sets of inputs, and of divisions. With fewer than five, noise may have support.
    rng : int or numpy Generator
        Source of all resampling.

    Examples
    --------
    >>> import headtree as ht
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> groups = np.tile(rng.normal(size=(2, 8, 8)), (3, 1, 1))  # heads 0, 2, 4 and heads 1, 3, 5 are alike
    >>> orgs = [ht.organize_array(groups + rng.normal(size=(6, 8, 8)) / 2) for _ in range(6)]
    >>> found = ht.consensus(orgs, n_bootstrap=50)
    >>> [leaves.tolist() for leaves in found.tree.folders(1)]
    [[0, 2, 4], [1, 3, 5]]

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
            raise InvalidTypeError(f"organizations must contain Organization objects, got {type(org).__name__}")
    if len(organizations) < 2:
        raise InvalidValueError(
            f"organizations must contain two or more, one per input, got {len(organizations)}; support comes from "
            "resampling inputs, and one input cannot disagree with itself"
        )
    matrices = [org.affinities[axis] for org in organizations]
    if len({matrix.shape for matrix in matrices}) > 1:
        raise InvalidValueError(
            f"organizations must have the same number of leaves along axis {axis!r}, got "
            f"{sorted({matrix.shape[0] for matrix in matrices})}; organize the same network on every input"
        )
    return matrices


def _inner(tree: PartitionTree) -> Int[np.ndarray, " folder"]:
    """Indices, among the distinct folders, of all except the root and the single leaves."""
    return np.flatnonzero(~tree.distinct.is_leaf)[1:]


def _leaves(tree: PartitionTree) -> tuple[Int[np.ndarray, " _leaf_of_folder"], ...]:
    """Leaves of each inner folder."""
    distinct = tree.distinct
    return tuple(np.flatnonzero(tree.nodes[distinct.level[i]] == distinct.node[i]) for i in _inner(tree))


def _best_folders(tree: PartitionTree, support: Float[np.ndarray, " folder"], at_most: int) -> list[int]:
    """Indices, among the inner folders, of the families: the best choice below each folder, from leaves to root."""
    distinct, inner = tree.distinct, _inner(tree)
    worth = np.zeros(len(distinct))
    share = distinct.size[inner] / tree.n_leaves
    worth[inner] = share * (1 - share) * (np.nan_to_num(support) + _NO_SUPPORT)  # nan for a single input
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
