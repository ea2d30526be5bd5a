"""The tensor paraproduct: a function of a matrix, taken apart into scales; theorems 1 and 2 of [OA]."""

from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from headtree import _checks
from headtree.bases.haar import check_leaves
from headtree.bases.pyramid import Ladder, Step, averages, folder_arrays, steps
from headtree.bases.rotation_kernels import sum_scales
from headtree.errors import HeadtreeWarning, InvalidTypeError, InvalidValueError
from headtree.trees.tree import PartitionTree

NamedFunction = Literal["exp", "softmax", "eq18"]
Function = NamedFunction | tuple[Callable[[Any], Any], Callable[[Any], Any], Callable[[Any], Any]]

#: A residual above this share of A(f) is worth a warning: the terms then do not describe A(f).
_LARGE_RESIDUAL = 0.25

#: Entries of the working arrays at a time: enough to hide the cost of a call, few enough to stay in cache.
_ENTRIES_AT_A_TIME = 1 << 20


class Scales(NamedTuple):
    """The pairs (j, j') with j among the row scales and j' among the column scales."""

    rows: frozenset[int]
    columns: frozenset[int]


class Terms(NamedTuple):
    """First-order and second-order term of eq. (12), summed over some scales."""

    first: Any
    second: Any


@dataclass(frozen=True, eq=False, repr=False)
class Paraproduct:
    """``A(f) = boundary + first + second + residual``, every term with the shape of f."""

    value: Any  #: A(f)
    first: Any  #: sum over scales of A'(P^j P'^j' f) · dd'
    second: Any  #: sum over scales of A''(P^j P'^j' f) · d · d'
    boundary: Any  #: A(P^J P'^0 f) + A(P^0 P'^J' f) - A(P^0 P'^0 f), which eq. (12) leaves out
    residual: Any  #: what is left of A(f)
    n_scales: tuple[int, int]  #: number of row scales j and of column scales j'
    _sum: Callable[[Scales], Terms]

    @property
    def approximation(self) -> Any:
        """A(f) without the residual."""
        return self.boundary + self.first + self.second

    @property
    def shares(self) -> dict[str, Float[np.ndarray, " ..."]]:
        """Norm of each term over that of A(f), per matrix; the terms are not orthogonal."""
        return {name: relative_norm(getattr(self, name), self.value) for name in _TERMS}

    @property
    def relative_error(self) -> Float[np.ndarray, " ..."]:
        """Norm of the residual over the norm of A(f), per matrix."""
        return relative_norm(self.residual, self.value)

    @property
    def relative_error_without_boundary(self) -> Float[np.ndarray, " ..."]:
        """The same for eq. (12) as printed, which has no boundary terms."""
        return relative_norm(self.residual + self.boundary, self.value)

    def scales(self, rows: int | Iterable[int], columns: int | Iterable[int]) -> Terms:
        """First and second term summed over the pairs (j, j') with j in `rows` and j' in `columns` only."""
        chosen = []
        for name, given, n in (("rows", rows, self.n_scales[0]), ("columns", columns, self.n_scales[1])):
            scales = _scale_numbers(given, name)
            if not scales <= set(range(n)):
                raise InvalidValueError(f"{name} must be scales from 0 to {n - 1}, got {sorted(scales)}")
            chosen.append(scales)
        return self._sum(Scales(*chosen))

    def __repr__(self) -> str:
        shares = ", ".join(f"{name} {np.mean(share):.3g}" for name, share in self.shares.items())
        j, jp = self.n_scales
        return f"Paraproduct of {tuple(self.value.shape)}, {j} × {jp} scales; shares of the norm: {shares}"


_TERMS = ("first", "second", "boundary", "residual")


def _scale_numbers(given: Any, name: str) -> frozenset[int]:
    try:
        return frozenset([operator.index(given)])
    except TypeError:
        pass
    try:
        return frozenset(map(operator.index, given))
    except TypeError:
        raise InvalidTypeError(f"{name} must be one scale or several, whole numbers, got {given!r}") from None


