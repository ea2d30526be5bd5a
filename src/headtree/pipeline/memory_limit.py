"""How much memory a run takes, and what of a limit is left for blocks of a tensor."""

from __future__ import annotations

import ctypes
import gc
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from headtree._lazy_array import LazyArray
from headtree._memory import format_bytes
from headtree.errors import InvalidValueError
from headtree.geometry.vector_intrinsics import LANES
from headtree.questionnaire.settings import EXACT_ENTRIES, Questionnaire
from headtree.tensor.attention_tensor import AttentionTensor
from headtree.tensor.blocks_on_disk import ReadAhead, Regrouped, with_shared_mask
from headtree.tensor.stored_array import StoredArray

#: Matrices of all pairs of slices of the axis that is organized: while its slices are compared, and afterwards.
_COMPARED, _SQUARES = 5, 6
#: Chunks of Zarr that are being read, libraries that are loaded on first use, and gaps in the heap.
_OTHER = 192 << 20
#: Copies of a tensor while its scores are centred or while it is measured, most of them in float64.
_COPIES = 8
#: Bytes for each entry of one head while heads are measured one by one, of scores and of other kinds.
_SCORES_OF_A_HEAD, _A_HEAD = 76, 64
#: Copies of a tensor that is organized as a whole, with centred ones in float64 while they are made.
_COPIES_TO_ORGANIZE = 6
#: Bytes for each entry that is read ahead, with a copy.
_READ_AHEAD = 12
#: Copies of a slice of a tensor in its smallest block.
_LEAST_BLOCKS = 8

#: Size from which a block of memory has pages of its own, and the option of glibc's `mallopt` that says so.
_OWN_PAGES = 256 << 10
_M_MMAP_THRESHOLD = -3

