"""Entropies of heads and of networks in the Haar bases of their trees, eq. (21) and app. B.2 of [OA]."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from headtree import _checks
from headtree.bases.energies import norms
from headtree.bases.tensor_haar import TensorHaarBasis
from headtree.errors import InvalidValueError
from headtree.measures.orders import check_pair
from headtree.questionnaire.organization import Organization
from headtree.tensor.attention_tensor import AttentionTensor, HeadId

Ties = Literal["cut", "keep"]


@dataclass(frozen=True, eq=False)
class Entropy:
    """l_p norms of the coarsest Haar coefficients, ``(Σ |β|^p)^(1/p)``, of every head or of the network.

    ``np.asarray(e)`` is ``e.raw``; the entropy of a network is also a ``float(e)``. Raw values of different
    networks, kinds and sizes are not comparable; relative ones do not change when the tensor is multiplied by
    a number.
    """

    raw: Float[np.ndarray, " ..."]
    norm: Float[np.ndarray, " ..."]  #: root of the sum of squares of the head, or of the network
    n_functions: int  #: number of functions summed over
    eps: int  #: smallest support among them
    p: float
    n_filled: int  #: missing entries that were filled first
    heads: tuple[HeadId, ...]
    coefficients: Float[np.ndarray, "... function"]  #: what the sums are over, by falling support

    @property
    def relative(self) -> Float[np.ndarray, " ..."]:
        """Raw values over the norm; 0 for what is zero altogether."""
        return np.asarray(np.divide(self.raw, self.norm, out=np.zeros_like(self.raw), where=self.norm > 0))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.raw, dtype=dtype, copy=copy)

    def __float__(self) -> float:
        return float(self.raw)

    def __len__(self) -> int:
        return len(self.raw)


def head_entropy(
    att: AttentionTensor, org: Organization, top: int = 400, p: float = 1, *, ties: Ties = "cut"
) -> Entropy:
    """Entropy of every head over the query-key functions of largest support, eq. (21) of [OA].

    Parameters
    ----------
    att : AttentionTensor
        Missing entries are filled first: probs with 0, scores with their row's mean.
    org : Organization
        Its query and key trees make the basis.
    top : int
        Number of functions, or all if there are fewer.
    p : float
        Greater than 0; 1 is [OA]'s.
    ties : {"cut", "keep"}
        Whether functions that tie in support with the last one are cut off by their numbers, or all kept.
    """
    check_pair(att, org)
    return _entropy(att, TensorHaarBasis(tuple(org.trees)[1:]), top, p, ties)


def network_entropy(
    att: AttentionTensor, org: Organization, top: int = 100, p: float = 1, *, ties: Ties = "cut"
) -> Entropy:
    """Entropy of the network over the head-query-key functions of largest support, appendix B.2 of [OA].

    Parameters are those of `head_entropy`.
    """
    check_pair(att, org)
    return _entropy(att, TensorHaarBasis(tuple(org.trees)), top, p, ties)


def _entropy(att: AttentionTensor, basis: TensorHaarBasis, top: int, p: float, ties: Ties) -> Entropy:
    p = _checks.positive(p, "p")
    indices = _coarsest(basis, _checks.at_least_one(top, "top"), ties)
    full = att.filled()
    coefficients = basis.coefficients_of(full.values, indices, "att.values").double()
    return Entropy(
        raw=_power_norm(coefficients.abs(), p),
        norm=_norm(full.values, len(basis.axes)),
        n_functions=len(indices),
        eps=int(basis.support(indices[-1:])[0]),
        p=p,
        n_filled=full.n_filled,
        heads=att.heads,
        coefficients=np.asarray(coefficients.numpy()),
    )


def _coarsest(basis: TensorHaarBasis, top: int, ties: Ties) -> Int[np.ndarray, "m axis"]:
    if ties not in get_args(Ties):
        raise InvalidValueError(f"ties must be one of {get_args(Ties)}, got {ties!r}")
    first = basis.top(min(top, len(basis)))
    return first if ties == "cut" else basis.at_least(int(basis.support(first[-1:])[0]))


def _power_norm(moduli: Float[Tensor, "... m"], p: float) -> Float[np.ndarray, " ..."]:
    """``(Σ moduli^p)^(1/p)`` without overflow: the largest is taken out first."""
    largest = moduli.amax(dim=-1, keepdim=True)
    units = moduli / torch.where(largest > 0, largest, 1.0)
    result = np.asarray((largest[..., 0] * units.pow(p).sum(dim=-1).pow(1 / p)).numpy())
    if not np.isfinite(result).all():
        raise InvalidValueError(
            f"p is too small for {moduli.shape[-1]} coefficients, (Σ|β|^p)^(1/p) overflows: got {p}; "
            "pass a larger p, or a smaller top"
        )
    return result


def _norm(values: Float[Tensor, "head query key"], n_axes: int) -> Float[np.ndarray, " ..."]:
    """Root of the sum of squares over the last axes, summed in float64 without a copy of the tensor."""
    of_heads = norms(values.flatten(1).numpy())
    return of_heads if n_axes == 2 else np.asarray(norms(of_heads[None])[0])
