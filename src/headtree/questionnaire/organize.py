"""The questionnaire's loop, algorithm 1 of [OA], for arrays of any number of axes."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from headtree import _checks
from headtree.errors import HeadtreeWarning, InvalidTypeError, InvalidValueError
from headtree.geometry.affinity import distance_affinity, initial_affinity
from headtree.geometry.diffusion import spectrum
from headtree.geometry.emd import emd_matrix
from headtree.geometry.grow_tree import binary_tree_of, flexible_tree_of
from headtree.progress import progress
from headtree.questionnaire.organization import Iteration, Organization, PerAxis, Status
from headtree.questionnaire.settings import Questionnaire
from headtree.tensor.attention_tensor import AttentionTensor
from headtree.trees.compare import tree_distance
from headtree.trees.tree import PartitionTree


def organize(att: AttentionTensor, questionnaire: Questionnaire | None = None) -> Organization:
    """Organize the heads, queries and keys of a network tensor: `organize_array` with names for the axes."""
    if not isinstance(att, AttentionTensor):
        raise InvalidTypeError(
            f"att must be an AttentionTensor, got {type(att).__name__}; wrap an array with "
            "AttentionTensor.from_array, or use organize_array"
        )
    return organize_array(att.values, questionnaire, mask=att.mask, names=("head", "query", "key"))


def organize_array(
    x: Any,
    questionnaire: Questionnaire | None = None,
    *,
    mask: Any = None,
    names: Sequence[str] | None = None,
) -> Organization:
    """Organize all axes of an array by coupled partition trees.

    First the slices along all axes but one get a tree from a plain affinity. Then, `n_iter` times, every axis is
    organized anew: the tree distance between its slices, with the newest trees on the other axes, becomes an
    affinity, and that a tree.

    Parameters
    ----------
    x : array or tensor
        Real, of two or more axes; numpy masked arrays bring their mask along.
    questionnaire : Questionnaire, optional
        The settings.
    mask : array of bool, optional
        True where an entry is missing (as in numpy.ma); broadcast against `x`.
    names : sequence of str, optional
        Names of the axes in the result; "axis0", "axis1", … without it.

    Returns
    -------
    Organization
        The same trees for the same input on every run and any number of threads, and permuted trees for permuted
        slices, unless distances tie to rounding.
    """
    settings = Questionnaire() if questionnaire is None else questionnaire
    if not isinstance(settings, Questionnaire):
        raise InvalidTypeError(f"questionnaire must be a Questionnaire, got {type(settings).__name__}")
    array = _checks.scaled_array(x, "x", mask=mask, min_axes=2)
    names = _axis_names(names, array.values.ndim)
    initial_axes, order = settings.axis_order(array.values.ndim)
    loop = _Loop(array.values, array.missing, names, settings)
    history: list[Iteration] = []
    with progress("organizing", len(initial_axes) + settings.n_iter * len(order)) as step:
        for axis in initial_axes:
            loop.start(axis)
            step(names[axis])
        initial = list(loop.trees)
        for _ in range(settings.n_iter):
            before = list(loop.trees)
            for position, axis in enumerate(order):
                is_head = position == 0 and settings.head_from == "initial"
                loop.update(axis, initial if is_head else loop.trees)
                step(names[axis])
            trees = loop.newest_trees()
            moved = [
                math.nan if old is None else tree_distance(old, new) for old, new in zip(before, trees, strict=True)
            ]
            history.append(Iteration(PerAxis(names, trees), PerAxis(names, moved)))
            settled = before == trees
    return Organization(
        trees=history[-1].trees,
        affinities=PerAxis(names, [affinity.numpy() for affinity in loop.affinities]),
        distances=PerAxis(names, [array.in_units(distances) for distances in loop.distances]),
        coordinates=PerAxis(names, [points.numpy() for points in loop.coordinates]),
        initial_trees=PerAxis(names, initial),
        history=tuple(history),
        status=_status(settled, history, loop.notes),
        settings=settings,
    )


@dataclass
class _Loop:
    """The array and the newest trees, affinities and distances of its axes."""

    values: Float[Tensor, "..."]
    missing: Bool[Tensor, "..."] | None
    names: tuple[str, ...]
    settings: Questionnaire

    def __post_init__(self) -> None:
        n_axes = self.values.ndim
        self.trees: list[PartitionTree | None] = [None] * n_axes
        self.affinities: list[Tensor] = [torch.empty(0)] * n_axes
        self.coordinates: list[Tensor] = [torch.empty(0)] * n_axes
        self.distances: list[Tensor] = [torch.empty(0)] * n_axes
        self.notes: dict[str, None] = {}
        self._rng = _checks.generator(self.settings.rng)
        self._made_from: list[list[PartitionTree] | None] = [None] * n_axes
        if self.missing is not None:
            self._note_hidden_slices(self.missing)

    def start(self, axis: int) -> None:
        """Give an axis its first tree."""
        self._grow(axis, initial_affinity(self.settings.initial, self.values, axis, self.missing))

    def update(self, axis: int, trees: Sequence[PartitionTree | None]) -> None:
        """Organize an axis from trees on the others; nothing to do if these are the trees of the last time."""
        others = [tree for i, tree in enumerate(trees) if i != axis and tree is not None]
        if others == self._made_from[axis] and self.settings.balance == 1:
            return
        s = self.settings
        distances = emd_matrix(self.values, axis, others, s.alpha, s.beta, s.weights, self.missing)
        affinity = distance_affinity(distances)
        if affinity is None:
            self._note_equal_slices(axis)
            affinity = torch.ones_like(distances)
        self.distances[axis], self._made_from[axis] = distances, others
        self._grow(axis, affinity)

    def newest_trees(self) -> list[PartitionTree]:
        """All trees, once every axis has one."""
        return [tree for tree in self.trees if tree is not None]

    def _grow(self, axis: int, affinity: Float[Tensor, "slice slice"]) -> None:
        pairs = spectrum(affinity)
        self.affinities[axis] = affinity
        self.coordinates[axis] = pairs.functions * pairs.eigenvalues
        if self.settings.tree == "flexible":
            self.trees[axis] = flexible_tree_of(pairs, self.settings.tree_constant)
        else:
            self.trees[axis] = binary_tree_of(affinity, self.settings.balance, self._rng)

    def _note_equal_slices(self, axis: int) -> None:
        hidden = "" if self.missing is None else " that have entries"
        note = f"all slices along {self.names[axis]}{hidden} are equal: its tree is one flat folder"
        if note not in self.notes and self.values.shape[axis] > 1:
            warnings.warn(note, HeadtreeWarning, stacklevel=4)
            self.notes[note] = None

    def _note_hidden_slices(self, missing: Bool[Tensor, "..."]) -> None:
        for axis, name in enumerate(self.names):
            others = [i for i in range(missing.ndim) if i != axis]
            n_hidden = int(_checks.unshared(missing).amin(dim=others).sum())
            if n_hidden:
                which = "1 slice" if n_hidden == 1 else f"{n_hidden} slices"
                self.notes[f"along {name}, {which} wholly missing: affinity 0 with all others"] = None


def _axis_names(names: Sequence[str] | None, n_axes: int) -> tuple[str, ...]:
    result = tuple(f"axis{i}" for i in range(n_axes)) if names is None else tuple(names)
    if len(result) != n_axes or len(set(result)) != n_axes or not all(isinstance(name, str) for name in result):
        raise InvalidValueError(f"names must be {n_axes} different strings, one for each axis, got {names!r}")
    return result


def _status(settled: bool, history: list[Iteration], notes: dict[str, None]) -> Status:
    n = len(history)
    if settled:
        message = f"settled: the last of {n} iterations changed no tree"
    else:
        farthest = max(history[-1].moved, key=lambda d: -1.0 if math.isnan(d) else d)
        message = (
            f"still moving after {n} iterations, by up to {farthest:.2g} in tree distance; "
            "a larger n_iter may settle it, but trees of noisy data never do"
        )
    return Status(settled, message, tuple(notes))
