"""The distance of a token matrix from rank one: the residual of [RC] and its norm.

[RC] Dong, Cordonnier, Loukas: Attention is not all you need: pure attention loses rank doubly exponentially with
depth, 2021.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def residual(x: Float[Tensor, "*batch token width"]) -> Float[Tensor, "*batch token width"]:
    """``res(X) = X - 1 xᵀ``, where x is the mean row: the differences between tokens."""
    return x - x.mean(dim=-2, keepdim=True)


def composite_norm(x: Float[Tensor, "*batch token width"]) -> Float[Tensor, "*batch"]:
    """``sqrt(‖X‖₁ ‖X‖∞)``, from the largest column sum and the largest row sum of absolute values."""
    magnitudes = x.abs()
    columns, rows = magnitudes.sum(dim=-2).amax(dim=-1), magnitudes.sum(dim=-1).amax(dim=-1)
    return torch.sqrt(columns) * torch.sqrt(rows)


def relative_residual(x: Float[Tensor, "*batch token width"]) -> Float[Tensor, "*batch"]:
    """``‖res(X)‖ / ‖X‖`` in the composite norm, in float64; 0 for a matrix of zeros."""
    norm, of_residual = norms(x)
    return torch.where(norm == 0, norm, of_residual / norm)


def norms(
    x: Float[Tensor, "*batch token width"],
) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch"]]:
    """``‖X‖`` and ``‖res(X)‖`` in the composite norm, in float64."""
    x = x.double()
    return composite_norm(x), composite_norm(residual(x))


def one_norm(x: Float[Tensor, "*batch row column"]) -> Float[Tensor, "*batch"]:
    """The induced 1-norm: the largest column sum of absolute values."""
    return x.abs().sum(dim=-2).amax(dim=-1)