def paraproduct(f: Any, row_tree: PartitionTree, col_tree: PartitionTree, fn: Function = "exp") -> Paraproduct:
    r"""Take A(f) apart into scales of a row tree and a column tree, eq. (12) of [OA] with its missing terms.

    .. math:: \tilde A = \sum_{j, j'} A'(P^j P'^{j'} f)\, dd'_{jj'} + A''(P^j P'^{j'} f)\, d_{jj'}\, d'_{jj'}

    with :math:`P^j` the average over the folders of level j and d, d', dd' the differences to the next level
    in rows, in columns and in both. Then A(f) = boundary + Ã + residual. On the dyadic intervals of
    ``PartitionTree.halving(2**J)`` this is [OA]'s decomposition; any other tree will do, and nothing is
    cropped: a branch that is finished early repeats its leaf and adds nothing.

    Parameters
    ----------
    f : array or tensor (..., row, column)
        Leading axes, such as heads, are batch axes. Float32 is kept, half precision raised to it; all else is
        float64.
    row_tree, col_tree : PartitionTree
        Trees on the last two axes.
    fn : {"exp", "softmax", "eq18"} or (A, A', A'')
        ``"softmax"`` is row-wise and exact: exp of f less the logarithm of its rows' sums of exp. ``"eq18"``
        is exp with A' = A'' = 1, eq. (18). Callables get the matrices P^j P'^j' f in full size and in the
        kind of `f` (array or tensor), all leading axes included, and may mix the entries of a matrix.

    Returns
    -------
    Paraproduct

    Warns
    -----
    HeadtreeWarning
        If the residual of any matrix has more than a quarter of the norm of A(f).

    Notes
    -----
    With A the identity the residual is rounding error. Named functions are evaluated once per product of
    folders, so that all scales together cost a few passes over f; callables once per entry and pair of
    scales.
    """
    result = decomposed(f, row_tree, col_tree, fn)
    share = result.relative_error
    if np.any(share > _LARGE_RESIDUAL):
        warnings.warn(
            f"the residual of {int(np.sum(share > _LARGE_RESIDUAL))} of {share.size} matrices exceeds "
            f"{_LARGE_RESIDUAL:.0%} of the norm of A(f), the largest being {np.max(share):.0%}: the other "
            "terms do not describe A(f) well; smaller entries of f make it smaller",
            HeadtreeWarning,
            stacklevel=2,
        )
    return result


def decomposed(f: Any, row_tree: PartitionTree, col_tree: PartitionTree, fn: Function) -> Paraproduct:
    """`paraproduct` without the warning."""
    tensor = _checks.full_tensor(f, "f")
    if tensor.ndim < 2:
        raise InvalidValueError(f"f must have at least two axes (row, column), got shape {tuple(tensor.shape)}")
    check_trees(tensor, row_tree, col_tree)
    rows = Ladder(row_tree, tensor.device, tensor.dtype)
    columns = Ladder(col_tree, tensor.device, tensor.dtype)
    function = _nonlinearity(fn, is_tensor=isinstance(f, Tensor), batch_shape=tuple(tensor.shape[:-2]))
    matrices = function.shift(tensor).reshape(-1, *tensor.shape[-2:])
    _check_range(matrices, fn)

    def finished(values: Tensor) -> Any:
        values = values.reshape(tensor.shape)
        return values if isinstance(f, Tensor) else values.numpy()

    def summed(scales: Scales) -> Terms:
        if function.is_pointwise and tensor.device.type == "cpu":
            return _summed_on_cpu(matrices, row_tree, col_tree, is_exp=fn != "eq18", scales=scales)
        parts = [
            _summed(part, rows, columns, function, scales) for part in _parts(matrices, rows, columns, function)
        ]
        return Terms(*(torch.cat(term) for term in zip(*parts, strict=True)))

    every = Scales(frozenset(range(rows.depth)), frozenset(range(columns.depth)))
    first, second = summed(every)
    value = function.value(matrices)
    boundary = _boundary(matrices, rows, columns, function)
    residual = value - boundary - first - second
    if not torch.isfinite(residual).all():
        raise InvalidValueError(
            f"fn must be finite on f and its averages, got NaN or infinite terms for fn={fn!r} on entries "
            f"from {float(tensor.min()):.3g} to {float(tensor.max()):.3g}; scale f down, or use fn='softmax'"
        )
    return Paraproduct(
        value=finished(value),
        first=finished(first),
        second=finished(second),
        boundary=finished(boundary),
        residual=finished(residual),
        n_scales=(rows.depth, columns.depth),
        _sum=lambda scales: Terms(*map(finished, summed(scales))),
    )


def approximations(
    f: Float[Tensor, "batch row column"], row_tree: PartitionTree, col_tree: PartitionTree
) -> tuple[Float[Tensor, "batch row column"], Float[Tensor, "batch row column"]]:
    """Ã of eq. (17), the sum over all scales for the unshifted exp, and eq. (18), where A' = A'' = 1.

    Of checked arguments on the CPU; entries that overflow are infinite or nan.
    """
    every = Scales(frozenset(range(row_tree.n_levels - 1)), frozenset(range(col_tree.n_levels - 1)))
    eq17, eq18 = (_summed_on_cpu(f, row_tree, col_tree, is_exp, every) for is_exp in (True, False))
    return eq17.first + eq17.second, eq18.first + eq18.second


