"""The input of one call's softmax, in factored form until a block of it is requested."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from headtree.tensor.factored_array import LayerFactors

#: A score below this that softmax turns into an exact zero is masked, whatever number the model uses for that:
#: XLNet adds -1e30, the first GPT -1e4, most others the minimum of the dtype.
_CERTAINLY_MASKED = -9000.0


class Block(NamedTuple):
    """A block of a call's scores: one input of the batch, some heads, some queries and a range of keys."""

    item: int
    heads: Sequence[int] | slice = slice(None)
    queries: list[int] | slice = slice(None)
    keys: slice = slice(None)


@dataclass(frozen=True, eq=False)
class Logits:
    """The scores of one attention call: queries and keys that are still to be multiplied, or the model's product.

    Parameters
    ----------
    shape : (batch, head, query, key)
        Keys shared by a group of heads count once per head.
    query, key : tensor (batch, head, token, feature), optional
        ``scores = cap(scaling * query @ key.T) + finite entries of terms``.
    product : tensor (batch, head, query, key), optional
        The input of softmax, instead of queries and keys. Masked entries are very low numbers.
    terms : sequence of tensor
        Added before softmax: position bias, additive mask. Values of at most half the dtype's minimum are masked.
    allowed : sequence of bool tensor
        True where attention is allowed.
    causal : bool
        Whether a query attends only to keys up to its own position, both counted from 0.
    sinks : tensor (head), optional
        An additional logit per head that takes probability in softmax but attends to nothing.
    """

    shape: tuple[int, int, int, int]
    query: Float[Tensor, "batch head query feature"] | None = None
    key: Float[Tensor, "batch group key feature"] | None = None
    scaling: float = 1.0
    softcap: float | None = None
    product: Float[Tensor, "batch head query key"] | None = None
    terms: tuple[Tensor, ...] = ()
    allowed: tuple[Tensor, ...] = ()
    causal: bool = False
    sinks: Float[Tensor, " head"] | None = None

    def repeats(self, other: Logits) -> bool:
        """Whether these are the scores of another call again: the same queries and keys, with the same mask."""
        return (
            self.query is not None
            and self.query is other.query
            and self.key is other.key
            and (self.scaling, self.softcap, self.causal) == (other.scaling, other.softcap, other.causal)
            and [*map(_place, self.terms), *map(_place, self.allowed)]
            == [*map(_place, other.terms), *map(_place, other.allowed)]
        )

    def scores(self, block: Block) -> Float[Tensor, "head query key"]:
        """The finite input of softmax, as a copy; masked entries are 0 or hold the score without the mask."""
        if self.product is not None:
            scores = _block_of(self.product, self.shape, block)
            return scores.masked_fill(_masked_in_product(scores), 0)
        if self.query is None or self.key is None:
            raise RuntimeError("an attention call holds neither a product nor queries and keys")
        query = _pick(self.query[block.item], block.heads)[:, block.queries]
        key = self.key[block.item]
        if key.shape[0] != self.query.shape[1]:
            key = key.repeat_interleave(self.query.shape[1] // key.shape[0], dim=0)
        key = _pick(key, block.heads)[:, block.keys]
        scores = torch.matmul(query, key.transpose(-1, -2)).mul_(self.scaling)
        if self.softcap is not None:
            scores = scores.div_(self.softcap).tanh_().mul_(self.softcap)
        for term in self.terms:
            added = _block_of(term, self.shape, block)
            if added.any():  # most additive masks of most layers are all zero
                scores = scores + added.masked_fill(added <= _half_minimum(added.dtype), 0)
        return scores

    def factors(self, item: int, heads: Sequence[int]) -> LayerFactors | None:
        """What the scores of some heads on one input are made of; None if only their product is known."""
        if self.query is None or self.key is None:
            return None
        picked = torch.tensor(heads, device=self.query.device)
        groups = picked // (self.query.shape[1] // self.key.shape[1])
        kept, groups = groups.unique(return_inverse=True)
        biases = []
        for term in self.terms:
            added = term[item if len(term) > 1 else 0]
            finite = added.masked_fill(added <= _half_minimum(added.dtype), 0)
            if finite.any():
                biases.append(finite if len(finite) == 1 else finite[picked])
        return LayerFactors(
            query=self.query[item, picked],
            key=self.key[item, kept],
            groups=groups.cpu(),
            scaling=self.scaling,
            softcap=self.softcap,
            biases=tuple(biases),
        )

    def missing(self, block: Block) -> Bool[Tensor, "#head query key"] | None:
        """True where attention is forbidden; a single slice if all heads agree, None if nothing is masked."""
        missing = None
        added = [_block_of(term, self.shape, block) for term in self.terms]
        masks = [term <= _half_minimum(term.dtype) for term in added]
        masks += [~_block_of(allowed, self.shape, block) for allowed in self.allowed]
        if self.product is not None:
            masks.append(_masked_in_product(_block_of(self.product, self.shape, block)))
        if self.causal:
            rows = torch.arange(self.shape[2])[block.queries]
            columns = torch.arange(self.shape[3])[block.keys]
            masks.append((columns > rows[:, None])[None])
        for mask in masks:
            if mask.any():
                missing = mask.cpu() if missing is None else missing | mask.cpu()
        return missing

    def probs(
        self, scores: Float[Tensor, "head query key"], missing: Tensor | None, heads: Sequence[int] | slice
    ) -> Float[Tensor, "head query key"]:
        """Softmax over a block with all keys; zeros for a query whose keys are all masked."""
        scores = scores.float() if scores.dtype in (torch.float16, torch.bfloat16) else scores
        if missing is not None:
            scores = scores.masked_fill(missing.to(scores.device), -torch.inf)
        if self.sinks is not None:
            sinks = _pick(self.sinks.to(scores), heads)[:, None, None].expand(-1, scores.shape[1], 1)
            return torch.softmax(torch.cat([scores, sinks], dim=-1), dim=-1)[..., :-1]
        probs = torch.softmax(scores, dim=-1)
        return probs if missing is None else probs.nan_to_num_(0.0)


def from_queries(
    query: Tensor,
    key: Tensor,
    mask: Tensor | None,
    *,
    scaling: float | None = None,
    softcap: float | None = None,
    bias: Tensor | None = None,
    causal: bool = False,
    sinks: Tensor | None = None,
) -> Logits:
    """Logits from the arguments of an attention function; masks are boolean (True = allowed) or additive."""
    n_batch, n_heads, n_queries, _ = query.shape
    n_keys = key.shape[2]
    terms = [
        _four_axes(term)[..., :n_keys] for term in (bias, mask) if term is not None and term.is_floating_point()
    ]
    allowed = [_four_axes(mask)[..., :n_keys].bool()] if mask is not None and not mask.is_floating_point() else []
    return Logits(
        shape=(n_batch, n_heads, n_queries, n_keys),
        query=query,
        key=key,
        scaling=query.shape[-1] ** -0.5 if scaling is None else float(scaling),
        softcap=None if softcap is None else float(softcap),
        terms=tuple(terms),
        allowed=tuple(allowed),
        causal=causal,
        sinks=None if sinks is None else sinks.reshape(-1),
    )


def from_product(product: Tensor, n_batch: int, sinks: Tensor | None = None) -> Logits:
    """Logits from the input of a softmax; the first axis of (batch·head, query, key) is split into two."""
    if product.ndim == 3 and product.shape[0] % n_batch == 0:
        product = product.reshape(n_batch, product.shape[0] // n_batch, *product.shape[1:])
    n_batch, n_heads, n_queries, n_keys = product.shape
    return Logits(shape=(n_batch, n_heads, n_queries, n_keys), product=product, sinks=sinks)


def _masked_in_product(scores: Tensor) -> Tensor:
    low = scores <= _half_minimum(scores.dtype)
    suspects = scores <= _CERTAINLY_MASKED
    if not torch.equal(low, suspects):
        low |= suspects & (torch.softmax(scores.float(), dim=-1) == 0)
    return low


def _block_of(values: Tensor, shape: tuple[int, int, int, int], block: Block) -> Tensor:
    """A block of values that broadcast to `shape`; a head axis of length one stays."""
    n_batch, _, n_queries, n_keys = shape
    full = values.expand(n_batch, values.shape[1], n_queries, n_keys)[block.item]
    heads = slice(None) if full.shape[0] == 1 else block.heads
    return _pick(full, heads)[:, block.queries, block.keys]


def _place(values: Tensor) -> tuple[int, torch.Size, tuple[int, ...]]:
    """Where a tensor is in memory; equal for two views of the same values."""
    return values.data_ptr(), values.shape, values.stride()


def _pick(values: Tensor, heads: Sequence[int] | slice) -> Tensor:
    return values[heads] if isinstance(heads, slice) else values[list(heads)]


def _four_axes(mask: Tensor) -> Tensor:
    return mask.reshape((1,) * (4 - mask.ndim) + tuple(mask.shape))


def _half_minimum(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).min / 2
