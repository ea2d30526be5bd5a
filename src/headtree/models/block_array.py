"""An array for xarray whose slices along the first axis are computed when they are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr
from xarray.backends import BackendArray
from xarray.core import indexing


class BlockArray(BackendArray):
    """Computes slices of an array when they are read, and only these.

    Parameters
    ----------
    shape : tuple of int
        Of the whole array.
    dtype : numpy dtype
        Of its entries.
    compute : function
        From an index along the first axis to that slice.
    """

    def __init__(
        self, shape: tuple[int, ...], dtype: np.dtype[Any], compute: Callable[[int], np.ndarray[Any, Any]]
    ) -> None:
        self.shape, self.dtype, self.compute = shape, dtype, compute

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        return indexing.explicit_indexing_adapter(key, self.shape, indexing.IndexingSupport.OUTER, self._read)

    def _read(self, key: tuple[Any, ...]) -> np.ndarray[Any, Any]:
        chosen = [np.arange(n)[index] for n, index in zip(self.shape, key, strict=True)]
        rest = np.ix_(*[np.atleast_1d(indices) for indices in chosen[1:]])
        sizes = [np.size(indices) for indices in chosen]
        block = np.empty(sizes, dtype=self.dtype)
        for i, index in enumerate(np.atleast_1d(chosen[0])):
            block[i] = self.compute(int(index))[rest]
        return block.reshape([np.size(indices) for indices in chosen if np.ndim(indices)])


def lazy(
    array: BlockArray, dims: Sequence[str], coords: Mapping[str, Any], attrs: Mapping[str, Any]
) -> xr.DataArray:
    """A labelled array that is computed when it is read."""
    return xr.DataArray(indexing.LazilyIndexedArray(array), dims=dims, coords=coords, attrs=dict(attrs))
