"""The attention calls of a forward pass, and the part of the model (encoder, decoder, …) each belongs to."""

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
_IMAGES = re.compile(r"vision|visual|image", re.IGNORECASE)
_ATTENTION_NAME = re.compile(r"att(n|en)", re.IGNORECASE)


@dataclass(frozen=True, eq=False)
class AttentionSite:
    """One attention call of a forward pass.

    Call order identifies a site, not its module: a module that is called twice has two sites.
    """

    name: str  #: path of the module in the model
    module: nn.Module
    is_cross: bool  #: keys and queries come from different sequences
    shape: tuple[int, int, int, int]  #: (batch, head, query, key) in the probing run
    #: how it was detected: through transformers' attention "registry", a user's description ("described"), a call
    #: of "sdpa", "softmax" or "multihead" attention, or the "outputs" of the model
    seen_by: str
    has_sinks: bool = False
    #: place of its layer in the model's own stack of layers, which may have others without attention between
    depth: int | None = None
    #: the innermost module that was running, and the number of its earlier calls in the pass; None if none was
    place: tuple[str, int] | None = None


def is_attention_like(module: nn.Module, name: str) -> bool:
    """Whether a softmax inside this module is likely to be attention, judging by the names of module and class."""
    return bool(_ATTENTION_NAME.search(type(module).__name__) or _ATTENTION_NAME.search(name))


def is_cross_attention(name: str, arguments: Mapping[str, Any]) -> bool:
    """Whether the keys come from another sequence, judging by the call's arguments or else the module's name."""
    if any(isinstance(arguments.get(argument), Tensor) for argument in _CROSS_ARGUMENTS):
        return True
    within_layer = re.split(r"\.\d+\.", name)[-1]  # "encoder.layers.3.self_attn" is not cross-attention
    return bool(_CROSS_NAME.search(within_layer)) if within_layer != name else False


def parts_of(sites: Sequence[AttentionSite]) -> dict[str, list[int]]:
    """Indices of the sites in each part of a model; a model with one stack of layers has a single part "".

    Parts are named by the first component in which the module paths differ, if that is the name of a tower
    ("encoder", "decoder", "vision_model") and not a number. Cross-attention is the part "cross".
    """
    towers = _towers([site.name for site in sites])
    parts: dict[str, list[int]] = {}
    for i, (site, tower) in enumerate(zip(sites, towers, strict=True)):
        parts.setdefault("cross" if site.is_cross else tower, []).append(i)
    if set(parts) == {"", "cross"}:
        parts = {name or "decoder": indices for name, indices in parts.items()}
    return parts


def reads_images(part: str) -> bool:
    """Whether a part is the tower that reads images, judging by its name."""
    return bool(_IMAGES.search(part))


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
    """The attention function that a transformers module uses when its implementation is "eager".

    Modules call ``get_interface(implementation, eager_attention_forward)``; the function is looked up by that name
    in the code of the module's class. None if the code names no such function or several.
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
