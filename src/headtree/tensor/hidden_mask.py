"""Scores whose mask got lost or is held by large negative numbers, so that hidden keys would count."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool
from torch import Tensor

from headtree.errors import HeadtreeWarning, InvalidValueError

if TYPE_CHECKING:
    from headtree.tensor.attention_tensor import AttentionTensor

#: How far below the largest score of their row numbers are that stand for a mask: models add -1e4, -1e9 or -inf to
#: scores, which may be negative all along a row.
_FAR_BELOW = 5e3
#: Equal numbers below the first of these, beside others no larger than the second, stand for a mask, whatever its
#: shape: -1e9, or the lowest of float32.
_LOWEST_SCORE, _LARGEST_SCORE = -1e8, 1e6
#: A mask of all such numbers among the scores x in Python, without a mask and beside one.
_ALL_FAR_BELOW = f"x <= x.max(axis=-1, keepdims=True) - {_FAR_BELOW:.0f}"
_BESIDE_A_MASK = f"mask | (x <= np.where(mask, -np.inf, x).max(axis=-1, keepdims=True) - {_FAR_BELOW:.0f})"


def check_future_keys(att: AttentionTensor) -> None:
    """Refuse scores that hold a mask as large negative numbers; warn if a captured mask was taken away."""
    if att.kind != "scores":
        return
    _, n_queries, n_keys = att.shape
    future = future_keys(n_queries, n_keys)
    # only if all that one query must not see is far below is the rest of a head read; padding is at either end
    first = 3 * (n_queries - 1) // 4
    one = slice(first, first + 1)
    for head in torch.nonzero(_is_hidden(att, slice(None), one, future[one])).flatten().tolist():
        if _is_hidden(att, slice(head, head + 1), slice(None), future):
            raise InvalidValueError(
                f"the scores of head {att.heads[head]} hold a causal mask as large negative numbers, which would "
                "count as scores; write nan there in a file, or pass the mask itself when you make the tensor: "
                f"mask={_mask_words(att, slice(head, head + 1), future)}"
            )
    if att.mask is not None:
        last = slice(n_queries - 1, n_queries)
        for head in torch.nonzero(_is_half_masked(att, slice(None), last)).flatten().tolist():
            if _is_half_masked(att, slice(head, head + 1), slice(None)):
                raise InvalidValueError(
                    f"the scores of head {att.heads[head]} hold large negative numbers that stand for a mask where "
                    "the mask given hides nothing, and would count as scores; write nan there in a file, or hide "
                    f"them too: mask={_BESIDE_A_MASK}"
                )
    for head in torch.nonzero(_has_mask_numbers(att)).flatten().tolist():
        raise InvalidValueError(
            f"the scores of head {att.heads[head]} hold numbers such as -1e9 that stand for a mask and would count "
            "as scores; write nan there in a file, or pass the mask itself when you make the tensor: "
            f"mask={_ALL_FAR_BELOW if att.mask is None else _BESIDE_A_MASK}"
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


def _present(att: AttentionTensor, heads: slice, queries: slice) -> tuple[Tensor, Bool[Tensor, "head query key"]]:
    """Scores of some heads and queries, and where there are any."""
    scores = att.block(heads=heads, queries=queries).double()
    if att.mask is None:
        return scores, torch.ones_like(scores, dtype=torch.bool)
    return scores, ~torch.as_tensor(att.mask[heads, queries])


def _is_hidden(
    att: AttentionTensor, heads: slice, queries: slice, future: Bool[Tensor, "query key"]
) -> Bool[Tensor, " head"]:
    """Whether all future keys of each head that are present are far below the largest score of their row.

    Rows that are far below the others as a whole, as those of padding, say nothing. If earlier keys are far below
    the largest score as well, this is attention to one key.
    """
    scores, present = _present(att, heads, queries)
    if not future.any() or future.all(dim=1).any():
        return torch.zeros(len(scores), dtype=torch.bool)
    allowed = present & ~future
    largest = scores.masked_fill(~allowed, -torch.inf).amax(dim=2, keepdim=True)
    far = largest.isfinite() & (largest - scores >= _FAR_BELOW)
    is_asked = future & (largest.amax(dim=1, keepdim=True) - largest < _FAR_BELOW)
    far &= present
    is_far = (far | ~present | ~is_asked).flatten(1).all(dim=1) & (far & is_asked).flatten(1).any(dim=1)
    has_two_near = ((allowed & ~far).sum(dim=2) > 1).any(dim=1) | (allowed.sum(dim=2) < 2).all(dim=1)
    return is_far & has_two_near


def _has_mask_numbers(att: AttentionTensor) -> Bool[Tensor, " head"]:
    """Whether each head has numbers too low for scores beside usual scores, in any of three queries.

    The numbers of a mask are equal up to the scores to which they were added; large scores differ.
    """
    last = att.shape[1] - 1
    rows = [_present(att, slice(None), slice(q, q + 1)) for q in (0, last // 2, last)]
    scores, present = (torch.cat(each, dim=1) for each in zip(*rows, strict=True))
    present = present & scores.isfinite()
    is_low, is_usual = present & (scores <= _LOWEST_SCORE), present & (scores.abs() <= _LARGEST_SCORE)
    highest = scores.masked_fill(~is_low, -torch.inf).amax(dim=(1, 2))
    lowest = scores.masked_fill(~is_low, torch.inf).amin(dim=(1, 2))
    beside = (is_low.any(dim=2) & is_usual.any(dim=2)).any(dim=1)
    return beside & (is_low | is_usual | ~present).all(dim=2).all(dim=1) & (highest - lowest <= 2 * _LARGEST_SCORE)


def _is_half_masked(att: AttentionTensor, heads: slice, queries: slice) -> Bool[Tensor, " head"]:
    """Whether each row falls into scores near its largest and others far below 0, which are nearly equal.

    Some rows may have none that are far below. One that has some has two that are near; and it is not the same keys
    that are near in all of them, as if all attended to the first tokens.
    """
    scores, present = _present(att, heads, queries)
    largest = scores.masked_fill(~present, -torch.inf).amax(dim=2, keepdim=True)
    far = present & (largest - scores >= _FAR_BELOW)
    near = present & ~far
    has_far = far.any(dim=2)
    highest = scores.masked_fill(~far, -torch.inf).amax(dim=2)
    lowest = scores.masked_fill(~far, torch.inf).amin(dim=2)
    gap = scores.masked_fill(~near, torch.inf).amin(dim=2) - highest
    is_split = (gap >= _FAR_BELOW) & (highest - lowest < _FAR_BELOW) & (highest <= -_FAR_BELOW)
    has_two = has_far & (near.sum(dim=2) > 1)
    somewhere = (near & has_far[..., None]).any(dim=1)
    everywhere = (near | ~has_far[..., None]).all(dim=1)
    varies = (somewhere != everywhere).any(dim=1) | (scores.shape[1] == 1)
    return (is_split | ~has_far).all(dim=1) & has_two.any(dim=1) & varies


def _mask_words(att: AttentionTensor, heads: slice, future: Bool[Tensor, "query key"]) -> str:
    """The mask of a head in Python: a causal one if nothing else is hidden, beside the mask that there is."""
    scores, present = _present(att, heads, slice(None))
    largest = scores.masked_fill(~present, -torch.inf).amax(dim=2, keepdim=True)
    n_queries, n_keys = future.shape
    if (present & ~future & (largest - scores >= _FAR_BELOW)).any():
        return _ALL_FAR_BELOW if att.mask is None else _BESIDE_A_MASK
    causal = f"np.triu(np.ones(({n_queries}, {n_keys}), bool), {1 + n_keys - n_queries})"
    return causal if att.mask is None else f"mask | {causal}"
