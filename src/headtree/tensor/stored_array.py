"""An array on disk of which only the indexed entries are read."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headtree import _checks
from headtree._lazy_array import AxisIndex, LazyArray
from headtree.errors import InvalidValueError
from headtree.tensor.zarr_dataset import checked_group


@dataclass(frozen=True, eq=False)
class StoredArray(LazyArray):
    """An array in a Zarr folder, or the beginning of one of its slices; entries are read when indexed.

    A folder may be replaced after it was opened, and new entries must not be read under old labels: every read
    compares the identity of the folder with the one it had when it was opened.
    """

    held = "on disk"

    path: Path
    name: str
    identity: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any] = field(repr=False)
    index: int | None = None  #: slice of the stored array along its first axis; it may be longer than `shape`

    def read(self, index: tuple[AxisIndex, ...], device: torch.device | str = "cpu") -> Tensor:
        """The entries at all combinations of the indices along each axis."""
        for axis, each in enumerate(index):
            if isinstance(each, slice) or np.ptp(each) + 1 <= 2 * len(each):
                continue
            chunk = np.asarray(each) // self._chunks()[axis]
            if np.ptp(chunk):  # few of many: chunk by chunk
                order = np.argsort(each, kind="stable")
                parts = np.split(np.asarray(each)[order], np.flatnonzero(np.diff(chunk[order])) + 1)
                found = torch.cat(
                    [self.read((*index[:axis], part, *index[axis + 1 :])) for part in parts], dim=axis
                )
                return found.index_select(axis, torch.from_numpy(np.argsort(order))).to(device)
        spans = tuple(each if isinstance(each, slice) else _span(each) for each in index)
        block = _checks.real_tensor(self[spans], self.name)
        for axis, (each, span) in enumerate(zip(index, spans, strict=True)):
            if not isinstance(each, slice):
                block = block.index_select(axis, torch.from_numpy(np.asarray(each) - span.start))
        return block.to(device)

    def _chunks(self) -> tuple[int, ...]:
        """Lengths of the chunks in the files."""
        return tuple(self.zarr_array().chunks[-len(self.shape) :])

    def __getitem__(self, index: Any) -> np.ndarray[Any, Any]:
        if self.index is None:
            return np.asarray(self.zarr_array()[index])
        window = _basic(index, self.shape)
        if window is not None:
            return np.asarray(self.zarr_array()[(self.index, *window)])
        return np.asarray(self.zarr_array()[(self.index, *map(slice, self.shape))][index])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        values = self[...]
        return values if dtype is None else values.astype(dtype)

    def zarr_array(self) -> Any:
        """The array in the folder, opened for reading."""
        try:
            group = checked_group(self.path)
        except FileNotFoundError:
            raise InvalidValueError(
                f"{self.path} is gone since this tensor was opened; open it again where it is now"
            ) from None
        if group.attrs.get("identity") != self.identity:
            raise InvalidValueError(f"{self.path} was replaced after this tensor was opened; open it again")
        return group[self.name]


def _span(index: Any) -> slice:
    """The range from the first to the last of some indices."""
    return slice(int(np.min(index)), int(np.max(index)) + 1)


def _basic(index: Any, shape: tuple[int, ...]) -> tuple[slice | int, ...] | None:
    """An index of slices and integers, with bounds within `shape`; None for any other kind of index."""
    items = list(index) if isinstance(index, tuple) else [index]
    if sum(item is Ellipsis for item in items) == 1:
        dots = next(i for i, item in enumerate(items) if item is Ellipsis)
        items[dots : dots + 1] = [slice(None)] * (len(shape) - len(items) + 1)
    items += [slice(None)] * (len(shape) - len(items))
    window: list[slice | int] = []
    for item, n in zip(items, shape, strict=False):
        if isinstance(item, slice) and (item.step is None or item.step > 0):
            window.append(slice(*item.indices(n)))
        elif isinstance(item, int) and not isinstance(item, bool) and -n <= item < n:
            window.append(item % n)
        else:
            return None
    return tuple(window) if len(items) == len(shape) else None
