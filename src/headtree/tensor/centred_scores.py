"""Centred scores of a tensor that does not fit in memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headtree import _checks
from headtree._lazy_array import AxisIndex, LazyArray
from headtree.tensor.attention_tensor import AttentionTensor
from headtree.tensor.filling import row_means
from headtree.tensor.hidden_mask import check_future_keys


class CentredScores(LazyArray):
    """The values of `AttentionTensor.centred`, computed for the block that is read; missing ones are arbitrary.

    Only the mean of every row is in memory.
    """

    held = "on disk"

    def __init__(self, att: AttentionTensor, missing: Tensor | None) -> None:
        self._scores: LazyArray = att.values
        self.shape = att.shape
        # one piece of memory: small ones between the blocks would keep the heap from shrinking
        self._means = torch.empty(*att.shape[:2], 1, dtype=torch.float64)
        for i in range(att.shape[0]):
            head = slice(i, i + 1)
            self._means[head] = row_means(att.block(heads=head), None if missing is None else missing[head])
        self.dtype: Any = att.block(slice(0, 1), slice(0, 1), slice(0, 1)).numpy().dtype

    def read(self, index: tuple[AxisIndex, ...], device: torch.device | str = "cpu") -> Tensor:
        """The entries at all combinations of the indices along each axis."""
        values = self._scores.read(index)
        rows = self._means
        for axis in (0, 1):
            chosen = index[axis]
            of_axis = chosen if isinstance(chosen, slice) else torch.from_numpy(np.asarray(chosen))
            rows = rows[(slice(None),) * axis + (of_axis,)]
        return values.to(torch.float64, copy=True).sub_(rows).to(values.dtype).to(device)


def centred_by_blocks(att: AttentionTensor) -> AttentionTensor:
    """`att.centred()` of a lazy tensor, whose values are read and centred by blocks."""
    check_future_keys(att)
    mask = att.mask if att.mask is None or isinstance(att.mask, Tensor) else np.asarray(att.mask)
    missing = _checks.missing_entries(mask, "att.values", att.shape)
    provenance = {**att.provenance, "centred": True}
    return replace(att, values=CentredScores(att, missing), mask=missing, sinks=None, provenance=provenance)
