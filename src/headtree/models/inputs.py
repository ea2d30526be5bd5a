"""Texts, images and ready inputs as what a model takes, one after another, with names for their tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from headtree._extras import require
from headtree.errors import InvalidTypeError, InvalidValueError
from headtree.models import facts
from headtree.models.source import ModelFiles

#: Arguments of text models that do not change which attention calls are made.
_OPTIONAL = frozenset({"attention_mask", "token_type_ids", "use_cache"})


@dataclass(frozen=True, eq=False)
class ModelInput:
    """One input, with a batch axis of one."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    tokens: tuple[str, ...] | None = None  #: names of what the model, or its encoder, reads
    targets: tuple[str, ...] | None = None  #: names of what the decoder reads
    pixels: tuple[int, int] | None = None
    about: Mapping[str, Any] = field(default_factory=dict)  #: for the provenance

    def shapes(self) -> tuple[Any, ...]:
        """Inputs with equal shapes can run together."""
        named = [(name, _shape(value)) for name, value in sorted(self.kwargs.items())]
        return (*map(_shape, self.args), *named)

    def layout(self) -> tuple[Any, ...]:
        """Inputs of one layout are attended to by the same calls: names and shapes, masks apart."""
        named = [(name, _shape(value)) for name, value in sorted(self.kwargs.items()) if name not in _OPTIONAL]
        return (*map(_shape, self.args), *named)

    def can_join(self) -> bool:
        """Whether every tensor has a batch axis of one to join along."""
        values = [*self.args, *self.kwargs.values()]
        return all(not isinstance(value, Tensor) or (value.ndim > 0 and value.shape[0] == 1) for value in values)

    def lengths(self) -> tuple[int, int] | None:
        """How many tokens are read and written; None if the input is not text."""
        ids = self.kwargs.get("input_ids")
        if not isinstance(ids, Tensor) or ids.ndim != 2:
            return None
        decoder = self.kwargs.get("decoder_input_ids")
        return int(ids.shape[1]), int(decoder.shape[1]) if isinstance(decoder, Tensor) else 0

    def length(self) -> int:
        """The longer of what is read and what is written; 0 if the input is not text."""
        return max(self.lengths() or (0, 0))

    def size(self) -> int:
        """Number of entries of all tensors."""
        return sum(value.numel() for value in (*self.args, *self.kwargs.values()) if isinstance(value, Tensor))

    def first_tokens(self, n: int) -> ModelInput | None:
        """The same input cut to its first tokens, for a quick look at the model; None if it is not text."""
        if self.args or set(self.kwargs) - {"input_ids", "decoder_input_ids"} - _OPTIONAL:
            return None
        if any(isinstance(value, Tensor) and value.ndim != 2 for value in self.kwargs.values()):
            return None
        cut = {name: value[:, :n] if isinstance(value, Tensor) else value for name, value in self.kwargs.items()}
        return ModelInput((), cut)


def _shape(value: Any) -> Any:
    return ("tensor", tuple(value.shape), value.dtype) if isinstance(value, Tensor) else ("value", repr(value))


