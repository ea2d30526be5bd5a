"""Products of Haar functions along the axes of an array: the bi-Haar and tri-Haar bases of [OA], for any number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from headtree import _checks
from headtree.bases.haar import HaarBasis, check_leaves
from headtree.errors import InvalidTypeError, InvalidValueError
from headtree.trees.tree import PartitionTree


@dataclass(frozen=True, eq=False, repr=False)
class TensorHaarBasis:
    """Products of one Haar function per axis: an orthonormal basis of arrays with one axis per tree.

    Parameters
    ----------
    trees : sequence of PartitionTree
        One for each axis, in axis order. Arrays may have additional leading axes, which are batch axes.

    Notes
    -----
    A function is identified by one number per axis: the number of its factor in that axis' `HaarBasis`. Its support
    is the product of the supports of its factors.

    Examples
    --------
    >>> import headtree as ht
    >>> import numpy as np
    >>> basis = ht.TensorHaarBasis([ht.PartitionTree.halving(4), ht.PartitionTree.flat(3)])
    >>> basis
    TensorHaarBasis(4 × 3 functions)
    >>> x = np.random.default_rng(0).normal(size=(4, 3))
    >>> c = basis.analyze(x)
    >>> bool(np.allclose(basis.synthesize(c), x)), bool(np.isclose(np.sum(c**2), np.sum(x**2)))
    (True, True)
    """

    trees: tuple[PartitionTree, ...]
    axes: tuple[HaarBasis, ...] = field(init=False)  #: basis of each axis

    def __post_init__(self) -> None:
        trees = (
            (self.trees,)
            if isinstance(self.trees, PartitionTree)
            else tuple(_checks.as_list(self.trees, "trees", "PartitionTree objects"))
        )
        if not trees:
            raise InvalidValueError("trees must contain at least one tree, got none")
        object.__setattr__(self, "trees", trees)
        object.__setattr__(self, "axes", tuple(HaarBasis(tree) for tree in trees))

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of functions, which is the number of leaves, along each axis."""
        return tuple(len(basis) for basis in self.axes)

    @property
    def supports(self) -> tuple[Int[np.ndarray, " function"], ...]:
        """Supports of the functions of each axis; their outer product gives the supports in the product basis."""
        return tuple(basis.support for basis in self.axes)

    def __len__(self) -> int:
        """Number of functions of the product basis."""
        return int(np.prod(self.shape))

    def __repr__(self) -> str:
        return f"TensorHaarBasis({' × '.join(map(str, self.shape))} functions)"

    # -- transforms --------------------------------------------------------------------------------------

    def analyze(self, x: Any) -> Any:
        """Compute all coefficients of `x` over its trailing axes, in the shape, type and device of `x`.

        The dtype stays too, except that half precision becomes float32 and integers become float64.

        Examples
        --------
        >>> import headtree as ht
        >>> import numpy as np
        >>> basis = ht.TensorHaarBasis([ht.PartitionTree.halving(2), ht.PartitionTree.halving(2)])
        >>> basis.analyze(np.array([[1.0, 2.0], [3.0, 5.0]])).round(3)
        array([[ 5.5, -1.5],
               [-2.5,  0.5]])
        """
        given = values = self._checked(x, "x")
        for axis, basis in self._by_axis(values):
            values = basis.analyzed(values, axis)
        result = _checks.in_range(values, given, "x")
        return result if isinstance(x, Tensor) else result.numpy()

    def synthesize(self, c: Any) -> Any:
        """Compute the array with coefficients `c`: the inverse of `analyze`.

        Examples
        --------
        >>> import headtree as ht
        >>> import numpy as np
        >>> basis = ht.TensorHaarBasis([ht.PartitionTree.halving(2), ht.PartitionTree.halving(2)])
        >>> basis.synthesize(np.array([[5.5, -1.5], [-2.5, 0.5]])).round(3)
        array([[1., 2.],
               [3., 5.]])
        """
        given = values = self._checked(c, "c")
        for axis, basis in self._by_axis(values):
            values = basis.synthesized(values, axis)
        result = _checks.in_range(values, given, "c")
        return result if isinstance(c, Tensor) else result.numpy()

    def coefficients(self, x: Any, indices: Any) -> Any:
        """Compute the coefficients of some functions only.

        The transform proceeds axis by axis and computes only the functions that occur in `indices`. If the wanted
        functions share their factors, as coarse ones do, all axes after the first cost almost nothing.

        Parameters
        ----------
        x : array or tensor
            Its trailing axes are those of the basis.
        indices : integers (m, n_axes)
            Numbers of the functions, as returned by `top`.

        Returns
        -------
        array (..., m), or tensor if `x` is one

        Examples
        --------
        >>> import headtree as ht
        >>> import numpy as np
        >>> basis = ht.TensorHaarBasis([ht.PartitionTree.halving(4), ht.PartitionTree.halving(4)])
        >>> x = np.arange(16.0).reshape(4, 4)
        >>> basis.coefficients(x, basis.top(3)).round(3)
        array([ 30.,  -4., -16.])
        """
        values = self._checked(x, "x")
        result = self.coefficients_of(values, self._checked_indices(indices))
        return result if isinstance(x, Tensor) else result.numpy()

    def coefficients_of(
        self, x: Float[Tensor, " ..."], indices: Int[np.ndarray, "m axis"], name: str = "x"
    ) -> Float[Tensor, "... m"]:
        """`coefficients` of checked arguments; errors refer to `x` as `name`.

        Examples
        --------
        >>> import headtree as ht
        >>> import numpy as np
        >>> import torch
        >>> basis = ht.TensorHaarBasis([ht.PartitionTree.halving(4)])
        >>> basis.coefficients_of(torch.ones(3, 4), np.array([[0], [1]])).shape
        torch.Size([3, 2])
        """
        values = x
        positions: list[Any] = [...]
        for (axis, basis), numbers in zip(self._by_axis(values), indices.T, strict=True):
            wanted, position = np.unique(numbers, return_inverse=True)
            values = basis.analyzed(values, axis, wanted)
            positions.append(torch.from_numpy(position).to(values.device))
        return _checks.in_range(values[tuple(positions)], x, name)

    def coefficient(self, x: Any, *names: tuple[int, int, int]) -> Any:
        """Compute the coefficient of one function, given as (level, node, index) for each axis.

        Examples
        --------
        The coarsest contrast along both axes:

        >>> import headtree as ht
        >>> import numpy as np
        >>> basis = ht.TensorHaarBasis([ht.PartitionTree.halving(2), ht.PartitionTree.halving(2)])
        >>> float(basis.coefficient(np.array([[1.0, 0.0], [0.0, 1.0]]), (0, 0, 0), (0, 0, 0)).round(6))
        1.0
        """
        if len(names) != len(self.axes):
            raise InvalidValueError(
                f"names must contain a (level, node, index) for each of the {len(self.axes)} axes, got {len(names)}"
            )
        for name in names:
            if not isinstance(name, Sequence | np.ndarray) or len(name) not in (2, 3):
                raise InvalidTypeError(f"names must be (level, node, index) or (level, node), got {name!r}")
        numbers = [basis.function(*name) for basis, name in zip(self.axes, names, strict=True)]
        return self.coefficients(x, [numbers])[..., 0]

    # -- functions by support ----------------------------------------------------------------------------

    def support(self, indices: Any) -> Int[np.ndarray, " m"]:
        """Return the supports of the functions with these numbers (m, n_axes).

        Examples
        --------
        >>> import headtree as ht
        >>> basis = ht.TensorHaarBasis([ht.PartitionTree.halving(4), ht.PartitionTree.halving(4)])
        >>> basis.support([[0, 0], [3, 0], [3, 3]])
        array([16,  8,  4])
        """
        numbers = self._checked_indices(indices)
        return _product([support[column] for support, column in zip(self.supports, numbers.T, strict=True)])

    def top(self, m: int) -> Int[np.ndarray, "m axis"]:
        """Return the numbers of the m functions of largest support; ties are ordered by the numbers, axis by axis.

        Notes
        -----
        Products are not enumerated. Rank the functions of two factors from 1 by decreasing support. At least r·s
        products come no later than the product of the r-th and the s-th, so only pairs with r·s <= m, about
        m·log(m) of them, can be among the first m. Further axes are added one by one.

        Examples
        --------
        >>> import headtree as ht
        >>> basis = ht.TensorHaarBasis([ht.PartitionTree.halving(4), ht.PartitionTree.halving(4)])
        >>> basis.top(3)
        array([[0, 0],
               [0, 1],
               [1, 0]])
        """
        m = _checks.at_least_one(m, "m")
        if m > len(self):
            raise InvalidValueError(f"m must be at most the size of the basis, {len(self)}, got {m}")
        indices = np.zeros((1, 0), dtype=np.int64)
        supports = np.ones(1, dtype=np.int64)
        for support in self.supports:
            by_support = np.argsort(-support, kind="stable")
            left, right = _hyperbolic_cross(len(supports), len(by_support), m)
            numbers = np.column_stack([indices[left], by_support[right]])
            products = supports[left] * support[numbers[:, -1]]
            first = np.lexsort((*numbers.T[::-1], -products))[:m]
            indices, supports = numbers[first], products[first]
        return indices

    def at_least(self, eps: float) -> Int[np.ndarray, "m axis"]:
        """Return the numbers of all functions with support >= eps, in the order of `top`, without splitting ties.

        ``at_least(basis.threshold(m))`` gives the first m functions and all that tie with the last of them.

        Examples
        --------
        >>> import headtree as ht
        >>> basis = ht.TensorHaarBasis([ht.PartitionTree.halving(4), ht.PartitionTree.halving(4)])
        >>> len(basis.at_least(16)), len(basis.at_least(8))
        (4, 12)
        """
        if not isinstance(eps, int | float | np.integer | np.floating) or not -math.inf < eps < math.inf:
            raise InvalidValueError(f"eps must be a finite number of leaves, got {eps!r}")
        least = math.ceil(min(eps, len(self) + 1))  # no support exceeds the size of the array
        indices = np.zeros((1, 0), dtype=np.int64)
        supports = np.ones(1, dtype=np.int64)
        rest = [int(np.prod(self.shape[axis + 1 :])) for axis in range(len(self.axes))]  # support of the constant
        for support, n_rest in zip(self.supports, rest, strict=True):
            by_support = np.argsort(-support, kind="stable")
            needed = -(-least // (supports * n_rest))
            counts = np.searchsorted(-support[by_support], -needed, side="right")
            left = np.repeat(np.arange(len(supports)), counts)
            right = np.arange(len(left)) - np.repeat(np.cumsum(counts) - counts, counts)
            indices = np.column_stack([indices[left], by_support[right]])
            supports = supports[left] * support[indices[:, -1]]
        return indices[np.lexsort((*indices.T[::-1], -supports))]

    def threshold(self, m: int) -> int:
        """Return the support of the m-th function in the order of `top`.

        Examples
        --------
        >>> import headtree as ht
        >>> ht.TensorHaarBasis([ht.PartitionTree.halving(4), ht.PartitionTree.halving(4)]).threshold(5)
        8
        """
        return int(self.support(self.top(m)[-1:])[0])

    # -- checks ------------------------------------------------------------------------------------------

    def _by_axis(self, values: Tensor) -> list[tuple[int, HaarBasis]]:
        first = values.ndim - len(self.axes)
        return [(first + i, basis) for i, basis in enumerate(self.axes)]

    def _checked(self, x: Any, name: str) -> Float[Tensor, " ..."]:
        tensor = _checks.full_tensor(x, name)
        if tensor.ndim < len(self.axes):
            raise InvalidValueError(
                f"{name} must have at least {len(self.axes)} axes, one for each tree, got shape "
                f"{tuple(tensor.shape)}"
            )
        for axis, basis in self._by_axis(tensor):
            check_leaves(basis.tree, tensor.shape[axis], name, axis)
        return tensor

    def _checked_indices(self, indices: Any) -> Int[np.ndarray, "m axis"]:
        try:
            numbers = np.asarray(indices.cpu() if isinstance(indices, Tensor) else indices)
        except ValueError as error:
            raise InvalidValueError(f"indices must have one number per axis in every row: {error}") from error
        if numbers.dtype.kind not in "iu":
            raise InvalidTypeError(f"indices must be integers, got {numbers.dtype}")
        if numbers.ndim != 2 or numbers.shape[1] != len(self.axes):
            raise InvalidValueError(
                f"indices must have shape (functions, {len(self.axes)}), one number per axis, got {numbers.shape}"
            )
        if len(numbers) == 0:
            raise InvalidValueError("indices must name at least one function, got none")
        wrong = ((numbers < 0) | (numbers >= np.array(self.shape))).any(axis=1)
        if wrong.any():
            raise InvalidValueError(
                f"indices must be at least 0 and below the sizes of the axes, {self.shape}, got "
                f"{tuple(numbers[wrong][0].tolist())}"
            )
        return numbers.astype(np.int64)


def _product(factors: Sequence[np.ndarray]) -> np.ndarray:
    result = np.ones_like(factors[0])
    for factor in factors:
        result = result * factor
    return result


def _hyperbolic_cross(n_left: int, n_right: int, m: int) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of ranks (from 0) with (left + 1)(right + 1) <= m."""
    counts = np.minimum(m // np.arange(1, n_left + 1), n_right)
    left = np.repeat(np.arange(n_left), counts)
    return left, np.arange(len(left)) - np.repeat(np.cumsum(counts) - counts, counts)
