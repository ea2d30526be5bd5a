"""The first rows of a symmetric matrix: all of it, or those of a few slices against all."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def mirrored_upper(upper: Float[Tensor, "row column"]) -> Float[Tensor, "row column"]:
    """Fill in, in place, what is below the diagonal from above it."""
    square = upper[:, : len(upper)]
    square += square.T.clone()
    return upper


def mirrored_lower(lower: Float[Tensor, "row column"]) -> Float[Tensor, "row column"]:
    """Replace what is above the diagonal, in the columns of the same slices, by what is below it."""
    n = len(lower)
    square = lower[:, :n].tril() + lower[:, :n].tril(-1).T
    return square if lower.shape[1] == n else torch.cat([square, lower[:, n:]], dim=1)
