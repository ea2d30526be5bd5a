"""Estimate the memory that a capture needs, and compare it with what is free."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from headtree import _checks
from headtree.errors import InvalidValueError

#: Share of the free memory that a capture may use if no limit is given.
_SHARE = 0.8

#: The largest module output times this bounds the other activations of a forward pass.
_ACTIVATIONS = 4

#: Memory that does not grow with the inputs: buffers of kernels, Python, reserves of the allocator.
_CONSTANT = 64 << 20


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes that a capture needs in addition to the model."""

    result: int  #: the returned tensors
    masks: int
    working: int  #: the largest batch while it is running

    @property
    def total(self) -> int:
        """Peak memory."""
        return self.result + self.masks + self.working + _CONSTANT


def working_bytes(call_entries: int, kind: str, output_bytes: int) -> int:
    """Bytes for a running batch: scores, softmax and mask of one call, and the model's own activations."""
    copies = 3 if kind == "scores" else 5
    return call_entries * 4 * copies + output_bytes * _ACTIVATIONS


def check_memory(estimate: MemoryEstimate, limit: float | None, batch_size: int, advice: str) -> None:
    """Raise an error if a capture would not fit into memory, before it starts."""
    allowed = available_memory() * _SHARE if limit is None else _checks.positive(limit, "memory_limit")
    if estimate.total <= allowed:
        return
    source = "memory_limit" if limit is not None else f"{_SHARE:.0%} of the free memory"
    smaller = "a smaller batch_size, " if batch_size > 1 else ""
    raise InvalidValueError(
        f"this capture needs about {format_bytes(estimate.total)} (results {format_bytes(estimate.result)}, masks "
        f"{format_bytes(estimate.masks)}, while running {format_bytes(estimate.working)}), but {source} is "
        f"{format_bytes(int(allowed))}; {advice}; or pass {smaller}fewer inputs at a time, layers=…, heads=…, "
        "window=… or dtype='float16', or raise memory_limit"
    )


def available_memory() -> int:
    """Free bytes on this machine, within the limit of its container."""
    free = [_meminfo_available(), _cgroup_available()]
    known = [value for value in free if value is not None]
    if known:
        return min(known)
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2  # what is free is unknown
    except (ValueError, OSError, AttributeError):
        return 4 << 30


def _meminfo_available() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable")), None)


def _cgroup_available() -> int | None:
    folder = Path("/sys/fs/cgroup")
    try:
        limit = (folder / "memory.max").read_text(encoding="ascii").strip()
        used = (folder / "memory.current").read_text(encoding="ascii").strip()
        return None if limit == "max" else max(0, int(limit) - int(used))
    except (OSError, ValueError):
        return None


def format_bytes(n_bytes: int) -> str:
    """A number of bytes with its unit, such as "1.5 GB"."""
    for unit, size in (("GB", 1 << 30), ("MB", 1 << 20)):
        if n_bytes >= size:
            return f"{n_bytes / size:.1f} {unit}"
    return f"{max(1, n_bytes >> 10)} kB"
