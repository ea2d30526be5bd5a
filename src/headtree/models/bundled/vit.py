"""A Hugging Face ViT, and images prepared and augmented for it without torchvision."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, UInt8
from torch import Tensor, nn

from headtree._extras import require
from headtree.errors import InvalidTypeError, InvalidValueError

#: 12 layers × 12 heads on 197 tokens, like ViT-B/16 but a quarter as wide.
SMALL: Mapping[str, Any] = {
    "hidden_size": 192,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 768,
    "image_size": 224,
    "patch_size": 16,
}


def make_vit(sizes: Mapping[str, Any], n_classes: int) -> nn.Module:
    """A ViT for image classification from transformers; its weights are not set yet."""
    require("models", "the ViT", "transformers")
    from transformers import ViTConfig, ViTForImageClassification

    model: nn.Module = ViTForImageClassification(ViTConfig(**sizes, num_labels=n_classes))
    return model


#: Names of the same weights in different releases of transformers, and in headtree's files.
_RENAMED = (
    (r"vit\.encoder\.layer\.", "vit.layers."),
    (r"attention\.attention\.(q|k|v)(uery|ey|alue)\.", r"attention.\1_proj."),
    (r"attention\.output\.dense\.", "attention.o_proj."),
    (r"(layers\.\d+)\.intermediate\.dense\.", r"\1.mlp.fc1."),
    (r"(layers\.\d+)\.output\.dense\.", r"\1.mlp.fc2."),
)


def lasting_name(name: str) -> str:
    """The name of a weight in headtree's files, whatever its name in the installed release of transformers."""
    for pattern, replacement in _RENAMED:
        name = re.sub(pattern, replacement, name)
    return name


def drawn_tokens(n_images: int, n_patches: int, share: float, device: torch.device) -> Int[Tensor, "image shown"]:
    """Indices of the class token and of a random share of the patches, for each image."""
    n_shown = max(1, round(share * n_patches))
    patches = torch.rand(n_images, n_patches, device=device).argsort(dim=1)[:, :n_shown] + 1
    return torch.cat([patches.new_zeros(n_images, 1), patches], dim=1)


def show_some_tokens(model: Any) -> Callable[[Int[Tensor, "image shown"] | None], AbstractContextManager[None]]:
    """A context manager in which the model's blocks see only the given tokens of each image.

    Patches keep their original positions. Half of the tokens take less than half of the time (Liu et al.,
    PatchDropout, 2023).
    """
    shown: list[Tensor] = []

    def select(_: nn.Module, __: Any, embedded: Tensor) -> Tensor | None:
        return embedded.gather(1, shown[-1][:, :, None].expand(-1, -1, embedded.shape[2])) if shown else None

    model.vit.embeddings.register_forward_hook(select)

    @contextmanager
    def show(tokens: Tensor | None) -> Iterator[None]:
        if tokens is not None:
            shown.append(tokens)
        try:
            yield
        finally:
            shown.clear()

    return show


def pixel_values(
    images: UInt8[Tensor, "image channel row column"] | UInt8[np.ndarray, "image channel row column"],
    size: int = 224,
) -> Float[Tensor, "image channel {size} {size}"]:
    """Convert 8-bit images to the input of a ViT: scaled to [-1, 1] and resized by bilinear interpolation."""
    tensor = torch.as_tensor(images)
    if tensor.dtype != torch.uint8:
        raise InvalidTypeError(f"images must be 8-bit, got {tensor.dtype}; multiply by 255 and round")
    if tensor.ndim != 4 or tensor.shape[1] != 3:
        raise InvalidValueError(f"images must have shape (image, 3, row, column), got {tuple(tensor.shape)}")
    floats = tensor.float() / 127.5 - 1
    return F.interpolate(floats, size=(size, size), mode="bilinear", align_corners=False)


def augmented(
    images: UInt8[Tensor, "image 3 row column"], size: int = 224, strength: float = 1.0
) -> Float[Tensor, "image 3 {size} {size}"]:
    """`pixel_values` of images that are randomly rotated, shifted, scaled, flipped and recoloured.

    Geometry and resizing are done in one bilinear sampling on the device of the images. Random numbers come from
    the torch generator of that device.
    """
    n, device = images.shape[0], images.device

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return torch.rand(n, *shape, device=device) * (high - low) + low

    floats = images.float() / 127.5 - 1
    # colour: brightness, contrast around the image's mean, saturation around the grey image
    amount = 0.4 * strength
    floats = floats + uniform(-amount, amount, 1, 1, 1) * 0.5
    mean = floats.mean(dim=(1, 2, 3), keepdim=True)
    floats = mean + (floats - mean) * uniform(1 - amount, 1 + amount, 1, 1, 1)
    grey = floats.mean(dim=1, keepdim=True)
    floats = (grey + (floats - grey) * uniform(1 - amount, 1 + amount, 1, 1, 1)).clamp(-1, 1)
    # geometry: half of the images are also rotated and sheared
    is_bent = (torch.rand(n, device=device) < 0.5).float()
    angle = uniform(-0.35, 0.35) * strength * is_bent
    shear = uniform(-0.3, 0.3) * strength * is_bent
    scale = torch.exp(uniform(-0.25, 0.15) * strength)
    flip = torch.where(torch.rand(n, device=device) < 0.5, -1.0, 1.0)
    cos, sin = angle.cos() * scale, angle.sin() * scale
    shift = uniform(-0.25, 0.25, 2) * strength
    rows = [
        torch.stack([flip * cos, flip * (shear * cos - sin), shift[:, 0]], dim=1),
        torch.stack([sin, shear * sin + cos, shift[:, 1]], dim=1),
    ]
    grid = F.affine_grid(torch.stack(rows, dim=1), [n, 3, size, size], align_corners=False)
    return F.grid_sample(floats, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


def mixed(
    pixels: Float[Tensor, "image 3 row column"], labels: Float[Tensor, "image class"], rng: np.random.Generator
) -> tuple[Float[Tensor, "image 3 row column"], Float[Tensor, "image class"]]:
    """Blend each image with another (mixup) or paste a rectangle of another (cutmix); mix the labels to match."""
    shift = int(rng.integers(len(pixels)))  # pairs up images; batches are in random order already
    height, width = pixels.shape[2:]
    if rng.random() < 0.5:
        share = float(rng.beta(0.8, 0.8))
        pixels = share * pixels + (1 - share) * pixels.roll(shift, dims=0)
    else:
        side = np.sqrt(1 - rng.random())
        rows, columns = int(height * side), int(width * side)
        top, left = int(rng.integers(height - rows + 1)), int(rng.integers(width - columns + 1))
        pixels = pixels.clone()
        patch = (slice(None), slice(None), slice(top, top + rows), slice(left, left + columns))
        pixels[patch] = pixels[patch].roll(shift, dims=0)
        share = 1 - rows * columns / (height * width)
    return pixels, share * labels + (1 - share) * labels.roll(shift, dims=0)
