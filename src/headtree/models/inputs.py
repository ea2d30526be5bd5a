"""Turn texts, images and ready-made arguments into model inputs, one at a time, with labels for their tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor, nn

from headtree._extras import require
from headtree.errors import InvalidTypeError, InvalidValueError
from headtree.models import facts
from headtree.models.model_files import ModelFiles
from headtree.models.stateful import has_state

#: Arguments of text models that do not affect which attention calls are made.
_OPTIONAL = frozenset({"attention_mask", "token_type_ids", "use_cache"})


@dataclass(frozen=True, eq=False)
class ModelInput:
    """The arguments of a forward pass on one input, with a batch axis of length one."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    tokens: tuple[str, ...] | None = None  #: labels of the tokens that the model, or its encoder, reads
    targets: tuple[str, ...] | None = None  #: labels of the tokens that the decoder reads
    pixels: tuple[int, int] | None = None  #: height and width of an image
    about: Mapping[str, Any] = field(default_factory=dict)  #: added to the provenance of the captured tensor

    def shapes(self) -> tuple[Any, ...]:
        """Names and shapes of the arguments; inputs with equal ones can run in one batch."""
        named = [(name, _shape(value)) for name, value in sorted(self.kwargs.items())]
        return (*map(_shape, self.args), *named)

    def layout(self) -> tuple[Any, ...]:
        """Names and shapes except masks; the model makes the same attention calls on inputs of equal layout."""
        named = [(name, _shape(value)) for name, value in sorted(self.kwargs.items()) if name not in _OPTIONAL]
        return (*map(_shape, self.args), *named)

    def can_join(self) -> bool:
        """Whether every tensor has a batch axis of length one to concatenate along, and nothing has state."""
        values = [*self.args, *self.kwargs.values()]
        return not self.has_state() and all(
            not isinstance(value, Tensor) or (value.ndim > 0 and value.shape[0] == 1) for value in values
        )

    def present(self, n_tokens: int, *, in_decoder: bool = False) -> Bool[Tensor, " token"] | None:
        """Which of n tokens the attention mask does not mark as padding; None if it marks none of them.

        The mask is that of the model, or of its encoder; with `in_decoder` that of its decoder.
        """
        mask = self.kwargs.get("decoder_attention_mask" if in_decoder else "attention_mask")
        if not isinstance(mask, Tensor) or mask.ndim != 2 or mask.shape[1] != n_tokens or bool(mask.all()):
            return None
        return mask[0] != 0

    def has_state(self) -> bool:
        """Whether an argument has state, such as a key-value cache."""
        return any(has_state(value) for value in (*self.args, *self.kwargs.values()))

    def lengths(self) -> tuple[int, int] | None:
        """Number of tokens that the model (or its encoder) and its decoder read; None if the input is not text."""
        ids = self.kwargs.get("input_ids")
        if not isinstance(ids, Tensor) or ids.ndim != 2:
            return None
        decoder = self.kwargs.get("decoder_input_ids")
        return int(ids.shape[1]), int(decoder.shape[1]) if isinstance(decoder, Tensor) else 0

    def reads_text(self) -> bool:
        """Whether the model, or its encoder, reads tokens of a text; images may be among them."""
        return self.tokens is not None or self.lengths() is not None

    def writes_text(self) -> bool:
        """Whether there is a decoder that reads tokens of its own."""
        return self.targets is not None or "decoder_input_ids" in self.kwargs

    def length(self) -> int:
        """The larger of the two `lengths`; 0 if the input is not text."""
        return max(self.lengths() or (0, 0))

    def size(self) -> int:
        """Total number of entries in all tensors."""
        return sum(value.numel() for value in (*self.args, *self.kwargs.values()) if isinstance(value, Tensor))

    def first_tokens(self, n: int) -> ModelInput | None:
        """The input truncated to its first n tokens, to probe the model quickly; None if it is not text."""
        if self.args or set(self.kwargs) - {"input_ids", "decoder_input_ids"} - _OPTIONAL:
            return None
        if any(isinstance(value, Tensor) and value.ndim != 2 for value in self.kwargs.values()):
            return None
        cut = {name: value[:, :n] if isinstance(value, Tensor) else value for name, value in self.kwargs.items()}
        return ModelInput((), cut)


def _shape(value: Any) -> Any:
    if isinstance(value, Tensor):
        return "tensor", tuple(value.shape), value.dtype
    return ("state", id(value)) if has_state(value) else ("value", repr(value))


