"""Signal processing on the trees: how few Haar coefficients hold an array, and what thresholds leave."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

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
    """Relative error of an array rebuilt from some of its Haar coefficients."""

    counts: Int[np.ndarray, " point"]  #: numbers of coefficients kept
    largest: Float[np.ndarray, " point"]  #: relative error when the largest are kept
    coarsest: Float[np.ndarray, " point"]  #: relative error when those of largest support are kept
    n_for_90: int  #: fewest coefficients with 90 % of the energy
    n_for_99: int  #: fewest coefficients with 99 % of the energy
    n_coefficients: int


def compression_curve(x: Any, trees: Sequence[PartitionTree], counts: Any = None) -> CompressionCurve:
    """Error against the number of coefficients kept, largest first and coarsest first.

    Parameters
    ----------
    x : array or tensor
        One axis for each tree.
    trees : sequence of PartitionTree
        One for each axis.
    counts : integers, optional
        By default 64 numbers from 1 to all, evenly spaced in logarithm.
    """
    basis, coefficients = _coefficients(x, trees)
    energies = LargestFirst.of(coefficients.ravel().numpy())
    chosen = _counts(counts, len(basis))
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
    """`x` rebuilt from n of its Haar coefficients: the largest in modulus, or those of largest support.

    Among equals the first in index order is kept. No other choice of n coefficients is nearer to `x` than the
    largest.
    """
    basis, coefficients = _coefficients(x, trees)
    n = _checks.at_least_one(n, "n")
    if n > len(basis):
        raise InvalidValueError(f"n must be at most the number of coefficients, {len(basis)}, got {n}")
    if keep not in get_args(Keep):
        raise InvalidValueError(f"keep must be one of {get_args(Keep)}, got {keep!r}")
    flat = coefficients.ravel()
    if keep == "largest":
        kept = torch.sort(flat.abs(), descending=True, stable=True).indices[:n]
    else:
        kept = torch.from_numpy(np.ravel_multi_index(tuple(basis.top(n).T), basis.shape))
    chosen = torch.zeros_like(flat)
    chosen[kept] = flat[kept]
    return _checks.as_input_type(basis.synthesize(chosen.reshape(coefficients.shape)), x)


def denoise(x: Any, trees: Sequence[PartitionTree], threshold: float | None = None, mode: Mode = "hard") -> Any:
    """Threshold the Haar coefficients of `x`, the constant's excepted.

    Parameters
    ----------
    threshold : float, optional
        By default the universal threshold σ·√(2 log N), σ being the median modulus of the functions of
        smallest support over 0.6745, which is the standard deviation where those carry nothing but Gaussian
        noise.
    mode : {"hard", "soft"}
        Coefficients up to the threshold become 0; soft also moves the others towards 0 by it.
    """
    basis, coefficients = _coefficients(x, trees)
    if mode not in get_args(Mode):
        raise InvalidValueError(f"mode must be one of {get_args(Mode)}, got {mode!r}")
    if threshold is None:
        limit = _universal_threshold(basis, coefficients)
    else:
        limit = _checks.positive(threshold, "threshold")
    moduli = coefficients.abs()
    if mode == "hard":
        kept = torch.where(moduli > limit, coefficients, 0.0)
    else:
        kept = coefficients.sign() * (moduli - limit).clamp(min=0)
    constant = (0,) * kept.ndim
    kept[constant] = coefficients[constant]
    return _checks.as_input_type(basis.synthesize(kept.to(coefficients.dtype)), x)


@dataclass(frozen=True, eq=False)
class Sparsity:
    """Compression curves of one tensor in several orders; [OA] claims that the organized one is best.

    ``"organized"`` are the found trees, ``"given"`` halves the axes as they are, ``"random"`` halves them in
    a random order, ``"shuffled"`` has the found trees with permuted leaves.
    """

    by_order: dict[str, CompressionCurve]
    n_filled: int

    @property
    def gain(self) -> float:
        """Coefficients for 99 % of the energy in the given order, over those in the organized one; 1 for zeros."""
        given, organized = (self.by_order[order].n_for_99 for order in ("given", "organized"))
        return given / organized if organized else 1.0

    def to_dict(self) -> dict[str, list[Any]]:
        """Columns of one row per order."""
        return {
            "order": list(self.by_order),
            "n_for_90": [curve.n_for_90 for curve in self.by_order.values()],
            "n_for_99": [curve.n_for_99 for curve in self.by_order.values()],
            "n_coefficients": [curve.n_coefficients for curve in self.by_order.values()],
        }


def sparsity(
    att: AttentionTensor, org: Organization, *, counts: Any = None, rng: int | np.random.Generator = 0
) -> Sparsity:
    """Measure [OA]'s claim of sparsity: compression curves of the tensor in four orders side by side."""
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
    """Relative error that `denoise` leaves in each order of `sparsity` when Gaussian noise is added first.

    ``"noisy"`` is the error before denoising.
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
    basis = TensorHaarBasis(trees)  # type: ignore[arg-type]  # which makes a tuple of them
    tensor = _checks.real_tensor(_checks.full_tensor(x, "x"), "x")
    if tensor.ndim != len(basis.axes):
        raise InvalidValueError(
            f"x must have one axis for each of the {len(basis.axes)} trees, got shape {tuple(tensor.shape)}"
        )
    return basis, basis.analyze(tensor)


def _universal_threshold(basis: TensorHaarBasis, coefficients: Float[Tensor, " ..."]) -> float:
    smallest = tuple(torch.from_numpy(np.flatnonzero(s == s.min())) for s in basis.supports)
    finest = coefficients[torch.meshgrid(*smallest, indexing="ij")].abs().numpy()
    sigma = float(np.median(finest)) / 0.6745
    return sigma * float(np.sqrt(2 * np.log(max(2, coefficients.numel()))))


def _counts(counts: Any, n: int) -> Int[np.ndarray, " point"]:
    if counts is None:
        return curve_counts(n)
    chosen = np.atleast_1d(np.asarray(counts))
    if chosen.dtype.kind not in "iu" or chosen.ndim != 1 or (chosen < 1).any() or (chosen > n).any():
        raise InvalidValueError(
            f"counts must be integers from 1 to the number of coefficients, {n}, got {counts!r}"
        )
    return chosen.astype(np.int64)


def _relative_errors(left_out: Float[np.ndarray, " point"], total: float) -> Float[np.ndarray, " point"]:
    return np.sqrt(left_out / total) if total > 0 else np.zeros(len(left_out))
