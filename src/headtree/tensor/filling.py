"""Matrices without gaps: missing entries filled, and logarithms of probabilities."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from headtree import _checks

if TYPE_CHECKING:
    from headtree.tensor.attention_tensor import AttentionTensor


@dataclass(frozen=True, eq=False)
class Filled:
    """The values of a tensor with its missing entries filled, and how many there were."""

    values: Float[Tensor, "head query key"]
    n_filled: int


def fill(
    values: Float[Tensor, "head query key"], mask: Bool[Tensor, "head query key"], *, with_row_means: bool
) -> Filled:
    """Fill masked entries with 0, or with the mean of the row's present entries.

    A row without present entries takes the mean of its head's present entries, and a head without any is 0.
    """
    values = values.masked_fill(mask, 0)
    if with_row_means:
        values = torch.where(mask, _row_means(values, mask), values)
    return Filled(_checks.full_tensor(values, "att.values"), int(mask.sum()))


class FilledBlocks:
    """The values of a tensor that is not in memory, without gaps, as `AttentionTensor.filled` has them."""

    def __init__(self, att: AttentionTensor) -> None:
        self._att = att
        self._head_means: dict[int, Float[Tensor, ""]] = {}
        self.dtype: np.dtype[Any] = att.block(slice(0, 1), slice(0, 1), slice(0, 1)).numpy().dtype

    def queries(self, queries: slice) -> Float[Tensor, "head query key"]:
        """The rows of some queries of all heads."""
        values = self._att.block(queries=queries)
        if self._att.mask is None:
            return _checks.full_tensor(values, "att.values")
        mask = torch.as_tensor(self._att.mask[:, queries])
        found = fill(values, mask, with_row_means=self._att.kind == "scores").values
        if self._att.kind == "scores":
            for head, row in mask.all(dim=2).nonzero().tolist():
                found[head, row] = self._head_mean(head)
        return found

    def _head_mean(self, head: int) -> Float[Tensor, ""]:
        """What a row without entries takes."""
        if head not in self._head_means:
            one = slice(head, head + 1)
            mask = torch.as_tensor(self._att.mask[one])
            filled = fill(self._att.block(heads=one), mask, with_row_means=True).values[0]
            self._head_means[head] = filled[mask[0].all(dim=1)][0, 0]
        return self._head_means[head]


def centre_rows(
    values: Float[Tensor, "head query key"], mask: Bool[Tensor, "head query key"] | None
) -> Float[Tensor, "head query key"]:
    """Each row minus the mean of its present entries, computed in float64; masked entries are 0."""
    means = row_means(values, mask)
    if mask is None:
        return (values.double() - means).to(values.dtype)
    return (values.double().masked_fill(mask, 0) - means).masked_fill(mask, 0).to(values.dtype)


def row_means(
    values: Float[Tensor, "head query key"], mask: Bool[Tensor, "head query key"] | None
) -> Float[Tensor, "head query 1"]:
    """The mean of the present entries of each row in float64; 0 where there are none."""
    if mask is None:
        return values.double().mean(dim=2, keepdim=True)
    present = values.double().masked_fill(mask, 0)
    return present.sum(dim=2, keepdim=True) / (~mask).sum(dim=2, keepdim=True).clamp(min=1)


def _row_means(
    values: Float[Tensor, "head query key"], mask: Bool[Tensor, "head query key"]
) -> Float[Tensor, "head query 1"]:
    sums, counts = values.sum(dim=2, keepdim=True), (~mask).sum(dim=2, keepdim=True)
    of_head = sums.sum(dim=1, keepdim=True) / counts.sum(dim=1, keepdim=True).clamp(min=1)
    return torch.where(counts > 0, sums / counts.clamp(min=1), of_head)


def logarithms(
    probs: Float[Tensor, "head query key"], present: Bool[Tensor, "#head query key"] | None
) -> Float[Tensor, "head query key"]:
    """Logarithms of present entries, -inf where a probability is exactly 0; 0 where an entry is missing."""
    return (probs if present is None else torch.where(present, probs, 1.0)).log()


def finite_logarithms(
    probs: Float[Tensor, "head query key"], mask: Bool[Tensor, "head query key"] | None
) -> Float[Tensor, "head query key"]:
    """Logarithms without gaps: zeros take the smallest finite one of the head, missing entries their row's mean."""
    logs = logarithms(probs.clamp(min=0), None if mask is None else ~mask)
    is_zero = logs == -torch.inf
    positive = ~is_zero if mask is None else ~(is_zero | mask)
    smallest = torch.where(positive, logs, torch.inf).amin(dim=(1, 2), keepdim=True)
    logs = torch.where(is_zero, torch.where(smallest.isfinite(), smallest, 0.0), logs)
    if mask is None:
        return _checks.full_tensor(logs, "att.values")
    return fill(logs, mask, with_row_means=True).values
