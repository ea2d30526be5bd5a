"""What a slice along the first axis of a tensor is called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

HEAD, DEPTH = "head", "depth"

#: What one number of a token tensor is, by how it was reduced, and what many of them are.
REDUCTIONS = MappingProxyType(
    {
        "norm": ("norm of what comes from the token", "norms of what comes from each token"),
        "projection": ("share of the final residual stream", "shares of the final residual stream"),
        "logit": ("contribution to the logit", "contributions to the logit"),
    }
)


def slices_of(provenance: Mapping[str, Any]) -> str:
    """What a tensor of this origin has slices of: heads, or depths if a token tensor was reduced."""
    return DEPTH if "token_tensor" in provenance else HEAD


def reduction_of(provenance: Mapping[str, Any]) -> tuple[str, str] | None:
    """What one number of a token tensor is, and what many are; None of a tensor of another origin."""
    return REDUCTIONS[provenance["token_tensor"]["by"]] if "token_tensor" in provenance else None


def counted_slices(heads: Sequence[tuple[int, int]], provenance: Mapping[str, Any]) -> str:
    """How many slices a tensor has, in words: "12 heads in 2 layers" or "12 depths"."""
    slices, n_layers = slices_of(provenance), len({layer for layer, _ in heads})
    words = f"{len(heads)} {slices}{'s' * (len(heads) != 1)}"
    return words if slices == DEPTH else f"{words} in {n_layers} layer{'s' * (n_layers != 1)}"
