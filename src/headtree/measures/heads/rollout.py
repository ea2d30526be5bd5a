"""Attention followed through the layers: which input tokens a position has read by way of all the others."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from headtree.errors import InvalidTypeError, InvalidValueError
from headtree.measures.heads.columns import Column
from headtree.measures.heads.patterns import layers_of
from headtree.measures.heads.probabilities import head_block
from headtree.measures.heads.token_relations import query_places
from headtree.tensor.attention_tensor import AttentionTensor


def attention_rollout(att: AttentionTensor, *, own: float = 0.5) -> Float[Tensor, "layer query key"]:
    """How much of each input token a position holds after each layer: rollout of Abnar and Zuidema (2020).

    ``R_l = Â_l R_{l-1}``, ``Â = own · I + (1 - own) · A``, A the mean over the layer's heads, rows scaled to sum to
    one; R_0 = I. A query that may attend to nothing keeps what it has.

    Parameters
    ----------
    att : AttentionTensor
        Of one sequence with itself; its layers in order, every head that is there.
    own : float
        Share of the residual connection.
    """
    if not isinstance(att, AttentionTensor):
        raise InvalidTypeError(f"att must be an AttentionTensor, got {type(att).__name__}")
    if not 0 <= own <= 1:
        raise InvalidValueError(f"own must be between 0 and 1, got {own}")
    if not is_self_attention(att):
        raise InvalidValueError(
            f"att must be the attention of one sequence with itself, got {att.shape[1]} queries and {att.shape[2]} "
            "keys of other names; rollout multiplies the layers' matrices"
        )
    return torch.stack(list(_rolled_layers(att, own)))


def _rolled_layers(att: AttentionTensor, own: float) -> Iterator[Float[Tensor, "query key"]]:
    rolled = identity = torch.eye(att.shape[1], dtype=torch.float64)
    for places in layers_of(att.heads).values():
        mean = mean_attention(att, places)
        sums = mean.sum(dim=1, keepdim=True)
        mean = torch.where(sums > 0, mean / torch.where(sums > 0, sums, 1), identity)
        rolled = own * rolled + (1 - own) * mean @ rolled
        yield rolled


def mean_attention(att: AttentionTensor, places: list[int]) -> Float[Tensor, "query key"]:
    """Mean of the attention of these heads."""
    total = torch.zeros(att.shape[1:], dtype=torch.float64)
    for place in places:
        total += head_block(att, slice(place, place + 1)).probs[0]
    return total / len(places)


def rollout_columns(att: AttentionTensor) -> dict[str, Column]:
    """How much of its own token and of the first token a position holds after each layer, mean over positions."""
    names = ("rollout_own_token", "rollout_first_token")
    n_layers = len(layers_of(att.heads))
    if not is_self_attention(att):
        reason = "queries and keys are not the same sequence of tokens"
        return {name: Column.missing(n_layers, reason) for name in names}
    shares = np.array([[float(r.diagonal().mean()), float(r[:, 0].mean())] for r in _rolled_layers(att, 0.5)])
    return {name: Column(shares[:, i]) for i, name in enumerate(names)}


def is_self_attention(att: AttentionTensor) -> bool:
    """Whether queries and keys are one sequence, without a memory."""
    return att.shape[1] == att.shape[2] and query_places(att.queries, att.keys) is not None
