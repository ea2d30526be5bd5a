"""Attention calls of a forward pass: what is known of each, and which part of the model it belongs to."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

_CROSS_NAME = re.compile(r"cross|encoder_attn|enc_?dec|encoder_attention", re.IGNORECASE)
_CROSS_ARGUMENTS = ("key_value_states", "encoder_hidden_states", "cross_attention_states")
_TOWER = re.compile(r"encoder|decoder|text|vision|visual|image|audio|speech|language", re.IGNORECASE)
_ATTENTION_NAME = re.compile(r"att(n|en)", re.IGNORECASE)


@dataclass(frozen=True, eq=False)
class AttentionSite:
    """One attention call of a model's forward pass: a module that is called twice gives two."""

    name: str  #: path of the module in the model
    module: nn.Module
    is_cross: bool  #: its keys come from another sequence than its queries
    shape: tuple[int, int, int, int]  #: (batch, head, query, key) when it was seen
    way: str  #: "registry", "registered", "sdpa", "softmax", "multihead" or "outputs": how it was seen
    has_sinks: bool = False


def is_attention_like(module: nn.Module, name: str) -> bool:
    """Whether a softmax inside this module is likely to be attention, going by the names people give."""
    return bool(_ATTENTION_NAME.search(type(module).__name__) or _ATTENTION_NAME.search(name))


def is_cross_attention(module: nn.Module, name: str, arguments: Mapping[str, Any]) -> bool:
    """Whether the keys come from elsewhere: by the call's arguments, else by the module's name."""
    if any(isinstance(arguments.get(argument), Tensor) for argument in _CROSS_ARGUMENTS):
        return True
    within_layer = re.split(r"\.\d+\.", name)[-1]  # "encoder.layers.3.self_attn" is not cross-attention
    return bool(_CROSS_NAME.search(within_layer)) if within_layer != name else False


def parts_of(sites: Sequence[AttentionSite]) -> dict[str, list[int]]:
    """The sites of each part of a model; a single part, called "", for a model that is one stack of layers.

    Parts are the first components in which the modules' paths differ, where these are names and not numbers
    ("encoder", "decoder", "vision_model"); calls whose keys come from elsewhere are the part "cross".
    """
    towers = _towers([site.name for site in sites])
    parts: dict[str, list[int]] = {}
    for i, (site, tower) in enumerate(zip(sites, towers, strict=True)):
        parts.setdefault("cross" if site.is_cross else tower, []).append(i)
    if set(parts) == {"", "cross"}:
        parts = {name or "decoder": places for name, places in parts.items()}
    return parts


def _towers(names: Sequence[str]) -> list[str]:
    paths = [name.split(".") for name in names]
    shortest = min(len(path) for path in paths)
    for depth in range(shortest):
        components = {path[depth] for path in paths}
        if len(components) > 1:
            if any(_TOWER.search(component) for component in components):
                return [path[depth] for path in paths]
            break
    return [""] * len(names)


def eager_function(module: nn.Module) -> Callable[..., Any] | None:
    """The attention function a transformers module falls back on when its implementation is "eager".

    The registry is asked as ``get_interface(implementation, eager_attention_forward)``; the function is found
    by that name in the code of the module's class. None if it names several or none.
    """
    for base in type(module).__mro__:
        found = {}
        for method in vars(base).values():
            function = inspect.unwrap(method) if callable(method) else None
            if inspect.isfunction(function):
                names = [name for name in function.__code__.co_names if name.endswith("eager_attention_forward")]
                found.update({name: function.__globals__.get(name) for name in names})
        functions = [function for function in found.values() if callable(function)]
        if functions:
            return functions[0] if len(functions) == 1 else None
    return None
