"""The tensor paraproduct: a function of a matrix, decomposed by scale; theorems 1 and 2 of [OA]."""

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
from headtree.bases.pyramid import Ladder, ScaleStep, averages, folder_arrays, steps
from headtree.bases.rotation_kernels import sum_scales
from headtree.errors import HeadtreeWarning, InvalidTypeError, InvalidValueError
from headtree.trees.tree import PartitionTree

NamedFunction = Literal["exp", "softmax", "eq18"]
Function = NamedFunction | tuple[Callable[[Any], Any], Callable[[Any], Any], Callable[[Any], Any]]

#: Warn if the residual exceeds this fraction of A(f): the other terms then do not describe A(f).
_LARGE_RESIDUAL = 0.25

#: Entries in the working arrays at a time: enough to hide the cost of a call, few enough to stay in cache.
_ENTRIES_AT_A_TIME = 1 << 20


class Scales(NamedTuple):
    """The pairs (j, j') with j among the row scales and j' among the column scales."""

    rows: frozenset[int]
    columns: frozenset[int]


class Terms(NamedTuple):
    """The first-order and second-order terms of eq. (12), summed over some scales."""

    first: Any
    second: Any


@dataclass(frozen=True, eq=False, repr=False)
class Paraproduct:
    """The decomposition ``A(f) = boundary + first + second + residual``; every term has the shape of f.

    Examples
    --------
    >>> import headtree as ht
    >>> import numpy as np
    >>> f = np.random.default_rng(0).normal(size=(8, 8)) / 10
    >>> tree = ht.PartitionTree.halving(8)
    >>> terms = ht.paraproduct(f, tree, tree)
    >>> bool(np.allclose(terms.approximation + terms.residual, np.exp(f)))
    True
    >>> terms.n_scales
    (3, 3)
    """

    value: Any  #: A(f)
    first: Any  #: sum over scales of A'(P^j P'^j' f) · dd'
    second: Any  #: sum over scales of A''(P^j P'^j' f) · d · d'
    boundary: Any  #: A(P^J P'^0 f) + A(P^0 P'^J' f) - A(P^0 P'^0 f), which eq. (12) omits
    residual: Any  #: A(f) minus the other terms
    n_scales: tuple[int, int]  #: number of row scales j and of column scales j'
    _sum: Callable[[Scales], Terms]

    @property
    def approximation(self) -> Any:
        """A(f) without the residual."""
        return self.boundary + self.first + self.second

    @property
    def shares(self) -> dict[str, Float[np.ndarray, " ..."]]:
        """Norm of each term divided by the norm of A(f), per matrix; the terms are not orthogonal."""
        return {name: relative_norm(getattr(self, name), self.value) for name in _TERMS}

    @property
    def relative_error(self) -> Float[np.ndarray, " ..."]:
        """Norm of the residual divided by the norm of A(f), per matrix."""
        return relative_norm(self.residual, self.value)

    @property
    def relative_error_without_boundary(self) -> Float[np.ndarray, " ..."]:
        """Relative error of eq. (12) as printed, without the boundary terms."""
        return relative_norm(self.residual + self.boundary, self.value)

    def scales(self, rows: int | Iterable[int], columns: int | Iterable[int]) -> Terms:
        """Sum the first and second terms over the pairs (j, j') with j in `rows` and j' in `columns` only.

        Examples
        --------
        The scales of all pairs add up to the whole:

        >>> import headtree as ht
        >>> import numpy as np
        >>> f = np.random.default_rng(0).normal(size=(4, 4)) / 10
        >>> tree = ht.PartitionTree.halving(4)
        >>> terms = ht.paraproduct(f, tree, tree)
        >>> total = sum(terms.scales(j, range(2)).first for j in range(2))
        >>> bool(np.allclose(total, terms.first))
        True
        """
        chosen = []
        for name, given, n in (("rows", rows, self.n_scales[0]), ("columns", columns, self.n_scales[1])):
            scales = _scale_numbers(given, name)
            if not scales <= set(range(n)):
                raise InvalidValueError(f"{name} must be scales between 0 and {n - 1}, got {sorted(scales)}")
            chosen.append(scales)
        return self._sum(Scales(*chosen))

    def __repr__(self) -> str:
        shares = ", ".join(f"{name} {np.mean(share):.3g}" for name, share in self.shares.items())
        j, jp = self.n_scales
        return f"Paraproduct of {tuple(self.value.shape)}, {j} × {jp} scales; fractions of the norm: {shares}"


