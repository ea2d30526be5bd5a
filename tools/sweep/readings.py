"""What a model can read: random texts, images and sounds, by the arguments that its forward accepts."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

_N_BATCH, _N_TOKENS, _N_TARGETS = 2, 12, 7
_TEXT_IDS = (5, 60)


def readings(model: Any) -> Iterator[dict[str, Any]]:
    """Arguments that a model may be able to read, the richest first; whether it can shows when it runs."""
    accepted = inspect.signature(model.forward).parameters
    text = {"input_ids": _ids(_N_TOKENS, 0)} if "input_ids" in accepted else {}
    if text and "bbox" in accepted:  # where the words stand on a page
        text["bbox"] = torch.arange(4).expand(_N_BATCH, _N_TOKENS, 4)
    target = {}
    if "decoder_input_ids" in accepted and getattr(model.config, "is_encoder_decoder", False):
        target = {"decoder_input_ids": _ids(_N_TARGETS, 1)}
    others = [other for other in _others(model) if set(other) <= set(accepted)]
    for other in others:
        for marked in _marked(text, other, model.config):
            yield {**marked, **other, **target}
        yield {**other, **target}
    if text:
        yield {**text, **target}
    for other in [*others, text]:
        if other and target:
            yield other


def _ids(n: int, seed: int) -> Tensor:
    return torch.randint(*_TEXT_IDS, (_N_BATCH, n), generator=torch.Generator().manual_seed(seed))


def _random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(2))


def _marked(text: dict[str, Tensor], other: dict[str, Tensor], config: Any) -> Iterator[dict[str, Tensor]]:
    """The text as it is, and with marks where an image or a sound is put in."""
    if not text:
        return
    kind = "audio" if any(name in other for name in ("input_features", "input_values")) else "image"
    marks = [getattr(config, f"{kind}_token_{end}", None) for end in ("id", "index")]
    for mark in marks:
        for n in (4, 5, 1, 16) if isinstance(mark, int) else ():
            ids = _ids(_N_TOKENS, 0)
            yield {"input_ids": torch.cat([ids[:, :2], torch.full((_N_BATCH, n), mark), ids[:, 2:]], dim=1)}
    if not any(isinstance(mark, int) for mark in marks):
        yield text


def _others(model: Any) -> Iterator[dict[str, Tensor]]:
    """Images, videos, sounds and series, in the layouts that models use."""
    config = model.config
    vision = getattr(config, "vision_config", None) or config
    size, channels = getattr(vision, "image_size", 16), getattr(vision, "num_channels", 3)
    height, width = size if isinstance(size, list | tuple) else (size or 32, size or 32)
    channels = channels if isinstance(channels, int) else 3
    for n in {height: 0, 32: 0, 64: 0}:
        shape = (channels, n, width if n == height else n)
        yield {"pixel_values": _random(_N_BATCH, *shape)}
        for n_frames in (getattr(vision, "num_frames", None) or 2, 1):
            yield {"pixel_values": _random(_N_BATCH, n_frames, *shape)}
            yield {"pixel_values_videos": _random(_N_BATCH, n_frames, *shape)}
    for grid in ("grid_thw", "image_grid_thw"):
        for patches in _flat_patches(vision):
            for name in ("hidden_states", "pixel_values"):
                yield {name: patches, grid: torch.tensor([[1, 4, 4]])}
    audio = getattr(config, "audio_config", None) or getattr(config, "encoder_config", None) or config
    bins = next((n for name in _BINS if isinstance(n := getattr(audio, name, None), int)), 8)
    for n in (20, 32, 64, 128):
        for shape in ((bins, n), (n, bins)):
            for name in ("input_features", "input_values"):
                yield {name: _random(_N_BATCH, *shape)}
    for n in (200, 1600, 6400):
        yield {"input_values": _random(_N_BATCH, n)}
        yield {"input_values": _random(_N_BATCH, 1, n)}
    yield {"past_values": _random(_N_BATCH, getattr(config, "context_length", 32) or 32, 1)}


_BINS = ("num_mel_bins", "feature_projection_input_dim", "input_dim", "input_feat_per_channel", "feature_size")


def _flat_patches(vision: Any) -> Iterator[Tensor]:
    """The 4 × 4 patches of one image, each as one row."""
    patch, channels = getattr(vision, "patch_size", None), getattr(vision, "in_channels", 3)
    if not isinstance(patch, int) or not isinstance(channels, int):
        return
    for n_frames in {getattr(vision, "temporal_patch_size", 1): 0, 1: 0}:
        if isinstance(n_frames, int):
            yield _random(16, channels * n_frames * patch * patch)
            yield _random(16, channels, patch, patch)


def words_for(inputs: Mapping[str, Any]) -> str:
    """What a model read, in words."""
    kinds = {
        "text": ("input_ids",),
        "image": ("pixel_values", "hidden_states"),
        "video": ("pixel_values_videos",),
        "sound": ("input_features", "input_values"),
        "series": ("past_values",),
    }
    return " and ".join(kind for kind, names in kinds.items() if set(names) & set(inputs))
