"""Measures of the residual stream after a layer: massive activations, similarity of tokens, over-smoothing."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from headtree.measures.heads.columns import Column
from headtree.measures.heads.patterns import layers_of
from headtree.measures.heads.rollout import is_self_attention, mean_attention
from headtree.tensor.attention_tensor import AttentionTensor


def massive_activation_ratio(x: Float[Tensor, "token width"]) -> float:
    """Largest divided by median absolute value of the residual stream (Sun et al. 2024); nan if the median is 0."""
    magnitudes = x.double().abs().numpy()
    median = float(np.median(magnitudes))
    return float(magnitudes.max()) / median if median > 0 else float("nan")


def token_similarity(x: Float[Tensor, "token width"]) -> float:
    """Mean cosine between different tokens (Shi et al. 2022); nan if fewer than two tokens are nonzero."""
    x = x.double()
    x = x[x.norm(dim=1) > 0]
    if len(x) < 2:
        return float("nan")
    unit = x / x.norm(dim=1, keepdim=True)
    # the sum over all pairs is the squared norm of the sum
    n = len(unit)
    return float((unit.sum(dim=0).square().sum() - n) / (n * (n - 1)))


def dirichlet_energy(x: Float[Tensor, "token width"], attention: Float[Tensor, "token token"]) -> float:
    """½ Σ_ij W_ij ‖x_i - x_j‖² / Σ_i ‖x_i‖², W = (A + Aᵀ) / 2: how different are tokens that attend to each other.

    The attention matrix is treated as a graph, as in Shi et al. (2022). The energy is that of Cai and Wang (2020)
    without degree weights, relative to the size of the states. Using A in place of W gives the same sum.
    """
    x, a = x.double(), attention.double()
    squares = x.square().sum(dim=1)
    total = float(squares.sum())
    if total == 0:
        return float("nan")
    # Σ A_ij (|x_i|² + |x_j|² - 2 x_i·x_j) / 2
    energy = (a.sum(dim=1) * squares).sum() + (a.sum(dim=0) * squares).sum() - 2 * ((a @ x) * x).sum()
    return float(energy) / 2 / total


def activation_columns(att: AttentionTensor, states: list[Float[Tensor, "token width"]]) -> dict[str, Column]:
    """Measures of the residual stream after each layer of a tensor that was captured on the same input."""
    layers = layers_of(att.heads)
    chosen = [states[layer] if layer < len(states) else torch.zeros(0, 1) for layer in layers]
    reason = "the states are zero, or there is only one token"
    energies = Column.missing(len(layers), "queries and keys are not the same sequence of tokens")
    fits = all(len(x) == att.shape[1] for x in chosen)
    if is_self_attention(att) and fits:
        pairs = zip(chosen, layers.values(), strict=True)
        energies = Column(np.array([dirichlet_energy(x, mean_attention(att, p)) for x, p in pairs]), reason)
    return {
        "massive_activation_ratio": Column(
            np.array([massive_activation_ratio(x) for x in chosen]), "half of the residual stream is 0"
        ),
        "token_similarity": Column(np.array([token_similarity(x) for x in chosen]), reason),
        "dirichlet_energy": energies,
    }