def check_trees(f: Tensor, row_tree: Any, col_tree: Any) -> None:
    """Raise unless the trees fit the last two axes of f."""
    for name, tree, axis in (("row_tree", row_tree, f.ndim - 2), ("col_tree", col_tree, f.ndim - 1)):
        if not isinstance(tree, PartitionTree):
            raise InvalidTypeError(f"{name} must be a PartitionTree, got {type(tree).__name__}")
        check_leaves(tree, f.shape[axis], "f", axis)


def relative_norm(part: Any, whole: Any) -> Float[np.ndarray, " ..."]:
    """Frobenius norm of `part` over that of `whole`, per matrix; 0 where both are 0."""
    of_part, of_whole = (_norm(x) for x in (part, whole))
    if not (np.isfinite(of_part).all() and np.isfinite(of_whole).all()):  # norms may be out of range, entries not
        of_part, of_whole = (_norm(x * 2.0**-64) for x in (part, whole))
    with np.errstate(over="ignore"):  # of a whole that is next to 0
        ratio = np.divide(of_part, of_whole, out=np.full_like(of_part, np.inf), where=of_whole > 0)
    return np.where(of_part > 0, ratio, 0.0)


def _norm(x: Any) -> Float[np.ndarray, " ..."]:
    tensor = x if isinstance(x, Tensor) else torch.from_numpy(x)
    return np.asarray(_checks.frobenius_norm(tensor, (-2, -1)).cpu().numpy())


