"""The one place that knows architectures: which modules attend, which part of a model they belong to, its limits.

Models are not listed here by name. What transformers' attention registry, `torch.nn.MultiheadAttention`,
`scaled_dot_product_attention` or a plain softmax inside an attention module do is found by watching a model run
(`headtree.attention.recorder`); this module says what the modules found that way mean, and holds what cannot be
found: modules that a user registered, and names that carry meaning.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headtree.attention.logits import Logits, from_product
from headtree.errors import InvalidTypeError, InvalidValueError

#: What a registered function returns: scores, or scores and a mask (True = missing), or also sinks.
Described = Tensor | tuple[Tensor, Tensor | None] | tuple[Tensor, Tensor | None, Tensor | None]
Describe = Callable[[nn.Module, Mapping[str, Any], Any], Described]

_REGISTERED: dict[type[nn.Module], Describe] = {}

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


def select_tower(model: nn.Module, modality: str) -> nn.Module:
    """Of a model with one tower for text and one for images (CLIP), the one that reads this input."""
    if not (hasattr(model, "get_text_features") and hasattr(model, "get_image_features")):
        return model
    tower = getattr(model, {"texts": "text_model", "images": "vision_model"}.get(modality, ""), None)
    return tower if isinstance(tower, nn.Module) else model


def config_of(model: nn.Module) -> Any:
    """The transformers configuration, or None for other modules."""
    config = getattr(model, "config", None)
    return config if hasattr(config, "model_type") else None


def text_config(config: Any) -> Any:
    """The part of a configuration that describes the reading of text."""
    try:
        return config.get_text_config(encoder=True) if config.is_encoder_decoder else config.get_text_config()
    except (AttributeError, ValueError, TypeError):
        return config


def context_length(model: nn.Module) -> int | None:
    """How many tokens the model was made for; None where positions are relative and have no end."""
    config = config_of(model)
    if config is None:
        return None
    config = text_config(config)
    if getattr(config, "alibi", False) or getattr(config, "position_embedding_type", "") == "relative_key":
        return None
    length = getattr(config, "max_position_embeddings", None)
    if not isinstance(length, int) or length < 1:
        return None
    # RoBERTa and its kin number positions after the padding index, and have that many fewer places
    for name, module in model.named_modules():
        is_table = isinstance(module, nn.Embedding) and name.endswith("position_embeddings")
        padding = getattr(module, "padding_idx", None)
        if is_table and isinstance(padding, int) and module.num_embeddings == length:
            return length - padding - 1
    return length


def image_shape(model: nn.Module) -> tuple[int, int, int] | None:
    """Channels, height and width a vision model is made for, as far as its configuration says."""
    config = config_of(model)
    config = getattr(config, "vision_config", None) or config
    size = getattr(config, "image_size", None)
    if size is None:
        return None
    height, width = size if isinstance(size, list | tuple) else (size, size)
    return int(getattr(config, "num_channels", 3)), int(height), int(width)


def patch_labels(model: nn.Module, pixels: tuple[int, int], n_tokens: int) -> list[str]:
    """Names of an image's tokens: "class", "register0", … first, then patches by row and column, "r3c5"."""
    config = config_of(model)
    config = getattr(config, "vision_config", None) or config
    patch = getattr(config, "patch_size", None)
    if patch is None:
        return [str(i) for i in range(n_tokens)]
    height, width = patch if isinstance(patch, list | tuple) else (patch, patch)
    rows, columns = pixels[0] // int(height), pixels[1] // int(width)
    n_extra = n_tokens - rows * columns
    if n_extra < 0 or rows * columns == 0:
        return [str(i) for i in range(n_tokens)]
    second = ["distillation"] if getattr(config, "model_type", "") == "deit" and n_extra > 1 else []
    extra = (["class", *second] + [f"register{i}" for i in range(n_extra)])[:n_extra]
    return extra + [f"r{row}c{column}" for row in range(rows) for column in range(columns)]


def accepts(model: nn.Module, argument: str) -> bool:
    """Whether the model's forward takes this argument."""
    parameters = inspect.signature(model.forward).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    return argument in parameters or (takes_any and config_of(model) is not None)


def is_encoder_decoder(model: nn.Module) -> bool:
    """Whether the whole model reads one sequence and writes another."""
    return bool(getattr(config_of(model), "is_encoder_decoder", False)) and accepts(model, "decoder_input_ids")


def decoder_start(model: nn.Module) -> int:
    """The token a decoder begins with."""
    config = config_of(model)
    for source in (config, getattr(model, "generation_config", None), text_config(config)):
        for name in ("decoder_start_token_id", "bos_token_id", "pad_token_id"):
            token = getattr(source, name, None)
            if isinstance(token, int):
                return token
    return 0


def token_embedding(model: nn.Module) -> nn.Embedding | None:
    """The table that tokens are looked up in: what transformers says, or the largest there is."""
    if config_of(model) is not None and getattr(model, "main_input_name", "input_ids") != "input_ids":
        return None
    table = _asked(model, "get_input_embeddings")
    if isinstance(table, nn.Embedding):
        return table
    tables = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    return max(tables, key=lambda table: table.num_embeddings, default=None)


def _asked(model: nn.Module, method: str) -> Any:
    """What a method of transformers' models answers; None where there is none."""
    function: Any = getattr(model, method, None)
    try:
        return function() if callable(function) else None
    except (NotImplementedError, AttributeError):
        return None


def special_tokens(model: nn.Module) -> set[int]:
    """Tokens with a meaning of their own, as far as the configuration names them."""
    config = text_config(config_of(model))
    names = [name for name in dir(config) if name.endswith("_token_id")]
    return {value for name in names if isinstance(value := getattr(config, name, None), int)}


def unembedding(model: nn.Module) -> Tensor | None:
    """The matrix (word, width) that turns the last states into logits; None if the model does not say.

    A model without its language-model head is taken to use its embedding, if its configuration ties the two.
    """
    if isinstance(own := getattr(model, "unembedding", None), Tensor):
        return own.detach()
    if isinstance(weight := getattr(_asked(model, "get_output_embeddings"), "weight", None), Tensor):
        return weight.detach()
    table = token_embedding(model)
    if table is not None and getattr(text_config(config_of(model)), "tie_word_embeddings", False):
        return table.weight.detach()
    return None


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
