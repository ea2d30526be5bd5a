"""How regular a matrix is on its trees: an estimate of the mixed Hölder exponent, definition 2 of [OA]."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from headtree import _checks
from headtree.bases.energies import energies_by_level
from headtree.bases.paraproduct import check_trees
from headtree.bases.tensor_haar import TensorHaarBasis
from headtree.errors import InvalidValueError
from headtree.measures.orders import check_pair, orders
from headtree.questionnaire.organization import Organization
from headtree.tensor.attention_tensor import AttentionTensor, HeadId
from headtree.trees.tree import PartitionTree

#: Pairs of scales with j + j' below this are left out: a few large folders carry little information on a slope.
_COARSEST = 2

#: Entries transformed at a time: few enough to stay in cache.
_ENTRIES_AT_A_TIME = 1 << 19


@dataclass(frozen=True, eq=False)
class HolderExponent:
    """Decay of mixed differences with scale: ``rms(dd') ≈ constant · 2^(-exponent · (j + j'))``, per matrix.

    An exponent of 0 or below means no regularity. A matrix without any mixed differences is as regular as possible:
    exponent inf, constant 0. The exponent is nan if fewer than two different scales remain, and its errors are nan
    if fewer than three pairs remain.

    Examples
    --------
    >>> import headtree as ht
    >>> import numpy as np
    >>> x = np.linspace(0, 1, 16)
    >>> tree = ht.PartitionTree.halving(16)
    >>> fit = ht.holder_exponent(np.outer(x, x), tree, tree)
    >>> print(fit)
    exponent 1.00 ± 0.00
    >>> bool(fit.is_regular), fit.rms.shape
    (True, (4, 4))
    """

    exponent: Float[np.ndarray, " ..."]
    constant: Float[np.ndarray, " ..."]  #: 2 to the intercept of the fit
    exponent_error: Float[np.ndarray, " ..."]  #: standard error of the exponent
    log2_constant_error: Float[np.ndarray, " ..."]  #: standard error of the intercept, log2(constant)
    n_pairs: Int[np.ndarray, " ..."]  #: number of pairs of scales in the fit
    rms: Float[np.ndarray, "... row_scale column_scale"]  #: root mean square of dd' at each pair of scales

    @property
    def is_regular(self) -> np.ndarray:
        """Whether the exponent is positive."""
        return np.asarray(self.exponent > 0)

    def __str__(self) -> str:
        measured = self.exponent[~np.isnan(self.exponent)]
        if not measured.size:
            return "too few scales to measure an exponent"
        if np.ndim(self.exponent):
            n = int(np.sum(self.is_regular))
            return (
                f"{n} of {np.size(self.exponent)} matrices are regular, median exponent {np.median(measured):.2f}"
            )
        fit = f"exponent {float(self.exponent):.2f} ± {float(self.exponent_error):.2f}"
        return fit if bool(self.is_regular) else f"no regularity ({fit})"


def holder_exponent(f: Any, row_tree: PartitionTree, col_tree: PartitionTree) -> HolderExponent:
    """Estimate the mixed Hölder exponent and constant of f on two trees.

    The log2 of the root mean square of dd' f at scales j, j' is fitted against j + j' by least squares over
    j + j' >= 2. The exponent is minus the slope, the constant 2 to the intercept. dd' is the difference between
    levels in rows and columns, as in `paraproduct`.

    Parameters
    ----------
    f : array or tensor (..., row, column)
        Leading axes are batch axes.
    row_tree, col_tree : PartitionTree
        Any trees; j and j' are levels. Learned trees give low exponents for rough fields, and exponents below 0 for
        organized noise.

    Notes
    -----
    Differences no larger than the rounding errors of the entries of f count as 0. Pairs of scales without larger
    differences are left out of the fit; `n_pairs` is the number of those that remain.

    Examples
    --------
    A smooth matrix is regular in its given order, and not in a random one:

    >>> import headtree as ht
    >>> import numpy as np
    >>> x = np.linspace(0, 1, 16)
    >>> tree = ht.PartitionTree.halving(16)
    >>> shuffled = tree.take(np.random.default_rng(0).permutation(16))
    >>> round(float(ht.holder_exponent(np.outer(x, x), tree, tree).exponent), 2)
    1.0
    >>> bool(ht.holder_exponent(np.outer(x, x), shuffled, shuffled).exponent < 0.5)
    True
    """
    tensor = _checks.full_tensor(f, "f")
    if tensor.ndim < 2:
        raise InvalidValueError(f"f must have at least two axes (row, column), got shape {tuple(tensor.shape)}")
    check_trees(tensor, row_tree, col_tree)
    return exponents_in(tensor, TensorHaarBasis((row_tree, col_tree)))


def exponents_in(
    tensor: Float[Tensor, "... row column"],
    basis: TensorHaarBasis,
    rounding: Float[np.ndarray, " matrix"] | None = None,
) -> HolderExponent:
    """`holder_exponent` of a checked tensor, in the Haar basis of its trees.

    Differences up to `rounding` count as zero: numbers computed from larger ones inherit their errors.
    """
    return exponents_in_each(tensor, [basis], rounding)[0]


def matrices_at_a_time(n_entries: int) -> int:
    """How many matrices of so many entries are measured together."""
    return max(1, _ENTRIES_AT_A_TIME // n_entries)


def exponents_in_each(
    tensor: Float[Tensor, "... row column"],
    bases: Sequence[TensorHaarBasis],
    rounding: Float[np.ndarray, " matrix"] | None = None,
) -> list[HolderExponent]:
    """`exponents_in` in several bases of the same axes: what does not depend on the trees is done once."""
    n_at_a_time = matrices_at_a_time(len(bases[0]))
    tables: list[list[Float[np.ndarray, "_matrix row_scale column_scale"]]] = [[] for _ in bases]
    powers = []
    for matrices in torch.split(tensor.reshape(-1, *tensor.shape[-2:]), n_at_a_time):
        scaled, exponents = _in_units(matrices)
        mixed, smallest = _mixed(scaled), _rounding(scaled)
        powers.append(exponents)
        for table, basis in zip(tables, bases, strict=True):
            table.append(_rms(mixed, smallest, basis))
    units, batch = np.concatenate(powers), tuple(tensor.shape[:-2])
    return [_fitted(np.concatenate(table), units, rounding, batch) for table in tables]


def _fitted(
    rms: Float[np.ndarray, "matrix row_scale column_scale"],
    units: Int[np.ndarray, " matrix"],
    rounding: Float[np.ndarray, " matrix"] | None,
    batch: tuple[int, ...],
) -> HolderExponent:
    """The fits of tables in units of powers of two."""
    if rounding is not None:
        with np.errstate(over="ignore"):  # a matrix that small compared with its rounding is 0
            rms[rms <= np.ldexp(rounding, -units)[:, None, None]] = 0
    fits = [_fit(table, unit) for table, unit in zip(rms, units, strict=True)]
    rms = np.ldexp(rms, units[:, None, None])
    exponent, constant, error, constant_error, n_pairs = (
        np.array(column).reshape(batch) for column in zip(*fits, strict=True)
    )
    return HolderExponent(exponent, constant, error, constant_error, n_pairs, rms.reshape(*batch, *rms.shape[1:]))


def _rounding(f: Float[Tensor, "batch row column"]) -> Float[np.ndarray, " batch"]:
    """Root mean square below which differences may be rounding errors of the entries of each matrix.

    The rounding error of an entry is at most half a unit in its last place, however large other entries are, and
    the root mean square over some functions is at most that over all. This is twice that bound.
    """
    norms = torch.linalg.vector_norm(f, dim=(1, 2), dtype=torch.float64) / f[0].numel() ** 0.5
    return np.asarray(torch.finfo(f.dtype).eps * norms.cpu().numpy())


def _in_units(
    f: Float[Tensor, "batch row column"],
) -> tuple[Float[Tensor, "batch row column"], Int[np.ndarray, " batch"]]:
    """Divide each matrix by the power of two next to its largest entry; squares then stay in range."""
    exponents = torch.frexp(f.abs().amax(dim=(1, 2)))[1]
    half = torch.div(exponents, 2, rounding_mode="floor")  # two factors, because one may be out of range
    ones = torch.ones_like(f[:, :1, :1])
    first, second = (torch.ldexp(ones, power[:, None, None]) for power in (-half, half - exponents))
    return f * first * second, exponents.cpu().numpy()


def _mixed(scaled: Float[Tensor, "batch row column"]) -> Float[Tensor, "batch row column"]:
    """The matrices without row and column means, which contribute to no mixed difference.

    Subtracting them in float64 keeps small differences accurate.
    """
    mixed = scaled.double()
    mixed = mixed - mixed.mean(dim=2, keepdim=True)
    mixed -= mixed.mean(dim=1, keepdim=True)
    return mixed


def _rms(
    mixed: Float[Tensor, "batch row column"], smallest: Float[np.ndarray, " batch"], basis: TensorHaarBasis
) -> Float[np.ndarray, "batch row_scale column_scale"]:
    """Root mean square of dd' f at every pair of scales; 0 up to the smallest that is not rounding.

    dd' at (j, j') is the component of f in the Haar functions of nodes that split at level j of the row tree and j'
    of the column tree. The basis is orthonormal, so the sum of squares of dd' equals that of the coefficients.
    """
    rows, columns = basis.axes
    levels = rows.level, columns.level  # the constant function has level -1 and belongs to no scale
    n_scales = rows.tree.n_levels - 1, columns.tree.n_levels - 1
    rms = np.sqrt(energies_by_level(basis.analyze(mixed).cpu().numpy(), levels, n_scales) / len(basis))
    rms[rms <= smallest[:, None, None]] = 0
    return rms


def _fit(rms: Float[np.ndarray, "row_scale column_scale"], units: int) -> tuple[float, float, float, float, int]:
    """Exponent, constant, their standard errors and the number of pairs, for one matrix in units of 2**units."""
    scale = np.add.outer(np.arange(rms.shape[0]), np.arange(rms.shape[1]))
    if not rms.any():
        return np.inf, 0.0, 0.0, 0.0, 0
    seen = (scale >= _COARSEST) & (rms > 0)
    s, y = scale[seen].astype(np.float64), np.log2(rms[seen])
    n = len(s)
    spread = float(((s - s.mean()) ** 2).sum()) if n else 0.0
    if spread == 0:
        return np.nan, np.nan, np.nan, np.nan, n
    slope = float(((s - s.mean()) * y).sum()) / spread
    intercept = float(y.mean() - slope * s.mean())
    variance = float(((y - intercept - slope * s) ** 2).sum()) / (n - 2) if n > 2 else np.nan
    error = np.sqrt(variance / spread)
    return -slope, float(np.exp2(intercept + units)), error, np.sqrt(variance * (1 / n + s.mean() ** 2 / spread)), n


@dataclass(frozen=True, eq=False)
class Regularity:
    """The Hölder exponents of every head on the learned trees, and on others for comparison.

    The orders are those of `sparsity`: organized, given, random, shuffled. Exponents are per level, and a learned
    tree has fewer levels than one made by halving. So compare not only with the given order but also with the
    shuffled one, which has the same levels.

    Examples
    --------
    >>> import headtree as ht
    >>> import numpy as np
    >>> att = ht.AttentionTensor.from_array(np.random.default_rng(0).normal(size=(3, 16, 16)))
    >>> found = ht.regularity(att, ht.organize(att))
    >>> list(found.by_order)
    ['organized', 'given', 'random', 'shuffled']
    """

    heads: tuple[HeadId, ...]
    by_order: dict[str, HolderExponent]
    n_filled: int

    def to_dict(self) -> dict[str, list[Any]]:
        """Return the exponents as columns of a table, one row per head.

        Examples
        --------
        >>> import headtree as ht
        >>> import numpy as np
        >>> att = ht.AttentionTensor.from_array(np.random.default_rng(0).normal(size=(3, 16, 16)))
        >>> table = ht.regularity(att, ht.organize(att)).to_dict()
        >>> len(table["exponent_organized"]), len(table["exponent_given"])
        (3, 3)
        """
        table: dict[str, list[Any]] = {
            "layer": [head.layer for head in self.heads],
            "head": [head.head for head in self.heads],
        }
        for order, fit in self.by_order.items():
            table[f"exponent_{order}"] = fit.exponent.tolist()
            table[f"error_{order}"] = fit.exponent_error.tolist()
            table[f"constant_{order}"] = fit.constant.tolist()
        return table


def regularity(att: AttentionTensor, org: Organization, *, rng: int | np.random.Generator = 0) -> Regularity:
    """Test the claim of [OA] that organizing makes a head regular: exponents before, after, and by chance.

    Parameters
    ----------
    att : AttentionTensor
        Missing entries are filled first: probs with 0, scores with the mean of their row.
    org : Organization
        Its query and key trees are used for all heads.
    rng : int or numpy Generator
        Source of the random orders.

    Examples
    --------
    >>> import headtree as ht
    >>> import numpy as np
    >>> x = np.linspace(0, 1, 16)
    >>> att = ht.AttentionTensor.from_array(np.stack([np.outer(x, x), np.outer(x, 1 - x), np.outer(x, x**2)]))
    >>> found = ht.regularity(att, ht.organize(att))
    >>> found.by_order["given"].is_regular
    array([ True,  True,  True])
    """
    check_pair(att, org)
    full = att.filled()
    trees = orders(list(org.trees)[1:], rng)
    fits = exponents_in_each(full.values, [TensorHaarBasis(tuple(pair)) for pair in trees.values()])
    return Regularity(att.heads, dict(zip(trees, fits, strict=True)), full.n_filled)
