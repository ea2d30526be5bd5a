"""Attention that headtree cannot find by itself: modules that a user describes with a function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from headtree.errors import InvalidTypeError, InvalidValueError
from headtree.models.watching.logits import Logits, from_product

#: What a registered function returns: scores, or scores and a mask (True = missing), or also sinks.
Described = Tensor | tuple[Tensor, Tensor | None] | tuple[Tensor, Tensor | None, Tensor | None]
Describe = Callable[[nn.Module, Mapping[str, Any], Any], Described]

_REGISTERED: dict[type[nn.Module], Describe] = {}


def register_attention(kind: type[nn.Module], describe: Describe) -> None:
    """Tell headtree what a module of your own attends to.

    Needed only where headtree cannot see it: plain softmax in a module called something like attention,
    `scaled_dot_product_attention` and `torch.nn.MultiheadAttention` are found without help.

    Parameters
    ----------
    kind : type
        The module's class; its subclasses count as well.
    describe : function
        Called as ``describe(module, arguments, output)`` after each forward call, `arguments` being the call's
        arguments by name. Returns scores (batch, head, query, key); or the pair of scores and a mask that is True
        where an entry is missing and broadcasts to the scores; or scores, mask and sinks (head).

    Examples
    --------
    >>> from torch import nn
    >>> class Mixer(nn.Module):
    ...     def forward(self, x):
    ...         return (x @ x.mT).sigmoid() @ x
    >>> def mixer_scores(module, arguments, output):
    ...     x = arguments["x"]
    ...     return (x @ x.mT)[:, None]  # one head
    >>> register_attention(Mixer, mixer_scores)
    >>> unregister_attention(Mixer)
    """
    if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        raise InvalidTypeError(f"kind must be a class of torch.nn.Module, got {kind!r}; pass type(module)")
    if not callable(describe):
        raise InvalidTypeError(f"describe must be a function of (module, arguments, output), got {describe!r}")
    _REGISTERED[kind] = describe


def unregister_attention(kind: type[nn.Module]) -> None:
    """Forget a module registered with `register_attention`."""
    _REGISTERED.pop(kind, None)


def registered(module: nn.Module) -> Describe | None:
    """The function registered for the module's class, the nearest one up its bases."""
    return next((_REGISTERED[base] for base in type(module).__mro__ if base in _REGISTERED), None)


def described_logits(
    module: nn.Module, describe: Describe, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any
) -> Logits:
    """Call a registered function and check what it says."""
    bound = inspect.signature(module.forward).bind(*args, **kwargs)
    bound.apply_defaults()
    answer = describe(module, dict(bound.arguments), output)
    scores, *rest = answer if isinstance(answer, tuple) else (answer,)
    where = f"the function registered for {type(module).__name__}"
    if not isinstance(scores, Tensor) or scores.ndim != 4 or not scores.is_floating_point():
        got = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
        raise InvalidValueError(f"{where} must return float scores (batch, head, query, key), got {got}")
    mask = rest[0] if rest else None
    if mask is not None:
        if mask.dtype != torch.bool:
            raise InvalidTypeError(f"{where} must return a boolean mask, True where missing, got {mask.dtype}")
        scores = scores.masked_fill(mask, -torch.inf)
    return from_product(scores, scores.shape[0], rest[1] if len(rest) > 1 else None)
