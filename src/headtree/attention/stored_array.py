"""An array on disk that reads only what is asked for."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from headtree.errors import InvalidValueError


@dataclass(frozen=True, eq=False)
class StoredArray:
    """One array of a tensor saved as Zarr: its shape is known, its entries are read when indexed.

    An array that was opened before its folder was written anew would read the new entries under the old labels, so
    every read compares the identity the folder had when it was opened.
    """

    path: Path
    name: str
    identity: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any] = field(repr=False)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    def __getitem__(self, index: Any) -> np.ndarray[Any, Any]:
        return np.asarray(self._array()[index])

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
