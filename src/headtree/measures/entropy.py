"""Entropies of heads and networks in the Haar bases of their trees, eq. (21) and appendix B.2 of [OA]."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from headtree import _checks
from headtree.bases.energies import norms
from headtree.bases.stored_coefficients import StoredCoefficients
from headtree.bases.tensor_haar import TensorHaarBasis
from headtree.errors import InvalidValueError
from headtree.measures.orders import check_pair
from headtree.questionnaire.organization import Organization
from headtree.tensor.attention_tensor import AttentionTensor, HeadId
from headtree.tensor.factored_array import FactoredArray
from headtree.tensor.probabilities import heads_in_a_block

Ties = Literal["cut", "keep"]


@dataclass(frozen=True, eq=False)
class Entropy:
    """l_p norms of the coarsest Haar coefficients, ``(Σ |β|^p)^(1/p)``, of every head or of the network.

    ``np.asarray(e)`` is ``e.raw``; the entropy of a network also converts with ``float(e)``. Raw values are not
    comparable between networks, kinds or sizes. Relative values do not change when the tensor is multiplied by a
    constant.

    Examples
    --------
    >>> import headtree as ht
    >>> import numpy as np
    >>> att = ht.AttentionTensor.from_array(np.random.default_rng(0).normal(size=(4, 6, 6)))
    >>> org = ht.organize(att)
    >>> entropy = ht.head_entropy(att, org, top=10)
    >>> np.asarray(entropy).shape, entropy.n_functions
    ((4,), 10)
    """

    raw: Float[np.ndarray, " ..."]
    norm: Float[np.ndarray, " ..."]  #: square root of the sum of squares of the head or network
    n_functions: int  #: number of functions summed over
    eps: int  #: smallest support among them
    p: float
    n_filled: int  #: number of missing entries that were filled first
    heads: tuple[HeadId, ...]
    coefficients: Float[np.ndarray, "... function"]  #: what the sums are over, by falling support

    @property
    def relative(self) -> Float[np.ndarray, " ..."]:
        """Raw values divided by the norm; 0 where the norm is 0."""
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
        Missing entries are filled first: probs with 0, scores with the mean of their row.
    org : Organization
        Its query and key trees define the basis.
    top : int
        Number of functions; all if there are fewer.
    p : float
        Greater than 0; [OA] uses 1.
    ties : {"cut", "keep"}
        Whether functions that tie in support with the last one are cut off by their number or all included.

    Examples
    --------
    A head with one block pattern has a larger entropy than a head of noise with the same norm:

    >>> import headtree as ht
    >>> import numpy as np
    >>> block = np.kron(np.eye(2), np.ones((4, 4)))
    >>> noise = np.random.default_rng(0).normal(size=(8, 8))
    >>> noise *= np.linalg.norm(block) / np.linalg.norm(noise)
    >>> att = ht.AttentionTensor.from_array(np.stack([block, block, noise]))
    >>> ht.head_entropy(att, ht.organize(att), top=4).relative.round(2)
    array([1.41, 1.41, 0.35])
    """
    check_pair(att, org)
    return _entropy(att, TensorHaarBasis(tuple(org.trees)[1:]), top, p, ties)


def network_entropy(
    att: AttentionTensor, org: Organization, top: int = 100, p: float = 1, *, ties: Ties = "cut"
) -> Entropy:
    """Entropy of the network over the head-query-key functions of largest support, appendix B.2 of [OA].

    The parameters are those of `head_entropy`.

    Examples
    --------
    >>> import headtree as ht
    >>> import numpy as np
    >>> att = ht.AttentionTensor.from_array(np.random.default_rng(0).normal(size=(4, 6, 6)))
    >>> entropy = ht.network_entropy(att, ht.organize(att), top=20)
    >>> entropy.n_functions, 0 < float(entropy.relative) < 20**0.5
    (20, True)
    """
    check_pair(att, org)
    return _entropy(att, TensorHaarBasis(tuple(org.trees)), top, p, ties)


