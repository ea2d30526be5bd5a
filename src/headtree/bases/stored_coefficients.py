"""All Haar coefficients of an array that does not fit into memory, in a file."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, overload

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from headtree import _checks
from headtree.bases.energies import LargestFirst
from headtree.bases.tensor_haar import TensorHaarBasis


@dataclass(frozen=True, eq=False)
class StoredCoefficients(Sequence[Float[np.ndarray, " n"]]):
    """The coefficients as `TensorHaarBasis.analyze` computes them, bit for bit.

    As a sequence it has a flat piece for each function of the first axis, which is read when it is asked for.
    """

    path: Path
    basis: TensorHaarBasis
    dtype: np.dtype[Any]
    largest: float  #: largest absolute value

    @classmethod
    def of(
        cls,
        path: Path,
        basis: TensorHaarBasis,
        dtype: np.dtype[Any],
        blocks: Callable[[], Iterator[tuple[int, Float[Tensor, "first some ..."]]]],
    ) -> StoredCoefficients:
        """Write the coefficients of an array.

        Parameters
        ----------
        path : Path
            The file, which is as large as the array.
        basis : TensorHaarBasis
            Of two or more axes.
        dtype : dtype
            Of the array.
        blocks : function
            Blocks of the array along its second axis, each with where it begins.
        """
        first, *others = basis.axes
        row_size, largest = math.prod(basis.shape[2:]) * dtype.itemsize, 0.0
        with path.open("w+b") as file:
            for start, block in blocks():
                for i, rows in enumerate(first.analyzed(block, 0)):
                    file.seek((i * basis.shape[1] + start) * row_size)
                    file.write(rows.contiguous().numpy().data)
            for i in range(basis.shape[0]):
                values = given = torch.from_numpy(_piece(file, i, basis, dtype)).reshape(basis.shape[1:])
                for axis, each in enumerate(others):
                    values = each.analyzed(values, axis)
                _checks.in_range(values, given, "att.values")
                largest = max(largest, float(values.max()), -float(values.min()))
                file.seek(i * given.numel() * dtype.itemsize)
                file.write(values.contiguous().numpy().data)
        return cls(path, basis, dtype, largest)

    def __len__(self) -> int:
        return self.basis.shape[0]

    @overload
    def __getitem__(self, i: int) -> Float[np.ndarray, " n"]: ...

    @overload
    def __getitem__(self, i: slice) -> Sequence[Float[np.ndarray, " n"]]: ...

    def __getitem__(self, i: int | slice) -> Any:
        if isinstance(i, slice):
            return [self[j] for j in range(len(self))[i]]
        if not 0 <= i < len(self):
            raise IndexError(i)  # ends a loop over the pieces
        with self.path.open("rb") as file:
            return _piece(file, i, self.basis, self.dtype)

    @property
    def energies(self) -> LargestFirst:
        """The energies of all coefficients."""
        return LargestFirst(self, len(self.basis), self.largest or 1.0)

    def at(self, indices: Int[np.ndarray, "m axis"]) -> Float[Tensor, " m"]:
        """The coefficients of some functions."""
        places = np.ravel_multi_index(tuple(indices.T), self.basis.shape)
        with self.path.open("rb") as file:
            found = [np.fromfile(_sought(file, int(i) * self.dtype.itemsize), self.dtype, 1) for i in places]
        return torch.from_numpy(np.concatenate(found))


def _piece(file: BinaryIO, i: int, basis: TensorHaarBasis, dtype: np.dtype[Any]) -> Float[np.ndarray, " n"]:
    n = math.prod(basis.shape[1:])
    return np.fromfile(_sought(file, i * n * dtype.itemsize), dtype, n)


def _sought(file: BinaryIO, offset: int) -> BinaryIO:
    file.seek(offset)
    return file
