"""One tree of heads for a network, from several inputs, with the folders that other inputs show again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from headtree import _checks
from headtree.errors import InvalidTypeError, InvalidValueError
from headtree.geometry.combined_affinity import InputMatrices
from headtree.geometry.linkage import linkage_tree
from headtree.measures.families import (
    Families,
    Growth,
    Replication,
    best_folders,
    exponent_of_families,
    growth_of_support,
    inner_folders,
    leaves_of_inner,
    likeness_of,
    replication_of_families,
    usual_number,
)
from headtree.measures.support import as_folder, folder_support
from headtree.questionnaire.organization import Organization
from headtree.similarity.head_similarity import HeadSimilarity
from headtree.trees.tree import PartitionTree


@dataclass(frozen=True, eq=False, repr=False)
class Consensus:
    """A tree of heads that several inputs agree on, with the support of each folder.

    The folders are the distinct ones except the root and the single leaves, in the order of ``tree.distinct``.

    Examples
    --------
    Ten inputs on which the same two groups of heads stand out:

    >>> import headtree as ht
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> groups = rng.normal(size=(2, 6, 6)).repeat(4, axis=0)
    >>> atts = [ht.AttentionTensor.from_array(groups + rng.normal(size=(8, 6, 6)) / 4) for _ in range(10)]
    >>> found = ht.consensus(ht.head_similarity(atts), n_bootstrap=20)
    >>> found.kind, found.n_inputs, len(found.folders) == len(found.support)
    ('attention', 10, True)
    """

    kind: str  #: of the similarity: "attention", "function", "questionnaire", …
    tree: PartitionTree
    affinity: Float[np.ndarray, "leaf leaf"]  #: of all inputs together
    transfer: Float[
        np.ndarray, " folder"
    ]  #: how much of it trees of halves of the inputs put together; noise has some
    support: Float[np.ndarray, " folder"]  #: the same beyond chance
    replication: Replication | None  #: of the families
    growth: tuple[Growth, ...]  #: support of families of fewer inputs, up to all of them
    n_inputs: int
    n_bootstrap: int
    likeness: Float[np.ndarray, " folder"] | None = None  #: of "function": mean cosine of pairs, the smaller of two

    @cached_property
    def folders(self) -> tuple[Int[np.ndarray, " _leaf_of_folder"], ...]:
        """Leaves of each folder."""
        return leaves_of_inner(self.tree)

    @cached_property
    def node(self) -> Int[np.ndarray, " folder"]:
        """Uppermost node of each folder in the tree."""
        return np.asarray(self.tree.distinct.node[inner_folders(self.tree)])

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

    def families(self, at_most: int | None = None) -> Families:
        r"""Choose the main families of heads: large folders that other inputs show again.

        Of all sets of at most `at_most` disjoint folders with support, this is the one that maximizes

        .. math:: \sum_F p_F^a (1 - p_F) (t_F + s_F),

        where :math:`p_F` is the folder's fraction of the leaves, :math:`t_F` its transfer and :math:`s_F` its
        support. A folder counts for little if it is small, if it contains almost all leaves, or if other inputs
        show little of it. (By support alone, families would be smaller and other inputs would cut them elsewhere;
        by transfer alone, larger with less support.) The exponent is :math:`a = 1` if eight families, or `at_most`
        if that is more, then contain 85 % of the leaves. Otherwise it is 2: where fine families leave many heads
        out, coarser ones leave out fewer, and other inputs show them better. Their `replication` compares families
        of halves of the inputs with the same exponent. Where no folder has support, as in noise, there is no
        family.

        Heads that *do* alike must look alike and write alike, and large folders often only look alike. For
        "function", :math:`p_F^a (1 - p_F)` is therefore replaced by :math:`\binom{n_F}{2} (k_F - 0.12)`, where
        :math:`n_F` is the number of heads and :math:`k_F`, the *likeness*, is the mean centred cosine of their
        pairs, of attention or of values, whichever is smaller. A folder with a likeness below 0.12 is no family.

        By default, `at_most` is 8, and 12 for "function", whose families are small.

        Examples
        --------
        >>> import headtree as ht
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> groups = np.tile(rng.normal(size=(2, 8, 8)), (4, 1, 1))
        >>> atts = [ht.AttentionTensor.from_array(groups + rng.normal(size=(8, 8, 8)) / 2) for _ in range(10)]
        >>> families = ht.consensus(ht.head_similarity(atts), n_bootstrap=50).families()
        >>> families.of_leaf
        array([0, 1, 0, 1, 0, 1, 0, 1])
        >>> noise = [ht.AttentionTensor.from_array(rng.normal(size=(8, 8, 8))) for _ in range(10)]
        >>> len(ht.consensus(ht.head_similarity(noise), n_bootstrap=50).families())
        0
        """
        usual = usual_number(self.likeness)
        at_most = usual if at_most is None else _checks.at_least_one(at_most, "at_most")
        exponent = exponent_of_families(self.tree, self.transfer, self.support, at_most)
        chosen = best_folders(self.tree, self.transfer, self.support, at_most, exponent, self.likeness)
        chosen.sort(key=lambda i: (-len(self.folders[i]), int(self.folders[i][0])))
        of_leaf = np.full(self.tree.n_leaves, -1)
        for family, i in enumerate(chosen):
            of_leaf[self.folders[i]] = family
        return Families(
            folders=tuple(self.folders[i] for i in chosen),
            node=self.node[chosen],
            support=self.support[chosen],
            medoid=np.array([self._medoid(self.folders[i]) for i in chosen], dtype=np.int64),
            of_leaf=of_leaf,
            replication=self.replication if at_most == usual else None,
        )

    def __repr__(self) -> str:
        folders = f"{len(self.folders)} folders of {self.tree.n_leaves} leaves"
        supported = f"{np.count_nonzero(self.support > 0)} with support"
        return (
            f"Consensus({self.kind!r}, {folders}, {supported}, {self.n_inputs} input{'s' * (self.n_inputs != 1)})"
        )

    def _medoid(self, leaves: Int[np.ndarray, " _leaf_of_folder"]) -> int:
        """The leaf with the largest mean affinity to the others."""
        return int(leaves[self.affinity[np.ix_(leaves, leaves)].sum(axis=1).argmax()])

    def to_dict(self) -> dict[str, list[Any]]:
        """Return the folders as columns of a table, one row per folder.

        Examples
        --------
        >>> import headtree as ht
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> orgs = [ht.organize_array(rng.normal(size=(6, 8, 8))) for _ in range(3)]
        >>> list(ht.consensus(orgs, n_bootstrap=20).to_dict())
        ['node', 'size', 'transfer', 'support', 'leaves']
        """
        return {
            "node": self.node.tolist(),
            "size": [len(leaves) for leaves in self.folders],
            "transfer": self.transfer.tolist(),
            "support": self.support.tolist(),
            "leaves": [leaves.tolist() for leaves in self.folders],
        }


def consensus(
    inputs: HeadSimilarity | Sequence[Organization],
    axis: int | str = 0,
    *,
    n_bootstrap: int = 200,
    rng: int | np.random.Generator = 0,
) -> Consensus:
    r"""Make one tree of heads from several inputs, and find how much of each folder other inputs show again.

    1. The inputs are divided at random into two halves, `n_bootstrap` times, and each half is resampled with
       replacement. Every half has its tree, by average linkage of its combined affinity.
    2. The tree is what these trees agree on: average linkage of the mean, over the trees, of 1 minus the fraction
       of all heads in the smallest folder that holds both. (Average linkage of the mean affinity finds nearly the
       same folders, but another set of inputs shows them less well; `docs/similarities.md` has the numbers.)
    3. The *transfer* of a folder F with p of the n heads to a tree T is

       .. math:: t(F, T) = 1 - \min_C |F \triangle C| / \min(p - 1, n - p)

       over the folders C of T (Lemoine et al.): 1 if T has the folder, and less for every head that moved.
       :math:`s` is its mean over all trees of halves. Exact recurrence would be lost with a single head that moves.
    4. Noise transfers too. The level expected by chance, :math:`c`, comes from relabelling the heads of each input
       at random. This leaves every input intact but destroys everything that the inputs have in common.
       :math:`c` is the largest transfer of any folder of comparable size in all but one of 200 such sets of inputs,
       with 20 divisions each (Westfall and Young). The *support* is the excess over chance, as in Cohen's kappa,

       .. math:: \max(0, (s - c) / (1 - c)),

       1 for a folder in every tree and 0 for one that could be noise; less than 0.2 counts as 0. And both halves
       must show it: the mean over divisions of the smaller of the two transfers must exceed what chance gives for
       it by 0.05.
    5. A folder inside a clear family, or a union of clear families, transfers more easily than one of scattered
       heads. Folders are therefore tested one after the other: first those in nearly every tree (support of 0.95
       or more), by the difference of the mean affinities at which they are formed and joined, then the others from
       large to small. Each must be beyond chance given those already supported: in the trees of the heads of the
       smallest supported folder around it, relabelled within that folder; and if there are supported folders
       inside, in the trees of these and all other supported folders as units. If more than 256 heads or units could
       be relabelled, 256 of them are drawn for each set.

    Sizes are compared as follows. A folder with at most half of the relabelled items is compared with all folders
    that have at least as many items inside and at least as many outside. A larger folder, which separates a few
    items from the rest, is compared with those that separate the same number.

    Reordering the heads does not change the support, except for ties; reordering the inputs changes the random
    divisions. Anything shared by all inputs counts as signal, even if it is only that some heads are consistently
    noisier. And inputs must be independent: an input given twice agrees with itself, and then noise has support.

    Parameters
    ----------
    inputs : HeadSimilarity or sequence of Organization
        The same heads on two or more inputs. With fewer than ten, little can be supported.
    axis : int or str
        The axis that organizations have in common: the heads.
    n_bootstrap : int
        Number of divisions of the inputs. With fewer than 20, noise may have support.
    rng : int or numpy Generator
        Source of all resampling.

    Examples
    --------
    >>> import headtree as ht
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> groups = np.tile(rng.normal(size=(2, 8, 8)), (3, 1, 1))  # heads 0, 2, 4 and heads 1, 3, 5 are alike
    >>> atts = [ht.AttentionTensor.from_array(groups + rng.normal(size=(6, 8, 8)) / 2) for _ in range(10)]
    >>> found = ht.consensus(ht.head_similarity(atts), n_bootstrap=50)
    >>> [leaves.tolist() for leaves in found.tree.folders(1)]
    [[0, 2, 4], [1, 3, 5]]

    References
    ----------
    Lemoine et al., Renewing Felsenstein's phylogenetic bootstrap in the era of big data, 2018; Shah and Samworth,
    Variable selection with error control: another look at stability selection, 2013 (divisions into halves);
    Westfall and Young, Resampling-based multiple testing, 1993; Cohen, A coefficient of agreement for nominal
    scales, 1960.
    """
    if isinstance(inputs, HeadSimilarity):
        _check_several(inputs.n_inputs)
        return consensus_of(inputs.inputs, inputs.kind, n_bootstrap=n_bootstrap, rng=rng)
    affinities = np.stack(_affinities(inputs, axis))
    return consensus_of(InputMatrices(affinities[None], False), "questionnaire", n_bootstrap=n_bootstrap, rng=rng)


def consensus_of(
    inputs: InputMatrices, kind: str, *, n_bootstrap: int, rng: int | np.random.Generator, halved: bool = True
) -> Consensus:
    """`consensus` from the matrices alone: they are all of a similarity that it needs.

    Without `halved`, the families of halves of the inputs are not compared, which takes half of the time.
    """
    n_bootstrap = _checks.at_least_one(n_bootstrap, "n_bootstrap")
    source = _checks.generator(rng)
    found = folder_support(inputs, n_bootstrap, source)
    tree = linkage_tree(found.closeness)
    leaves_of_folders = leaves_of_inner(tree)
    folders = [as_folder(leaves) for leaves in leaves_of_folders]
    transfer = np.array([found.transfer[folder] for folder in folders])
    support = np.array([found.support[folder] for folder in folders])
    likeness = likeness_of(inputs, leaves_of_folders)
    affinity, n_inputs = inputs.combined(), inputs.n_inputs
    agreed = Consensus(kind, tree, affinity, transfer, support, None, (), n_inputs, n_bootstrap, likeness)
    families = agreed.families()
    if not halved or not len(families):
        return agreed
    number = usual_number(likeness)
    exponent = exponent_of_families(tree, transfer, support, number)
    return replace(
        agreed,
        replication=replication_of_families(inputs, found.chance, number, exponent, source),
        growth=growth_of_support(inputs, found.chance, families.folders, families.support, source),
    )


def of_one_input(kind: str, tree: PartitionTree, affinity: Float[np.ndarray, "leaf leaf"]) -> Consensus:
    """The tree of a single input, which cannot disagree with itself: transfer and support are nan."""
    unknown = np.full(len(inner_folders(tree)), np.nan)
    return Consensus(kind, tree, affinity, unknown, unknown, None, (), n_inputs=1, n_bootstrap=0)


def _check_several(n_inputs: int) -> None:
    if n_inputs < 2:
        raise InvalidValueError(
            f"inputs must contain two or more, got {n_inputs}; support comes from resampling inputs, and one input "
            "cannot disagree with itself"
        )


def _affinities(organizations: Any, axis: int | str) -> list[Float[np.ndarray, "leaf leaf"]]:
    organizations = _checks.as_list(organizations, "inputs", "Organization objects")
    for org in organizations:
        if not isinstance(org, Organization):
            raise InvalidTypeError(
                f"inputs must be a HeadSimilarity or a list of Organization objects, got {type(org).__name__}; "
                "make one with ht.head_similarity"
            )
        org.check_all_compared(axis)
    _check_several(len(organizations))
    matrices = [_checks.affinity_matrix(org.affinities[org.trees.position(axis)]).numpy() for org in organizations]
    if len({matrix.shape for matrix in matrices}) > 1:
        raise InvalidValueError(
            f"inputs must have the same number of leaves along axis {axis!r}, got "
            f"{sorted({matrix.shape[0] for matrix in matrices})}; organize the same network on every input"
        )
    return matrices