_UNITS = {"": 1, "B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}


def limit_in_bytes(memory: Any) -> int | None:
    """A size such as "2GB", "500 MB" or a number of bytes, as bytes; None stays None."""
    if memory is None:
        return None
    text = str(memory).strip().upper().replace("IB", "B")
    number = text.rstrip("ABCDEFGHIJKLMNOPQRSTUVWXYZ ")
    try:
        size = float(number) * _UNITS[text[len(number) :].strip()]
    except (ValueError, KeyError):
        size = math.nan
    if isinstance(memory, bool) or not math.isfinite(size) or size < 1:
        raise InvalidValueError(f"memory must be a size such as '2GB' or '500MB', got {memory!r}")
    return int(size)


def memory_in_use() -> int:
    """Bytes of memory that this process has now; a guess where that is unknown."""
    gc.collect()
    with suppress(OSError, AttributeError):  # what was freed stays with the process otherwise, and would count
        ctypes.CDLL(None).malloc_trim(0)
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 400 << 20  # what Python, torch and numba take


def tensor_bytes(att: AttentionTensor) -> int:
    """Bytes of the values in memory."""
    one = slice(0, 1)
    return math.prod(att.shape) * att.block(one, one, one).dtype.itemsize


@dataclass(frozen=True)
class Limit:
    """The most memory that a process may have; beyond it, tensors on disk are read by blocks."""

    bytes: int | None = None  #: None: no limit
    folder: Path = Path()  #: for files that are as large as a tensor; other workers may use it too

    def holds(self, att: AttentionTensor) -> bool:
        """Whether a tensor can be in memory with everything that is computed from it."""
        if self.bytes is None:
            return True
        needed = memory_in_use() + _COPIES * tensor_bytes(att)
        if needed <= self.bytes:
            return True
        if isinstance(att.values, LazyArray):
            return False
        raise InvalidValueError(
            f"a worker needs about {format_bytes(needed)} of memory for a tensor of shape {att.shape}, got a limit "
            f"of {format_bytes(self.bytes)}; raise --memory, or leave --dask out: this process can read by blocks"
        )

    def check_process(self) -> None:
        """Raise an error if not even this process without a tensor is within the limit."""
        if self.bytes is None:
            return
        needed = memory_in_use() + _OTHER
        if self.bytes < needed:
            raise InvalidValueError(
                f"memory must be at least {format_bytes(int(1.1 * needed))}, which this process takes without any "
                f"tensor, got {format_bytes(self.bytes)}; allow more"
            )

    def check(self, att: AttentionTensor, settings: Questionnaire) -> None:
        """Raise an error if a run cannot read the tensor within the limit, not even by blocks."""
        if self.bytes is not None and memory_in_use() + _COPIES * tensor_bytes(att) > self.bytes:
            self.room_to_organize(att, settings)
            self.room_to_measure(att)
            self.room_to_compare(att)

    def room_to_organize(self, att: AttentionTensor, settings: Questionnaire) -> int:
        """Bytes that are left for blocks of a tensor while it is organized.

        All of a tensor whose distances may be exact must be in memory then, or of the part that landmarks are
        compared with.
        """
        n_compared = [m or n for m, n in zip(settings.landmarks_for(att.shape), att.shape, strict=True)]
        with_blocks, without = working_bytes(att.shape, n_compared)
        sizes = [math.prod(n_compared) // m * n for m, n in zip(n_compared, att.shape, strict=True)]
        n_whole = max((n for n in (math.prod(n_compared), *sizes) if n <= EXACT_ENTRIES), default=0)
        whole = _COPIES_TO_ORGANIZE * n_whole * tensor_bytes(att) // math.prod(att.shape)
        return self._room(att, "organize", with_blocks, max(without, with_blocks + whole))

    def room_to_measure(self, att: AttentionTensor) -> int:
        """Bytes that are left for blocks of a tensor while it is measured."""
        of_head = math.prod(att.shape[1:])
        return self._room(att, "measure", of_head * (_SCORES_OF_A_HEAD if att.kind == "scores" else _A_HEAD))

    def room_to_compare(self, att: AttentionTensor) -> int:
        """Bytes that are left for blocks of a tensor while its heads are compared and diagnosed."""
        return self._room(att, "compare and diagnose the heads of", math.prod(att.shape[1:]) * _A_HEAD)

    def _room(self, att: AttentionTensor, verb: str, working: int, without_blocks: int = 0) -> int:
        """What is left of the limit; raises an error if that is too little for one block."""
        if self.bytes is None:
            raise ValueError("without a limit, tensors are in memory")
        masks = 3 * math.prod(att.shape) if isinstance(att.mask, StoredArray) else 0
        needed = memory_in_use() + working + masks + _OTHER
        blocks = _LEAST_BLOCKS * tensor_bytes(att) // min(att.shape)
        least = needed - working + max(working + blocks, without_blocks)
        if self.bytes < least:
            raise InvalidValueError(
                f"memory must be at least {format_bytes(int(1.1 * least))} to {verb} a tensor of shape "
                f"{att.shape}, got {format_bytes(self.bytes)}; allow that much, or take fewer heads or tokens"
            )
        return self.bytes - needed

    @contextmanager
    def apart(self) -> Iterator[Limit]:
        """The limit with a new folder, inside the given one, that nobody else uses."""
        with TemporaryDirectory(dir=self.folder) as own:
            yield replace(self, folder=Path(own))

    @contextmanager
    def in_memory_or_blocks(self, att: AttentionTensor) -> Iterator[AttentionTensor]:
        """The tensor in memory, or prepared to be read by blocks of heads or of queries."""
        if self.holds(att):
            yield att.load()
            return
        room = self.room_to_compare(att)
        with _one_chunk_at_a_time():
            yield replace(with_shared_mask(att), values=ReadAhead(att.values, room // _READ_AHEAD))

    @contextmanager
    def regrouped(self, att: AttentionTensor, axes: Sequence[int], room: int) -> Iterator[AttentionTensor]:
        """The tensor prepared to be read in blocks along some axes, 1 and 2, with copies of it in the folder."""
        with _one_chunk_at_a_time():
            values = Regrouped(att.values, self.folder, axes, room // _READ_AHEAD)
            try:
                yield replace(with_shared_mask(att), values=values)
            finally:
                values.remove()


@contextmanager
def _one_chunk_at_a_time() -> Iterator[None]:
    """Else Zarr has many whole chunks in memory.

    And blocks that are freed go back to the system, here and from now on. glibc would keep them in a heap that
    small things between them keep from shrinking: a tensor read head by head would be in memory as a whole.
    """
    import zarr

    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _OWN_PAGES)
    with zarr.config.set({"async.concurrency": 1}):
        yield


NO_LIMIT = Limit()


def working_bytes(shape: tuple[int, ...], n_compared: Sequence[int] | None = None) -> tuple[int, int]:
    """Bytes that organizing takes beside blocks and features: while these exist, and at most at other times.

    Matrices of all pairs of slices, or of landmarks and slices if fewer are compared: a distance and an affinity of
    each axis stay. Each thread has two sheets of prefix sums, over all axes but the first, of the slices that it
    sums side by side.
    """
    n_compared = shape if n_compared is None else n_compared
    kept = sum(2 * 8 * m * m for m in n_compared)
    with_features, otherwise = 0, 0
    for axis, (n, m) in enumerate(zip(shape, n_compared, strict=True)):
        others = [length for i, length in enumerate(n_compared) if i != axis]
        sums = 2 * 8 * LANES * math.prod(length + 1 for length in others[1:] or others)
        with_features = max(with_features, (8 * _COMPARED - 16) * m * n + torch.get_num_threads() * sums)
        otherwise = max(otherwise, 8 * _SQUARES * m * n)
    return kept + with_features, kept + otherwise
