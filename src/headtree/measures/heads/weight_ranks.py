"""Measures of the weights of a head: eigenvalues of W_QK, ranks of W_QK and W_OV."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from headtree.measures.heads.columns import Column
from headtree.models.graph.head_weights import HeadWeights
from headtree.tensor.attention_tensor import HeadId

#: Singular values below this fraction of the largest, times the longer side, are rounding errors of the weights.
_ROUNDING = float(torch.finfo(torch.float32).eps)


def eigenvalue_moments(
    query: Float[Tensor, "head width feature"], key: Float[Tensor, "head width feature"]
) -> tuple[Float[Tensor, " head"], Float[Tensor, " head"]]:
    """Mean and variance of the d eigenvalues of W = W_Q W_Kᵀ: tr W / d and tr W² / d - (tr W / d)².

    Bao et al. (2024): attention localizes if the variance is small and the mean is not 0. Complex eigenvalues come
    in conjugate pairs, so both moments are real; the variance can be negative if complex eigenvalues dominate.
    """
    inner = key.double().mT @ query.double()  # feature × feature, with the same traces as W
    d = query.shape[1]
    mean = inner.diagonal(dim1=1, dim2=2).sum(dim=1) / d
    return mean, (inner * inner.mT).sum(dim=(1, 2)) / d - mean**2


def singular_values(
    left: Float[Tensor, "head a feature"], right: Float[Tensor, "head feature b"]
) -> Float[Tensor, "head feature"]:
    """The singular values of ``left @ right`` that can be nonzero, from QR decompositions of both factors."""
    first = torch.linalg.qr(left.double(), mode="r").R
    second = torch.linalg.qr(right.double().mT, mode="r").R
    return torch.as_tensor(torch.linalg.svdvals(first @ second.mT))


def ranks(
    left: Float[Tensor, "head a feature"], right: Float[Tensor, "head feature b"]
) -> tuple[Float[Tensor, " head"], Float[Tensor, " head"]]:
    """Numerical rank and stable rank Σσ² / σ₁² of ``left @ right``; for a zero matrix, 0 and nan."""
    sigma = singular_values(left, right)
    largest = sigma[:, :1]
    tolerance = largest * max(left.shape[1], right.shape[2]) * _ROUNDING
    rank = ((sigma > tolerance) & (sigma > 0)).sum(dim=1).double()
    return rank, (sigma / largest).square().sum(dim=1)


def weight_columns(heads: Sequence[HeadId], weights: Sequence[HeadWeights]) -> dict[str, Column]:
    """Measures of the weights of these heads; nan for heads whose layer or index is not among the weights."""
    by_layer = {layer.layer: _of_layer(layer) for layer in weights}
    names = (
        "qk_eigenvalue_mean",
        "qk_eigenvalue_variance",
        "qk_rank",
        "qk_stable_rank",
        "ov_rank",
        "ov_stable_rank",
    )
    result = {}
    for i, name in enumerate(names):
        values = [_pick(by_layer.get(head.layer), i, head.head) for head in heads]
        reason = "queries and keys come from different sequences" if i < 2 else "the matrix is zero"
        result[name] = Column(np.array(values), reason)
    return result


def _of_layer(layer: HeadWeights) -> list[Float[Tensor, " head"]]:
    nothing = torch.full((len(layer.query),), torch.nan)
    is_square = layer.query.shape[1] == layer.key.shape[1] and not layer.is_cross
    moments = eigenvalue_moments(layer.query, layer.key) if is_square else (nothing, nothing)
    return [*moments, *ranks(layer.query, layer.key.mT), *ranks(layer.value, layer.output)]


def _pick(columns: list[Float[Tensor, " head"]] | None, column: int, head: int) -> float:
    return float("nan") if columns is None or head >= len(columns[column]) else float(columns[column][head])
