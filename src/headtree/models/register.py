"""Attention that headtree cannot detect by itself: modules whose scores a user describes with a function.

Start here to support a model with unusual attention. If a description is not enough and the library itself should
recognize such calls, continue in `watching.watch` (how calls are intercepted) and `watching.logits` (what enters
softmax).

Not to be confused with transformers' attention registry, which `watching.watch` uses: attention seen there is
"seen by" the registry, attention described here is "seen by" its description.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from headtree.errors import InvalidTypeError, InvalidValueError
from headtree.models.watching.logits import Logits, from_product

#: What a describing function returns: scores, or scores and a mask (True = missing), or also sinks.
Described = Tensor | tuple[Tensor, Tensor | None] | tuple[Tensor, Tensor | None, Tensor | None]
Describe = Callable[[nn.Module, Mapping[str, Any], Any], Described]

_DESCRIPTIONS: dict[type[nn.Module], Describe] = {}
_n_changes = 0  # which a plan of a model's attention calls must not outlive


def register_attention(kind: type[nn.Module], describe: Describe) -> None:
    """Describe the attention scores of your own module class to headtree.

    Needed only for attention that headtree does not detect. It detects softmax in a module with a name like
    "attention", `scaled_dot_product_attention`, and `torch.nn.MultiheadAttention`.

    Parameters
    ----------
    kind : type
        The module class; the description also applies to its subclasses.
    describe : function
        Called as ``describe(module, arguments, output)`` after each forward call, where `arguments` maps the names
        of the call's arguments to their values. Returns the scores (batch, head, query, key); or scores and a mask
        that is True where an entry is missing and broadcasts to the scores; or scores, mask and sinks (head).

    See Also
    --------
    unregister_attention

    Examples
    --------
    A layer that attends with a sigmoid instead of a softmax:

    >>> import torch
    >>> import headtree as ht
    >>> class Mixer(torch.nn.Module):
    ...     def forward(self, x):
    ...         return (x @ x.mT).sigmoid() @ x
    >>> def mixer_scores(module, arguments, output):
    ...     x = arguments["x"]
    ...     return (x @ x.mT)[:, None]  # one head
    >>> ht.register_attention(Mixer, mixer_scores)
    >>> (att,) = ht.capture(Mixer(), inputs=torch.eye(3)[None])
    >>> att.values
    tensor([[[1., 0., 0.],
             [0., 1., 0.],
             [0., 0., 1.]]])
    >>> ht.unregister_attention(Mixer)
    """
    _check_module_class(kind)
    if not callable(describe):
        raise InvalidTypeError(f"describe must be a function of (module, arguments, output), got {describe!r}")
    global _n_changes  # noqa: PLW0603
    _DESCRIPTIONS[kind] = describe
    _n_changes += 1


def unregister_attention(kind: type[nn.Module]) -> None:
    """Remove the description of a module class given with `register_attention`, if there is one.

    Parameters
    ----------
    kind : type
        The class that was passed to `register_attention`.

    Examples
    --------
    >>> import torch
    >>> import headtree as ht
    >>> class Mixer(torch.nn.Module):
    ...     def forward(self, x):
    ...         return (x @ x.mT).sigmoid() @ x
    >>> ht.register_attention(Mixer, lambda module, arguments, output: torch.zeros(1, 1, 3, 3))
    >>> ht.unregister_attention(Mixer)
    >>> ht.capture(Mixer(), inputs=torch.eye(3)[None])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    headtree.errors.InvalidValueError: no attention was found in Mixer: ...
    """
    _check_module_class(kind)
    global _n_changes  # noqa: PLW0603
    _DESCRIPTIONS.pop(kind, None)
    _n_changes += 1


def _check_module_class(kind: Any) -> None:
    if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        raise InvalidTypeError(f"kind must be a subclass of torch.nn.Module, got {kind!r}; pass type(module)")


def n_changes() -> int:
    """How often a description was added or removed."""
    return _n_changes


def description_of(module: nn.Module) -> Describe | None:
    """The function that describes the module's class or its nearest base class; None if there is none."""
    return next((_DESCRIPTIONS[base] for base in type(module).__mro__ if base in _DESCRIPTIONS), None)


def described_logits(
    module: nn.Module, describe: Describe, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any
) -> Logits:
    """Call a describing function and check its result."""
    bound = inspect.signature(module.forward).bind(*args, **kwargs)
    bound.apply_defaults()
    result = describe(module, dict(bound.arguments), output)
    scores, *rest = result if isinstance(result, tuple) else (result,)
    where = f"the function registered with register_attention for {type(module).__name__}"
    if not isinstance(scores, Tensor) or scores.ndim != 4 or not scores.is_floating_point():
        got = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
        raise InvalidValueError(f"{where} must return float scores (batch, head, query, key), got {got}")
    mask = rest[0] if rest else None
    if mask is not None:
        if mask.dtype != torch.bool:
            raise InvalidTypeError(f"{where} must return a boolean mask, True where missing, got {mask.dtype}")
        scores = scores.masked_fill(mask, -torch.inf)
    return from_product(scores, scores.shape[0], rest[1] if len(rest) > 1 else None)