# -- the nonlinear function ------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Nonlinearity:
    """A, A' and A'', and whether they act entry by entry, so that one evaluation per folder will do."""

    value: Callable[[Tensor], Tensor]
    first: Callable[[Tensor], Tensor]
    second: Callable[[Tensor], Tensor]
    is_pointwise: bool
    shift: Callable[[Tensor], Tensor] = lambda f: f

    def derivatives(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """A'(u) and A''(u), computed once where they are one function."""
        first = self.first(u)
        return first, first if self.second is self.first else self.second(u)


def _nonlinearity(fn: Any, is_tensor: bool, batch_shape: tuple[int, ...]) -> _Nonlinearity:
    if isinstance(fn, str) and fn not in get_args(NamedFunction):
        raise InvalidValueError(f"fn must be one of {get_args(NamedFunction)} or (A, A', A''), got {fn!r}")
    if isinstance(fn, str) and fn == "exp":
        return _Nonlinearity(torch.exp, torch.exp, torch.exp, is_pointwise=True)
    if isinstance(fn, str) and fn == "softmax":
        return _Nonlinearity(torch.exp, torch.exp, torch.exp, is_pointwise=True, shift=_less_logsumexp)
    if isinstance(fn, str):
        return _Nonlinearity(torch.exp, torch.ones_like, torch.ones_like, is_pointwise=True)
    if not isinstance(fn, tuple | list) or len(fn) != 3 or not all(callable(part) for part in fn):
        raise InvalidTypeError(
            f"fn must be one of {get_args(NamedFunction)} or three callables (A, A', A''), got {fn!r}"
        )
    wrapped = {id(part): _on_matrices(part, is_tensor, batch_shape) for part in fn}
    value, first, second = (wrapped[id(part)] for part in fn)
    return _Nonlinearity(value, first, second, is_pointwise=False)


def _less_logsumexp(f: Tensor) -> Tensor:
    """The largest entry of a row is taken off first: the logarithm would be rounded to the digits of an offset."""
    below = f - f.amax(dim=-1, keepdim=True)
    return below.sub_(torch.logsumexp(below, dim=-1, keepdim=True))


def _on_matrices(
    part: Callable[[Any], Any], is_tensor: bool, batch_shape: tuple[int, ...]
) -> Callable[[Tensor], Tensor]:
    """A caller's function, given matrices of the shape and kind that the caller passed."""

    def apply(u: Tensor) -> Tensor:
        given = u.reshape(*batch_shape, *u.shape[-2:]).clone()  # the function may write into what it is given
        tensor = _checks.real_tensor_on_device(part(given) if is_tensor else part(given.numpy()), f"fn: {part!r}")
        tensor = tensor.to(u).clone()  # and may return it
        if tensor.shape != given.shape:
            raise InvalidValueError(
                f"fn: {part!r} must return an array of the shape it is given, {tuple(given.shape)}, got "
                f"{tuple(tensor.shape)}"
            )
        return tensor.reshape(u.shape)

    return apply


def _check_range(matrices: Tensor, fn: Any) -> None:
    limit = math.log(torch.finfo(matrices.dtype).max)
    largest = float(matrices.max())
    if isinstance(fn, str) and fn != "softmax" and largest > limit:
        raise InvalidValueError(
            f"f must be at most {limit:.4g} for exp in {matrices.dtype}, got a largest entry of "
            f"{largest:.4g}; use fn='softmax', which shifts every row exactly, or subtract the largest entry"
        )


# -- sums over scales ------------------------------------------------------------------------------------


def _parts(matrices: Tensor, rows: Ladder, columns: Ladder, function: _Nonlinearity) -> tuple[Tensor, ...]:
    """Some matrices at a time; callables may look at the whole batch and get it."""
    if not function.is_pointwise:
        return (matrices,)
    entries = rows.tree.n_leaves * max(columns.tree.n_nodes, 1)
    return torch.split(matrices, max(1, _ENTRIES_AT_A_TIME // entries))


def _summed_on_cpu(
    f: Float[Tensor, "batch row column"],
    row_tree: PartitionTree,
    col_tree: PartitionTree,
    is_exp: bool,
    scales: Scales,
) -> Terms:
    """Compiled: every thread takes whole matrices, whose averages stay in cache."""
    source = f.contiguous().numpy()
    first, second = np.zeros_like(source), np.zeros_like(source)
    rows = folder_arrays(row_tree, scales.rows, source.dtype)
    columns = folder_arrays(col_tree, scales.columns, source.dtype)
    sum_scales(source, rows, columns, is_exp, first, second)
    return Terms(torch.from_numpy(first), torch.from_numpy(second))


def _summed(
    f: Float[Tensor, "batch row column"],
    rows: Ladder,
    columns: Ladder,
    function: _Nonlinearity,
    scales: Scales,
) -> Terms:
    levels = averages(f, rows, columns)
    if not function.is_pointwise:
        return _summed_in_full(levels, rows, columns, function, scales)
    n_lower = columns.tree.n_nodes - 1
    first = second = f.new_zeros(f.shape[0], 1, n_lower)
    for step in steps(levels, rows, columns):
        parent = rows.parent[step.j]
        first, second = first.index_select(1, parent), second.index_select(1, parent)
        if step.j in scales.rows:
            d1, d2 = (derivative.index_select(1, parent) for derivative in function.derivatives(step.average))
            first.addcmul_(d1.index_select(2, columns.lower_parent), step.difference)
            along_rows = (d2 * step.row_difference).index_select(2, columns.lower_parent)
            second.addcmul_(along_rows, step.column_difference)
    for j in set(range(columns.depth)) - scales.columns:
        part = columns.slices[j + 1]
        first[:, :, part.start - 1 : part.stop - 1] = 0
        second[:, :, part.start - 1 : part.stop - 1] = 0
    return Terms(columns.descended(first), columns.descended(second))


def _summed_in_full(
    levels: list[Float[Tensor, "batch _folder node"]],
    rows: Ladder,
    columns: Ladder,
    function: _Nonlinearity,
    scales: Scales,
) -> Terms:
    """The sum with A' and A'' of full matrices: the function may tell entries of one folder apart."""
    n_batch = levels[0].shape[0]
    first = levels[0].new_zeros(n_batch, rows.tree.n_leaves, columns.tree.n_leaves)
    second = torch.zeros_like(first)
    for step in steps(levels, rows, columns):
        if step.j not in scales.rows:
            continue
        for j in sorted(scales.columns):
            u, d, d_column, dd = _in_full(step, j, rows, columns)
            d1, d2 = function.derivatives(u)
            first.addcmul_(d1, dd)
            second.addcmul_(d2, d * d_column)
    return Terms(first, second)


def _in_full(step: Step, j_column: int, rows: Ladder, columns: Ladder) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """P^j P'^j' f, d, d' and dd' of one pair of scales, an entry for each entry of f."""
    upper, lower = columns.slices[j_column], columns.slices[j_column + 1]
    of_lower = slice(lower.start - 1, lower.stop - 1)
    pick = (
        (step.average, rows.leaf_folder[step.j], upper, columns.leaf_folder[j_column]),
        (step.row_difference, rows.leaf_folder[step.j + 1], upper, columns.leaf_folder[j_column]),
        (step.column_difference, rows.leaf_folder[step.j + 1], of_lower, columns.leaf_folder[j_column + 1]),
        (step.difference, rows.leaf_folder[step.j + 1], of_lower, columns.leaf_folder[j_column + 1]),
    )
    u, d, d_column, dd = (
        x[:, :, part].index_select(1, row).index_select(2, column) for x, row, part, column in pick
    )
    return u, d, d_column, dd


def _boundary(
    f: Float[Tensor, "batch row column"], rows: Ladder, columns: Ladder, function: _Nonlinearity
) -> Float[Tensor, "batch row column"]:
    by_row, by_column = f.mean(dim=2, keepdim=True), f.mean(dim=1, keepdim=True)
    everything = by_row.mean(dim=1, keepdim=True)
    parts = [by_row, by_column, everything]
    if not function.is_pointwise:
        parts = [part.expand(f.shape).contiguous() for part in parts]
    rows_value, columns_value, value = (function.value(part) for part in parts)
    return rows_value + columns_value - value