_TERMS = ("first", "second", "boundary", "residual")


def _scale_numbers(given: Any, name: str) -> frozenset[int]:
    try:
        return frozenset([operator.index(given)])
    except TypeError:
        pass
    try:
        return frozenset(map(operator.index, given))
    except TypeError:
        raise InvalidTypeError(
            f"{name} must be a scale or several scales, which are integers, got {given!r}"
        ) from None


def paraproduct(f: Any, row_tree: PartitionTree, col_tree: PartitionTree, fn: Function = "exp") -> Paraproduct:
    r"""Decompose A(f) by the scales of a row tree and a column tree: eq. (12) of [OA] with its missing terms.

    .. math:: \tilde A = \sum_{j, j'} A'(P^j P'^{j'} f)\, dd'_{jj'} + A''(P^j P'^{j'} f)\, d_{jj'}\, d'_{jj'}

    where :math:`P^j` is the average over the folders on level j, and d, d', dd' are the differences to the next
    level in rows, in columns and in both. Then A(f) = boundary + Ã + residual. On the dyadic intervals of
    ``PartitionTree.halving(2**J)`` this is the decomposition of [OA]. Any other tree works too, and nothing is
    cropped: a branch that ends early repeats its leaf, which adds nothing.

    Parameters
    ----------
    f : array or tensor (..., row, column)
        Leading axes, such as heads, are batch axes. Float32 stays float32 and half precision becomes float32;
        everything else becomes float64.
    row_tree, col_tree : PartitionTree
        Trees on the last two axes.
    fn : {"exp", "softmax", "eq18"} or (A, A', A'')
        ``"softmax"`` is exact and acts on rows: exp of f minus the log-sum-exp of its row. ``"eq18"`` is exp with
        A' = A'' = 1, eq. (18). Callables receive the matrices P^j P'^j' f in full size with all leading axes, as
        arrays or tensors like `f`, and may mix the entries of a matrix.

    Returns
    -------
    Paraproduct

    Warns
    -----
    HeadtreeWarning
        If the norm of the residual of any matrix exceeds a quarter of the norm of A(f).

    Notes
    -----
    If A is the identity, the residual is rounding error. Named functions are evaluated once per product of folders,
    so all scales together cost a few passes over f. Callables are evaluated once per entry and pair of scales.

    Examples
    --------
    >>> import headtree as ht
    >>> import numpy as np
    >>> scores = np.random.default_rng(0).normal(size=(8, 8)) / 2
    >>> tree = ht.PartitionTree.halving(8)
    >>> terms = ht.paraproduct(scores, tree, tree, fn="softmax")
    >>> {name: round(float(share), 2) for name, share in terms.shares.items()}
    {'first': 0.31, 'second': 0.04, 'boundary': 0.88, 'residual': 0.1}
    >>> bool(terms.relative_error < terms.relative_error_without_boundary)
    True
    """
    result = decomposed(f, row_tree, col_tree, fn)
    share = result.relative_error
    if np.any(share > _LARGE_RESIDUAL):
        warnings.warn(
            f"the residual of {int(np.sum(share > _LARGE_RESIDUAL))} of {share.size} matrices exceeds "
            f"{_LARGE_RESIDUAL:.0%} of the norm of A(f), the largest is {np.max(share):.0%}: the other "
            "terms do not describe A(f) well; scaling f down reduces the residual",
            HeadtreeWarning,
            stacklevel=2,
        )
    return result


