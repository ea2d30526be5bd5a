"""Scores of a causal model whose mask got lost, so that future keys would count."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool
from torch import Tensor

from headtree.errors import HeadtreeWarning, InvalidValueError

if TYPE_CHECKING:
    from headtree.tensor.attention_tensor import AttentionTensor

#: How far below the largest score of their row numbers are that stand for a mask: models add -1e4, -1e9 or -inf to
#: scores, which may be negative all along a row.
_FAR_BELOW = 5e3


def check_future_keys(att: AttentionTensor) -> None:
    """Refuse scores that hold a causal mask as large negative numbers; warn if a captured mask was taken away."""
    if att.kind != "scores":
        return
    _, n_queries, n_keys = att.shape
    future = future_keys(n_queries, n_keys)
    # the first query sees least: only if all that it must not see is far below is the rest of a head read
    for head in torch.nonzero(_is_hidden(att, slice(None), slice(0, 1), future[:1])).flatten().tolist():
        if _is_hidden(att, slice(head, head + 1), slice(None), future):
            diagonal = 1 + n_keys - n_queries
            raise InvalidValueError(
                f"the scores of head {att.heads[head]} hold a causal mask as large negative numbers, which would "
                "count as scores; pass the mask itself when you make the tensor: "
                f"mask=np.triu(np.ones(({n_queries}, {n_keys}), bool), {diagonal})"
            )
    if att.mask is None and att.provenance.get("causal") and future.any():
        warnings.warn(
            "these scores were captured from a causal model, but their mask is missing, so keys after the query "
            "count; keep the mask of the captured tensor",
            HeadtreeWarning,
            stacklevel=3,
        )


def future_keys(n_queries: int, n_keys: int) -> Bool[Tensor, "query key"]:
    """True for keys after the query; the queries are the last of the keys."""
    return torch.ones(n_queries, n_keys, dtype=torch.bool).triu(1 + n_keys - n_queries)


def _is_hidden(
    att: AttentionTensor, heads: slice, queries: slice, future: Bool[Tensor, "query key"]
) -> Bool[Tensor, " head"]:
    """Whether all future keys of each head are present, and far below the largest score of their row."""
    scores = att.block(heads=heads, queries=queries).double()
    if not future.any() or future.all(dim=1).any():
        return torch.zeros(len(scores), dtype=torch.bool)
    missing: Any = False if att.mask is None else torch.as_tensor(att.mask[heads, queries])
    largest = scores.masked_fill(future | missing, -torch.inf).amax(dim=2, keepdim=True)
    far = (scores <= largest - _FAR_BELOW) & largest.isfinite()
    return ((far & ~torch.as_tensor(missing)) | ~future).all(dim=2).all(dim=1)
