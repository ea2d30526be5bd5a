"""A tensor on disk, prepared to be read in blocks along any axis: each chunk of its files is read few times."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from headtree._lazy_array import AxisIndex, LazyArray
from headtree.tensor.attention_tensor import AttentionTensor
from headtree.tensor.stored_array import StoredArray


def with_shared_mask(att: AttentionTensor) -> AttentionTensor:
    """The tensor with its mask in memory, if all heads have the same: one of them is held for all."""
    if not isinstance(att.mask, StoredArray):
        return att
    first = att.mask[:1]
    if any(not np.array_equal(att.mask[i : i + 1], first) for i in range(1, att.shape[0])):
        return att
    return replace(att, mask=first[0])


class ReadAhead(LazyArray):
    """A lazy array that reads more queries than it is asked for and keeps them: the next ones are often next.

    Chunks on disk hold many queries of a head; a few queries of all heads would read every chunk, each time.
    """

    def __init__(self, source: LazyArray, n_entries: int) -> None:
        self._source, self._n_entries = source, n_entries
        self.shape, self.dtype = source.shape, source.dtype
        self._heads, self._queries = slice(0, 0), slice(0, 0)
        self._kept: Tensor | None = None

    @property
    def held(self) -> str:  # type: ignore[override]
        """Where the entries come from."""
        return self._source.held

    def read(self, index: tuple[AxisIndex, ...], device: torch.device | str = "cpu") -> Float[Tensor, "..."]:
        """The entries at all combinations of the indices along each axis."""
        heads, queries, keys = index
        if not (isinstance(heads, slice) and isinstance(queries, slice) and isinstance(keys, slice)):
            return self._source.read(index, device)
        heads, queries = (slice(*each.indices(n)) for each, n in zip((heads, queries), self.shape, strict=False))
        is_kept = (
            heads == self._heads and self._queries.start <= queries.start <= queries.stop <= self._queries.stop
        )
        if not is_kept:
            at_once = self._n_entries // max(1, (heads.stop - heads.start) * self.shape[2])
            if queries.stop - queries.start >= min(at_once, self.shape[1]):
                return self._source.read((heads, queries, keys), device)
            self._kept = None  # before the next are read
            end = min(queries.start + at_once, self.shape[1])
            self._heads, self._queries = heads, slice(queries.start, end)
            self._kept = self._source.read((heads, self._queries, slice(None)))
        assert self._kept is not None
        start = self._queries.start
        return self._kept[:, queries.start - start : queries.stop - start, keys].to(device)

    def __getitem__(self, index: Any) -> Float[np.ndarray, "..."]:
        """The entries of an index of slices."""
        return _of_slices(self, index)


class Regrouped(LazyArray):
    """A lazy array with copies in files that have the entries of a query, or of a key, side by side.

    Chunks on disk hold many queries of a head, with all keys: without the copies, every block of a few queries or
    keys would read many chunks, or all of them.
    """

    def __init__(self, source: LazyArray, folder: Path, axes: Sequence[int], n_entries: int) -> None:
        self._source = source
        self.shape, self.dtype = source.shape, source.dtype
        self._stored = source.read((slice(0, 1),) * 3).numpy().dtype
        self._files = {axis: folder / f"by_axis_{axis}" for axis in axes}
        n_heads, n_queries, n_keys = source.shape
        step = max(1, n_entries // (n_queries * n_keys))
        with ExitStack() as opened:
            files = {axis: opened.enter_context(file.open("wb")) for axis, file in self._files.items()}
            for first in range(0, n_heads, step):  # chunks hold entries of one head, so each is read once
                block = source.read((slice(first, min(first + step, n_heads)), slice(None), slice(None)))
                for axis, file in files.items():
                    for i, entries in enumerate(block.movedim(axis, 0).contiguous().numpy()):
                        file.seek((i * n_heads + first) * entries.shape[1] * self._stored.itemsize)
                        file.write(entries.data)

    @property
    def held(self) -> str:  # type: ignore[override]
        """Where the entries come from."""
        return self._source.held

    def read(self, index: tuple[AxisIndex, ...], device: torch.device | str = "cpu") -> Float[Tensor, "..."]:
        """The entries at all combinations of the indices along each axis."""
        some = [axis for axis, each in enumerate(index) if not _is_all(each, self.shape[axis])]
        wanted = [np.arange(n)[each] for each, n in zip(index, self.shape, strict=True)]
        axis = min(some, key=lambda i: len(wanted[i]) / self.shape[i], default=0)  # the one with the smallest part
        chosen = index[axis]
        if axis not in self._files:
            return self._source.read(index, device)
        if len(some) == 1 and isinstance(chosen, slice):
            start, stop, _ = chosen.indices(self.shape[axis])
            return self._from_file(axis, start, stop).to(device)
        others = [wanted[i] if i != axis else np.zeros(1, dtype=np.int64) for i in range(3)]
        rows = [self._from_file(axis, int(i), int(i) + 1)[np.ix_(*others)] for i in wanted[axis]]
        return torch.cat(rows, dim=axis).to(device)

    def _from_file(self, axis: int, start: int, stop: int) -> Float[Tensor, "head query key"]:
        """Some queries or keys, with everything along the other axes."""
        shape = [stop - start, self.shape[0], self.shape[3 - axis]]
        n = math.prod(shape[1:])
        offset = start * n * self._stored.itemsize
        entries = np.fromfile(self._files[axis], self._stored, (stop - start) * n, offset=offset)
        return torch.from_numpy(entries.reshape(shape)).movedim(0, axis)

    def __getitem__(self, index: Any) -> Float[np.ndarray, "..."]:
        """The entries of an index of slices."""
        return _of_slices(self, index)

    def remove(self) -> None:
        """Remove the files."""
        for file in self._files.values():
            file.unlink(missing_ok=True)


def _is_all(index: AxisIndex, n: int) -> bool:
    return isinstance(index, slice) and index.indices(n) == (0, n, 1)


def _of_slices(array: LazyArray, index: Any) -> Float[np.ndarray, "..."]:
    given = index if isinstance(index, tuple) else (index,)
    return np.asarray(array.read((*given, *[slice(None)] * (len(array.shape) - len(given)))).numpy())
