"""Arrays of which blocks are read or computed when they are needed, for what does not fit into memory."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headtree import _checks
from headtree._memory import format_bytes
from headtree.errors import InvalidValueError

#: Indices along one axis: a range, or a list of them in any order.
AxisIndex = slice | Int[np.ndarray, " _index"]

#: Entries of an array whose sizes are added up at a time, on the CPU and on a GPU.
_ENTRIES_AT_A_TIME = 1 << 20
_ENTRIES_ON_GPU = 1 << 27
#: Bytes of an array that are checked at a time, on the CPU and on a GPU.
_CHECKED_AT_A_TIME = 1 << 26
_CHECKED_ON_GPU = 1 << 29


class LazyArray(ABC):
    """An array that is not in memory: on disk, or the product of two factors."""

    shape: tuple[int, ...]
    dtype: Any  #: of numpy or torch
    held: ClassVar[str]  #: in words, where the entries come from

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @abstractmethod
    def read(self, index: tuple[AxisIndex, ...], device: torch.device | str = "cpu") -> Float[Tensor, "..."]:
        """The entries at all combinations of the indices along each axis: floating-point numbers in new memory."""

    def __getitem__(self, index: Any) -> Float[np.ndarray, "..."]:
        """Any numpy index; of slices and integers, only the block that they select is read."""
        items = list(index) if isinstance(index, tuple) else [index]
        if any(item is Ellipsis for item in items):
            dots = next(i for i, item in enumerate(items) if item is Ellipsis)
            items[dots : dots + 1] = [slice(None)] * (self.ndim + 1 - len(items))
        items += [slice(None)] * (self.ndim - len(items))
        block = tuple(_as_span(item, n) for item, n in zip(items, self.shape, strict=True))
        return np.asarray(self.read(block).numpy()[tuple(_within_span(item) for item in items)])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Float[np.ndarray, "..."]:
        values = self.read((slice(None),) * self.ndim).numpy()
        return values if dtype is None else values.astype(dtype)


def _as_span(item: Any, n: int) -> AxisIndex:
    if isinstance(item, slice):
        start, stop, step = item.indices(n)
        return slice(start, stop) if step == 1 else np.arange(n)[item]
    if isinstance(item, int | np.integer):
        return np.arange(n)[[int(item)]]
    return np.arange(n)


def _within_span(item: Any) -> Any:
    if isinstance(item, slice):
        return slice(None)
    return 0 if isinstance(item, int | np.integer) else item


@dataclass(frozen=True, eq=False)
class ScaledBlocks:
    """A lazy array as the questionnaire needs it: checked, divided by a power of two, and zero where missing.

    It has the attributes of a tensor that describe one, and `block` in place of indexing.
    """

    source: LazyArray
    missing: Bool[Tensor, "..."] | None  #: of the slices there are, as from `_checks.missing_entries`
    exponent: int
    device: torch.device
    memory: float  #: bytes that blocks and what is made of them may take
    #: an axis, what is subtracted from its slices, and which of them are zero then, but for rounding errors
    shift: tuple[int, Float[Tensor, " slice"], Bool[Tensor, " slice"]] | None = None
    chosen: Mapping[int, Int[np.ndarray, " _slice"]] = field(default_factory=dict)  #: the slices there are

    @property
    def shape(self) -> torch.Size:
        lengths = dict(enumerate(self.source.shape)) | {axis: len(some) for axis, some in self.chosen.items()}
        return torch.Size(lengths.values())

    @property
    def ndim(self) -> int:
        return self.source.ndim

    @property
    def dtype(self) -> torch.dtype:
        is_double = str(self.source.dtype).endswith("float64") or "int" in str(self.source.dtype)
        return torch.float64 if is_double else torch.float32

    @property
    def is_cuda(self) -> bool:
        return self.device.type == "cuda"

    def numel(self) -> int:
        """Number of entries."""
        return math.prod(self.shape)

    def block(self, *index: AxisIndex) -> Float[Tensor, "..."]:
        """The entries at all combinations of the indices along each axis."""
        values, hidden = self.unscaled_block(*index)
        if hidden is not None:
            values.masked_fill_(hidden, 0)
        return _checks.times_power_of_two(values, -self.exponent, in_place=True) if self.exponent else values

    def unscaled_block(self, *index: AxisIndex) -> tuple[Float[Tensor, "..."], Bool[Tensor, "..."] | None]:
        """The entries of a block before they are divided by ``2**exponent``, and which of them are missing."""
        places = tuple(self.chosen[i][each] if i in self.chosen else each for i, each in enumerate(index))
        values = self.source.read(places, self.device).to(self.dtype)
        if self.shift is not None:
            axis, *of_slices = self.shift
            means, is_zero = (_along(picked(each, 0, index[axis]), axis, self.ndim) for each in of_slices)
            values -= means.to(values)
            values.masked_fill_(is_zero.to(values.device), 0)
        hidden = self._hidden
        if hidden is not None:
            for axis, each in enumerate(index):
                hidden = picked(hidden, axis, each)
        return values, hidden

    def shifted(
        self, axis: int, means: Float[Tensor, " slice"], is_zero: Bool[Tensor, " slice"] | None = None
    ) -> ScaledBlocks:
        """The array minus a number for each slice along an axis, which is in units of the scaled values.

        Some slices may be known to be zero then.
        """
        zero = torch.zeros(len(means), dtype=torch.bool) if is_zero is None else is_zero.cpu()
        return replace(self, shift=(axis, _checks.times_power_of_two(means.cpu().double(), self.exponent), zero))

    @cached_property
    def magnitudes(self) -> list[Magnitudes]:
        """`slice_magnitudes` along each axis, from one pass over the array."""
        found = [
            Magnitudes(*(torch.zeros(n, dtype=torch.float64, device=self.device) for _ in range(2)))
            for n in self.shape
        ]
        n_slices = _ENTRIES_ON_GPU if self.is_cuda else _ENTRIES_AT_A_TIME
        for where, block in blocks_along(self, 0, max(1, n_slices * self.shape[0] // self.numel())):
            sizes = block.abs_()
            for axis, each in enumerate(found):
                others = [i for i in range(self.ndim) if i != axis]
                here = where if axis == 0 else slice(None)
                each.total[here] += sizes.sum(dim=others, dtype=torch.float64)
                each.largest[here] = torch.maximum(each.largest[here], sizes.amax(dim=others).double())
        return found

    @cached_property
    def _hidden(self) -> Bool[Tensor, "..."] | None:
        """`missing` on the device, with length 1 along axes whose slices all have the same mask."""
        return None if self.missing is None else _checks.unshared(self.missing).to(self.device)


@dataclass(frozen=True, eq=False)
class Magnitudes:
    """Sizes of the slices along an axis."""

    total: Float[Tensor, " slice"]  #: sums of absolute values
    largest: Float[Tensor, " slice"]


def slice_magnitudes(values: Tensor | ScaledBlocks, axis: int) -> Magnitudes:
    """Sum of absolute values and largest of them, of every slice along an axis."""
    if isinstance(values, ScaledBlocks):
        return values.magnitudes[axis]
    n = values.shape[axis]
    total, largest = (torch.zeros(n, dtype=torch.float64, device=values.device) for _ in range(2))
    for where, block in blocks_along(values, axis, max(1, _ENTRIES_AT_A_TIME * n // values.numel())):
        sizes = block.abs().movedim(axis, 0).flatten(1)
        total[where], largest[where] = sizes.sum(dim=1, dtype=torch.float64), sizes.amax(dim=1).double()
    return Magnitudes(total, largest)


def picked(x: Tensor, axis: int, index: AxisIndex) -> Tensor:
    """Some indices along an axis, or all if there is just one that stands for all."""
    if x.shape[axis] == 1:
        return x
    if isinstance(index, slice):
        return x[(slice(None),) * axis + (index,)]
    return x.index_select(axis, torch.from_numpy(np.asarray(index, dtype=np.int64)).to(x.device))


def blocks_along(
    values: Tensor | ScaledBlocks, axis: int, step: int
) -> Iterator[tuple[slice, Float[Tensor, "..."]]]:
    """Blocks of `step` slices along an axis, each with where it is."""
    for start in range(0, values.shape[axis], step):
        where = slice(start, min(start + step, values.shape[axis]))
        if isinstance(values, Tensor):
            yield where, values.narrow(axis, start, where.stop - start)
        else:
            yield where, values.block(*[where if i == axis else slice(None) for i in range(values.ndim)])


def taken(
    values: Tensor | ScaledBlocks, axis: int, leaves: Int[Tensor, " leaf"]
) -> Float[Tensor, "..."] | ScaledBlocks:
    """Some slices along an axis."""
    if isinstance(values, Tensor):
        return values.index_select(axis, leaves.to(values.device))
    if values.shift is not None and values.shift[0] == axis:
        means, is_zero = (each[leaves.cpu()] for each in values.shift[1:])
        values = replace(values, shift=(axis, means, is_zero))
    slices = leaves.cpu().numpy()
    before = values.chosen.get(axis, np.arange(values.shape[axis]))
    some = replace(values, chosen={**values.chosen, axis: before[slices]})
    if some.missing is None:
        return some
    return replace(some, missing=picked(_checks.unshared(some.missing), axis, slices).expand(some.shape))


def scaled_blocks(x: LazyArray, name: str, mask: Any, device: torch.device, memory: float) -> ScaledBlocks:
    """`_checks.scaled_array` of a lazy array, from one pass over its blocks."""
    missing = _checks.missing_entries(mask, name, x.shape)
    blocks = ScaledBlocks(x, missing, 0, device, memory)
    slice_bytes = blocks.dtype.itemsize * math.prod(x.shape[1:])
    if 4 * slice_bytes > memory:
        raise InvalidValueError(
            f"memory must hold a block of {name}: one of its {x.shape[0]} slices, with what is computed from it, "
            f"needs about {format_bytes(4 * slice_bytes)}, got {format_bytes(int(memory))}; raise memory, or use "
            "fewer tokens"
        )
    largest = 0.0
    at_a_time = _CHECKED_ON_GPU if device.type == "cuda" else _CHECKED_AT_A_TIME
    for where, block in blocks_along(blocks, 0, max(1, min(at_a_time, int(memory / 4)) // slice_bytes)):
        low, high = (float(value) for value in torch.aminmax(block))
        if not (math.isfinite(low) and math.isfinite(high)):
            raise InvalidValueError(
                f"{name} must be finite unless masked, got NaN or infinite entries in slices {where.start} to "
                f"{where.stop - 1} of its first axis; mask them"
            )
        largest = max(largest, -low, high)
    return replace(blocks, exponent=math.frexp(largest)[1])


def _along(numbers: Float[Tensor, " slice"], axis: int, n_axes: int) -> Float[Tensor, "..."]:
    return numbers.reshape([-1 if i == axis else 1 for i in range(n_axes)])
