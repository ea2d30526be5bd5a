"""Estimate the memory that a capture needs, and compare it with what is free."""

from __future__ import annotations

from dataclasses import dataclass

from headtree import _checks
from headtree._memory import allowed_memory, format_bytes
from headtree.errors import InvalidValueError

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
    if limit is not None:
        _checks.positive(limit, "memory_limit")
    allowed, source = allowed_memory(limit)
    if estimate.total <= allowed:
        return
    smaller = "a smaller batch_size, " if batch_size > 1 else ""
    running = estimate.working + _CONSTANT
    raise InvalidValueError(
        f"this capture needs about {format_bytes(estimate.total)} (results {format_bytes(estimate.result)}, masks "
        f"{format_bytes(estimate.masks)}, while running {format_bytes(running)}), but {source} is "
        f"{format_bytes(allowed)}; {advice}; or pass {smaller}fewer inputs at a time, layers=…, heads=…, "
        "window=… or dtype='float16', or raise memory_limit"
    )
