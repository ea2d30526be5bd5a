"""Products of Haar functions on the axes of an array: bi-Haar and tri-Haar bases of [OA], and beyond."""

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
    """Products of one Haar function per axis; an orthonormal basis of arrays with an axis for each tree.

    Parameters
    ----------
    trees : sequence of PartitionTree
        One for each axis, in axis order. Arrays may have more axes in front: those are batch axes.

    Notes
    -----
    A function is named by one number per axis, its function of that axis' `HaarBasis`. Its support is the
    product of its factors' supports.
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
            raise InvalidValueError("trees must hold at least one tree, got none")
        object.__setattr__(self, "trees", trees)
        object.__setattr__(self, "axes", tuple(HaarBasis(tree) for tree in trees))

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of functions, and of leaves, of each axis."""
        return tuple(len(basis) for basis in self.axes)

    @property
    def supports(self) -> tuple[Int[np.ndarray, " function"], ...]:
        """Support of every function of each axis; their outer product is that of the products."""
        return tuple(basis.support for basis in self.axes)

    def __len__(self) -> int:
        """Number of functions of the product basis."""
        return int(np.prod(self.shape))

    def __repr__(self) -> str:
        return f"TensorHaarBasis({' × '.join(map(str, self.shape))} functions)"

    # -- transforms --------------------------------------------------------------------------------------

    def analyze(self, x: Any) -> Any:
        """All coefficients of the trailing axes of `x`: same shape, kind, device and dtype (half raised)."""
        given = values = self._checked(x, "x")
        for axis, basis in self._by_axis(values):
            values = basis.analyzed(values, axis)
        result = _checks.in_range(values, given, "x")
        return result if isinstance(x, Tensor) else result.numpy()

    def synthesize(self, c: Any) -> Any:
        """The array with coefficients `c`: the inverse of `analyze`."""
        given = values = self._checked(c, "c")
        for axis, basis in self._by_axis(values):
            values = basis.synthesized(values, axis)
        result = _checks.in_range(values, given, "c")
        return result if isinstance(c, Tensor) else result.numpy()

    def coefficients(self, x: Any, indices: Any) -> Any:
        """Coefficients of the wanted functions only.

        Parameters
        ----------
        x : array or tensor
            Its trailing axes are the basis'.
        indices : integers (m, n_axes)
            Numbers of the functions, as `top` returns them.

        Returns
        -------
        array or tensor (..., m), as `x` is
            Axis by axis only the functions that occur in `indices` are kept, so that all but the first axis
            cost next to nothing when the wanted functions share their factors, as coarse ones do.
        """
        values = self._checked(x, "x")
        result = self.coefficients_of(values, self._checked_indices(indices))
        return result if isinstance(x, Tensor) else result.numpy()

    def coefficients_of(
        self, x: Float[Tensor, " ..."], indices: Int[np.ndarray, "m axis"], name: str = "x"
    ) -> Float[Tensor, "... m"]:
        """`coefficients` of checked arguments; errors call `x` by its name."""
        values = x
        places: list[Any] = [...]
        for (axis, basis), numbers in zip(self._by_axis(values), indices.T, strict=True):
            wanted, place = np.unique(numbers, return_inverse=True)
            values = basis.analyzed(values, axis, wanted)
            places.append(torch.from_numpy(place).to(values.device))
        return _checks.in_range(values[tuple(places)], x, name)

    def coefficient(self, x: Any, *names: tuple[int, int, int]) -> Any:
        """Coefficient of the one function with these (level, node, index), one for each axis."""
        if len(names) != len(self.axes):
            raise InvalidValueError(
                f"names must be one (level, node, index) for each of the {len(self.axes)} axes, got {len(names)}"
            )
        for name in names:
            if not isinstance(name, Sequence | np.ndarray) or len(name) not in (2, 3):
                raise InvalidTypeError(f"names must be (level, node, index), the index 0 if left out, got {name!r}")
        numbers = [basis.function(*name) for basis, name in zip(self.axes, names, strict=True)]
        return self.coefficients(x, [numbers])[..., 0]

    # -- functions by support ----------------------------------------------------------------------------

    def support(self, indices: Any) -> Int[np.ndarray, " m"]:
        """Support of the functions with these numbers (m, n_axes)."""
        numbers = self._checked_indices(indices)
        return _product([support[column] for support, column in zip(self.supports, numbers.T, strict=True)])

    def top(self, m: int) -> Int[np.ndarray, "m axis"]:
        """Numbers of the m functions of largest support; ties by the numbers in axis order.

        Notes
        -----
        Products are not enumerated. With the functions of two factors ranked from 1 by falling support, at
        least r·s products come no later than that of the r-th and the s-th, so that only pairs with r·s <= m
        can be among the first m: about m·log(m). More axes are taken in one by one.
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
        """Numbers of all functions with support >= eps, in the order of `top`: the form that splits no ties.

        ``at_least(basis.threshold(m))`` are the first m and all that tie with the last of them.
        """
        if not isinstance(eps, int | float | np.integer | np.floating) or not -math.inf < eps < math.inf:
            raise InvalidValueError(f"eps must be a finite number of leaves, got {eps!r}")
        least = math.ceil(min(eps, len(self) + 1))  # no support is larger than the array
        indices = np.zeros((1, 0), dtype=np.int64)
        supports = np.ones(1, dtype=np.int64)
        rest = [int(np.prod(self.shape[axis + 1 :])) for axis in range(len(self.axes))]  # the constant's support
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
        """Support of the m-th function by falling support."""
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
            raise InvalidValueError(f"indices must have one number for each axis: {error}") from error
        if numbers.dtype.kind not in "iu":
            raise InvalidTypeError(f"indices must be integers, got {numbers.dtype}")
        if numbers.ndim != 2 or numbers.shape[1] != len(self.axes):
            raise InvalidValueError(
                f"indices must have shape (functions, {len(self.axes)}), one number for each axis, got "
                f"{numbers.shape}"
            )
        if len(numbers) == 0:
            raise InvalidValueError("indices must name at least one function, got none")
        wrong = ((numbers < 0) | (numbers >= np.array(self.shape))).any(axis=1)
        if wrong.any():
            raise InvalidValueError(
                f"indices must be between 0 and the sizes of the axes, {self.shape}, got "
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
