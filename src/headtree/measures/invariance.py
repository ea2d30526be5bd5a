"""Does softmax preserve the organization of a head? Theorem 2, corollary 1 and figure 2 of [OA]."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from headtree import _checks
from headtree.bases.energies import medians
from headtree.bases.paraproduct import Paraproduct, approximations, decomposed, relative_norm
from headtree.bases.tensor_haar import TensorHaarBasis
from headtree.errors import HeadtreeWarning, InvalidValueError
from headtree.measures.orders import check_pair
from headtree.measures.regularity import exponents_in
from headtree.progress import progress
from headtree.questionnaire.organization import Organization
from headtree.tensor.attention_tensor import AttentionTensor, HeadId
from headtree.trees.tree import PartitionTree

#: An entry is squashed if it is closer to the median of its matrix than this fraction of the matrix's range.
_SQUASHED = 0.01

#: Error, in units of rounding, of sums over scales and of functions of them.
_ROUNDING = 64

#: Enough heads to hide the cost of a call, and entries few enough for their terms to take little memory.
_HEADS_AT_A_TIME, _ENTRIES_AT_A_TIME = 16, 1 << 21


@dataclass(frozen=True, eq=False)
class SoftmaxInvariance:
    """A table with one row per head: whether the claim holds for it, which is tested and not assumed.

    Ã is the sum of the first-order and second-order terms over all scales, eq. (17). The unshifted exp overflows
    on large scores; everything computed from it is then nan.

    Examples
    --------
    >>> import headtree as ht
    >>> import numpy as np
    >>> att = ht.AttentionTensor.from_array(np.random.default_rng(0).normal(size=(4, 8, 8)) / 10)
    >>> found = ht.softmax_invariance(att, ht.organize(att))
    >>> found.distance.shape, found.tolerance
    ((4,), 0.25)
    """

    heads: tuple[HeadId, ...]
    distance: Float[np.ndarray, " head"]  #: ‖Ã - eq. (18)‖ / ‖Ã‖ for the unshifted exp(f); the corollary says 0
    holds: Bool[np.ndarray, " head"]  #: whether the distance is at most the tolerance
    mean: Float[np.ndarray, " head"]  #: mean of f; the corollary assumes that it is near 0
    mixed: Float[np.ndarray, " head"]  #: root mean square of the mixed differences of f; the corollary: large
    exponent: Float[np.ndarray, " head"]  #: of f on the learned trees; <= 0: no regularity, contrary to the theorem
    exponent_error: Float[np.ndarray, " head"]
    exponent_given: Float[np.ndarray, " head"]  #: of f on dyadic trees over the original order
    exponent_softmax: Float[np.ndarray, " head"]  #: of softmax(f)
    exponent_residual: Float[np.ndarray, " head"]  #: of the residual of softmax; the theorem says twice that of f
    share_first: Float[np.ndarray, " head"]  #: norms of the terms of softmax(f), divided by its norm
    share_second: Float[np.ndarray, " head"]
    share_boundary: Float[np.ndarray, " head"]
    share_residual: Float[np.ndarray, " head"]
    error_printed: Float[np.ndarray, " head"]  #: relative error of eq. (12) as printed, without boundary terms
    squashed: Float[np.ndarray, " head"]  #: fraction of entries within 1 % of the range of softmax(f) of its median
    kept: Float[np.ndarray, " head"]  #: of these, the fraction that Ã still separates from the median (figure 2)
    tolerance: float
    n_filled: int

    def to_dict(self) -> dict[str, list[Any]]:
        """Return the table as columns, one row per head.

        Examples
        --------
        >>> import headtree as ht
        >>> import numpy as np
        >>> att = ht.AttentionTensor.from_array(np.random.default_rng(0).normal(size=(3, 8, 8)) / 10)
        >>> list(ht.softmax_invariance(att, ht.organize(att)).to_dict())[:4]
        ['layer', 'head', 'distance', 'holds']
        """
        table: dict[str, list[Any]] = {
            "layer": [head.layer for head in self.heads],
            "head": [head.head for head in self.heads],
        }
        columns = [column.name for column in fields(self) if isinstance(getattr(self, column.name), np.ndarray)]
        return table | {name: getattr(self, name).tolist() for name in columns}

    def rows(self) -> list[dict[str, Any]]:
        """Return the table as one dictionary per head.

        Examples
        --------
        >>> import headtree as ht
        >>> import numpy as np
        >>> att = ht.AttentionTensor.from_array(np.random.default_rng(0).normal(size=(3, 8, 8)) / 10)
        >>> rows = ht.softmax_invariance(att, ht.organize(att)).rows()
        >>> [(row["layer"], row["head"]) for row in rows]
        [(0, 0), (0, 1), (0, 2)]
        """
        table = self.to_dict()
        return [dict(zip(table, values, strict=True)) for values in zip(*table.values(), strict=True)]


def softmax_invariance(att: AttentionTensor, org: Organization, *, tolerance: float = 0.25) -> SoftmaxInvariance:
    """Test theorem 2 and corollary 1 of [OA] on every head.

    Parameters
    ----------
    att : AttentionTensor
        Of kind "scores": the corollary is about the input of softmax. Missing scores become the mean of their row.
    org : Organization
        Its query and key trees are used for all heads.
    tolerance : float
        Largest distance between eq. (17) and eq. (18) at which the claim counts as true.

    Examples
    --------
    The claim holds for scores near 0:

    >>> import headtree as ht
    >>> import numpy as np
    >>> scores = np.random.default_rng(0).normal(size=(4, 8, 8))
    >>> small = ht.AttentionTensor.from_array(scores / 100)
    >>> ht.softmax_invariance(small, ht.organize(small)).holds
    array([ True,  True,  True,  True])
    """
    check_pair(att, org)
    tolerance = _checks.positive(tolerance, "tolerance")
    if att.kind != "scores":
        raise InvalidValueError(
            f"att must contain the input of softmax (kind='scores'), got kind={att.kind!r}; capture it with "
            "kind='scores'"
        )
    full = att.filled()
    _, *trees = org.trees
    found = TensorHaarBasis(tuple(trees))
    given = TensorHaarBasis(tuple(PartitionTree.halving(tree.n_leaves) for tree in trees))
    tables = []
    with progress("softmax invariance", len(att.heads)) as step:
        for heads in torch.split(full.values, heads_at_a_time(full.values[0].numel())):
            tables.append(_columns(heads, found, given))
            for _ in heads:
                step("")
    table = {name: np.concatenate([rows[name] for rows in tables]) for name in tables[0]}
    _warn_of_overflow(att, table["distance"])
    holds = table["distance"] <= tolerance
    return SoftmaxInvariance(att.heads, holds=holds, tolerance=tolerance, n_filled=full.n_filled, **table)


def heads_at_a_time(n_entries: int) -> int:
    """How many heads of so many entries are tested together."""
    return max(1, min(_HEADS_AT_A_TIME, _ENTRIES_AT_A_TIME // n_entries))


def joined_invariance(tables: Sequence[SoftmaxInvariance]) -> SoftmaxInvariance:
    """One table of the heads of several, which have the same tolerance."""
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(table, name) for table in tables])
        for name, found in vars(tables[0]).items()
        if isinstance(found, np.ndarray)
    }
    heads = tuple(head for table in tables for head in table.heads)
    return replace(tables[0], heads=heads, n_filled=sum(table.n_filled for table in tables), **columns)


def _columns(
    scores: Float[Tensor, "head query key"], found: TensorHaarBasis, given: TensorHaarBasis
) -> dict[str, Float[np.ndarray, " head"]]:
    row_tree, col_tree = found.trees
    of_f, given_exponent = exponents_in(scores, found), exponents_in(scores, given).exponent
    f = scores.double()
    softmax = decomposed(f, row_tree, col_tree, "softmax")
    rounding = _rounding_of_terms(f, softmax)
    of_terms = {f"share_{name}": share for name, share in softmax.shares.items()}
    of_terms["error_printed"] = softmax.relative_error_without_boundary
    value, residual = softmax.value, softmax.residual
    del softmax  # a matrix for each term, of heads that may be large
    exponent_softmax, exponent_residual = (exponents_in(x, found, rounding).exponent for x in (value, residual))
    del residual
    return {
        **_against_eq18(f, value, row_tree, col_tree),
        "mean": f.mean(dim=(1, 2)).numpy(),
        "mixed": np.sqrt((of_f.rms**2).sum(axis=(1, 2))),
        "exponent": of_f.exponent,
        "exponent_error": of_f.exponent_error,
        "exponent_given": given_exponent,
        "exponent_softmax": exponent_softmax,
        "exponent_residual": exponent_residual,
        **of_terms,
    }


def _rounding_of_terms(f: Float[Tensor, "head query key"], softmax: Paraproduct) -> Float[np.ndarray, " head"]:
    """Rounding errors of the terms of softmax(f), and of the residual.

    exp passes on the errors of f, and of f minus the row maximum, to which it is applied.
    """
    terms = (softmax.value, softmax.first, softmax.second, softmax.boundary)
    largest = torch.stack([_largest(term) for term in terms]).amax(dim=0)
    depth = (f.amax(dim=2) - f.amin(dim=2)).amax(dim=1).clamp(min=1)
    return np.asarray((torch.finfo(f.dtype).eps * largest * (_largest(f) + _ROUNDING * depth)).numpy())


def _largest(x: Float[Tensor, "head query key"]) -> Float[Tensor, " head"]:
    return x.abs().amax(dim=(1, 2))


def _has_no_terms(f: Float[Tensor, "head query key"]) -> Bool[Tensor, " head"]:
    """Whether all terms of eq. (17) and eq. (18) are rounding errors, as for constant matrices.

    If dd' is 0, f is a function of the row plus a function of the column; d · d' is 0 if one of them is constant.
    """
    of_rows, of_columns = f.mean(dim=2, keepdim=True), f.mean(dim=1, keepdim=True)
    mixed = _largest(f - of_rows - of_columns + of_rows.mean(dim=1, keepdim=True))
    of_row, of_column = (means.amax(dim=(1, 2)) - means.amin(dim=(1, 2)) for means in (of_rows, of_columns))
    rounding = 4 * torch.finfo(f.dtype).eps * _largest(f)  # errors of entries and means
    return torch.maximum(mixed, torch.minimum(of_row, of_column)) <= rounding


def _against_eq18(
    f: Float[Tensor, "head query key"],
    softmax: Float[Tensor, "head query key"],
    row_tree: PartitionTree,
    col_tree: PartitionTree,
) -> dict[str, Float[np.ndarray, " head"]]:
    """The columns that need the unshifted exp; nan for heads on which it overflows."""
    eq17, eq18 = approximations(f, row_tree, col_tree)
    overflows = ~torch.isfinite(eq17.sum(dim=(1, 2)))
    has_no_terms = _has_no_terms(f)
    eq17 = eq17.masked_fill_((overflows | has_no_terms)[:, None, None], 0)
    eq18 = eq18.masked_fill_(has_no_terms[:, None, None], 0)
    flat = _is_squashed(softmax)
    apart = flat & ~_is_squashed(eq17)
    n_flat = flat.sum(dim=(1, 2))
    lost = overflows.numpy()
    return {
        "distance": np.where(lost, np.nan, relative_norm(eq17 - eq18, eq17)),
        "squashed": (n_flat.double() / flat[0].numel()).numpy(),
        "kept": np.where(lost, np.nan, (apart.sum(dim=(1, 2)).double() / n_flat.clamp(min=1)).numpy()),
    }


def _is_squashed(x: Float[Tensor, "head query key"]) -> Bool[Tensor, "head query key"]:
    """Whether each entry is within a small fraction of its matrix's range of the median."""
    low, high = torch.aminmax(x.flatten(-2), dim=-1)
    middle = torch.from_numpy(medians(x.flatten(-2).numpy()))
    return (x - middle[:, None, None]).abs() <= (_SQUASHED * (high - low))[:, None, None]


def _warn_of_overflow(att: AttentionTensor, distance: Float[np.ndarray, " head"]) -> None:
    lost = [str(head) for head, value in zip(att.heads, distance, strict=True) if np.isnan(value)]
    if lost:
        warnings.warn(
            f"exp overflows on {len(lost)} heads, the first is {lost[0]}: their distance between eq. (17) "
            "and eq. (18) is nan, because the corollary is about the unshifted exp",
            HeadtreeWarning,
            stacklevel=3,
        )
