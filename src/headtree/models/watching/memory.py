"""How much memory a capture needs, and how much there is."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from headtree.errors import InvalidValueError

#: Share of the free memory that a capture may take when no limit is given.
_SHARE = 0.8

#: Largest module output times this bounds the rest of a forward pass: residual stream, projections, the MLP.
_ACTIVATIONS = 4

#: What does not grow with the inputs: kernels' buffers, Python, the allocator's reserves.
_CONSTANT = 64 << 20


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes that a capture takes beyond the model."""

    result: int  #: the tensors it returns
    masks: int
    working: int  #: the largest batch while it runs

    @property
    def total(self) -> int:
        """All of it at its peak."""
        return self.result + self.masks + self.working + _CONSTANT


def working_bytes(call_entries: int, kind: str, output_bytes: int) -> int:
    """Needs of a running batch: one call's scores, softmax and mask, and the model's own activations."""
    copies = 3 if kind == "scores" else 5
    return call_entries * 4 * copies + output_bytes * _ACTIVATIONS


def check_memory(estimate: MemoryEstimate, limit: float | None, batch_size: int, advice: str) -> None:
    """Refuse what would not fit, before it is begun."""
    allowed = available_memory() * _SHARE if limit is None else limit
    if estimate.total <= allowed:
        return
    source = "memory_limit" if limit is not None else f"{_SHARE:.0%} of the free memory"
    smaller = "a smaller batch_size, " if batch_size > 1 else ""
    raise InvalidValueError(
        f"this capture needs about {words(estimate.total)} (results {words(estimate.result)}, masks "
        f"{words(estimate.masks)}, while running {words(estimate.working)}), {source} is "
        f"{words(int(allowed))}; {advice}; or pass {smaller}fewer inputs at a time, layers=…, heads=…, "
        "window=… or dtype='float16', or raise memory_limit"
    )


def available_memory() -> int:
    """Free bytes on this machine, within the limit of the container it runs in."""
    free = [_meminfo_available(), _cgroup_available()]
    known = [value for value in free if value is not None]
    if known:
        return min(known)
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2  # half, as nothing says what is free
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


def words(n_bytes: int) -> str:
    """Bytes as people say them."""
    for unit, size in (("GB", 1 << 30), ("MB", 1 << 20)):
        if n_bytes >= size:
            return f"{n_bytes / size:.1f} {unit}"
    return f"{max(1, n_bytes >> 10)} kB"
