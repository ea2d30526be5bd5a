"""The heads of a tensor as probabilities, a block of heads at a time, with a mask of the missing entries."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from headtree.errors import InvalidTypeError, InvalidValueError
from headtree.tensor.attention_tensor import AttentionTensor

#: Entries of a block, 8 MB in float32: a tensor on disk is never read into memory as a whole, and intermediate
#: results stay in or near the cache.
_ENTRIES = 2**21

#: Sums of rows may exceed one by the rounding error of half precision.
_ROW_TOLERANCE = 1e-2


@dataclass(frozen=True, eq=False)
class HeadBlock:
    """Some heads of one input after softmax.

    A row is *present* if its query may attend to at least one key. Rows sum to one, or to less if an attention sink
    absorbs some of it.
    """

    probs: Float[Tensor, "head query key"]  #: 0 where missing
    allowed: Bool[Tensor, "#head query key"]  #: a single slice if all heads have the same mask
    scores: Float[Tensor, "head query key"] | None  #: input of softmax; None if only probabilities are known

    @cached_property
    def present(self) -> Bool[Tensor, "#head query"]:
        """Whether each query may attend to any key."""
        return self.allowed.any(dim=2)

    @cached_property
    def n_allowed(self) -> Float[Tensor, "#head query"]:
        """Number of keys each query may attend to."""
        return self.allowed.sum(dim=2).to(self.probs.dtype)

    @cached_property
    def row_sums(self) -> Float[Tensor, "head query"]:
        """Total attention of each query."""
        return self.probs.sum(dim=2)

    @cached_property
    def column_sums(self) -> Float[Tensor, "head key"]:
        """Total attention that each key receives."""
        return self.probs.sum(dim=1, dtype=torch.float64)

    def mean_over_rows(
        self, values: Float[Tensor, "head query"], rows: Bool[Tensor, "#head query"] | None = None
    ) -> Float[Tensor, " head"]:
        """Mean over `rows`, by default all present ones; nan for a head that has none."""
        rows = self.present if rows is None else rows
        sums = torch.where(rows, values, 0).double().sum(dim=1)
        return sums / rows.sum(dim=1)


def heads_in_a_block(shape: tuple[int, int, int]) -> int:
    """Number of heads that are read together."""
    return max(1, _ENTRIES // (shape[1] * shape[2]))


def head_blocks(att: AttentionTensor, heads: slice = slice(None)) -> Iterator[HeadBlock]:
    """Iterate over heads of a tensor, in blocks that need some tens of megabytes with intermediate results."""
    first, end, _ = heads.indices(att.shape[0])
    step = heads_in_a_block(att.shape)
    for start in range(first, end, step):
        yield head_block(att, slice(start, min(start + step, end)))


def as_probabilities(att: AttentionTensor) -> AttentionTensor:
    """The tensor after softmax, in memory; rows of weights, or of absolute values, are scaled to sum to one."""
    if att.kind == "probs":
        return att.load()
    values = torch.cat([block.probs for block in head_blocks(att)])
    return replace(att.load(), values=values, kind="probs", sinks=None)


def head_block(att: AttentionTensor, heads: slice, queries: slice = slice(None)) -> HeadBlock:
    """Read some heads of a tensor: scores go through softmax, probabilities are used as they are.

    Rows of value-weighted attention are scaled to sum to one: the share of each key in what its query receives. Of
    signed numbers the absolute values are.
    """
    values = att.block(heads=heads, queries=queries)
    allowed = _allowed(att, heads, queries)
    values = values.masked_fill(~allowed, 0)
    if not torch.isfinite(values).all():
        raise InvalidValueError("att.values must be finite unless masked, got NaN or infinite entries; mask them")
    if att.kind in ("weighted", "signed"):
        return HeadBlock(_scaled_rows(values.abs() if att.kind == "signed" else values), allowed, None)
    if att.kind == "probs":
        _check_probs(values)
        return HeadBlock(values, allowed, None)
    scores = values.masked_fill(~allowed, -torch.inf)
    if att.sinks is not None:
        sinks = att.sinks[heads].to(scores)[:, None, None].expand(-1, scores.shape[1], 1)
        probs = torch.softmax(torch.cat([scores, sinks], dim=2), dim=2)[..., :-1]
    else:
        probs = torch.softmax(scores, dim=2)
    return HeadBlock(probs.masked_fill(~allowed, 0), allowed, values)


def _scaled_rows(values: Float[Tensor, "head query key"]) -> Float[Tensor, "head query key"]:
    low = float(values.min())
    if low < 0:
        raise InvalidValueError(
            f"att.values must not be negative, since kind='weighted', got {low:.3g}; for scores, pass kind='scores'"
        )
    largest, power = values.amax(dim=2, keepdim=True), 1000 if values.dtype == torch.float64 else 120
    # by a power of two, which is exact: sums of huge numbers would overflow, and tiny ones would count as 0
    exponent = torch.frexp(largest).exponent.clamp(-power, power)
    values = values * torch.ldexp(torch.ones_like(largest), -exponent)
    return values / values.sum(dim=2, keepdim=True).clamp(min=torch.finfo(values.dtype).tiny)


def checked_tensors(atts: Any) -> list[AttentionTensor]:
    """Return one tensor, or several with the same heads, as a list."""
    tensors = [atts] if isinstance(atts, AttentionTensor) else atts
    try:
        tensors = list(tensors)
    except TypeError:
        tensors = [tensors]
    for att in tensors:
        if not isinstance(att, AttentionTensor):
            raise InvalidTypeError(
                f"atts must be an AttentionTensor or several, one per input, got {type(att).__name__}; wrap "
                "an array with AttentionTensor.from_array"
            )
    if not tensors:
        raise InvalidValueError("atts must contain at least one AttentionTensor, got none")
    for i, att in enumerate(tensors):
        if att.heads != tensors[0].heads:
            raise InvalidValueError(
                f"atts must have the same heads on every input, got {_heads_words(tensors[0])} in input 0 and "
                f"{_heads_words(att)} in input {i}; capture the same heads of one network on all"
            )
    return tensors


def _heads_words(att: AttentionTensor) -> str:
    return f"{len(att.heads)} heads ({att.heads[0]} to {att.heads[-1]})"


def _allowed(att: AttentionTensor, heads: slice, queries: slice) -> Bool[Tensor, "#head query key"]:
    n_queries, n_keys = att.shape[1:]
    if att.mask is None:
        return torch.ones(1, len(range(n_queries)[queries]), n_keys, dtype=torch.bool)
    if isinstance(att.mask, Tensor) and att.mask.stride(0) == 0:
        return ~att.mask[:1, queries]  # one mask for all heads
    return ~torch.as_tensor(att.mask[heads, queries])


def by_queries(att: AttentionTensor, heads: slice) -> Iterator[slice]:
    """Iterate over ranges of queries small enough for these heads to fit in memory."""
    n_heads, n_queries = len(range(att.shape[0])[heads]), att.shape[1]
    step = max(1, _ENTRIES // (n_heads * att.shape[2]))
    for start in range(0, n_queries, step):
        yield slice(start, min(start + step, n_queries))


def _check_probs(values: Float[Tensor, "head query key"]) -> None:
    low, high = float(values.min()), float(values.sum(dim=2).max())
    if low < 0 or high > 1 + _ROW_TOLERANCE:
        raise InvalidValueError(
            "att.values must be probabilities, since kind='probs': nonnegative, with rows that sum to at most one; "
            f"the smallest entry is {low:.3g} and the largest row sum is {high:.3g}; for scores, pass kind='scores'"
        )