def decomposed(f: Any, row_tree: PartitionTree, col_tree: PartitionTree, fn: Function) -> Paraproduct:
    """Do the same as `paraproduct`, without the warning."""
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
        batches = _batches(matrices, rows, columns, function)
        terms = [_summed(batch, rows, columns, function, scales) for batch in batches]
        return Terms(*(torch.cat(term) for term in zip(*terms, strict=True)))

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
    """Ã of eq. (17), the sum over all scales for the unshifted exp, and of eq. (18), where A' = A'' = 1.

    Arguments must be checked and on the CPU. Entries that overflow are infinite or nan.
    """
    every = Scales(frozenset(range(row_tree.n_levels - 1)), frozenset(range(col_tree.n_levels - 1)))

    def total(is_exp: bool) -> Float[Tensor, "batch row column"]:
        terms = _summed_on_cpu(f, row_tree, col_tree, is_exp, every)
        summed: Tensor = terms.first.add_(terms.second)
        return summed

    return total(True), total(False)


def check_trees(f: Tensor, row_tree: Any, col_tree: Any) -> None:
    """Raise unless the trees match the last two axes of f."""
    for name, tree, axis in (("row_tree", row_tree, f.ndim - 2), ("col_tree", col_tree, f.ndim - 1)):
        if not isinstance(tree, PartitionTree):
            raise InvalidTypeError(f"{name} must be a PartitionTree, got {type(tree).__name__}")
        check_leaves(tree, f.shape[axis], "f", axis)


def relative_norm(term: Any, total: Any) -> Float[np.ndarray, " ..."]:
    """Frobenius norm of `term` divided by that of `total`, per matrix; 0 where both are 0."""
    of_term, of_total = (_norm(x) for x in (term, total))
    if not (np.isfinite(of_term).all() and np.isfinite(of_total).all()):  # norms can overflow though entries do not
        of_term, of_total = (_norm(x * 2.0**-64) for x in (term, total))
    with np.errstate(over="ignore"):  # if the total is almost 0
        ratio = np.divide(of_term, of_total, out=np.full_like(of_term, np.inf), where=of_total > 0)
    return np.where(of_term > 0, ratio, 0.0)


def _norm(x: Any) -> Float[np.ndarray, " ..."]:
    tensor = x if isinstance(x, Tensor) else torch.from_numpy(x)
    return np.asarray(_checks.frobenius_norm(tensor, (-2, -1)).cpu().numpy())


