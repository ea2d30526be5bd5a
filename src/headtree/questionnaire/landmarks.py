"""Landmarks of long axes: which slices they are, and where the other slices belong once these are organized."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headtree import _checks
from headtree._lazy_array import ScaledBlocks, picked, taken
from headtree.errors import InvalidValueError
from headtree.geometry.affinity import slice_powers
from headtree.geometry.diffusion import Spectrum, extended_coordinates
from headtree.questionnaire.settings import Questionnaire
from headtree.trees.tree import PartitionTree

#: Slices of an axis, or None for all.
Some = Int[np.ndarray, " _slice"] | None


@dataclass(frozen=True, eq=False)
class Landmarks:
    """The slices of an axis that were compared with each other, and the nearest of them to each slice."""

    slices: Int[np.ndarray, " landmark"]  #: numbers of these slices, ascending
    nearest: Int[np.ndarray, " slice"]  #: position in `slices` of the nearest; -1: no entry in common with any

    def extended(self, tree: PartitionTree) -> PartitionTree:
        """The tree of landmarks with all slices as leaves.

        A landmark becomes a folder of the slices nearest to it, and a flat tree stays flat. A slice that has no
        entry in common with any landmark is alone below the root.
        """
        n = len(self.nearest)
        if tree.n_levels < 3:
            return PartitionTree.flat(n)
        labels = np.where(self.nearest >= 0, tree.labels[:, self.nearest], tree.n_leaves + np.arange(n))
        labels[0] = 0
        return PartitionTree(np.concatenate([labels, np.arange(n)[None]]))

    def of_landmarks(self, tree: PartitionTree) -> PartitionTree:
        """An extended tree with the landmarks as its only leaves."""
        labels = tree.labels[:, self.slices]
        return PartitionTree(labels[:-1] if tree.n_levels > 2 else labels)


def chosen_landmarks(values: Float[Tensor, "..."] | ScaledBlocks, settings: Questionnaire) -> list[Some]:
    """The landmarks of each axis, or None for all its slices."""
    counts = settings.landmarks_for(tuple(values.shape))
    if not any(counts):
        return [None] * len(counts)
    powers = slice_powers(values)
    return [None if n is None else spread_by_power(each, n) for n, each in zip(counts, powers, strict=True)]


def spread_by_power(powers: Float[Tensor, " slice"], n: int) -> Int[np.ndarray, " landmark"]:
    """`n` slices at equal steps of the rank of their power: permuted slices have the same ones, ties excepted."""
    ranked = powers.argsort(descending=True, stable=True).cpu().numpy()
    return np.sort(ranked[((np.arange(n) + 0.5) * len(ranked) / n).astype(np.int64)])


def part_of(
    values: Float[Tensor, "..."] | ScaledBlocks, missing: Bool[Tensor, "..."] | None, index: Sequence[Some]
) -> tuple[Float[Tensor, "..."] | ScaledBlocks, Bool[Tensor, "..."] | None]:
    """Some slices along each axis of an array and of its mask."""
    hidden = None if missing is None else _checks.unshared(missing)
    for axis, some in enumerate(index):
        if some is None:
            continue
        values = taken(values, axis, torch.from_numpy(some))
        hidden = None if hidden is None else picked(hidden, axis, some)
    if hidden is not None and hidden.all():
        raise InvalidValueError(
            f"landmarks must have entries, but all {' × '.join(map(str, values.shape))} entries that they have in "
            "common are missing; take more landmarks, or None"
        )
    return values, _checks.missing_entries(hidden, "x", tuple(values.shape))


def joined(
    distances: Float[Tensor, "landmark slice"],
    width: float | None,
    affinity: Float[Tensor, "landmark landmark"],
    pairs: Spectrum,
) -> tuple[Int[np.ndarray, " slice"], Float[Tensor, "slice component"]]:
    """The nearest landmark of each slice, the first of equals or -1, and the slices' diffusion coordinates.

    Distances to landmarks become affinities as those between landmarks did, by `width`. A slice too far from all of
    them for an affinity has the coordinates of the nearest; one at infinite distance from all has zeros.
    """
    nearest = distances.argmin(dim=0)
    is_near = distances.amin(dim=0).isfinite()
    new = torch.ones_like(distances) if width is None else torch.exp(-distances / width)
    points = extended_coordinates(affinity, pairs, new.T)
    of_nearest = (pairs.functions * pairs.eigenvalues)[nearest.to(points.device)]
    of_nearest = of_nearest.masked_fill(~is_near[:, None].to(points.device), 0)
    points = torch.where(points.isnan(), of_nearest, points)
    return nearest.masked_fill(~is_near, -1).cpu().numpy(), points
