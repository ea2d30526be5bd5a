"""An array on disk that reads only what is asked for."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from headtree.errors import InvalidValueError


@dataclass(frozen=True, eq=False)
class StoredArray:
    """An array saved as Zarr, or one part of it: its shape is known, its entries are read when indexed.

    An array that was opened before its folder was written anew would read the new entries under the old labels, so
    every read compares the identity the folder had when it was opened.
    """

    path: Path
    name: str
    identity: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any] = field(repr=False)
    part: int | None = None  #: the array is this slice of the stored one, from its start on: `shape` may be smaller

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    def __getitem__(self, index: Any) -> np.ndarray[Any, Any]:
        if self.part is None:
            return np.asarray(self._array()[index])
        window = _basic(index, self.shape)
        if window is not None:
            return np.asarray(self._array()[(self.part, *window)])
        return np.asarray(self._array()[(self.part, *map(slice, self.shape))][index])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        values = self[...]
        return values if dtype is None else values.astype(dtype)

    def _array(self) -> Any:
        import zarr

        try:
            group = zarr.open_group(self.path, mode="r")
        except FileNotFoundError:
            raise InvalidValueError(
                f"{self.path} is gone since this tensor was opened; open it again where it is now"
            ) from None
        if group.attrs.get("identity") != self.identity:
            raise InvalidValueError(
                f"{self.path} was written anew since this tensor was opened; open it again with "
                "AttentionTensor.open"
            )
        return group[self.name]


def _basic(index: Any, shape: tuple[int, ...]) -> tuple[slice | int, ...] | None:
    """An index of slices and numbers, with bounds that stay within `shape`; None if it is of another sort."""
    items = list(index) if isinstance(index, tuple) else [index]
    if sum(item is Ellipsis for item in items) == 1:
        place = next(i for i, item in enumerate(items) if item is Ellipsis)
        items[place : place + 1] = [slice(None)] * (len(shape) - len(items) + 1)
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
