"""The tree earth mover's distance (EMD) between slices of an array, eq. (15)-(16) of [OA]."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from headtree import _checks
from headtree.errors import InvalidTypeError, InvalidValueError
from headtree.geometry.folder_sums import FolderSums, Products
from headtree.geometry.kernels_cpu import add_pairwise_l1
from headtree.geometry.masked_emd import masked_emd
from headtree.trees.tree import PartitionTree

Weights = Literal["levels", "distinct"]


def tree_emd(
    x: Any,
    axis: int,
    trees: Sequence[PartitionTree],
    alpha: float = 0.0,
    beta: float = 1.0,
    *,
    weights: Weights = "levels",
    mask: Any = None,
) -> Any:
    r"""Tree earth mover's distance between every two slices of `x` along `axis`.

    .. math:: E(A, B) = \sum_{I_1 \ldots I_m} \Big|\,\operatorname{mean}_{I_1 \times \cdots \times I_m}(A - B)\Big|
              \prod_j w(I_j), \qquad w(I) = \Big(\frac{|I|}{n}\Big)^{\beta} 2^{(1 - \mathrm{level}) \alpha},

    summed over all tuples of nodes of the trees on the other axes, with the root on level 1: eq. (15)-(16) of
    [OA], which omits the absolute value.

    Parameters
    ----------
    x : array or tensor
        Real, with two or more axes. Half precision is converted to float32, integers to float64.
    axis : int
        The slices are ``x.take(i, axis)``.
    trees : sequence of PartitionTree
        One for each *other* axis, in axis order; or one for every axis, where the tree of `axis` is ignored.
    alpha, beta : float
        How much weight coarse levels (alpha) and large folders (beta) get.
    weights : {"levels", "distinct"}
        Whether a folder that spans several levels counts on each of them (as in the reference implementation) or
        once, on the uppermost.
    mask : array of bool, optional
        True for missing entries; broadcast against `x`. A folder's mean is taken over the entries the slice has. A
        folder in which either slice has none is left out for that pair, and the sum is rescaled by total weight /
        remaining weight. A slice without any entries is at infinite distance from every other.

    Returns
    -------
    (n, n) array of float64, symmetric with a zero diagonal; a tensor if `x` is a tensor.

    Examples
    --------
    Rows whose mass is in the same folder of columns are closer to each other:

    >>> import headtree as ht
    >>> import numpy as np
    >>> x = np.array([[1.0, 0, 0, 0], [0, 1.0, 0, 0], [0, 0, 0, 1.0]])
    >>> columns = ht.PartitionTree.halving(4)
    >>> ht.tree_emd(x, 0, [columns])
    array([[0. , 0.5, 1. ],
           [0.5, 0. , 1. ],
           [1. , 1. , 0. ]])
    """
    alpha, beta = _checks.finite_number(alpha, "alpha"), _checks.finite_number(beta, "beta")
    array = _checks.scaled_array(x, "x", mask=mask, min_axes=2)
    axis = _checks.axis_index(axis, array.values.ndim)
    others = _other_trees(trees, axis, tuple(array.values.shape))
    distances = emd_matrix(array.values, axis, others, alpha, beta, weights, missing=array.missing)
    return _checks.as_input_type(torch.from_numpy(array.in_units(distances)), x)


def emd_matrix(
    values: Float[Tensor, "..."],
    axis: int,
    trees: Sequence[PartitionTree],
    alpha: float,
    beta: float,
    weights: Weights,
    missing: Tensor | None = None,
) -> Float[Tensor, "slice slice"]:
    """`tree_emd` of values that are checked and of order one, with `trees` on the other axes."""
    weights_and_units = [unit_maximum(folder_weights(tree, alpha, beta, weights)) for tree in trees]
    products = Products.of(trees, [weight for weight, _ in weights_and_units])
    if missing is None:
        distances = _full_emd(values, axis, products)
    else:
        distances = masked_emd(values, missing, axis, products)
    return distances * math.prod(unit for _, unit in weights_and_units)


def _full_emd(values: Float[Tensor, "..."], axis: int, products: Products) -> Float[Tensor, "slice slice"]:
    """L1 distances between weighted folder averages."""
    n = values.shape[axis]
    runs = products.runs(n)
    sums = FolderSums(values, axis, products, runs[0].stop)
    outer_mean = products.outer_weight / products.outer_size
    inner_mean = (products.inner_weight / products.inner_size)[None, None]
    total = np.zeros((n, n))
    for steps in runs:
        add_pairwise_l1(sums.make(steps, outer_mean[steps], inner_mean), total)
    return torch.from_numpy(total + total.T)


def folder_weights(
    tree: PartitionTree, alpha: float, beta: float, weights: Weights
) -> Float[np.ndarray, " folder"]:
    """Weight of each distinct folder, summed over the levels it spans unless `weights` is ``"distinct"``."""
    folders, by_level = tree.distinct, level_weights(tree, alpha)
    sums = np.concatenate([[0.0], np.cumsum(by_level)])
    if weights == "levels":
        level_weight = sums[folders.level + folders.stands_on] - sums[folders.level]
    elif weights == "distinct":
        level_weight = by_level[folders.level]
    else:
        raise InvalidValueError(f"weights must be one of {get_args(Weights)}, got {weights!r}")
    result = np.asarray((folders.size / tree.n_leaves) ** beta * level_weight)
    if not (np.isfinite(result).all() and (result > 0).all()):
        raise InvalidValueError(
            f"alpha and beta must give finite, positive folder weights, got alpha={alpha} and beta={beta} on a "
            f"tree of {tree.n_levels} levels; choose values of order one"
        )
    return result


def level_weights(tree: PartitionTree, alpha: float) -> Float[np.ndarray, " level"]:
    """Weight of each level, 1 for the root's."""
    return np.asarray(np.exp2(-alpha * np.arange(tree.n_levels)))


def unit_maximum(weights: Float[np.ndarray, " folder"]) -> tuple[Float[np.ndarray, " folder"], float]:
    """Weights divided by a power of two that brings the largest near one, and that power."""
    scale = 2.0 ** math.frexp(weights.max())[1]
    return weights / scale, scale


def _other_trees(trees: Sequence[PartitionTree], axis: int, shape: tuple[int, ...]) -> list[PartitionTree]:
    """Trees on the axes other than `axis`, checked against the array's shape."""
    if isinstance(trees, PartitionTree):
        trees = [trees]
    others = _checks.as_list(trees, "trees", "PartitionTree objects")
    n_given = len(others)
    if len(others) == len(shape):
        del others[axis]
    sizes = [n for i, n in enumerate(shape) if i != axis]
    if len(others) != len(sizes):
        raise InvalidValueError(
            f"trees must contain one tree for each axis of x other than {axis} ({len(sizes)}), or one for every "
            f"axis ({len(shape)}), got {n_given}"
        )
    for position, (tree, n) in enumerate(zip(others, sizes, strict=True)):
        if not isinstance(tree, PartitionTree):
            raise InvalidTypeError(f"trees must contain PartitionTree objects, got {type(tree).__name__}")
        if tree.n_leaves != n:
            raise InvalidValueError(
                f"trees must have one leaf per index along their axis: tree {position} of the other axes has "
                f"{tree.n_leaves} leaves, its axis has length {n}; pass the trees in axis order"
            )
    return others
