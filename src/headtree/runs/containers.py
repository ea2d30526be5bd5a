"""Containers for the contents of a run: a mapping with attributes, and a sequence that reads items on demand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")


class AttrMapping(Mapping[str, T], Generic[T]):
    """A read-only mapping whose items are also attributes: ``figures["heads"]``, ``figures.heads``."""

    __slots__ = ("_items", "_what")

    _items: dict[str, T]
    _what: str

    def __init__(self, items: Mapping[str, T], what: str) -> None:
        object.__setattr__(self, "_items", dict(items))
        object.__setattr__(self, "_what", what)

    def __getitem__(self, name: str) -> T:
        if name not in self._items:
            raise KeyError(self._absent(name))
        return self._items[name]

    def __getattr__(self, name: str) -> T:
        items: dict[str, T] = object.__getattribute__(self, "_items")
        if name in items:
            return items[name]
        raise AttributeError(self._absent(name))

    def _absent(self, name: str) -> str:
        return f"there is no {self._what} {name!r}; there are {', '.join(self._items) or 'none'}"

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("the contents of a run are read-only")

    def __reduce__(self) -> tuple[Any, ...]:
        return AttrMapping, (self._items, self._what)  # for copy and pickle

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._items]

    def _ipython_key_completions_(self) -> list[str]:
        return list(self._items)

    def __repr__(self) -> str:
        return f"{self._what}: " + (", ".join(f"{name}={item!r}" for name, item in self._items.items()) or "none")


def attr_tree(value: Any, what: str) -> Any:
    """Nested dictionaries as `AttrMapping`, lists as tuples."""
    if isinstance(value, Mapping):
        return AttrMapping({str(key): attr_tree(item, what) for key, item in value.items()}, what)
    return tuple(attr_tree(item, what) for item in value) if isinstance(value, list | tuple) else value


class LazySequence(Sequence[T], Generic[T]):
    """One item per input of a run, read from disk on demand; only the last one read stays in memory."""

    def __init__(self, n: int, read: Callable[[int], T]) -> None:
        self._n, self._read = n, read
        self._last: tuple[int, T] | None = None

    @overload
    def __getitem__(self, i: int) -> T: ...
    @overload
    def __getitem__(self, i: slice) -> tuple[T, ...]: ...
    def __getitem__(self, i: int | slice) -> T | tuple[T, ...]:
        if isinstance(i, slice):
            return tuple(self[j] for j in range(*i.indices(self._n)))
        if not -self._n <= i < self._n:
            raise IndexError(f"the run has {self._n} inputs, numbered from 0; got {i}")
        i %= self._n
        if self._last is None or self._last[0] != i:
            self._last = None  # never hold two items in memory
            self._last = i, self._read(i)
        return self._last[1]

    def __len__(self) -> int:
        return self._n

    def __repr__(self) -> str:
        return f"<{self._n} inputs; the first: {self[0]!r}>"
