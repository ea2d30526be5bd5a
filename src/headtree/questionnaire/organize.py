"""The loop of the questionnaire, algorithm 1 of [OA], for arrays with any number of axes."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from headtree import _checks
from headtree._lazy_array import LazyArray, ScaledBlocks, scaled_blocks
from headtree._memory import SHARE, available_memory, format_bytes
from headtree._threads import sleeping_threads
from headtree.errors import HeadtreeWarning, InvalidTypeError, InvalidValueError
from headtree.geometry.affinity import (
    distance_affinity,
    initial_affinity,
    median_distance,
    perturbed,
    sampled_affinity,
    slice_powers,
)
from headtree.geometry.diffusion import Spectrum, spectrum
from headtree.geometry.emd import emd_matrix
from headtree.geometry.grow_tree import binary_tree_of, flexible_tree_of
from headtree.geometry.sampled_emd import SampledDistances, n_differences, sampled_emd
from headtree.progress import progress
from headtree.questionnaire.landmarks import Landmarks, Some, chosen_landmarks, joined, part_of
from headtree.questionnaire.organization import Iteration, Organization, PerAxis, Status
from headtree.questionnaire.settings import EXACT_PRODUCTS, LARGEST_ERROR, MOST_SAMPLES, SAMPLES, Questionnaire
from headtree.tensor.attention_tensor import AttentionTensor
from headtree.trees.compare import tree_distance
from headtree.trees.tree import PartitionTree

Tree = TypeVar("Tree", PartitionTree, PartitionTree | None)

#: Copies of an array, as read, scaled, and in sums of folders, that are in memory together.
_COPIES = 3

#: Most folder tuples whose sums are all made on a GPU.
_TUPLES_ON_GPU = 2 * 10**7


def organize(
    att: AttentionTensor,
    questionnaire: Questionnaire | None = None,
    *,
    device: str | torch.device | None = None,
    memory: float | None = None,
) -> Organization:
    """Organize the heads, queries and keys of an attention tensor: `organize_array` with named axes.

    Examples
    --------
    >>> import headtree as ht
    >>> import numpy as np
    >>> scores = np.random.default_rng(0).normal(size=(4, 6, 6))
    >>> org = ht.organize(ht.AttentionTensor.from_array(scores))
    >>> org.names, org.shape
    (('head', 'query', 'key'), (4, 6, 6))
    >>> org.trees.head
    PartitionTree(4 leaves; folders by level: 1 2 4)
    """
    if not isinstance(att, AttentionTensor):
        raise InvalidTypeError(
            f"att must be an AttentionTensor, got {type(att).__name__}; wrap an array with "
            "AttentionTensor.from_array, or use organize_array"
        )
    return organize_array(
        att.values, questionnaire, mask=att.mask, names=("head", "query", "key"), device=device, memory=memory
    )


def organize_array(
    x: Any,
    questionnaire: Questionnaire | None = None,
    *,
    mask: Any = None,
    names: Sequence[str] | None = None,
    device: str | torch.device | None = None,
    memory: float | None = None,
) -> Organization:
    """Organize all axes of an array by coupled partition trees.

    First, the slices along all axes but one get a tree from a simple affinity. Then every axis is reorganized
    `n_iter` times: the tree earth mover's distance between its slices, computed with the newest trees on the other
    axes, is turned into an affinity, and the affinity into a tree.

    Parameters
    ----------
    x : array or tensor
        Real, with two or more axes. The mask of a numpy masked array is used.
    questionnaire : Questionnaire, optional
        The settings.
    mask : array of bool, optional
        True for missing entries (as in numpy.ma); broadcast against `x`.
    names : sequence of str, optional
        Names of the axes in the result; by default "axis0", "axis1", …
    device : str or torch.device, optional
        Where distances and affinities are computed, "cpu" or "cuda"; by default on the GPU if `x` is there. The
        result is on the CPU.
    memory : float, optional
        Bytes that blocks of `x` may take if it is on disk or held as factors; by default 80 % of what is free on
        the device. If all of it does not fit, it is read in blocks, again for each axis and iteration.

    Returns
    -------
    Organization
        The same input gives the same trees on every run and with any number of threads (for an integer `rng`; on a
        GPU up to rounding). Permuted slices give permuted trees, unless distances tie to within rounding, or, where
        distances are sampled or there are landmarks, sums of squares of slices. Slices without any entry tie.

    Examples
    --------
    Rows 0, 2, 4 and rows 1, 3, 5 have the same pattern, except for noise:

    >>> import headtree as ht
    >>> import numpy as np
    >>> groups = np.array([0, 1, 0, 1, 0, 1])
    >>> x = (groups[:, None] == groups[:4]) + np.random.default_rng(0).normal(size=(6, 4)) / 100
    >>> org = ht.organize_array(x)
    >>> org.order(0).tolist()
    [0, 2, 4, 1, 3, 5]
    """
    settings = Questionnaire() if questionnaire is None else questionnaire
    if not isinstance(settings, Questionnaire):
        raise InvalidTypeError(f"questionnaire must be a Questionnaire, got {type(settings).__name__}")
    array = _scaled(x, mask, _device_for(x, device), memory)
    names = _axis_names(names, array.values.ndim)
    initial_axes, order = settings.axis_order(array.values.ndim)
    slices = chosen_landmarks(array.values, settings)
    loop = _Loop(*_landmarks_only(array, slices), names, settings, tuple(some is not None for some in slices))
    history: list[Iteration] = []
    n_steps = len(initial_axes) + settings.n_iter * len(order) + sum(loop.has_landmarks)
    with sleeping_threads(), progress("organizing", n_steps) as step:
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
        loop.note_unsteady_trees()
        landmarks: list[Landmarks | None] = [None] * len(names)
        for axis in [i for i, has_them in enumerate(loop.has_landmarks) if has_them]:
            landmarks[axis] = loop.extend(axis, array, slices)
            step(names[axis])
    status = _status(initial, history, loop)
    history = [Iteration(_on_all_slices(each.trees, landmarks), each.moved) for each in history]
    return Organization(
        trees=history[-1].trees,
        affinities=PerAxis(names, [affinity.cpu().numpy() for affinity in loop.affinities]),
        distances=PerAxis(names, [array.in_units(distances) for distances in loop.distances]),
        coordinates=PerAxis(names, [points.cpu().numpy() for points in loop.coordinates]),
        initial_trees=_on_all_slices(PerAxis(names, initial), landmarks),
        history=tuple(history),
        status=status,
        settings=settings,
        landmarks=PerAxis(names, landmarks),
    )


class _FolderDraws(NamedTuple):
    """What distances were sampled with: the generator before the draws, and their number for a tuple of levels."""

    rng: np.random.Generator
    samples: int | None  #: None for exact distances


@dataclass
class _Loop:
    """The array and the newest trees, affinities and distances of its axes."""

    values: Float[Tensor, "..."] | ScaledBlocks
    missing: Bool[Tensor, "..."] | None
    names: tuple[str, ...]
    settings: Questionnaire
    has_landmarks: tuple[bool, ...]  #: whether the slices of an axis are landmarks of more

    def __post_init__(self) -> None:
        n_axes = self.values.ndim
        self.trees: list[PartitionTree | None] = [None] * n_axes
        self.affinities: list[Tensor] = [torch.empty(0)] * n_axes
        self.coordinates: list[Tensor] = [torch.empty(0)] * n_axes
        self.distances: list[Tensor] = [torch.empty(0)] * n_axes
        self.notes: dict[str, None] = {}
        self.errors: dict[int, float] = {}  #: of sampled distances, relative
        self._rng = _checks.generator(self.settings.rng)
        self._made_from: list[list[PartitionTree] | None] = [None] * n_axes
        self._made_with = [_FolderDraws(self._rng, None)] * n_axes  #: of the distances
        self._spectra: list[Spectrum | None] = [None] * n_axes
        if self.missing is not None:
            self._note_hidden_slices(self.missing)

    def start(self, axis: int) -> None:
        """Give an axis its first tree."""
        kind, found = self.settings.initial, None
        if self.settings.samples is not None:
            found = sampled_affinity(kind, self.values, axis, self.missing, self.powers, EXACT_PRODUCTS)
        if found is not None:
            other = found.other_axis
            some = f"{found.n_taken} of {self.values.shape[other]} {self.names[other]} slices"
            self.notes[
                f"first affinities of {self.names[axis]}: from {some}, with an error of {found.error:.2g}"
            ] = None
        if found is None:
            self._grow(axis, initial_affinity(kind, self.values, axis, self.missing))
        else:
            self._grow(axis, found.affinity)

    def update(self, axis: int, trees: Sequence[PartitionTree | None]) -> None:
        """Organize an axis from the trees on the others; skip it if these are the same as last time."""
        others = [tree for i, tree in enumerate(trees) if i != axis and tree is not None]
        if others == self._made_from[axis] and self.settings.balance == 1:
            return
        self.distances[axis] = self.affinities[axis] = torch.empty(0)  # make room
        draws = _FolderDraws(self._rng, self._samples(self.values, axis, others))
        (distances, error), self._made_with[axis] = self._tree_distances(
            axis, others, self.values, self.missing, draws
        )
        self.errors.pop(axis, None)
        if error is not None:
            self.errors[axis] = error
        affinity = distance_affinity(distances)
        if affinity is None:
            self._note_equal_slices(axis)
            affinity = torch.ones_like(distances)
        self.distances[axis], self._made_from[axis] = distances, others
        self._grow(axis, affinity)

    def extend(self, axis: int, array: _checks.ScaledArray, slices: Sequence[Some]) -> Landmarks:
        """Place all slices of an axis by their distances to its landmarks, made as those between landmarks were."""
        own, pairs, trees = slices[axis], self._spectra[axis], self._made_from[axis]
        if own is None or pairs is None or trees is None:
            raise ValueError(f"axis {axis} has no landmarks that are organized")
        n, n_own = array.values.shape[axis], len(own)
        order = np.concatenate([own, np.setdiff1d(np.arange(n), own)])
        values, missing = part_of(array.values, array.missing, [*slices[:axis], order, *slices[axis + 1 :]])
        samples, before = self._samples(values, axis, trees, n_own), self._made_with[axis]
        if samples is not None and before.samples is not None:
            samples = max(samples, before.samples)
        draws = _FolderDraws(before.rng, samples)
        (distances, error), _ = self._tree_distances(axis, trees, values, missing, draws, n_own)
        between = self.distances[axis]
        nearest, points = joined(distances, median_distance(between), self.affinities[axis], pairs)
        nearest[:n_own] = np.arange(n_own)
        points[:n_own] = self.coordinates[axis]
        self._note_landmarks(axis, distances[:, n_own:], between, error)
        back = np.argsort(order)
        self.coordinates[axis] = points[torch.from_numpy(back).to(points.device)]
        return Landmarks(own, nearest[back])

    def _samples(
        self,
        values: Float[Tensor, "..."] | ScaledBlocks,
        axis: int,
        trees: Sequence[PartitionTree],
        n_first: int | None = None,
    ) -> int | None:
        """Folder tuples to draw at first; None for exact distances."""
        samples = self.settings.samples_for(n_differences(values.shape[axis], trees, n_first), values.numel())
        if samples is None and values.is_cuda and self.settings.samples == "auto" and not _fits_on_gpu(trees):
            return SAMPLES
        return samples

    def _tree_distances(
        self,
        axis: int,
        trees: list[PartitionTree],
        values: Float[Tensor, "..."] | ScaledBlocks,
        missing: Bool[Tensor, "..."] | None,
        draws: _FolderDraws,
        n_first: int | None = None,
    ) -> tuple[SampledDistances, _FolderDraws]:
        """Distances between slices of `values`, or between the first and all, and the draws they come from.

        If the number of draws is the default, there are more until the error is small.
        """
        s = self.settings
        if draws.samples is None and not (values.is_cuda and _fits_on_gpu(trees)):
            whole = _whole(values).cpu()
            found = emd_matrix(whole, axis, trees, s.alpha, s.beta, s.weights, missing, n_first)
            return SampledDistances(found.to(values.device), None), draws
        # an order that comes from the data: permuted slices then have the same folders drawn
        orders = [
            tree.order(self.powers[i].cpu().numpy())
            for tree, i in zip(trees, [i for i in range(self.values.ndim) if i != axis], strict=True)
        ]
        weights, samples = (s.alpha, s.beta, s.weights), draws.samples
        while True:
            made_with = _FolderDraws(copy.deepcopy(draws.rng), samples)
            sampled = sampled_emd(
                values, axis, trees, orders, *weights, missing, samples=samples, rng=draws.rng, n_first=n_first
            )
            error = sampled.relative_error
            is_enough = s.samples != "auto" or error is None or not error > LARGEST_ERROR
            if samples is None or is_enough or samples >= MOST_SAMPLES:
                return sampled, made_with
            samples *= 4

    @cached_property
    def powers(self) -> list[Float[Tensor, " _slice"]]:
        """Sums of squares of the slices along each axis."""
        return slice_powers(self.values)

    def newest_trees(self) -> list[PartitionTree]:
        """Return all trees, once every axis has one."""
        return [tree for tree in self.trees if tree is not None]

    def _grow(self, axis: int, affinity: Float[Tensor, "slice slice"]) -> None:
        pairs = spectrum(affinity)
        self.affinities[axis], self._spectra[axis] = affinity, pairs
        self.coordinates[axis] = pairs.functions * pairs.eigenvalues
        if self.settings.tree == "flexible":
            self.trees[axis] = flexible_tree_of(pairs, self.settings.tree_constant)
        else:
            self.trees[axis] = binary_tree_of(affinity, self.settings.balance, self._rng)

    def note_unsteady_trees(self) -> None:
        """Add a note for each axis whose tree moves if its distances change by their sampling error."""
        for axis, error in self.errors.items():
            tree = self.trees[axis]
            if tree is None or math.isnan(error) or self.settings.tree != "flexible":
                continue
            changed = distance_affinity(perturbed(self.distances[axis], error, np.random.default_rng(0)))
            if changed is None:
                continue
            moved = tree_distance(tree, flexible_tree_of(spectrum(changed), self.settings.tree_constant))
            if moved > 0:
                self.notes[
                    f"the sampling error of {error:.2g} alone may move the tree of {self.names[axis]}, by a tree "
                    f"distance of about {moved:.2g}"
                ] = None

    def _note_landmarks(
        self,
        axis: int,
        others: Float[Tensor, "landmark slice"],
        between: Float[Tensor, "landmark landmark"],
        error: float | None,
    ) -> None:
        """Say how near the landmarks are to the other slices."""
        name, n_own, n_others = self.names[axis], *others.shape
        nearest, known = others.amin(dim=0), between[between.isfinite() & (between > 0)]
        is_near = nearest.isfinite()
        note = f"{name}: {n_own:,} landmarks of {n_own + n_others:,}"
        if is_near.any() and len(known):
            ratio = float(nearest[is_near].mean() / known.mean())
            note += f", the others at {ratio:.2g} of the landmarks' mean distance from their nearest"
        if error is not None and axis not in self.errors:
            note += f", sampled with a relative error of {error:.1%}"
        self.notes[note] = None
        n_far = int((~is_near).sum())
        if n_far:
            which = "1 slice has" if n_far == 1 else f"{n_far:,} slices have"
            self.notes[f"{name}: {which} no entry in common with any landmark: alone below the root"] = None

    def _note_equal_slices(self, axis: int) -> None:
        hidden = "" if self.missing is None else " that have entries"
        note = f"all {self._word(axis)}s along {self.names[axis]}{hidden} are equal: its tree is flat"
        if axis in self.errors:
            note = f"the sample shows no difference between slices along {self.names[axis]}: its tree is flat"
        if note not in self.notes and self.values.shape[axis] > 1:
            warnings.warn(note, HeadtreeWarning, stacklevel=4)
            self.notes[note] = None

    def _note_hidden_slices(self, missing: Bool[Tensor, "..."]) -> None:
        for axis, name in enumerate(self.names):
            others = [i for i in range(missing.ndim) if i != axis]
            n_hidden = int(_checks.unshared(missing).amin(dim=others).sum())
            if n_hidden:
                which = f"{n_hidden} {self._word(axis)}{'s' * (n_hidden > 1)}"
                self.notes[f"along {name}, {which} entirely missing: affinity 0 with all others"] = None

    def _word(self, axis: int) -> str:
        return "landmark" if self.has_landmarks[axis] else "slice"


def _scaled(x: Any, mask: Any, device: torch.device, memory: float | None) -> _checks.ScaledArray:
    """The checked array: in memory, or in blocks if it is lazy and does not fit."""
    if memory is not None:
        _checks.positive(memory, "memory")
    if isinstance(x, LazyArray):
        allowed = SHARE * _free_memory(device) if memory is None else memory
        if _COPIES * 4 * math.prod(x.shape) > allowed:
            if x.ndim < 2:
                raise InvalidValueError(f"x must have at least 2 axes, got shape {x.shape}")
            blocks = scaled_blocks(x, "x", mask, device, allowed)
            return _checks.ScaledArray(blocks, blocks.missing, blocks.exponent)
        x = x.read((slice(None),) * x.ndim, device)
    return _checks.scaled_array(x, "x", mask=mask, min_axes=2, device=device)


def _landmarks_only(
    array: _checks.ScaledArray, slices: Sequence[Some]
) -> tuple[Float[Tensor, "..."] | ScaledBlocks, Bool[Tensor, "..."] | None]:
    """The array of landmarks, in memory if it fits, and its mask."""
    values, missing = part_of(array.values, array.missing, slices)
    if isinstance(values, ScaledBlocks) and values.chosen and 2 * _needed(values) <= values.memory:
        values = values.block(*[slice(None)] * values.ndim)
    return values, missing


def _on_all_slices(trees: PerAxis[Tree], landmarks: Sequence[Landmarks | None]) -> PerAxis[Tree]:
    """Trees on all slices of each axis."""
    return PerAxis(
        trees.names,
        [
            tree if tree is None or own is None else own.extended(tree)
            for tree, own in zip(trees, landmarks, strict=True)
        ],
    )


def _fits_on_gpu(trees: Sequence[PartitionTree]) -> bool:
    return math.prod(len(tree.distinct) for tree in trees) <= _TUPLES_ON_GPU


def _needed(values: ScaledBlocks) -> int:
    """Bytes of an array with its copies."""
    return _COPIES * values.dtype.itemsize * values.numel()


def _whole(values: Tensor | ScaledBlocks) -> Float[Tensor, "..."]:
    """All of an array, if there is memory for it."""
    if isinstance(values, Tensor):
        return values
    needed = _needed(values)
    if needed > values.memory:
        raise InvalidValueError(
            f"memory must hold all of x for exact distances, about {format_bytes(needed)}, got "
            f"{format_bytes(int(values.memory))}; pass Questionnaire(samples=256), or raise memory"
        )
    return values.block(*[slice(None)] * values.ndim)


def _free_memory(device: torch.device) -> int:
    if device.type != "cuda":
        return available_memory()
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def _device_for(x: Any, device: Any) -> torch.device:
    """Where to compute: on the device asked for, or on the GPU if the array is there."""
    found = _checks.checked_device(device)
    if found is None:
        found = x.device if isinstance(x, Tensor) and x.is_cuda else torch.device("cpu")
    if found.type not in ("cpu", "cuda"):
        raise InvalidValueError(f"device must be 'cpu' or a GPU of CUDA, got {str(found)!r}; use 'cpu'")
    if found.type == "cuda" and hasattr(x, "shape") and not isinstance(x, LazyArray):
        needed, free = 8 * math.prod(x.shape), _free_memory(found)
        if needed > free:
            raise InvalidValueError(
                f"x of shape {tuple(x.shape)} needs about {needed / 1e9:.1f} GB on {str(found)!r}, which has "
                f"{free / 1e9:.1f} GB free; organize a part of it, or pass device='cpu'"
            )
    return found


def _axis_names(names: Sequence[str] | None, n_axes: int) -> tuple[str, ...]:
    result = tuple(f"axis{i}" for i in range(n_axes))
    if names is not None:
        result = tuple(_checks.as_list(names, "names", "strings"))
    if not all(isinstance(name, str) for name in result) or len(set(result)) != n_axes or len(result) != n_axes:
        raise InvalidValueError(f"names must be {n_axes} different strings, one per axis, got {names!r}")
    return result


def _status(initial: list[PartitionTree | None], history: list[Iteration], loop: _Loop) -> Status:
    n = len(history)
    before = initial if n == 1 else list(history[-2].trees)
    settled = before == list(history[-1].trees)
    if settled:
        message = f"settled: the last of {n} iterations changed no tree"
    else:
        farthest = max(history[-1].moved, key=lambda d: -1.0 if math.isnan(d) else d)
        message = (
            f"not settled after {n} iterations: trees still moved by up to {farthest:.2g} in tree distance; "
            "a larger n_iter may help, but the trees of noisy data never settle"
        )
    errors = {loop.names[axis]: error for axis, error in loop.errors.items()}
    exact = tuple(name for name in loop.names if name not in errors)
    return Status(settled, message, tuple(loop.notes), errors, exact)
