"""One tree of heads for a network, from its organizations on many inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from headtree import _checks
from headtree.errors import InvalidTypeError, InvalidValueError
from headtree.geometry.build import binary_tree_of, flexible_tree_of
from headtree.geometry.diffusion import spectrum
from headtree.progress import progress
from headtree.questionnaire.organization import Organization
from headtree.questionnaire.settings import Questionnaire
from headtree.trees.tree import PartitionTree


@dataclass(frozen=True, eq=False)
class Consensus:
    """A tree from averaged affinities, with the bootstrap support of each folder, as phylogenetics prints it.

    The folders are the distinct ones that are neither everything nor a single leaf, numbered as in
    ``tree.distinct``.
    """

    tree: PartitionTree
    affinity: Float[np.ndarray, "leaf leaf"]  #: mean over the organizations
    folders: tuple[Int[np.ndarray, " _leaf_of_folder"], ...]  #: leaves of each folder
    node: Int[np.ndarray, " folder"]  #: uppermost node of each folder in the tree
    support: Float[np.ndarray, " folder"]  #: share of resampled sets of inputs whose tree has exactly this folder
    n_inputs: int
    n_bootstrap: int

    def supported(self, least: float = 0.5) -> list[Int[np.ndarray, " _leaf_of_folder"]]:
        """Leaves of the folders with at least this support, largest folders first."""
        chosen = [leaves for leaves, support in zip(self.folders, self.support, strict=True) if support >= least]
        return sorted(chosen, key=len, reverse=True)

    def to_dict(self) -> dict[str, list[object]]:
        """Columns of one row per folder."""
        return {
            "node": self.node.tolist(),
            "size": [len(leaves) for leaves in self.folders],
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
    """Average the head affinities of several inputs into one tree; resample the inputs for its support.

    Parameters
    ----------
    organizations : sequence of Organization
        Of the same heads on two or more inputs. The tree is built with the settings of the first.
    axis : int or str
        The axis that all have in common; the heads.
    n_bootstrap : int
        Number of times as many inputs are drawn with replacement, averaged and made into a tree.
    """
    affinities = _affinities(organizations, axis)
    n_bootstrap = _checks.at_least_one(n_bootstrap, "n_bootstrap")
    generator = _checks.generator(rng)
    settings = organizations[0].settings
    tree = _tree(affinities.mean(dim=0), settings)
    folders = _inner_folders(tree)
    counts = dict.fromkeys(folders, 0)
    with progress("consensus", n_bootstrap) as step:
        for _ in range(n_bootstrap):
            weights = np.bincount(
                generator.integers(len(affinities), size=len(affinities)), minlength=len(affinities)
            )
            mean = torch.einsum("o,oij->ij", torch.from_numpy(weights / len(affinities)), affinities)
            for folder in counts.keys() & _inner_folders(_tree(mean, settings)).keys():
                counts[folder] += 1
            step("")
    return Consensus(
        tree=tree,
        affinity=affinities.mean(dim=0).numpy(),
        folders=tuple(np.array(leaves) for leaves in folders),
        node=np.array(list(folders.values()), dtype=np.int64),
        support=np.array(list(counts.values()), dtype=np.float64) / n_bootstrap,
        n_inputs=len(affinities),
        n_bootstrap=n_bootstrap,
    )


def _affinities(organizations: Sequence[Organization], axis: int | str) -> Float[Tensor, "input leaf leaf"]:
    organizations = _checks.items(organizations, "organizations", "Organization objects")
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
    return torch.from_numpy(np.stack(matrices))


def _tree(affinity: Float[Tensor, "leaf leaf"], settings: Questionnaire) -> PartitionTree:
    if settings.tree == "flexible":
        return flexible_tree_of(spectrum(affinity), settings.tree_constant)
    return binary_tree_of(affinity, settings.balance, np.random.default_rng(0))


def _inner_folders(tree: PartitionTree) -> dict[tuple[int, ...], int]:
    """Leaves of each distinct folder that is neither everything nor one leaf, with its uppermost node."""
    folders = tree.distinct
    inner = np.flatnonzero(~folders.is_leaf)[1:]
    return {
        tuple(np.flatnonzero(tree.nodes[folders.level[i]] == folders.node[i]).tolist()): int(folders.node[i])
        for i in inner
    }
