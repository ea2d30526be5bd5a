"""Initial weights that are the same on every machine."""

from __future__ import annotations

import math

import numpy as np
import torch
from jaxtyping import Float
from torch import nn

from headtree.models.bundled.vit import lasting_name

#: Standard deviation of the initial head weights of a ViT: at width 192 it gives W_Qᵀ W_K a diagonal of about 0.4.
_HEAD_SCALE = 0.045

#: Amplitude of the initial position embeddings of a ViT, about that of the patch embeddings.
_POSITION_SCALE = 0.4


def draw_weights(model: nn.Module, seed: int, scale: float = 0.02) -> None:
    """Set every parameter: matrices and tables to normal numbers of deviation `scale`, gains to 1, biases to 0.

    Numbers are drawn with numpy, parameter by parameter in the order of their lasting names. They do not depend on
    the processor or on the versions of torch and transformers.
    """
    rng = np.random.default_rng(seed)
    gains = {f"{name}.weight" for name, module in model.named_modules() if isinstance(module, nn.LayerNorm)}
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters(), key=lambda pair: lasting_name(pair[0])):
            if name in gains:
                parameter.fill_(1)
            elif parameter.ndim < 2:
                parameter.zero_()
            else:
                values = rng.standard_normal(tuple(parameter.shape), dtype=np.float32) * np.float32(scale)
                parameter.copy_(torch.from_numpy(values))


def draw_vit_weights(model: nn.Module, seed: int) -> None:
    r"""`draw_weights`, plus properties of large trained ViTs that are slow to learn from little data.

    Queries and keys of a head start equal: :math:`W_Q^T W_K` has a positive diagonal, and tokens attend to tokens
    like themselves. :math:`W_O W_V` has a negative diagonal, so heads subtract what they attend to. Position
    embeddings are sines and cosines of row and column. After Trockman and Kolter, Mimetic Initialization of
    Self-Attention Layers, 2023, but with smaller query and key weights: untrained heads attend almost uniformly.
    """
    draw_weights(model, seed)
    named = {lasting_name(name): parameter for name, parameter in model.named_parameters()}
    gain = _HEAD_SCALE / 0.02
    with torch.no_grad():
        for name, query in named.items():
            if not name.endswith("attention.q_proj.weight"):
                continue
            block = name.removesuffix("q_proj.weight")
            query.mul_(gain)
            named[f"{block}k_proj.weight"].copy_(query)
            named[f"{block}v_proj.weight"].mul_(gain)
            named[f"{block}o_proj.weight"].copy_(-named[f"{block}v_proj.weight"].T)
        positions = named["vit.embeddings.position_embeddings"]
        side = math.isqrt(positions.shape[1] - 1)
        waves = _POSITION_SCALE * _plane_waves(side, positions.shape[2])
        positions[0, 1:] = torch.from_numpy(waves).to(positions)


def _plane_waves(side: int, width: int) -> Float[np.ndarray, "position {width}"]:
    """Sines and cosines of column, then of row, for a square of positions, row by row; unused features are 0."""
    rates = 100.0 ** (-np.arange(width // 4) / max(1, width // 4))
    angles = np.arange(side)[:, None] * rates
    waves = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
    table = np.zeros((side, side, width))
    table[:, :, : waves.shape[1]] = waves[None]
    table[:, :, waves.shape[1] : 2 * waves.shape[1]] = waves[:, None]
    return table.reshape(side * side, width)
