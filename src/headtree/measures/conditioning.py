"""How steady a tree is: how far it moves when its affinity changes a little."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float

from headtree import _checks
from headtree.errors import InvalidTypeError, InvalidValueError
from headtree.geometry.affinity import perturbed
from headtree.geometry.diffusion import spectrum
from headtree.geometry.grow_tree import binary_tree_of, flexible_tree_of
from headtree.progress import progress
from headtree.questionnaire.organization import Organization
from headtree.trees.compare import tree_distance


@dataclass(frozen=True, eq=False)
class TreeConditioning:
    """How far a tree moved in each trial, by the size of the perturbation of its affinity.

    Examples
    --------
    >>> import headtree as ht
    >>> import numpy as np
    >>> org = ht.organize_array(np.random.default_rng(0).normal(size=(6, 8)))
    >>> ht.tree_conditioning(org, sizes=[0.0], n_trials=2)
    TreeConditioning(axis0: tree distance after a change of the affinity by 0: 0)
    """

    axis: str
    sizes: tuple[float, ...]
    moved: Float[np.ndarray, "size trial"]  #: tree distance between the tree and the one after the perturbation

    @property
    def mean(self) -> Float[np.ndarray, " size"]:
        """Mean tree distance for each size."""
        return np.asarray(self.moved.mean(axis=1))

    def __repr__(self) -> str:
        steps = ", ".join(f"{size:g}: {mean:.2g}" for size, mean in zip(self.sizes, self.mean, strict=True))
        return f"TreeConditioning({self.axis}: tree distance after a change of the affinity by {steps})"


def tree_conditioning(
    org: Organization,
    axis: int | str = 0,
    sizes: Sequence[float] = (1e-3, 1e-2),
    rng: int | np.random.Generator = 0,
    *,
    n_trials: int = 10,
) -> TreeConditioning:
    """Tree distance between the tree of an axis and the tree after small perturbations of its affinity.

    The affinity between every two slices is multiplied by 1 + size · z, z standard normal and independent for every
    pair, and the tree is grown again with the same settings. The flexible tree joins the nearest clusters first, so
    one changed order of two distances can move whole folders: a tree distance far above the size of the
    perturbation is the rule. Folders that matter are those that hold on other inputs, see `consensus`. Of an
    axis with landmarks, it is their tree that is grown again.

    Parameters
    ----------
    org : Organization
        The result of `organize` or `organize_array`.
    axis : int or str
        Number or name of the axis.
    sizes : sequence of float
        Relative sizes of the perturbations, between 0 and 1.
    rng : int or numpy Generator
        Draws the perturbations.
    n_trials : int
        Number of perturbations of each size.

    Examples
    --------
    Three groups of rows that differ much hold; noise does not:

    >>> import headtree as ht
    >>> import numpy as np
    >>> noise = np.random.default_rng(0).normal(size=(12, 20))
    >>> rows = np.repeat(np.random.default_rng(1).normal(size=(3, 20)), 4, axis=0)
    >>> firm, loose = (ht.organize_array(x) for x in (rows + 0.01 * noise, noise))
    >>> bool(ht.tree_conditioning(firm).mean[0] < ht.tree_conditioning(loose, sizes=[0.1]).mean[0])
    True
    """
    if not isinstance(org, Organization):
        raise InvalidTypeError(f"org must be an Organization, got {type(org).__name__}; use organize first")
    number = org.trees.position(axis)
    chosen = tuple(_checked_size(size) for size in _checks.as_list(sizes, "sizes", "numbers"))
    if not chosen:
        raise InvalidValueError("sizes must have at least one number, got none; leave it out for 0.001 and 0.01")
    generator, n_trials = _checks.generator(rng), _checks.at_least_one(n_trials, "n_trials")
    affinity, tree, settings = torch.from_numpy(org.affinities[number]), org.trees[number], org.settings
    own = org.landmarks[number]
    tree = tree if own is None else own.of_landmarks(tree)
    moved = np.empty((len(chosen), n_trials))
    with progress("perturbing", moved.size) as step:
        for i, size in enumerate(chosen):
            for trial in range(n_trials):
                changed = perturbed(affinity, size, generator)
                grown = (
                    flexible_tree_of(spectrum(changed), settings.tree_constant)
                    if settings.tree == "flexible"
                    else binary_tree_of(changed, settings.balance, generator)
                )
                moved[i, trial] = tree_distance(tree, grown)
                step(f"size {size:g}")
    return TreeConditioning(org.names[number], chosen, moved)


def _checked_size(size: float) -> float:
    if not 0 <= _checks.finite_number(size, "sizes") <= 1:
        raise InvalidValueError(f"sizes must be between 0 and 1, got {size}; 0.01 is one per cent")
    return float(size)
