"""Arguments with state, such as a key-value cache, which a forward pass changes: each pass gets its own copy."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from headtree.errors import InvalidTypeError

_PLAIN = (Tensor, bool, int, float, str, bytes, torch.dtype, torch.device, type(None))


def has_state(value: Any) -> bool:
    """Whether a forward pass may change the value: anything but a tensor, and numbers, words and lists of them."""
    if isinstance(value, list | tuple):
        return any(isinstance(entry, Tensor) or has_state(entry) for entry in value)
    return not isinstance(value, _PLAIN)


def for_one_pass(value: Any, name: str, device: torch.device) -> Any:
    """The value on a device, as a copy if it has state."""
    if isinstance(value, Tensor):
        return value.to(device)
    if not has_state(value):
        return value
    try:
        with _DetachedCopies(device):
            return copy.deepcopy(value)
    except (TypeError, RuntimeError) as error:
        raise InvalidTypeError(
            f"inputs[{name!r}] is a {type(value).__name__}, which a forward pass may change, and it cannot be "
            f"copied: {error}; leave it out"
        ) from error


class _DetachedCopies(TorchFunctionMode):
    """Copies tensors within an object to a device; torch refuses to copy those that autograd has computed."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is not Tensor.__deepcopy__:
            return func(*args, **(kwargs or {}))
        tensor, memo = args
        memo[id(tensor)] = copied = tensor.detach().to(self.device, copy=True)
        return copied
