"""How much memory a run takes, and what of a limit is left for blocks of a tensor."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import torch

from headtree._memory import format_bytes
from headtree.errors import InvalidValueError
from headtree.questionnaire.settings import EXACT_PRODUCTS, SAMPLES, Questionnaire
from headtree.tensor.attention_tensor import AttentionTensor

#: Levels of a tree on one axis, as many as are usual: folders are drawn for every pair of levels.
_LEVELS = 12
#: Matrices of all pairs of slices that exist at a time for the axis that is organized.
_SQUARES = 6
#: Slices that the kernel of folder sums reads side by side.
_LANES = 16
#: Chunks of Zarr that are being read, libraries that are loaded on first use, and gaps in the heap.
_OTHER = 72 << 20
#: Copies of a tensor while its scores are centred or while it is measured, most of them in float64.
_COPIES = 8

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
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 400 << 20  # what Python, torch and numba take


def tensor_bytes(att: AttentionTensor) -> int:
    """Bytes of the values in memory."""
    one = slice(0, 1)
    return math.prod(att.shape) * att.block(one, one, one).dtype.itemsize


def needed_as_a_whole(att: AttentionTensor) -> int:
    """About how much memory this process has while it measures the tensor, or centres it."""
    return memory_in_use() + _COPIES * tensor_bytes(att)


def room_for_blocks(att: AttentionTensor, settings: Questionnaire, limit: int) -> int:
    """Bytes that are left for blocks of a tensor while it is organized; raises an error if they are too few."""
    needed = memory_in_use() + working_bytes(att.shape, settings) + _OTHER
    least = needed + 8 * tensor_bytes(att) // min(att.shape)
    if limit < least:
        raise InvalidValueError(
            f"memory must be at least {format_bytes(int(1.1 * least))} to organize a tensor of shape {att.shape}, "
            f"got {format_bytes(limit)}; allow that much, or take fewer heads or tokens"
        )
    return limit - needed


def working_bytes(shape: tuple[int, ...], settings: Questionnaire) -> int:
    """Bytes that organizing takes beside the array itself: matrices of pairs, folder sums and their differences."""
    samples = SAMPLES if settings.samples == "auto" else settings.samples or 1
    most = 0
    for axis, n in enumerate(shape):
        others = [length for i, length in enumerate(shape) if i != axis]
        n_features = min(math.prod(2 * length for length in others), samples * _LEVELS ** len(others))
        features = 4 * n * n_features
        sums = 8 * math.prod(length + 1 for length in others) + 4 * _LANES * math.prod(others) * (axis > 0)
        taken = 12 * min(math.prod(shape) // 2, EXACT_PRODUCTS // n)  # slices for first affinities, with copies
        at_once = max(torch.get_num_threads() * sums, features, taken - features)
        most = max(most, features + at_once + 8 * _SQUARES * n * n)
    return most + sum(2 * 8 * n * n for n in shape)
