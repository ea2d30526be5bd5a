"""The result of the questionnaire."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, overload

import numpy as np
from jaxtyping import Float, Int

from headtree import _checks, _notebook
from headtree.errors import InvalidValueError
from headtree.questionnaire.landmarks import Landmarks
from headtree.questionnaire.settings import Questionnaire
from headtree.trees.tree import PartitionTree

T = TypeVar("T")


class PerAxis(Sequence[T], Generic[T]):
    """One item per axis, looked up by position (``trees[0]``) or by name (``trees["head"]``, ``trees.head``)."""

    __slots__ = ("_items", "names")

    names: tuple[str, ...]
    _items: dict[str, T]

    def __init__(self, names: Sequence[str], items: Sequence[T]) -> None:
        object.__setattr__(self, "names", tuple(names))
        object.__setattr__(self, "_items", dict(zip(names, items, strict=True)))

    def position(self, axis: int | str) -> int:
        """Return the position of an axis, given its position or name."""
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
        if isinstance(axis, int) and not -len(self) <= axis < len(self):
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
        return PerAxis, (self.names, tuple(self._items.values()))  # for copying and pickling

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
    """The trees after one pass over all axes, and the `tree_distance` by which each moved in that pass.

    The distance is nan for the first tree of an axis.
    """

    trees: PerAxis[PartitionTree]
    moved: PerAxis[float]


@dataclass(frozen=True)
class Status:
    """Whether the trees settled, and anything else worth knowing about the result."""

    settled: bool
    message: str
    notes: tuple[str, ...] = ()
    relative_errors: Mapping[str, float] = field(default_factory=dict, hash=False)  #: of sampled distances, by axis
    exact: tuple[str, ...] = ()  #: axes whose distances are exact

    @property
    def distances(self) -> str:
        """Whether the tree distances are exact or sampled, in words."""
        if not self.relative_errors:
            return "tree distances are exact"
        errors = ", ".join(f"{name} {error:.1%}" for name, error in self.relative_errors.items())
        others = f"; those of {', '.join(self.exact)} are exact" if self.exact else ""
        return f"tree distances are sampled, with relative errors {errors}{others}"

    def __str__(self) -> str:
        return "; ".join((self.message, *self.notes, self.distances))


@dataclass(frozen=True, eq=False)
class Organization:
    """Coupled trees on the axes of an array, with the affinities and distances behind them.

    Look up anything that exists once per axis by position or by name: ``org.trees[0]``, ``org.trees.head``.

    Where an axis has `landmarks`, its affinities and distances are between landmarks only; its trees, those of
    earlier iterations included, and its coordinates are of all slices.

    Examples
    --------
    >>> import headtree as ht
    >>> import numpy as np
    >>> groups = np.array([0, 1, 0, 1, 0, 1])
    >>> x = (groups[:, None] == groups[:4]) + np.random.default_rng(0).normal(size=(6, 4)) / 100
    >>> org = ht.organize_array(x, names=("row", "column"))
    >>> [leaves.tolist() for leaves in org.trees.row.folders(1)]
    [[0, 2, 4], [1, 3, 5]]
    >>> org.affinities["column"].shape
    (4, 4)
    """

    trees: PerAxis[PartitionTree]
    affinities: PerAxis[np.ndarray]  #: (slice, slice), from the last iteration; the trees are built from them
    distances: PerAxis[np.ndarray]  #: (slice, slice), tree earth mover's distances from the last iteration
    coordinates: PerAxis[np.ndarray]  #: (slice, component), diffusion coordinates of the affinities
    initial_trees: PerAxis[PartitionTree | None]
    history: tuple[Iteration, ...]
    status: Status
    settings: Questionnaire
    landmarks: PerAxis[Landmarks | None] = field(default_factory=lambda: PerAxis((), ()))  #: None: all are compared

    def __post_init__(self) -> None:
        if not len(self.landmarks):
            object.__setattr__(self, "landmarks", PerAxis(self.names, [None] * len(self.names)))

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
        """Distance by which the tree of each axis moved in each iteration: a convergence curve."""
        return np.array([list(step.moved) for step in self.history])

    def order(self, axis: int | str) -> Int[np.ndarray, " slice"]:
        """List the slices of an axis in display order, which keeps the slices of every folder together.

        The order is depth first, with siblings by decreasing mean of the first diffusion coordinate.

        Examples
        --------
        >>> import headtree as ht
        >>> import numpy as np
        >>> x = np.array([[5.0, 0, 5, 0], [0, 5, 0, 5], [5, 0, 5, 1], [0, 5, 1, 5]])
        >>> ht.organize_array(x).order(0)
        array([0, 2, 3, 1])
        """
        coordinates = self.coordinates[axis]
        return self.trees[axis].order(coordinates[:, 0] if coordinates.shape[1] else None)

    def check_all_compared(self, axis: int | str) -> None:
        """Raise an error if an axis has landmarks, between which alone there are affinities and distances."""
        number = self.trees.position(axis)
        if self.landmarks[number] is not None:
            raise InvalidValueError(
                f"all slices along {self.names[number]} must be compared with each other for this, got "
                f"{len(self.affinities[number])} landmarks of {self.shape[number]}; organize with None for this "
                "axis in Questionnaire(landmarks=…), such as (None, 4096, 4096) for heads, queries and keys"
            )

    def all_affinities(self, axis: int | str) -> Float[np.ndarray, "slice slice"]:
        """Return the affinity of every two slices of an axis; where there are landmarks, of the nearest ones.

        Slices with nothing in common with any landmark have affinity 0 with others and 1 with themselves.

        Examples
        --------
        >>> import headtree as ht
        >>> import numpy as np
        >>> x = np.random.default_rng(0).normal(size=(8, 5))
        >>> org = ht.organize_array(x, ht.Questionnaire(landmarks=6))
        >>> org.affinities[0].shape, org.all_affinities(0).shape
        ((6, 6), (8, 8))
        """
        own, affinity = self.landmarks[axis], self.affinities[axis]
        if own is None:
            return affinity
        known = own.nearest >= 0
        every = np.where(known[:, None] & known, affinity[np.ix_(own.nearest, own.nearest)], 0.0)
        np.fill_diagonal(every, 1.0)
        return every

    def arrange(self, x: Any) -> Any:
        """Permute `x` so that every axis is in display order.

        Examples
        --------
        >>> import headtree as ht
        >>> import numpy as np
        >>> x = np.array([[5.0, 0, 5, 0], [0, 5, 0, 5], [5, 0, 5, 1], [0, 5, 1, 5]])
        >>> ht.organize_array(x).arrange(x)
        array([[5., 5., 0., 0.],
               [5., 5., 1., 0.],
               [0., 1., 5., 5.],
               [0., 0., 5., 5.]])
        """
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
        for name, tree in zip(self.names, self.trees, strict=True):
            order, affinity = self.order(name), self.affinities[name]
            own = self.landmarks[name]
            shown = order if own is None else np.searchsorted(own.slices, order[np.isin(order, own.slices)])
            what = "slices" if own is None else "landmarks"
            pictures += [
                _notebook.heatmap(affinity[np.ix_(shown, shown)], f"affinity of {name} {what}, in tree order", 160),
                _notebook.icicle(tree.labels[:, order], f"tree of {name} slices", 240),
            ]
        title, *lines = repr(self).split("\n")
        return _notebook.panel(title, lines, pictures)
