"""Signal processing on trees: how few Haar coefficients describe an array, and denoising by thresholds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from headtree import _checks
from headtree._threads import at_once
from headtree.bases.energies import LargestFirst, energy_after_coarsest
from headtree.bases.tensor_haar import TensorHaarBasis
from headtree.errors import InvalidValueError
from headtree.measures.orders import check_pair, orders
from headtree.questionnaire.organization import Organization
from headtree.tensor.attention_tensor import AttentionTensor
from headtree.trees.tree import PartitionTree

Keep = Literal["largest", "coarsest"]
Mode = Literal["hard", "soft"]

_POINTS = 64


@dataclass(frozen=True, eq=False)
class CompressionCurve:
    """Relative error of an array reconstructed from some of its Haar coefficients.

    Examples
    --------
    >>> import headtree as ht
    >>> import numpy as np
    >>> tree = ht.PartitionTree.halving(8)
    >>> curve = ht.compression_curve(np.arange(64.0).reshape(8, 8), [tree, tree], counts=[1, 4, 64])
    >>> curve.largest.round(2)
    array([0.51, 0.13, 0.  ])
    """

    counts: Int[np.ndarray, " point"]  #: number of coefficients used
    largest: Float[np.ndarray, " point"]  #: relative error with the largest coefficients
    coarsest: Float[np.ndarray, " point"]  #: relative error with the coefficients of largest support
    n_for_90: int  #: fewest coefficients with 90 % of the energy
    n_for_99: int  #: fewest coefficients with 99 % of the energy
    n_coefficients: int


def compression_curve(x: Any, trees: Sequence[PartitionTree], counts: Any = None) -> CompressionCurve:
    """Compute the error as a function of the number of coefficients, largest first and coarsest first.

    Parameters
    ----------
    x : array or tensor
        One axis per tree.
    trees : sequence of PartitionTree
        One per axis.
    counts : integers, optional
        Numbers of coefficients; by default 64 of them from 1 to all, evenly spaced in logarithm.

    Examples
    --------
    A block pattern needs two coefficients:

    >>> import headtree as ht
    >>> import numpy as np
    >>> tree = ht.PartitionTree.halving(8)
    >>> curve = ht.compression_curve(np.kron(np.eye(2), np.ones((4, 4))), [tree, tree])
    >>> curve.n_for_90, curve.n_for_99, curve.n_coefficients
    (2, 2, 64)
    """
    basis, coefficients = _coefficients(x, trees)
    return curve_of(LargestFirst.of(coefficients.ravel().numpy()), basis, _counts(counts, len(basis)))


def curve_of(energies: LargestFirst, basis: TensorHaarBasis, chosen: Int[np.ndarray, " point"]) -> CompressionCurve:
    """The curve of all coefficients of an array at checked counts."""
    (by_size, (n_for_90, n_for_99), total), by_support = at_once(
        lambda: energies.sums(chosen, (0.90, 0.99)),
        lambda: energy_after_coarsest(energies, basis.supports, chosen),
    )
    return CompressionCurve(
        counts=chosen,
        largest=_relative_errors(by_size, total),
        coarsest=_relative_errors(by_support, total),
        n_for_90=n_for_90,
        n_for_99=n_for_99,
        n_coefficients=len(basis),
    )


def curve_counts(n: int) -> Int[np.ndarray, " point"]:
    """The numbers of coefficients, of n, at which a curve is measured: 64, evenly spaced in logarithm."""
    return np.unique(np.round(np.geomspace(1, n, _POINTS)).astype(np.int64))


def compress(x: Any, trees: Sequence[PartitionTree], n: int, keep: Keep = "largest") -> Any:
    """Reconstruct `x` from n of its Haar coefficients: the largest in magnitude, or those of largest support.

    Ties go to the first in index order. No other n coefficients approximate `x` better than the largest.

    Examples
    --------
    >>> import headtree as ht
    >>> import numpy as np
    >>> tree = ht.PartitionTree.halving(4)
    >>> ht.compress(np.array([1.0, 1.0, 5.0, 5.5]), [tree], 2).round(2)
    array([1.  , 1.  , 5.25, 5.25])
    """
    basis, coefficients = _coefficients(x, trees)
    n = _checks.at_least_one(n, "n")
    if n > len(basis):
        raise InvalidValueError(f"n must be at most the number of coefficients, {len(basis)}, got {n}")
    _checks.one_of(keep, "keep", Keep)
    flat = coefficients.ravel()
    if keep == "largest":
        indices = torch.sort(flat.abs(), descending=True, stable=True).indices[:n]
    else:
        indices = torch.from_numpy(np.ravel_multi_index(tuple(basis.top(n).T), basis.shape))
    chosen = torch.zeros_like(flat)
    chosen[indices] = flat[indices]
    return _checks.as_input_type(basis.synthesize(chosen.reshape(coefficients.shape)), x)


def denoise(x: Any, trees: Sequence[PartitionTree], threshold: float | None = None, mode: Mode = "hard") -> Any:
    """Threshold the Haar coefficients of `x`, except that of the constant.

    Parameters
    ----------
    x : array or tensor
        One axis per tree.
    trees : sequence of PartitionTree
        One per axis.
    threshold : float, optional
        By default the universal threshold σ·√(2 log N). σ is the median magnitude of the coefficients of smallest
        support, divided by 0.6745: the standard deviation if those coefficients are pure Gaussian noise.
    mode : {"hard", "soft"}
        Coefficients up to the threshold become 0; "soft" also shrinks the others towards 0 by the threshold.

    Examples
    --------
    >>> import headtree as ht
    >>> import numpy as np
    >>> tree = ht.PartitionTree.halving(4)
    >>> ht.denoise(np.array([1.0, 1.1, 5.0, 5.2]), [tree], threshold=0.5).round(2)
    array([1.05, 1.05, 5.1 , 5.1 ])
    """
    basis, coefficients = _coefficients(x, trees)
    _checks.one_of(mode, "mode", Mode)
    if threshold is None:
        limit = _universal_threshold(basis, coefficients)
    else:
        limit = _checks.positive(threshold, "threshold")
    magnitudes = coefficients.abs()
    if mode == "hard":
        chosen = torch.where(magnitudes > limit, coefficients, 0.0)
    else:
        chosen = coefficients.sign() * (magnitudes - limit).clamp(min=0)
    constant = (0,) * chosen.ndim
    chosen[constant] = coefficients[constant]
    return _checks.as_input_type(basis.synthesize(chosen.to(coefficients.dtype)), x)


@dataclass(frozen=True, eq=False)
class Sparsity:
    """Compression curves of one tensor in several orders; [OA] claims that the organized one is best.

    ``"organized"`` uses the learned trees, ``"given"`` halves the axes in their original order, ``"random"`` halves
    them in a random order, and ``"shuffled"`` uses the learned trees with permuted leaves.

    Examples
    --------
    >>> import headtree as ht
    >>> import numpy as np
    >>> att = ht.AttentionTensor.from_array(np.random.default_rng(0).normal(size=(4, 8, 8)))
    >>> found = ht.sparsity(att, ht.organize(att))
    >>> list(found.by_order), found.gain > 0
    (['organized', 'given', 'random', 'shuffled'], True)
    """

    by_order: dict[str, CompressionCurve]
    n_filled: int

    @property
    def gain(self) -> float:
        """Coefficients for 99 % of the energy, given order divided by organized order; 1 if the tensor is 0."""
        given, organized = (self.by_order[order].n_for_99 for order in ("given", "organized"))
        return given / organized if organized else 1.0

    def to_dict(self) -> dict[str, list[Any]]:
        """Return the curves' key numbers as columns of a table, one row per order.

        Examples
        --------
        >>> import headtree as ht
        >>> import numpy as np
        >>> att = ht.AttentionTensor.from_array(np.random.default_rng(0).normal(size=(4, 8, 8)))
        >>> ht.sparsity(att, ht.organize(att)).to_dict()["n_coefficients"]
        [256, 256, 256, 256]
        """
        return {
            "order": list(self.by_order),
            "n_for_90": [curve.n_for_90 for curve in self.by_order.values()],
            "n_for_99": [curve.n_for_99 for curve in self.by_order.values()],
            "n_coefficients": [curve.n_coefficients for curve in self.by_order.values()],
        }


def sparsity(
    att: AttentionTensor, org: Organization, *, counts: Any = None, rng: int | np.random.Generator = 0
) -> Sparsity:
    """Test the sparsity claim of [OA]: compression curves of the tensor in four orders.

    Parameters
    ----------
    att : AttentionTensor
        Missing entries are filled first: probs with 0, scores with the mean of their row.
    org : Organization
        Its trees define the organized order.
    counts : integers, optional
        Numbers of coefficients, as in `compression_curve`.
    rng : int or numpy Generator
        Source of the random orders.

    Examples
    --------
    A block pattern with shuffled queries and keys is sparser once it is organized:

    >>> import headtree as ht
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> block = np.kron(np.eye(2), np.ones((4, 4)))[rng.permutation(8)][:, rng.permutation(8)]
    >>> att = ht.AttentionTensor.from_array(block * np.arange(1.0, 5.0)[:, None, None])
    >>> found = ht.sparsity(att, ht.organize(att))
    >>> found.by_order["organized"].n_for_99 < found.by_order["given"].n_for_99
    True
    """
    check_pair(att, org)
    full = att.filled()
    curves = {
        name: compression_curve(full.values, trees, counts) for name, trees in orders(list(org.trees), rng).items()
    }
    return Sparsity(curves, full.n_filled)


def denoising_errors(
    att: AttentionTensor,
    org: Organization,
    noise: float,
    *,
    mode: Mode = "hard",
    rng: int | np.random.Generator = 0,
) -> dict[str, float]:
    """Add Gaussian noise, `denoise`, and return the relative error that remains in each order of `sparsity`.

    ``"noisy"`` is the error before denoising. If the tensor is 0, errors are not relative.

    Parameters
    ----------
    att : AttentionTensor
        Missing entries are filled first: probs with 0, scores with the mean of their row.
    org : Organization
        Its trees define the organized order.
    noise : float
        Standard deviation of the noise.
    mode : {"hard", "soft"}
        As in `denoise`.
    rng : int or numpy Generator
        Source of the noise and the random orders.

    Examples
    --------
    >>> import headtree as ht
    >>> import numpy as np
    >>> block = np.kron(np.eye(2), np.ones((4, 4)))
    >>> att = ht.AttentionTensor.from_array(block * np.arange(1.0, 5.0)[:, None, None])
    >>> errors = ht.denoising_errors(att, ht.organize(att), noise=0.2)
    >>> list(errors)
    ['noisy', 'organized', 'given', 'random', 'shuffled']
    >>> errors["organized"] < errors["noisy"]
    True
    """
    check_pair(att, org)
    noise = _checks.positive(noise, "noise")
    generator = _checks.generator(rng)
    values = att.filled().values
    noisy = values + noise * torch.from_numpy(generator.standard_normal(tuple(values.shape))).to(values.dtype)
    norm = float(_checks.frobenius_norm(values)) or 1.0
    errors = {"noisy": float(_checks.frobenius_norm(noisy - values)) / norm}
    for name, trees in orders(list(org.trees), generator).items():
        cleaned = denoise(noisy, trees, mode=mode)
        errors[name] = float(_checks.frobenius_norm(cleaned - values)) / norm
    return errors


def _coefficients(x: Any, trees: Sequence[PartitionTree]) -> tuple[TensorHaarBasis, Float[Tensor, " ..."]]:
    basis = TensorHaarBasis(trees)  # type: ignore[arg-type]  # it makes a tuple of them
    tensor = _checks.real_tensor(_checks.full_tensor(x, "x"), "x")
    if tensor.ndim != len(basis.axes):
        raise InvalidValueError(
            f"x must have one axis per tree, {len(basis.axes)}, got shape {tuple(tensor.shape)}"
        )
    return basis, basis.analyze(tensor)


def _universal_threshold(basis: TensorHaarBasis, coefficients: Float[Tensor, " ..."]) -> float:
    smallest = tuple(torch.from_numpy(np.flatnonzero(s == s.min())) for s in basis.supports)
    finest = coefficients[torch.meshgrid(*smallest, indexing="ij")].abs().numpy()
    sigma = float(np.median(finest)) / 0.6745
    return sigma * float(np.sqrt(2 * np.log(coefficients.numel())))


def _counts(counts: Any, n: int) -> Int[np.ndarray, " point"]:
    if counts is None:
        return curve_counts(n)
    try:
        chosen = np.atleast_1d(np.asarray(counts))
    except (ValueError, TypeError, RuntimeError):  # ragged lists, or a tensor without numbers
        chosen = np.empty((0, 0))
    if chosen.dtype.kind not in "iu" or chosen.ndim != 1 or (chosen < 1).any() or (chosen > n).any():
        raise InvalidValueError(
            f"counts must be integers between 1 and the number of coefficients, {n}, got {counts!r}"
        )
    return chosen.astype(np.int64)


def _relative_errors(left_out: Float[np.ndarray, " point"], total: float) -> Float[np.ndarray, " point"]:
    return np.sqrt(left_out / total) if total > 0 else np.zeros(len(left_out))
