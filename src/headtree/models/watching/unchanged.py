"""Whatever a forward pass changes in a model is found by comparing before and after, and undone.

Compared are the attributes, parameters, buffers, submodules, hooks, training modes and configuration values of
every module: by identity, and plain values by equality. Weights are not read. A tensor that was overwritten in
place cannot be restored and is an error; torch counts such writes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from headtree.errors import InvalidValueError

#: Values of these types are compared by equality, all others by identity.
_PLAIN = (bool, int, float, complex, str, bytes, torch.dtype, torch.device)

_Container = dict[Any, Any] | list[Any] | set[Any]


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
        self._containers: list[tuple[str, _Container, _Container]] = []  # name, the container, a copy
        self._tensors: list[tuple[str, Tensor, int]] = []  # name, tensor, number of writes to it so far
        seen: set[int] = set()
        queue: list[tuple[str, Any]] = [("", model)]
        while queue:
            name, value = queue.pop()
            if id(value) in seen:
                continue
            if isinstance(value, Tensor):
                seen.add(id(value))
                if not value.is_inference():
                    self._tensors.append((name, value, value._version))
                continue
            container = _container_of(value)
            if container is not None:
                seen |= {id(value), id(container)}
                self._containers.append((name, container, container.copy()))
                queue += [(_path(name, key), inner) for key, inner in _entries(container)]
            elif isinstance(value, tuple):
                queue += [(name, inner) for inner in value]

    def restore(self) -> list[str]:
        """Put back what differs from this state, and return its names."""
        names = []
        for name, container, copy in self._containers:
            differing = _differing(container, copy)
            if differing:
                names += [_path(name, key) for key in differing]
                _refill(container, copy)
        return names

    def overwritten(self) -> list[str]:
        """Names of the tensors that were written to since."""
        return [name for name, tensor, n_writes in self._tensors if tensor._version != n_writes]


def _container_of(value: Any) -> _Container | None:
    """What holds the parts of a value that may change: a container itself, or the attributes of an object."""
    if isinstance(value, dict | list | set):
        return value
    is_config = hasattr(type(value), "to_dict") and hasattr(value, "__dict__")
    return vars(value) if is_config or isinstance(value, nn.Module) else None


def _entries(container: _Container) -> list[tuple[Any, Any]]:
    if isinstance(container, dict):
        return list(container.items())
    return list(enumerate(container))


def _path(name: str, key: Any) -> str:
    """The name of an entry, without torch's own dictionaries of parameters, buffers and modules."""
    if key in ("_parameters", "_buffers", "_modules"):
        return name
    return f"{name}.{key}" if name else str(key)


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
