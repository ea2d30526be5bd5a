"""Attention in a Zarr array that another program wrote, of which only the indexed entries are read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from headtree import _checks
from headtree._lazy_array import AxisIndex, LazyArray


@dataclass(frozen=True, eq=False)
class PlainZarr(LazyArray):
    """An array of Zarr as heads × queries × keys; of several layers, the heads follow each other."""

    array: Any  #: of zarr
    axes: str  #: a letter for each axis: h, q, k, l for layers, 1 for an axis of length one

    held = "on disk"

    @property
    def shape(self) -> tuple[int, int, int]:  # type: ignore[override]
        """Number of heads, queries and keys."""
        lengths = dict(zip(self.axes, map(int, self.array.shape), strict=True))
        return lengths.get("l", 1) * lengths["h"], lengths["q"], lengths["k"]

    @property
    def dtype(self) -> Any:
        """Type of the entries."""
        return np.dtype(self.array.dtype)

    def read(
        self, index: tuple[AxisIndex, ...], device: torch.device | str = "cpu"
    ) -> Float[Tensor, "head query key"]:
        """The entries at all combinations of the indices along each axis."""
        heads, queries, keys = index
        if "l" not in self.axes:
            block = self._stored({"h": heads, "q": queries, "k": keys})
        else:
            layer, own = np.divmod(np.arange(self.shape[0])[heads], self.array.shape[self.axes.index("h")])
            runs = np.split(np.arange(len(layer)), np.flatnonzero(np.diff(layer)) + 1)
            parts = [{"l": int(layer[run[0]]), "h": own[run], "q": queries, "k": keys} for run in runs if len(run)]
            empty = np.empty((0, *(len(np.arange(n)[i]) for n, i in zip(self.shape[1:], index[1:], strict=True))))
            block = np.concatenate([self._stored(part) for part in parts] or [empty.astype(self.dtype)])
        return _checks.real_tensor(block, "values").to(device)

    def _stored(self, chosen: dict[str, Any]) -> Shaped[np.ndarray, "head query key"]:
        """A block of the array, with the axes that remain in the order of heads, queries and keys."""
        left = [letter for letter in self.axes if letter in "hqk"]
        block = np.asarray(self.array.oindex[tuple(_as_range(chosen.get(letter, 0)) for letter in self.axes)])
        return block.transpose([left.index(letter) for letter in "hqk"])


def _as_range(index: Any) -> Any:
    """Consecutive indices as a slice, which is read faster."""
    if isinstance(index, np.ndarray) and len(index) and (np.diff(index) == 1).all():
        return slice(int(index[0]), int(index[-1]) + 1)
    return index
