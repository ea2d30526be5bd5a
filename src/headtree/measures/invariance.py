"""Whether softmax leaves a head's organization alone: theorem 2, corollary 1 and figure 2 of [OA]."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, fields
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

#: An entry is squashed when it is nearer to the median of its matrix than this share of the matrix' range.
_SQUASHED = 0.01

#: Units of rounding that sums over scales, and functions of them, are off by.
_ROUNDING = 64

#: Enough to hide the cost of a call, few enough that the terms of all of them take little memory.
_HEADS_AT_A_TIME = 16


@dataclass(frozen=True, eq=False)
class SoftmaxInvariance:
    """A row per head, every column an array: whether the claim holds for this head, which is not presumed.

    Ã is the sum of first-order and second-order terms over all scales, eq. (17); the unshifted exp overflows
    on large scores, and what is made of it is then nan.
    """

    heads: tuple[HeadId, ...]
    distance: Float[np.ndarray, " head"]  #: ‖Ã - eq. (18)‖ / ‖Ã‖ on exp(f), unshifted; the corollary says 0
    holds: Bool[np.ndarray, " head"]  #: whether the distance is at most the tolerance
    mean: Float[np.ndarray, " head"]  #: mean of f, which the corollary assumes to be near 0
    mixed: Float[np.ndarray, " head"]  #: root mean square of all mixed differences of f; the corollary: large
    exponent: Float[np.ndarray, " head"]  #: of f on the found trees; <= 0 means no regularity, against the theorem
    exponent_error: Float[np.ndarray, " head"]
    exponent_given: Float[np.ndarray, " head"]  #: of f in the given order, halved
    exponent_softmax: Float[np.ndarray, " head"]  #: of softmax(f)
    exponent_residual: Float[np.ndarray, " head"]  #: of the residual of softmax; the theorem says twice that of f
    share_first: Float[np.ndarray, " head"]  #: norms of the terms of softmax(f) over its norm
    share_second: Float[np.ndarray, " head"]
    share_boundary: Float[np.ndarray, " head"]
    share_residual: Float[np.ndarray, " head"]
    error_printed: Float[np.ndarray, " head"]  #: relative error of eq. (12) as printed, without boundary
    squashed: Float[np.ndarray, " head"]  #: share of entries within 1 % of the range of softmax(f) from its median
    kept: Float[np.ndarray, " head"]  #: share of those that Ã keeps apart by the same measure (figure 2)
    tolerance: float
    n_filled: int

    def to_dict(self) -> dict[str, list[Any]]:
        """Columns of one row per head."""
        table: dict[str, list[Any]] = {
            "layer": [head.layer for head in self.heads],
            "head": [head.head for head in self.heads],
        }
        columns = [column.name for column in fields(self) if isinstance(getattr(self, column.name), np.ndarray)]
        return table | {name: getattr(self, name).tolist() for name in columns}

    def rows(self) -> list[dict[str, Any]]:
        """One dictionary per head."""
        table = self.to_dict()
        return [dict(zip(table, values, strict=True)) for values in zip(*table.values(), strict=True)]


def softmax_invariance(att: AttentionTensor, org: Organization, *, tolerance: float = 0.25) -> SoftmaxInvariance:
    """Hold every head against theorem 2 and corollary 1 of [OA].

    Parameters
    ----------
    att : AttentionTensor
        Of kind "scores": the corollary is about what enters softmax. Missing scores take their row's mean.
    org : Organization
        Its query and key trees are used for all heads.
    tolerance : float
        Largest distance between eq. (17) and eq. (18) at which the claim is said to hold.
    """
    check_pair(att, org)
    tolerance = _checks.positive(tolerance, "tolerance")
    if att.kind != "scores":
        raise InvalidValueError(
            f"att must hold what enters softmax (kind='scores'), got kind={att.kind!r}; capture it with "
            "kind='scores'"
        )
    full = att.filled()
    _, *trees = org.trees
    found = TensorHaarBasis(tuple(trees))
    given = TensorHaarBasis(tuple(PartitionTree.halving(tree.n_leaves) for tree in trees))
    parts = []
    with progress("softmax invariance", len(att.heads)) as step:
        for part in torch.split(full.values, _HEADS_AT_A_TIME):
            parts.append(_columns(part, found, given))
            for _ in part:
                step("")
    table = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    _warn_of_overflow(att, table["distance"])
    holds = table["distance"] <= tolerance
    return SoftmaxInvariance(att.heads, holds=holds, tolerance=tolerance, n_filled=full.n_filled, **table)


def _columns(
    scores: Float[Tensor, "head query key"], found: TensorHaarBasis, given: TensorHaarBasis
) -> dict[str, Float[np.ndarray, " head"]]:
    row_tree, col_tree = found.trees
    f = scores.double()
    softmax = decomposed(f, row_tree, col_tree, "softmax")
    of_f = exponents_in(scores, found)
    rounding = _rounding_of_terms(f, softmax)
    return {
        **_against_eq18(f, softmax.value, row_tree, col_tree),
        "mean": f.mean(dim=(1, 2)).numpy(),
        "mixed": np.sqrt((of_f.rms**2).sum(axis=(1, 2))),
        "exponent": of_f.exponent,
        "exponent_error": of_f.exponent_error,
        "exponent_given": exponents_in(scores, given).exponent,
        "exponent_softmax": exponents_in(softmax.value, found, rounding).exponent,
        "exponent_residual": exponents_in(softmax.residual, found, rounding).exponent,
        **{f"share_{name}": share for name, share in softmax.shares.items()},
        "error_printed": softmax.relative_error_without_boundary,
    }


def _rounding_of_terms(f: Float[Tensor, "head query key"], softmax: Paraproduct) -> Float[np.ndarray, " head"]:
    """Errors of the terms of softmax(f), and of what is left of them.

    exp carries over those of f, and those of f less its rows' largest entries, which it is taken of.
    """
    terms = (softmax.value, softmax.first, softmax.second, softmax.boundary)
    largest = torch.stack([_largest(term) for term in terms]).amax(dim=0)
    depth = (f.amax(dim=2) - f.amin(dim=2)).amax(dim=1).clamp(min=1)
    return np.asarray((torch.finfo(f.dtype).eps * largest * (_largest(f) + _ROUNDING * depth)).numpy())


def _largest(x: Float[Tensor, "head query key"]) -> Float[Tensor, " head"]:
    return x.abs().amax(dim=(1, 2))


def _has_no_terms(f: Float[Tensor, "head query key"]) -> Bool[Tensor, " head"]:
    """Whether every term of eq. (17) and eq. (18) is rounding, as those of constant matrices are.

    Without dd' f is a function of the row plus one of the column; d · d' is 0 where one of them is constant.
    """
    of_rows, of_columns = f.mean(dim=2, keepdim=True), f.mean(dim=1, keepdim=True)
    mixed = _largest(f - of_rows - of_columns + of_rows.mean(dim=1, keepdim=True))
    of_row, of_column = (means.amax(dim=(1, 2)) - means.amin(dim=(1, 2)) for means in (of_rows, of_columns))
    rounding = 4 * torch.finfo(f.dtype).eps * _largest(f)  # of entries and means
    return torch.maximum(mixed, torch.minimum(of_row, of_column)) <= rounding


def _against_eq18(
    f: Float[Tensor, "head query key"],
    softmax: Float[Tensor, "head query key"],
    row_tree: PartitionTree,
    col_tree: PartitionTree,
) -> dict[str, Float[np.ndarray, " head"]]:
    """What needs the unshifted exp; nan for heads on which it overflows."""
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
    """Whether an entry is within a share of the range of its matrix from the median."""
    low, high = torch.aminmax(x.flatten(-2), dim=-1)
    middle = torch.from_numpy(medians(x.flatten(-2).numpy()))
    return (x - middle[:, None, None]).abs() <= (_SQUASHED * (high - low))[:, None, None]


def _warn_of_overflow(att: AttentionTensor, distance: Float[np.ndarray, " head"]) -> None:
    lost = [str(head) for head, value in zip(att.heads, distance, strict=True) if np.isnan(value)]
    if lost:
        warnings.warn(
            f"exp overflows on {len(lost)} heads, the first is {lost[0]}: their distance between eq. (17) "
            "and eq. (18) is nan, since the corollary is about the unshifted exp",
            HeadtreeWarning,
            stacklevel=3,
        )