# -- the nonlinear function ------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Nonlinearity:
    """A, A' and A'', and whether they act entry by entry; if so, one evaluation per folder is enough."""

    value: Callable[[Tensor], Tensor]
    first: Callable[[Tensor], Tensor]
    second: Callable[[Tensor], Tensor]
    is_pointwise: bool
    shift: Callable[[Tensor], Tensor] = lambda f: f

    def derivatives(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """A'(u) and A''(u), computed only once if they are the same function."""
        first = self.first(u)
        return first, first if self.second is self.first else self.second(u)


def _nonlinearity(fn: Any, is_tensor: bool, batch_shape: tuple[int, ...]) -> _Nonlinearity:
    if isinstance(fn, str) and fn not in get_args(NamedFunction):
        raise InvalidValueError(f"fn must be one of {get_args(NamedFunction)} or (A, A', A''), got {fn!r}")
    if isinstance(fn, str) and fn == "exp":
        return _Nonlinearity(torch.exp, torch.exp, torch.exp, is_pointwise=True)
    if isinstance(fn, str) and fn == "softmax":
        return _Nonlinearity(torch.exp, torch.exp, torch.exp, is_pointwise=True, shift=_minus_logsumexp)
    if isinstance(fn, str):
        return _Nonlinearity(torch.exp, torch.ones_like, torch.ones_like, is_pointwise=True)
    if not isinstance(fn, tuple | list) or len(fn) != 3 or not all(callable(function) for function in fn):
        raise InvalidTypeError(
            f"fn must be one of {get_args(NamedFunction)} or three callables (A, A', A''), got {fn!r}"
        )
    wrapped = {id(function): _on_matrices(function, is_tensor, batch_shape) for function in fn}
    value, first, second = (wrapped[id(function)] for function in fn)
    return _Nonlinearity(value, first, second, is_pointwise=False)


def _minus_logsumexp(f: Tensor) -> Tensor:
    """Subtract the row maximum first: a large offset would otherwise cost the logarithm its digits."""
    below = f - f.amax(dim=-1, keepdim=True)
    return below.sub_(torch.logsumexp(below, dim=-1, keepdim=True))


def _on_matrices(
    function: Callable[[Any], Any], is_tensor: bool, batch_shape: tuple[int, ...]
) -> Callable[[Tensor], Tensor]:
    """Wrap a caller's function: it receives matrices in the batch shape and type that the caller passed."""

    def apply(u: Tensor) -> Tensor:
        given = u.reshape(*batch_shape, *u.shape[-2:]).clone()  # the function may write into its argument
        returned = function(given) if is_tensor else function(given.numpy())
        tensor = _checks.real_tensor_on_device(returned, f"fn: {function!r}")
        tensor = tensor.to(u).clone()  # the function may return its argument
        if tensor.shape != given.shape:
            raise InvalidValueError(
                f"fn: {function!r} must return an array of the shape of its argument, {tuple(given.shape)}, got "
                f"{tuple(tensor.shape)}"
            )
        return tensor.reshape(u.shape)

    return apply


def _check_range(matrices: Tensor, fn: Any) -> None:
    limit = math.log(torch.finfo(matrices.dtype).max)
    largest = float(matrices.max())
    if isinstance(fn, str) and fn != "softmax" and largest > limit:
        raise InvalidValueError(
            f"f must be at most {limit:.4g} for exp in {matrices.dtype}, the largest entry is {largest:.4g}; "
            "use fn='softmax', which shifts every row exactly, or subtract the largest entry"
        )


# -- sums over scales ------------------------------------------------------------------------------------


def _batches(matrices: Tensor, rows: Ladder, columns: Ladder, function: _Nonlinearity) -> tuple[Tensor, ...]:
    """Split the matrices into batches that fit in cache; callables receive all of them, which they may mix."""
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
    """Sum in compiled code: every thread takes whole matrices, whose averages stay in cache."""
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
        level = columns.slices[j + 1]
        first[:, :, level.start - 1 : level.stop - 1] = 0
        second[:, :, level.start - 1 : level.stop - 1] = 0
    return Terms(columns.descended(first), columns.descended(second))


def _summed_in_full(
    levels: list[Float[Tensor, "batch _folder node"]],
    rows: Ladder,
    columns: Ladder,
    function: _Nonlinearity,
    scales: Scales,
) -> Terms:
    """Sum with A' and A'' of full matrices, since the function may distinguish entries of one folder."""
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


def _in_full(step: ScaleStep, j_column: int, rows: Ladder, columns: Ladder) -> tuple[Tensor, ...]:
    """P^j P'^j' f, d, d' and dd' of one pair of scales, with one entry for each entry of f."""
    upper, lower = columns.slices[j_column], columns.slices[j_column + 1]
    of_lower = slice(lower.start - 1, lower.stop - 1)
    pick = (
        (step.average, rows.leaf_folder[step.j], upper, columns.leaf_folder[j_column]),
        (step.row_difference, rows.leaf_folder[step.j + 1], upper, columns.leaf_folder[j_column]),
        (step.column_difference, rows.leaf_folder[step.j + 1], of_lower, columns.leaf_folder[j_column + 1]),
        (step.difference, rows.leaf_folder[step.j + 1], of_lower, columns.leaf_folder[j_column + 1]),
    )
    return tuple(x[:, :, nodes].index_select(1, row).index_select(2, column) for x, row, nodes, column in pick)


def _boundary(
    f: Float[Tensor, "batch row column"], rows: Ladder, columns: Ladder, function: _Nonlinearity
) -> Float[Tensor, "batch row column"]:
    by_row, by_column = f.mean(dim=2, keepdim=True), f.mean(dim=1, keepdim=True)
    everything = by_row.mean(dim=1, keepdim=True)
    averaged = [by_row, by_column, everything]
    if not function.is_pointwise:
        averaged = [average.expand(f.shape).contiguous() for average in averaged]
    rows_value, columns_value, value = (function.value(average) for average in averaged)
    return rows_value + columns_value - value
