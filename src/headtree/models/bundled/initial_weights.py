"""First weights that are the same on every machine."""

from __future__ import annotations

import math

import numpy as np
import torch
from jaxtyping import Float
from torch import nn

from headtree.models.bundled.vit import lasting_name

#: Deviation of the first weights of a ViT's heads: their products are about 0.4 on the diagonal at width 192.
_HEAD_SCALE = 0.045

#: Size of the first position embeddings of a ViT, about that of the patches.
_POSITION_SCALE = 0.4


def draw_weights(model: nn.Module, seed: int, scale: float = 0.02) -> None:
    """Set every parameter: matrices and tables normal with deviation `scale`, norms 1, biases 0.

    The numbers come from numpy's generator, parameter by parameter in the order of their lasting names, so that
    they do not depend on the processor or on the versions of torch and transformers.
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
    r"""`draw_weights`, then what large trained ViTs have in common, which small data take long to teach.

    Each head's keys are its queries, so that :math:`W_Q^T W_K` has a positive diagonal: tokens begin by looking at
    what is like them. What heads bring is subtracted, :math:`W_O W_V` having a negative diagonal. Positions are
    sines and cosines of row and column. After Trockman and Kolter, Mimetic Initialization of Self-Attention
    Layers, 2023, with a weaker first part: the untrained heads stay near uniform attention.
    """
    draw_weights(model, seed)
    named = {lasting_name(name): parameter for name, parameter in model.named_parameters()}
    grow = _HEAD_SCALE / 0.02
    with torch.no_grad():
        for name, query in named.items():
            if not name.endswith("attention.q_proj.weight"):
                continue
            block = name.removesuffix("q_proj.weight")
            query.mul_(grow)
            named[f"{block}k_proj.weight"].copy_(query)
            named[f"{block}v_proj.weight"].mul_(grow)
            named[f"{block}o_proj.weight"].copy_(-named[f"{block}v_proj.weight"].T)
        positions = named["vit.embeddings.position_embeddings"]
        side = math.isqrt(positions.shape[1] - 1)
        waves = _POSITION_SCALE * _plane_waves(side, positions.shape[2])
        positions[0, 1:] = torch.from_numpy(waves).to(positions)


def _plane_waves(side: int, width: int) -> Float[np.ndarray, "place {width}"]:
    """Sines and cosines of column, then of row, for the places of a square, row by row; 0 where width is left."""
    rates = 100.0 ** (-np.arange(width // 4) / max(1, width // 4))
    angles = np.arange(side)[:, None] * rates
    waves = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
    table = np.zeros((side, side, width))
    table[:, :, : waves.shape[1]] = waves[None]
    table[:, :, waves.shape[1] : 2 * waves.shape[1]] = waves[:, None]
    return table.reshape(side * side, width)
