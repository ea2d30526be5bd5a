"""What the questionnaire returns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, overload

import numpy as np
from jaxtyping import Float, Int

from headtree import _checks, _notebook
from headtree.errors import InvalidValueError
from headtree.questionnaire.settings import Questionnaire
from headtree.trees.tree import PartitionTree

T = TypeVar("T")


class PerAxis(Sequence[T], Generic[T]):
    """One thing for each axis, by position (``trees[0]``), by name (``trees["head"]``, ``trees.head``)."""

    __slots__ = ("_items", "names")

    names: tuple[str, ...]
    _items: dict[str, T]

    def __init__(self, names: Sequence[str], items: Sequence[T]) -> None:
        object.__setattr__(self, "names", tuple(names))
        object.__setattr__(self, "_items", dict(zip(names, items, strict=True)))

    def position(self, axis: int | str) -> int:
        """Position of an axis given by position or name."""
        if isinstance(axis, str):
            if axis not in self.names:
                raise InvalidValueError(f"axis must be one of {self.names} or a position, got {axis!r}")
            return self.names.index(axis)
        return _checks.axis_index(axis, len(self.names))

    @overload
    def __getitem__(self, axis: int | str) -> T: ...
    @overload
    def __getitem__(self, axis: slice) -> tuple[T, ...]: ...
    def __getitem__(self, axis: int | str | slice) -> T | tuple[T, ...]:
        if isinstance(axis, slice):
            return tuple(self._items.values())[axis]
        if not isinstance(axis, str) and not -len(self) <= axis < len(self):
            raise IndexError(f"there are {len(self)} axes, {', '.join(self.names)}; got {axis}")
        return self._items[self.names[self.position(axis)]]

    def __getattr__(self, name: str) -> T:
        items: dict[str, T] = object.__getattribute__(self, "_items")
        if name in items:
            return items[name]
        raise AttributeError(f"there is no axis {name!r}; the axes are {', '.join(items)}")

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("a result cannot be changed")

    def __reduce__(self) -> tuple[Any, ...]:
        return PerAxis, (self.names, tuple(self._items.values()))  # to copy it, or send it to another process

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[T]:
        return iter(self._items.values())

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.names]

    def __repr__(self) -> str:
        return "\n".join(f"{name}: {item!r}" for name, item in self._items.items())


@dataclass(frozen=True, eq=False)
class Iteration:
    """The trees after one round over all axes, and how far each moved (`tree_distance`) in that round.

    The first tree of an axis has moved by nan.
    """

    trees: PerAxis[PartitionTree]
    moved: PerAxis[float]


@dataclass(frozen=True)
class Status:
    """Whether the trees settled, and what else to know about the result."""

    settled: bool
    message: str
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "; ".join((self.message, *self.notes))


@dataclass(frozen=True, eq=False)
class Organization:
    """Coupled trees on the axes of an array, with what they were made from.

    Everything per axis is reached by position or by name: ``org.trees[0]``, ``org.trees.head``.
    """

    trees: PerAxis[PartitionTree]
    affinities: PerAxis[np.ndarray]  #: (slice, slice), of the last iteration, from which the trees are
    distances: PerAxis[np.ndarray]  #: (slice, slice), tree distances of the last iteration
    coordinates: PerAxis[np.ndarray]  #: (slice, component), diffusion coordinates of the affinities
    initial_trees: PerAxis[PartitionTree | None]
    history: tuple[Iteration, ...]
    status: Status
    settings: Questionnaire

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the organized array."""
        return tuple(tree.n_leaves for tree in self.trees)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the axes."""
        return self.trees.names

    @property
    def moved(self) -> Float[np.ndarray, "iteration axis"]:
        """How far each axis' tree moved in each iteration: a convergence curve."""
        return np.array([list(step.moved) for step in self.history])

    def order(self, axis: int | str) -> Int[np.ndarray, " slice"]:
        """Slices of an axis in display order: neighbours in the tree stand next to each other.

        Depth first, siblings by falling mean of the first diffusion coordinate.
        """
        coordinates = self.coordinates[axis]
        return self.trees[axis].order(coordinates[:, 0] if coordinates.shape[1] else None)

    def arrange(self, x: Any) -> Any:
        """`x` with every axis in display order."""
        x = x if hasattr(x, "detach") else np.asarray(x)
        if tuple(x.shape) != self.shape:
            raise InvalidValueError(f"x must have the shape of the organized array, {self.shape}, got {x.shape}")
        for axis in range(len(self.shape)):
            x = x[(slice(None),) * axis + (self.order(axis),)]
        return x

    def __repr__(self) -> str:
        shape = " × ".join(f"{n} {name}" for n, name in zip(self.shape, self.names, strict=True))
        return f"Organization of {shape}\n{self.trees!r}\nstatus: {self.status}"

    def _repr_html_(self) -> str:
        pictures = []
        for name, tree, affinity in zip(self.names, self.trees, self.affinities, strict=True):
            order = self.order(name)
            pictures += [
                _notebook.heatmap(affinity[np.ix_(order, order)], f"affinity of {name} slices, in tree order", 160),
                _notebook.icicle(tree.labels[:, order], f"tree of {name} slices", 240),
            ]
        title, *lines = repr(self).split("\n")
        return _notebook.panel(title, lines, pictures)
