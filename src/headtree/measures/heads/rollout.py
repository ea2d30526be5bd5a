"""Attention followed through the layers: which input tokens a position has read, directly or through others."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from headtree import _checks
from headtree.errors import InvalidTypeError, InvalidValueError
from headtree.measures.heads.columns import Column
from headtree.measures.heads.patterns import layers_of
from headtree.measures.heads.token_relations import query_positions
from headtree.tensor.attention_tensor import AttentionTensor
from headtree.tensor.probabilities import head_blocks


def attention_rollout(att: AttentionTensor, *, own: float = 0.5) -> Float[Tensor, "layer query key"]:
    """How much of each input token a position contains after each layer: rollout of Abnar and Zuidema (2020).

    ``R_l = Â_l R_{l-1}`` with R_0 = I and ``Â = own · I + (1 - own) · A``, where A is the mean over the heads of
    the layer with rows scaled to sum to one. A query that may attend to nothing stays as it is.

    Parameters
    ----------
    att : AttentionTensor
        Self-attention of one sequence, with the layers in order; all heads in the tensor are used.
    own : float
        Weight of the residual connection.

    Examples
    --------
    With uniform attention, every layer halves the share of a position's own token beyond 1/4:

    >>> import headtree as ht
    >>> import numpy as np
    >>> tokens = ["a", "b", "c", "d"]
    >>> att = ht.AttentionTensor(np.zeros((2, 4, 4)), heads=[(0, 0), (1, 0)], queries=tokens, keys=tokens)
    >>> rolled = ht.attention_rollout(att)
    >>> rolled.shape
    torch.Size([2, 4, 4])
    >>> rolled[:, 0, 0].numpy()
    array([0.625 , 0.4375])
    """
    if not isinstance(att, AttentionTensor):
        raise InvalidTypeError(f"att must be an AttentionTensor, got {type(att).__name__}")
    if not 0 <= _checks.finite_number(own, "own") <= 1:
        raise InvalidValueError(f"own must be between 0 and 1, got {own}")
    if not is_self_attention(att):
        raise InvalidValueError(
            f"att must be self-attention of one sequence, got {att.shape[1]} queries and {att.shape[2]} keys with "
            "different labels; rollout multiplies the matrices of the layers"
        )
    return torch.stack(list(_rolled_layers(att, own)))


def _rolled_layers(att: AttentionTensor, own: float) -> Iterator[Float[Tensor, "query key"]]:
    rolled = identity = torch.eye(att.shape[1], dtype=torch.float64)
    for heads in layers_of(att.heads).values():
        mean = mean_attention(att, heads)
        sums = mean.sum(dim=1, keepdim=True)
        mean = torch.where(sums > 0, mean / torch.where(sums > 0, sums, 1), identity)
        rolled = own * rolled + (1 - own) * mean @ rolled
        yield rolled


def mean_attention(att: AttentionTensor, heads: list[int]) -> Float[Tensor, "query key"]:
    """Mean attention of the heads with these indices."""
    total = torch.zeros(att.shape[1:], dtype=torch.float64)
    first, end = heads[0], heads[-1] + 1
    together = [slice(first, end)] if heads == list(range(first, end)) else [slice(i, i + 1) for i in heads]
    for some in together:
        for block in head_blocks(att, some):
            for probs in block.probs:
                total += probs
    return total / len(heads)


def rollout_columns(att: AttentionTensor) -> dict[str, Column]:
    """Share of its own token and of the first token in a position after each layer, mean over positions."""
    names = ("rollout_own_token", "rollout_first_token")
    n_layers = len(layers_of(att.heads))
    if not is_self_attention(att):
        reason = "queries and keys are not the same sequence of tokens"
        return {name: Column.missing(n_layers, reason) for name in names}
    shares = np.array([[float(r.diagonal().mean()), float(r[:, 0].mean())] for r in _rolled_layers(att, 0.5)])
    return {name: Column(shares[:, i]) for i, name in enumerate(names)}


def is_self_attention(att: AttentionTensor) -> bool:
    """Whether queries and keys are the same sequence, without a memory."""
    return att.shape[1] == att.shape[2] and query_positions(att.queries, att.keys) is not None
