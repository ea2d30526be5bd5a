"""How much memory is free."""

from __future__ import annotations

import os
from pathlib import Path

#: Share of the free memory that may be used if no limit is given.
SHARE = 0.8


def allowed_memory(limit: float | None) -> tuple[int, str]:
    """Bytes that work may use, and what sets this limit: what the user gave, or a share of the free memory."""
    if limit is not None:
        return int(limit), "memory_limit"
    return int(available_memory() * SHARE), f"{SHARE:.0%} of the free memory"


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
