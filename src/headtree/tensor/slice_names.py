"""What a slice along the first axis of a tensor is called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

HEAD, DEPTH = "head", "depth"


def slices_of(provenance: Mapping[str, Any]) -> str:
    """What a tensor of this origin has slices of: heads, or depths if a token tensor was reduced."""
    return DEPTH if "token_tensor" in provenance else HEAD


def counted_slices(heads: Sequence[tuple[int, int]], provenance: Mapping[str, Any]) -> str:
    """How many slices a tensor has, in words: "12 heads in 2 layers" or "12 depths"."""
    slices, n_layers = slices_of(provenance), len({layer for layer, _ in heads})
    words = f"{len(heads)} {slices}{'s' * (len(heads) != 1)}"
    return words if slices == DEPTH else f"{words} in {n_layers} layer{'s' * (n_layers != 1)}"