def join(inputs: Sequence[ModelInput]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and named arguments for several inputs of equal shapes at once."""
    first = inputs[0]
    if len(inputs) == 1:
        return first.args, dict(first.kwargs)

    def cat(values: list[Any]) -> Any:
        return torch.cat(values) if isinstance(values[0], Tensor) else values[0]

    args = tuple(cat([item.args[i] for item in inputs]) for i in range(len(first.args)))
    return args, {name: cat([item.kwargs[name] for item in inputs]) for name in first.kwargs}


def text_inputs(
    model: nn.Module, texts: Any, targets: Any, tokens: int | None, tokenizer: Any, source: ModelFiles
) -> list[ModelInput]:
    """Tokenize texts; long ones are cut into inputs of `tokens` tokens each, special tokens included."""
    texts = checked_texts(texts, "texts")
    targets = None if targets is None else checked_texts(targets, "targets")
    if targets is not None and len(targets) != len(texts):
        raise InvalidValueError(f"targets must be as many as texts, got {len(targets)} for {len(texts)}")
    if targets is not None and tokens is not None:
        raise InvalidTypeError("tokens cuts texts into inputs, which targets cannot follow; cut both beforehand")
    tokenizer = source.load_tokenizer() if tokenizer is None else tokenizer
    limit = facts.context_length(model)
    if tokens is not None and (not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 1):
        raise InvalidValueError(f"tokens must be a whole number of tokens per input, got {tokens!r}")
    if tokens is not None and limit is not None and tokens > limit:
        raise InvalidValueError(f"tokens must be at most the model's context of {limit}, got {tokens}")
    inputs = []
    for i, text in enumerate(texts):
        target = None if targets is None else _ids(tokenizer, targets[i], f"targets[{i}]")
        pieces = _pieces(tokenizer, text, i, tokens)
        for j, ids in enumerate(pieces):
            if limit is not None and len(ids) > limit:
                raise InvalidValueError(
                    f"texts[{i}] has {len(ids)} tokens, the model's context {limit}; shorten it, or cut it "
                    f"into inputs with tokens={limit} or less"
                )
            if limit is not None and target is not None and len(target) > limit:
                raise InvalidValueError(
                    f"targets[{i}] has {len(target)} tokens, the model's context {limit}; shorten it"
                )
            inputs.append(_text_input(model, tokenizer, ids, target, {"text": i, "piece": j}))
    return inputs


def checked_texts(texts: Any, name: str) -> list[str]:
    """A list of texts, none of them empty; a string alone is a list of one."""
    texts = [texts] if isinstance(texts, str) else texts
    if not isinstance(texts, Sequence) or not all(isinstance(text, str) for text in texts):
        raise InvalidTypeError(f"{name} must be a list of strings, got {_name_of(texts)}")
    if not texts:
        raise InvalidValueError(f"{name} must not be empty; pass at least one")
    for i, text in enumerate(texts):
        if not text.strip():
            raise InvalidValueError(f"{name}[{i}] is empty; leave it out, there is nothing to attend to")
    return list(texts)


def _name_of(value: Any) -> str:
    return f"a {type(value).__name__}" + (
        f" of {type(value[0]).__name__}" if isinstance(value, list) and value else ""
    )


def _ids(tokenizer: Any, text: str, name: str, special: bool = True) -> list[int]:
    # transformers warns of texts past the context on its own; here that is an error with a remedy
    encoded = tokenizer(text, add_special_tokens=special, verbose=False)
    ids = [int(token) for token in encoded["input_ids"]]
    unknown = getattr(tokenizer, "unk_token_id", None)
    specials = set(getattr(tokenizer, "all_special_ids", ())) - {unknown}
    content = [token for token in ids if token not in specials]
    if unknown is not None and content and all(token == unknown for token in content):
        raise InvalidValueError(
            f"the tokenizer knows no token of {name}: its files are missing or belong to another model "
            f"(vocabulary of {len(tokenizer)}); pass tokenizer=… or ready inputs=…"
        )
    if special and not ids:
        raise InvalidValueError(f"{name} gives no tokens; leave it out, there is nothing to attend to")
    return ids


def _pieces(tokenizer: Any, text: str, i: int, tokens: int | None) -> list[list[int]]:
    name = f"texts[{i}]"
    if tokens is None:
        return [_ids(tokenizer, text, name)]
    body = _ids(tokenizer, text, name, special=False)
    around = _special_around(tokenizer)
    n_body = tokens - sum(map(len, around))
    if n_body < 1:
        raise InvalidValueError(f"tokens must leave room beside the {tokens - n_body} special tokens, got {tokens}")
    if len(body) < n_body:
        raise InvalidValueError(
            f"{name} is shorter than asked: {len(body) + tokens - n_body} tokens, special ones included, "
            f"instead of {tokens}; ask for fewer, or pass a longer text"
        )
    # the rest that does not fill an input is left out, so that all inputs have one shape
    return [
        [*around[0], *body[start : start + n_body], *around[1]]
        for start in range(0, len(body) - n_body + 1, n_body)
    ]


def _special_around(tokenizer: Any) -> tuple[list[int], list[int]]:
    """Which special tokens stand before and after a text."""
    plain = list(tokenizer("a", add_special_tokens=False)["input_ids"])
    full = list(tokenizer("a")["input_ids"])
    for start in range(len(full) - len(plain) + 1):
        if plain and full[start : start + len(plain)] == plain:
            return full[:start], full[start + len(plain) :]
    return [], []


def _text_input(
    model: nn.Module, tokenizer: Any, ids: list[int], target: list[int] | None, about: Mapping[str, Any]
) -> ModelInput:
    kwargs: dict[str, Any] = {"input_ids": torch.tensor([ids])}
    if facts.accepts(model, "attention_mask"):
        kwargs["attention_mask"] = torch.ones(1, len(ids), dtype=torch.long)
    decoder = None
    if facts.is_encoder_decoder(model):
        # without a target the decoder reads the text itself, one place later, as in training
        decoder = [facts.decoder_start(model), *(ids if target is None else target)[:-1]]
        kwargs["decoder_input_ids"] = torch.tensor([decoder])
    names = None if decoder is None else _names(tokenizer, decoder)
    return ModelInput((), _without_cache(model, kwargs), _names(tokenizer, ids), names, about=about)


def _names(tokenizer: Any, ids: Sequence[int]) -> tuple[str, ...]:
    return tuple(str(token) for token in tokenizer.convert_ids_to_tokens(list(ids)))


def _without_cache(model: nn.Module, kwargs: dict[str, Any]) -> dict[str, Any]:
    if facts.config_of(model) is not None and hasattr(facts.config_of(model), "use_cache"):
        kwargs.setdefault("use_cache", False)
    return kwargs


def image_inputs(model: nn.Module, images: Any, processor: Any, source: ModelFiles) -> list[ModelInput]:
    """Images through the processor; float arrays (channel, row, column) as they are."""
    if isinstance(images, np.ndarray | Tensor) and images.ndim == 4:
        images = list(images)
    if not isinstance(images, Sequence) or isinstance(images, str):
        raise InvalidTypeError(f"images must be a list of images, got {_name_of(images)}")
    if not images:
        raise InvalidValueError("images must not be empty; pass at least one")
    inputs = []
    for i, image in enumerate(images):
        if isinstance(image, np.ndarray | Tensor) and torch.as_tensor(image).is_floating_point():
            pixels = torch.as_tensor(image)
        else:
            processor = source.load_processor() if processor is None else processor
            pixels = _processed(image, processor, i)
        _check_pixels(model, pixels, i)
        height, width = int(pixels.shape[1]), int(pixels.shape[2])
        dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
        kwargs = {"pixel_values": pixels[None].to(dtype)}
        inputs.append(ModelInput((), kwargs, pixels=(height, width), about={"image": i}))
    return inputs


def _processed(image: Any, processor: Any, i: int) -> Tensor:
    if isinstance(image, str | Path):
        require("models", "reading an image file", "PIL")
        from PIL import Image, UnidentifiedImageError

        try:
            with Image.open(image) as opened:
                image = opened.convert("RGB")
        except (OSError, UnidentifiedImageError) as error:
            raise InvalidValueError(f"images[{i}] cannot be read as an image: {error}") from error
    try:
        pixels: Tensor = processor(images=image, return_tensors="pt")["pixel_values"]
    except (ValueError, TypeError, AttributeError) as error:
        raise InvalidValueError(
            f"images[{i}] is not what the processor takes: {error}; pass a PIL image, a file, or an array "
            "(row, column, 3) of uint8"
        ) from error
    return pixels[0]


def _check_pixels(model: nn.Module, pixels: Tensor, i: int) -> None:
    expected = facts.image_shape(model)
    shape = tuple(pixels.shape)
    if pixels.ndim != 3 or (expected is not None and shape[0] != expected[0]):
        channels = "channel" if expected is None else expected[0]
        raise InvalidValueError(f"images[{i}] must be an array ({channels}, row, column), got shape {shape}")
    if expected is not None and shape != expected and not _takes_any_size(model):
        raise InvalidValueError(
            f"images[{i}] has shape {shape}, the model takes {expected}; resize it, or pass an image or uint8 "
            "array and leave that to the processor"
        )


def _takes_any_size(model: nn.Module) -> bool:
    return getattr(facts.config_of(model), "model_type", "") in (
        "dinov2",
        "dinov2_with_registers",
        "dinov3_vit",
    )


def ready_inputs(model: nn.Module, inputs: Any, tokenizer: Any) -> list[ModelInput]:
    """Arguments for the model as they are; a batch axis of n gives n inputs."""
    items = [inputs] if isinstance(inputs, Mapping | Tensor) else inputs
    if not isinstance(items, Sequence) or not items:
        raise InvalidTypeError(
            "inputs must be a list of what the model takes, mappings of its arguments or tensors, got "
            f"{_name_of(inputs)}"
        )
    main = getattr(model, "main_input_name", "") if facts.config_of(model) is not None else ""
    result = []
    for i, item in enumerate(items):
        # a tensor alone is what transformers calls the main input, or else the first positional argument
        values = {name: item[name] for name in list(item.keys())} if hasattr(item, "keys") else {main: item}
        if not any(isinstance(value, Tensor) for value in values.values()):
            raise InvalidTypeError(f"inputs[{i}] must hold tensors with a batch axis, got {_name_of(inputs)}")
        for name, value in values.items():
            _check_batch(value, name, i, is_text=(name or main) in ("input_ids", "decoder_input_ids"))
        for single in _split(values):
            result.append(_ready_input(model, single, tokenizer, {"input": i}))
    return result


def _check_batch(value: Any, name: str, i: int, is_text: bool) -> None:
    if not isinstance(value, Tensor) or value.ndim == 0:
        return
    shape = tuple(value.shape)
    where = f"inputs[{i}]" + (f"[{name!r}]" if name else "")
    if is_text and value.ndim == 1:
        raise InvalidValueError(
            f"{where} must have a batch axis, got shape {shape}; add one, so that its shape is {(1, *shape)}: "
            "pass ids[None]"
        )
    if shape[0] == 0:
        raise InvalidValueError(f"{where} must hold at least one input, got a batch of 0 (shape {shape})")


def _split(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    sizes = {value.shape[0] for value in values.values() if isinstance(value, Tensor) and value.ndim > 0}
    if len(sizes) != 1:
        return [dict(values)]
    (n,) = sizes
    return [
        {name: value[i : i + 1] if isinstance(value, Tensor) else value for name, value in values.items()}
        for i in range(n)
    ]


def _ready_input(model: nn.Module, values: dict[str, Any], tokenizer: Any, about: Mapping[str, Any]) -> ModelInput:
    args = (values.pop(""),) if "" in values else ()
    ids: Any = values.get("input_ids", args[0] if args else None)
    is_text = isinstance(ids, Tensor) and ids.ndim == 2 and not ids.is_floating_point()
    limit = facts.context_length(model)
    if is_text and limit is not None and ids.shape[1] > limit:
        raise InvalidValueError(f"inputs have {ids.shape[1]} tokens, the model's context {limit}; shorten them")
    if (
        not args
        and facts.is_encoder_decoder(model)
        and not {"decoder_input_ids", "decoder_inputs_embeds"} & set(values)
    ):
        text = ids[0].tolist() if is_text else [0]
        values["decoder_input_ids"] = torch.tensor([[facts.decoder_start(model), *text[:-1]]])
    decoder = values.get("decoder_input_ids")
    return ModelInput(
        args,
        values if args else _without_cache(model, values),
        tokens=_names(tokenizer, ids[0].tolist()) if is_text and tokenizer is not None else None,
        targets=_names(tokenizer, decoder[0].tolist())
        if isinstance(decoder, Tensor) and tokenizer is not None
        else None,
        pixels=_pixels_of(values.get("pixel_values")),
        about=about,
    )


def _pixels_of(values: Any) -> tuple[int, int] | None:
    return (int(values.shape[2]), int(values.shape[3])) if isinstance(values, Tensor) and values.ndim == 4 else None