def join(inputs: Sequence[ModelInput]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Concatenate inputs of equal shapes into one batch: positional and keyword arguments."""
    first = inputs[0]
    if len(inputs) == 1:
        return first.args, dict(first.kwargs)

    def cat(values: list[Any]) -> Any:
        return torch.cat(values) if isinstance(values[0], Tensor) else values[0]

    args = tuple(cat([item.args[i] for item in inputs]) for i in range(len(first.args)))
    return args, {name: cat([item.kwargs[name] for item in inputs]) for name in first.kwargs}


def model_inputs(
    model: nn.Module,
    texts: Any,
    images: Any,
    inputs: Any,
    targets: Any,
    tokens: int | None,
    tokenizer: Any,
    processor: Any,
    source: ModelFiles,
) -> list[ModelInput]:
    """What the model reads, from texts, images or its own arguments: the one that is not None."""
    if texts is not None:
        return text_inputs(model, texts, targets, tokens, _checked_tokenizer(tokenizer), source)
    if images is not None:
        return image_inputs(model, images, processor, source)
    return ready_inputs(model, inputs, _checked_tokenizer(tokenizer))


def _checked_tokenizer(tokenizer: Any) -> Any:
    if tokenizer is not None and not (callable(tokenizer) and hasattr(tokenizer, "convert_ids_to_tokens")):
        raise InvalidTypeError(
            f"tokenizer must be a tokenizer as transformers has them, got {type(tokenizer).__name__}; leave it out "
            "to use the model's own"
        )
    return tokenizer


def text_inputs(
    model: nn.Module, texts: Any, targets: Any, tokens: int | None, tokenizer: Any, source: ModelFiles
) -> list[ModelInput]:
    """Tokenize texts; if `tokens` is given, cut each into inputs of that many tokens, special tokens included."""
    texts = checked_texts(texts, "texts")
    targets = None if targets is None else checked_texts(targets, "targets")
    if targets is not None and len(targets) != len(texts):
        raise InvalidValueError(f"targets must have one entry per text, got {len(targets)} for {len(texts)} texts")
    if targets is not None and tokens is not None:
        raise InvalidTypeError(
            "tokens cannot be combined with targets, which it cannot cut to match; cut both beforehand"
        )
    tokenizer = source.load_tokenizer() if tokenizer is None else tokenizer
    limit = facts.context_length(model)
    if tokens is not None and (not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 1):
        raise InvalidValueError(f"tokens must be a whole number of at least 1, got {tokens!r}")
    if tokens is not None and limit is not None and tokens > limit:
        raise InvalidValueError(f"tokens must be at most the model's context of {limit}, got {tokens}")
    inputs = []
    for i, text in enumerate(texts):
        target = None if targets is None else _ids(tokenizer, targets[i], f"targets[{i}]")
        pieces = _pieces(tokenizer, text, i, tokens)
        for j, ids in enumerate(pieces):
            if limit is not None and len(ids) > limit:
                raise InvalidValueError(
                    f"texts[{i}] has {len(ids)} tokens, but the model's context is {limit}; shorten it, or cut it "
                    f"into several inputs with tokens={limit} or fewer"
                )
            if limit is not None and target is not None and len(target) > limit:
                raise InvalidValueError(
                    f"targets[{i}] has {len(target)} tokens, but the model's context is {limit}; shorten it"
                )
            inputs.append(_text_input(model, tokenizer, ids, target, {"text": i, "piece": j}))
    return inputs


def checked_texts(texts: Any, name: str) -> list[str]:
    """Check that texts are nonempty strings and return them as a list; a single string becomes a list of one."""
    texts = [texts] if isinstance(texts, str) else texts
    if not isinstance(texts, Sequence) or not all(isinstance(text, str) for text in texts):
        raise InvalidTypeError(f"{name} must be a list of strings, got {_type_name(texts)}")
    if not texts:
        raise InvalidValueError(f"{name} must not be empty; pass at least one string")
    for i, text in enumerate(texts):
        if not text.strip():
            raise InvalidValueError(f"{name}[{i}] is empty and has nothing to attend to; leave it out")
    return list(texts)


def _type_name(value: Any) -> str:
    return f"a {type(value).__name__}" + (
        f" of {type(value[0]).__name__}" if isinstance(value, list) and value else ""
    )


def _ids(tokenizer: Any, text: str, name: str, special: bool = True) -> list[int]:
    # verbose=False: transformers warns about texts beyond the context, which are an error with a remedy here
    encoded = tokenizer(text, add_special_tokens=special, verbose=False)
    ids = [int(token) for token in encoded["input_ids"]]
    unknown = getattr(tokenizer, "unk_token_id", None)
    specials = set(getattr(tokenizer, "all_special_ids", ())) - {unknown}
    content = [token for token in ids if token not in specials]
    if unknown is not None and content and all(token == unknown for token in content):
        raise InvalidValueError(
            f"the tokenizer recognizes no token of {name}: its files are missing or belong to another model "
            f"(vocabulary size {len(tokenizer)}); pass tokenizer=…, or token ids as inputs=…"
        )
    if special and not ids:
        raise InvalidValueError(f"{name} has no tokens and nothing to attend to; leave it out")
    return ids


def _pieces(tokenizer: Any, text: str, i: int, tokens: int | None) -> list[list[int]]:
    name = f"texts[{i}]"
    if tokens is None:
        return [_ids(tokenizer, text, name)]
    body = _ids(tokenizer, text, name, special=False)
    around = _special_tokens_around(tokenizer)
    n_body = tokens - sum(map(len, around))
    if n_body < 1:
        raise InvalidValueError(
            f"tokens must exceed the {tokens - n_body} special tokens of an input, got {tokens}"
        )
    if len(body) < n_body:
        raise InvalidValueError(
            f"{name} is too short: it has {len(body) + tokens - n_body} tokens, special tokens included, but "
            f"tokens is {tokens}; reduce tokens, or pass a longer text"
        )
    # drop a remainder that does not fill an input: all inputs have the same shape
    return [
        [*around[0], *body[start : start + n_body], *around[1]]
        for start in range(0, len(body) - n_body + 1, n_body)
    ]


def _special_tokens_around(tokenizer: Any) -> tuple[list[int], list[int]]:
    """The special tokens that the tokenizer puts before and after a text."""
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
        # without a target the decoder reads the text itself, shifted by one token, as in training
        decoder = [facts.decoder_start(model), *(ids if target is None else target)[:-1]]
        kwargs["decoder_input_ids"] = torch.tensor([decoder])
    names = None if decoder is None else _token_labels(tokenizer, decoder)
    return ModelInput((), _without_cache(model, kwargs), _token_labels(tokenizer, ids), names, about=about)


def _token_labels(tokenizer: Any, ids: Sequence[int]) -> tuple[str, ...]:
    return tuple(str(token) for token in tokenizer.convert_ids_to_tokens(list(ids)))


def _without_cache(model: nn.Module, kwargs: dict[str, Any]) -> dict[str, Any]:
    if facts.can_keep_a_cache(model):
        kwargs.setdefault("use_cache", False)
    return kwargs


def image_inputs(model: nn.Module, images: Any, processor: Any, source: ModelFiles) -> list[ModelInput]:
    """Run images through the processor; use float arrays (channel, row, column) unchanged."""
    if isinstance(images, np.ndarray | Tensor) and images.ndim == 4:
        images = list(images)
    if not isinstance(images, Sequence) or isinstance(images, str):
        raise InvalidTypeError(f"images must be a list of images, got {_type_name(images)}")
    if not images:
        raise InvalidValueError("images must not be empty; pass at least one image")
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
            raise InvalidValueError(f"images[{i}] cannot be read as an image: {error}; check the file") from error
    try:
        pixels: Tensor = processor(images=image, return_tensors="pt")["pixel_values"]
    except (ValueError, TypeError, AttributeError) as error:
        raise InvalidValueError(
            f"images[{i}] was rejected by the image processor: {error}; pass a PIL image, a file, or a uint8 array "
            "(row, column, 3)"
        ) from error
    return pixels[0]


def _check_pixels(model: nn.Module, pixels: Tensor, i: int) -> None:
    expected = facts.image_shape(model)
    shape = tuple(pixels.shape)
    if pixels.ndim != 3 or (expected is not None and shape[0] != expected[0]):
        channels = "channel" if expected is None else expected[0]
        raise InvalidValueError(f"images[{i}] must be an array ({channels}, row, column), got shape {shape}")
    if expected is not None and shape != expected and not facts.takes_any_image_size(model):
        raise InvalidValueError(
            f"images[{i}] has shape {shape}, but the model expects {expected}; resize it, or pass an image or "
            "uint8 array for the processor to resize"
        )


def ready_inputs(model: nn.Module, inputs: Any, tokenizer: Any) -> list[ModelInput]:
    """Inputs given as arguments of the model's forward; a batch of n gives n inputs."""
    items = [inputs] if isinstance(inputs, Mapping | Tensor) else inputs
    if not isinstance(items, Sequence) or not items:
        raise InvalidTypeError(
            "inputs must be a list of arguments for the model, mappings by name or single tensors, got "
            f"{_type_name(inputs)}"
        )
    main = getattr(model, "main_input_name", "") if facts.config_of(model) is not None else ""
    result = []
    for i, item in enumerate(items):
        # a single tensor is what transformers calls the main input, or else the first positional argument
        values = {name: item[name] for name in list(item.keys())} if hasattr(item, "keys") else {main: item}
        if not any(isinstance(value, Tensor) for value in values.values()):
            raise InvalidTypeError(f"inputs[{i}] must contain tensors with a batch axis, got {_type_name(inputs)}")
        for name, value in values.items():
            _check_batch(value, name, i, is_text=(name or main) in ("input_ids", "decoder_input_ids"))
        for single in _split(values, i):
            result.append(_ready_input(model, single, tokenizer, {"input": i}))
    return result


def _check_batch(value: Any, name: str, i: int, is_text: bool) -> None:
    if not isinstance(value, Tensor) or value.ndim == 0:
        return
    shape = tuple(value.shape)
    where = f"inputs[{i}]" + (f"[{name!r}]" if name else "")
    if value.layout != torch.strided:
        raise InvalidTypeError(f"{where} must be a dense tensor, got one of layout {value.layout}; call to_dense()")
    if is_text and value.ndim == 1:
        raise InvalidValueError(
            f"{where} must have a batch axis, got shape {shape}; pass ids[None], whose shape is {(1, *shape)}"
        )
    if shape[0] == 0:
        raise InvalidValueError(f"{where} must contain at least one input, got a batch of 0 (shape {shape})")


def _split(values: Mapping[str, Any], i: int) -> list[dict[str, Any]]:
    sizes = {value.shape[0] for value in values.values() if isinstance(value, Tensor) and value.ndim > 0}
    if len(sizes) != 1:
        return [dict(values)]
    (n,) = sizes
    stateful = [name for name, value in values.items() if has_state(value)]
    if n > 1 and stateful:
        raise InvalidValueError(
            f"inputs[{i}][{stateful[0]!r}] has state and cannot be split, but it came with a batch of {n}; pass "
            "one input at a time"
        )
    return [
        {name: value[j : j + 1] if isinstance(value, Tensor) else value for name, value in values.items()}
        for j in range(n)
    ]


def _ready_input(model: nn.Module, values: dict[str, Any], tokenizer: Any, about: Mapping[str, Any]) -> ModelInput:
    args = (values.pop(""),) if "" in values else ()
    ids: Any = values.get("input_ids", args[0] if args else None)
    is_text = isinstance(ids, Tensor) and ids.ndim == 2 and not ids.is_floating_point()
    limit = facts.context_length(model)
    if is_text and limit is not None and ids.shape[1] > limit:
        raise InvalidValueError(
            f"inputs have {ids.shape[1]} tokens, but the model's context is {limit}; shorten them"
        )
    if (
        not args
        and facts.is_encoder_decoder(model)
        and not {"decoder_input_ids", "decoder_inputs_embeds"} & set(values)
    ):
        text = ids[0].tolist() if is_text else [0]
        values["decoder_input_ids"] = torch.tensor([[facts.decoder_start(model), *text[:-1]]])
    if is_text:
        _check_ids(model, ids, values)
    decoder = values.get("decoder_input_ids")
    return ModelInput(
        args,
        values if args else _without_cache(model, values),
        tokens=_token_labels(tokenizer, ids[0].tolist()) if is_text and tokenizer is not None else None,
        targets=_token_labels(tokenizer, decoder[0].tolist())
        if isinstance(decoder, Tensor) and tokenizer is not None
        else None,
        pixels=_pixels_of(values.get("pixel_values")),
        about=about,
    )


def _check_ids(model: nn.Module, ids: Tensor, values: Mapping[str, Any]) -> None:
    """Refuse ids that the model does not know; beside pictures or sounds they may stand for something else."""
    n_known = facts.vocabulary_size(model)
    has_other = any(isinstance(value, Tensor) and value.is_floating_point() for value in values.values())
    if n_known is None or has_other or ids.numel() == 0 or ids.is_meta:
        return
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= n_known:
        raise InvalidValueError(
            f"inputs must contain ids of tokens from 0 to {n_known - 1}, got {low if low < 0 else high}; tokenize "
            "the text for this model"
        )


def _pixels_of(values: Any) -> tuple[int, int] | None:
    return (int(values.shape[2]), int(values.shape[3])) if isinstance(values, Tensor) and values.ndim == 4 else None
