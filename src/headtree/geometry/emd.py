"""The tree earth mover's distance (EMD) between slices of an array, eq. (15)-(16) of [OA]."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from headtree import _checks
from headtree.errors import InvalidTypeError, InvalidValueError
from headtree.geometry.first_rows import mirrored_upper
from headtree.geometry.folder_sums import Products
from headtree.geometry.kernels_cpu import add_pairwise_l1
from headtree.geometry.masked_emd import CommonWeight, weighted_means
from headtree.trees.tree import PartitionTree

Weights = Literal["levels", "distinct"]

#: Multiplications and conversions between the sum over a folder and its weighted mean.
_MULTIPLICATIONS = 8


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
    missing: Bool[Tensor, "..."] | None = None,
    n_first: int | None = None,
) -> Float[Tensor, "first slice"]:
    """`tree_emd` of values that are checked and of order one, with `trees` on the other axes.

    With `n_first`, only between the first slices and all.
    """
    weights_and_units = [unit_maximum(folder_weights(tree, alpha, beta, weights)) for tree in trees]
    products = Products.of(trees, [weight for weight, _ in weights_and_units])
    sums, common = _sums_of_pairs(values, missing, axis, products, n_first)
    distances = _without_rounding_errors(sums, values, missing, axis, products)
    if missing is not None:
        distances = distances * products.total_weight / common
        distances[common == 0] = torch.inf
        distances.fill_diagonal_(0)
    return distances * math.prod(unit for _, unit in weights_and_units)


def _sums_of_pairs(
    values: Float[Tensor, "..."],
    missing: Bool[Tensor, "..."] | None,
    axis: int,
    products: Products,
    n_first: int | None = None,
) -> tuple[Float[Tensor, "first slice"], Float[Tensor, "first slice"]]:
    """L1 distances between weighted means over the folders that both slices have, and the weight of these folders.

    Equal slices have equal means, so the sum of their differences is 0, whatever its order.
    """
    n = values.shape[axis]
    n_first = n if n_first is None else n_first
    total, common = np.zeros((n_first, n)), CommonWeight(n_first, n, products)
    for run in weighted_means(values, missing, axis, products):
        add_pairwise_l1(run.features, total, has_gaps=run.has_gaps)
        if missing is not None:
            common.add(run)
    return mirrored_upper(torch.from_numpy(total)), common.result()


def _without_rounding_errors(
    sums: Float[Tensor, "first slice"],
    values: Float[Tensor, "..."],
    missing: Bool[Tensor, "..."] | None,
    axis: int,
    products: Products,
) -> Float[Tensor, "first slice"]:
    r"""Set sums to zero that rounding errors alone may explain: there is no structure to be found in them.

    An entry goes through at most k additions and some multiplications until it is in a mean. The computed mean
    therefore differs from the true one by at most :math:`\gamma_k = ku / (1 - ku)` times the mean of the absolute
    values, u being the unit roundoff (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1), and a
    sum of differences by at most :math:`\gamma_k` times the sum of the two slices' weighted means of absolute
    values. This also covers the rounding of the entries themselves. In float32 the bound is coarse: sums that it
    cannot tell from zero are computed again in float64, and only the entries are then taken to be rounded.
    """
    unit = torch.finfo(values.dtype).eps / 2
    bound = (products.n_additions + _MULTIPLICATIONS) * unit
    if not bool(((sums > 0) & (sums <= 2 * bound * products.total_weight)).any()):  # entries are at most 1
        return sums
    norms = _norms(values, missing, axis, products)
    bounds = norms[: len(sums), None] + norms[None, :]
    is_doubtful = (sums > 0) & (sums <= bound * bounds)
    if values.dtype == torch.float32 and is_doubtful.any():
        of_pairs = is_doubtful.any(dim=0)
        of_pairs[: len(sums)] |= is_doubtful.any(dim=1)
        chosen = of_pairs.nonzero()[:, 0]
        first = chosen[chosen < len(sums)]
        some = values.index_select(axis, chosen).double()
        hidden = None
        if missing is not None:
            hidden = _checks.missing_entries(missing.index_select(axis, chosen), "x", tuple(some.shape))
        sums = sums.clone()
        again, _ = _sums_of_pairs(some, hidden, axis, products, len(first))
        pairs = first[:, None], chosen
        sums[pairs] = torch.where(is_doubtful[pairs], again, sums[pairs])
        bound = unit + bound / unit * torch.finfo(torch.float64).eps / 2
        is_doubtful &= sums <= bound * bounds
    return sums.masked_fill(is_doubtful, 0)


def _norms(
    values: Float[Tensor, "..."], missing: Bool[Tensor, "..."] | None, axis: int, products: Products
) -> Float[Tensor, " slice"]:
    """Sum over folders of the weighted mean of the absolute values, for each slice."""
    norms = np.zeros(values.shape[axis])
    for run in weighted_means(values.abs(), missing, axis, products):
        norms += np.nansum(run.features, axis=1, dtype=np.float64)
    return torch.from_numpy(norms)


def folder_weights(
    tree: PartitionTree, alpha: float, beta: float, weights: Weights
) -> Float[np.ndarray, " folder"]:
    """Weight of each distinct folder, summed over the levels it spans unless `weights` is ``"distinct"``."""
    folders, by_level = tree.distinct, level_weights(tree, alpha)
    if _checks.one_of(weights, "weights", Weights) == "levels":
        level_weight = _sums_from(by_level)[folders.level, folders.level + folders.stands_on - 1]
    else:
        level_weight = by_level[folders.level]
    result = np.asarray((folders.size / tree.n_leaves) ** beta * level_weight)
    if not (np.isfinite(result).all() and (result > 0).all()):
        raise InvalidValueError(
            f"alpha and beta must give finite, positive folder weights, got alpha={alpha} and beta={beta} on a "
            f"tree of {tree.n_levels} levels; choose values of order one"
        )
    return result


def _sums_from(by_level: Float[np.ndarray, " level"]) -> Float[np.ndarray, "first last"]:
    """Sums over all ranges of levels, each added up for itself, since differences of sums cancel."""
    sums = np.zeros((len(by_level), len(by_level)))
    for first in range(len(by_level)):
        sums[first, first:] = np.cumsum(by_level[first:])
    return sums


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