def _entropy(att: AttentionTensor, basis: TensorHaarBasis, top: int, p: float, ties: Ties) -> Entropy:
    p = _checks.positive(p, "p")
    indices = _coarsest(basis, _checks.at_least_one(top, "top"), ties)
    if isinstance(att.values, FactoredArray):
        coefficients, norm, n_filled = _by_blocks(att, basis, indices)
    else:
        full = att.filled()
        coefficients = basis.coefficients_of(full.values, indices, "att.values").double()
        norm, n_filled = _norm(full.values, len(basis.axes)), full.n_filled
    return Entropy(
        raw=_power_norm(coefficients.abs(), p),
        norm=norm,
        n_functions=len(indices),
        eps=int(basis.support(indices[-1:])[0]),
        p=p,
        n_filled=n_filled,
        heads=att.heads,
        coefficients=np.asarray(coefficients.numpy()),
    )


def _by_blocks(
    att: AttentionTensor, basis: TensorHaarBasis, indices: Int[np.ndarray, "m axis"]
) -> tuple[Float[Tensor, "... m"], Float[np.ndarray, " ..."], int]:
    """Coefficients, norms and number of filled entries of a tensor that is multiplied out some heads at a time.

    The functions of tokens come first; those of heads are then made of few numbers for each head.
    """
    of_tokens = TensorHaarBasis(basis.trees[-2:])
    pairs, which = np.unique(indices[:, -2:], axis=0, return_inverse=True)
    found, of_heads, n_filled, step = [], [], 0, heads_in_a_block(att.shape)
    for start in range(0, len(att.heads), step):
        full = att.take(range(start, min(start + step, len(att.heads)))).filled()
        found.append(of_tokens.coefficients_of(full.values, pairs, "att.values").double())
        of_heads.append(_norm(full.values, 2))
        n_filled += full.n_filled
    coefficients, norm = torch.cat(found), np.concatenate(of_heads)
    if len(basis.axes) == 2:
        return coefficients[:, which.ravel()], norm, n_filled
    coefficients = basis.axes[0].analyzed(coefficients, 0)
    return coefficients[indices[:, 0], which.ravel()], np.asarray(norms(norm[None])[0]), n_filled


def entropy_of_coefficients(
    stored: StoredCoefficients, norm: Float[np.ndarray, " head"], top: int, heads: tuple[HeadId, ...]
) -> Entropy:
    """`network_entropy` of a tensor whose coefficients are in a file, and whose heads have these norms."""
    indices = _coarsest(stored.basis, top, "cut")
    coefficients = stored.at(indices).double()
    return Entropy(
        raw=_power_norm(coefficients.abs(), 1),
        norm=np.asarray(norms(norm[None])[0]),
        n_functions=len(indices),
        eps=int(stored.basis.support(indices[-1:])[0]),
        p=1,
        n_filled=0,
        heads=heads,
        coefficients=np.asarray(coefficients.numpy()),
    )


def _coarsest(basis: TensorHaarBasis, top: int, ties: Ties) -> Int[np.ndarray, "m axis"]:
    _checks.one_of(ties, "ties", Ties)
    first = basis.top(min(top, len(basis)))
    return first if ties == "cut" else basis.at_least(int(basis.support(first[-1:])[0]))


def _power_norm(magnitudes: Float[Tensor, "... m"], p: float) -> Float[np.ndarray, " ..."]:
    """``(Σ magnitudes^p)^(1/p)`` without overflow: the largest is factored out first."""
    largest = magnitudes.amax(dim=-1, keepdim=True)
    units = magnitudes / torch.where(largest > 0, largest, 1.0)
    result = np.asarray((largest[..., 0] * units.pow(p).sum(dim=-1).pow(1 / p)).numpy())
    if not np.isfinite(result).all():
        raise InvalidValueError(
            f"p is too small for {magnitudes.shape[-1]} coefficients, (Σ|β|^p)^(1/p) overflows: got {p}; "
            "pass a larger p, or a smaller top"
        )
    return result


def _norm(values: Float[Tensor, "head query key"], n_axes: int) -> Float[np.ndarray, " ..."]:
    """Square root of the sum of squares over the last axes, in float64 without copying the tensor."""
    of_heads = norms(values.flatten(1).numpy())
    return of_heads if n_axes == 2 else np.asarray(norms(of_heads[None])[0])
