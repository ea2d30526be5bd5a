"""Whatever a forward pass changes in a model is found by comparing before and after, and undone.

Compared are the attributes, parameters, buffers, submodules, hooks, training modes and configuration values of
every module: by identity, and plain values by equality. Weights are not read. A tensor that was overwritten in
place cannot be restored and is an error; torch counts such writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from operator import is_
from types import BuiltinFunctionType, FunctionType, MethodType, NoneType
from typing import Any

import torch
from torch import Tensor, nn

from headtree.errors import InvalidValueError

#: Values of these types are compared by equality, all others by identity.
_PLAIN = (bool, int, float, complex, str, bytes, torch.dtype, torch.device)

#: Values of exactly these types have nothing inside that could change.
_WITHOUT_PARTS = frozenset({*_PLAIN, NoneType, FunctionType, BuiltinFunctionType, MethodType, type})

_Container = dict[Any, Any] | list[Any] | set[Any]

#: Where something is: the place of the container that holds it, and its key there; None is the model itself.
_Place = tuple[Any, Any] | None


@contextmanager
def unchanged(model: nn.Module) -> Iterator[list[str]]:
    """Undo what the block changes in the model; afterwards the list it yields names each change."""
    before = _State(model)
    found: list[str] = []
    try:
        yield found
    finally:
        found += before.restore()
    overwritten = before.overwritten()
    if overwritten:
        raise InvalidValueError(
            f"{type(model).__name__} overwrites {', '.join(overwritten[:3])} when it runs, so looking at it would "
            "change it; pass a copy of the model, or switch this off in its configuration"
        )


class _State:
    """The containers and tensors that are reached from a model, as they are now."""

    def __init__(self, model: nn.Module) -> None:
        self._containers: list[tuple[_Place, _Container, _Container]] = []  # where, the container, a copy
        self._tensors: list[tuple[_Place, Tensor, int]] = []  # where, tensor, number of writes to it so far
        seen: set[int] = set()
        queue: list[tuple[_Place, Any]] = [(None, model)]
        while queue:
            place, value = queue.pop()
            if id(value) in seen:
                continue
            if isinstance(value, Tensor):
                seen.add(id(value))
                if not value.is_inference():
                    self._tensors.append((place, value, value._version))
                continue
            container = _container_of(value)
            if container is not None:
                seen |= {id(value), id(container)}
                self._containers.append((place, container, container.copy()))
                if container:  # most are empty: every module has a dozen for its hooks
                    queue += [((place, key), inner) for key, inner in _entries(container) if _is_looked_into(inner)]
            elif isinstance(value, tuple):
                queue += [(place, inner) for inner in value if _is_looked_into(inner)]

    def restore(self) -> list[str]:
        """Put back what differs from this state, and return its names."""
        names = []
        for place, container, copy in self._containers:
            differing = [] if _is_untouched(container, copy) else _differing(container, copy)
            if differing:
                names += [_name((place, key)) for key in differing]
                _refill(container, copy)
        return names

    def overwritten(self) -> list[str]:
        """Names of the tensors that were written to since."""
        return [_name(place) for place, tensor, n_writes in self._tensors if tensor._version != n_writes]


def _container_of(value: Any) -> _Container | None:
    """What holds the parts of a value that may change: a container itself, or the attributes of an object."""
    if isinstance(value, dict | list | set):
        return value
    is_config = hasattr(type(value), "to_dict") and hasattr(value, "__dict__")
    return vars(value) if is_config or isinstance(value, nn.Module) else None


def _is_looked_into(value: Any) -> bool:
    return type(value) not in _WITHOUT_PARTS


def _entries(container: _Container) -> Iterable[tuple[Any, Any]]:
    return container.items() if isinstance(container, dict) else enumerate(container)


def _name(place: _Place) -> str:
    """The name of a place, without torch's own dictionaries of parameters, buffers and modules."""
    keys = []
    while place is not None:
        place, key = place
        if key not in ("_parameters", "_buffers", "_modules"):
            keys.append(str(key))
    return ".".join(reversed(keys))


def _is_untouched(container: _Container, copy: _Container) -> bool:
    """Whether the entries are the same objects in the same order; if not, some may still be equal."""
    if len(container) != len(copy):
        return False
    if isinstance(container, dict) and isinstance(copy, dict):
        return all(map(is_, container, copy)) and all(map(is_, container.values(), copy.values()))
    return all(map(is_, container, copy))


def _differing(container: _Container, copy: _Container) -> list[Any]:
    """Keys of the entries that were added, removed or replaced."""
    if isinstance(container, set) or isinstance(copy, set):
        return ["entries"] if container != copy else []
    now, before = dict(_entries(container)), dict(_entries(copy))
    return [
        key
        for key in (*before, *(key for key in now if key not in before))
        if key not in now or key not in before or not _same(now[key], before[key])
    ]


def _same(now: Any, before: Any) -> bool:
    if now is before or type(now) is not type(before):
        return now is before
    if isinstance(now, tuple):
        return len(now) == len(before) and all(map(_same, now, before))
    return isinstance(now, _PLAIN) and bool(now == before)


def _refill(container: Any, copy: Any) -> None:
    container.clear()
    if isinstance(container, list):
        container.extend(copy)
    else:
        container.update(copy)
