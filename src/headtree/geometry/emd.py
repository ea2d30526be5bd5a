"""The tree earth mover's distance between slices of an array, eq. (15)-(16) of [OA]."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from headtree import _checks
from headtree.errors import InvalidTypeError, InvalidValueError
from headtree.geometry.instructions import LANES
from headtree.geometry.kernels_cpu import BLOCK, add_pairwise_l1, folder_sums
from headtree.trees.tree import Folders, PartitionTree

Weights = Literal["levels", "distinct"]

#: Averages computed at a time, over all slices: enough to keep all threads busy, few enough to stay in a core's
#: second-level cache (1 MiB of float32), and a bound on memory that does not grow with the array.
_ENTRIES_AT_A_TIME = 1 << 21


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
    r"""Tree earth mover's distance between all slices of `x` along `axis`.

    .. math:: E(A, B) = \sum_{I_1 \ldots I_m} \Big|\,\operatorname{mean}_{I_1 \times \cdots \times I_m}(A - B)\Big|
              \prod_j w(I_j), \qquad w(I) = \Big(\frac{|I|}{n}\Big)^{\beta} 2^{(1 - \mathrm{level}) \alpha},

    the sum over all tuples of nodes of the trees on the other axes, the root being on level 1: eq. (15)-(16) of
    [OA], whose print misses the absolute value.

    Parameters
    ----------
    x : array or tensor
        Real, of two or more axes. Half precision is raised to float32, integers to float64.
    axis : int
        The slices are ``x.take(i, axis)``.
    trees : sequence of PartitionTree
        One for each *other* axis, in axis order; or one for every axis, that of `axis` being ignored.
    alpha, beta : float
        How much coarse levels (alpha) and large folders (beta) weigh.
    weights : {"levels", "distinct"}
        Whether a folder that stands on several levels counts on each (as the reference does) or once, on the
        uppermost.
    mask : array of bool, optional
        True where an entry is missing; broadcast against `x`. A folder's mean is over the slice's own present
        entries; a folder in which either slice has none is left out for that pair and the sum is rescaled by
        total weight / kept weight. A slice without entries is at infinite distance from every other.

    Returns
    -------
    (n, n) array or tensor of float64, as `x` is: symmetric, zero on the diagonal.
    """
    alpha, beta = _checks.finite_number(alpha, "alpha"), _checks.finite_number(beta, "beta")
    array = _checks.scaled_array(x, "x", mask=mask, min_axes=2)
    axis = _checks.axis_index(axis, array.values.ndim)
    others = _other_trees(trees, axis, tuple(array.values.shape))
    distances = emd_matrix(array.values, axis, others, alpha, beta, weights, missing=array.missing)
    return _checks.like(torch.from_numpy(array.in_units(distances)), x)


def emd_matrix(
    values: Float[Tensor, "..."],
    axis: int,
    trees: Sequence[PartitionTree],
    alpha: float,
    beta: float,
    weights: Weights,
    missing: Tensor | None = None,
) -> Float[Tensor, "slice slice"]:
    """`tree_emd` on values that are checked and of size about one, with `trees` on the other axes."""
    outer_tree, *inner_trees = trees
    outer = _Program.of(outer_tree)
    inner, former = _Sums.of(inner_trees).leaves_first()
    outer_weight, outer_scale = _unit_maximum(folder_weights(outer_tree, alpha, beta, weights))
    inner_weight, inner_scale = np.ones(1), 1.0
    for tree in inner_trees:
        weight, scale = _unit_maximum(folder_weights(tree, alpha, beta, weights))
        inner_weight, inner_scale = np.outer(inner_weight, weight).ravel(), inner_scale * scale
    inner_weight = inner_weight[former]

    n = values.shape[axis]
    total = np.zeros((n, n))
    if missing is None:
        outer_mean, inner_mean = outer_weight / outer_tree.distinct.size, inner_weight / inner.sizes
        for _, features in _feature_runs(values, axis, outer, inner, outer_mean, inner_mean):
            add_pairwise_l1(features, total)
        distances = torch.from_numpy(total + total.T)
    else:
        distances = _masked_emd(values, missing, axis, outer, inner, outer_weight, inner_weight, total)
    return distances * (outer_scale * inner_scale)


def _masked_emd(
    values: Float[Tensor, "..."],
    missing: Tensor,
    axis: int,
    outer: _Program,
    inner: _Sums,
    outer_weight: Float[np.ndarray, " outer"],
    inner_weight: Float[np.ndarray, " inner"],
    total: Float[np.ndarray, "slice slice"],
) -> Float[Tensor, "slice slice"]:
    """L1 between the folders that both slices have, from the plain L1 kernel and two products.

    `values` are 0 where missing. With p = 1 where a slice has entries in a folder and a' = w a p, the sum over
    folders present in both is ``L1(a', b') - |a'| (1 - p_b) - (1 - p_a) |b'|``, the kept weight ``(w p_a) p_b``.
    """
    n = values.shape[axis]
    lacking = torch.zeros(n, n, dtype=torch.float64)
    kept = torch.zeros(n, n, dtype=torch.float64)
    ones = np.ones(len(outer_weight)), np.ones(len(inner_weight))
    runs = _feature_runs(values, axis, outer, inner, *ones)
    counts = _feature_runs(missing.logical_not().to(values.dtype), axis, outer, inner, *ones)
    for (steps, sums), (_, n_present) in zip(runs, counts, strict=True):
        weights = torch.from_numpy(np.outer(outer_weight[outer.folder[steps]], inner_weight).ravel()).to(
            values.dtype
        )
        features, present = torch.from_numpy(sums), torch.from_numpy(n_present)
        features.div_(present.clamp(min=1)).mul_(weights)
        add_pairwise_l1(sums, total)
        present.clamp_(max=1)
        if (present == present[:1]).all():  # no slice has a folder that another lacks
            kept += (present[0] * weights).sum()
        else:
            lacking += features.abs_() @ (1 - present).T
            kept += (present * weights) @ present.T
    everything = torch.from_numpy(total + total.T)
    sums_of_both = everything - lacking - lacking.T
    # the terms round in their own dtype: what is left of a sum that cancels is zero
    sums_of_both[sums_of_both <= 16 * torch.finfo(values.dtype).eps * everything] = 0
    distances = sums_of_both * float(outer_weight.sum() * inner_weight.sum()) / kept
    distances[kept == 0] = torch.inf
    return distances.fill_diagonal_(0)


def folder_weights(
    tree: PartitionTree, alpha: float, beta: float, weights: Weights
) -> Float[np.ndarray, " folder"]:
    """Weight of each distinct folder, summed over the levels on which it stands unless ``"distinct"``."""
    folders = tree.distinct
    by_level = np.exp2(-alpha * np.arange(tree.n_levels))
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
            f"tree of {tree.n_levels} levels; choose values of size about one"
        )
    return result


# -- folder averages, streamed ------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Program:
    """The distinct folders of the outer tree in post-order, as steps for the `folder_sums` kernel."""

    folder: Int[np.ndarray, " step"]
    leaf: Int[np.ndarray, " step"]
    depth: Int[np.ndarray, " step"]
    is_first: Int[np.ndarray, " step"]

    @classmethod
    def of(cls, tree: PartitionTree) -> _Program:
        folders = tree.distinct
        depth = np.zeros(len(folders), dtype=np.int64)
        for folder in range(1, len(folders)):
            depth[folder] = depth[folders.parent[folder]] + 1
        children, pointers = folders.children
        order: list[int] = []
        pending = [0]
        while pending:  # a pre-order with children reversed, reversed, is a post-order
            folder = pending.pop()
            order.append(folder)
            pending.extend(children[pointers[folder] : pointers[folder + 1]])
        folder_order = np.array(order[::-1])
        first_children = np.zeros(len(folders), dtype=np.int64)
        first_children[children[pointers[:-1][np.diff(pointers) > 0]]] = 1
        leaf = np.where(folders.is_leaf, folders.first_leaf, -1)
        return cls(folder_order, leaf[folder_order], depth[folder_order], first_children[folder_order])


@dataclass(frozen=True)
class _Sums:
    """How to sum over all products of folders of the inner trees.

    A product of folders that is not a single entry is the sum of the products with the children of one of its
    factors, so that m trees are walked as one. Children have larger numbers than their parents.
    """

    of_leaf: Int[np.ndarray, " inner_leaf"]  #: product that holds one entry alone
    child: Int[np.ndarray, " edge"]  #: each product stands as parent before it stands as child
    parent: Int[np.ndarray, " edge"]
    sizes: Int[np.ndarray, " inner"]

    @classmethod
    def of(cls, trees: Sequence[PartitionTree]) -> _Sums:
        no_edge = np.zeros(0, dtype=np.int64)
        result = cls(np.zeros(1, dtype=np.int64), no_edge, no_edge, np.ones(1, dtype=np.int64))
        for tree in trees:
            result = result._times(tree.distinct)
        return result

    def leaves_first(self) -> tuple[_Sums, Int[np.ndarray, " inner"]]:
        """The same sums with single entries numbered first, and the former number of each product."""
        others = np.ones(len(self.sizes), dtype=bool)
        others[self.of_leaf] = False
        former = np.concatenate([self.of_leaf, np.flatnonzero(others)])
        number = np.argsort(former)
        return _Sums(number[self.of_leaf], number[self.child], number[self.parent], self.sizes[former]), former

    def _times(self, folders: Folders) -> _Sums:
        """Products with the folders of one more tree: down that tree first, and from its leaves down the others."""
        n = len(folders)
        every = np.arange(len(self.sizes))[:, None] * n
        leaves = folders.of_leaf[None, :]
        child = np.concatenate([(every + np.arange(1, n)).ravel(), (self.child[:, None] * n + leaves).ravel()])
        parent = np.concatenate([(every + folders.parent[1:]).ravel(), (self.parent[:, None] * n + leaves).ravel()])
        falling = np.argsort(-child, kind="stable")
        return _Sums(
            of_leaf=(self.of_leaf[:, None] * n + leaves).ravel(),
            child=child[falling],
            parent=parent[falling],
            sizes=np.outer(self.sizes, folders.size).ravel(),
        )


def _feature_runs(
    values: Float[Tensor, "..."],
    axis: int,
    outer: _Program,
    inner: _Sums,
    outer_scale: Float[np.ndarray, " outer"],
    inner_scale: Float[np.ndarray, " inner"],
) -> Iterator[tuple[slice, Float[np.ndarray, "slice feature"]]]:
    """Scaled folder sums of every slice, for a few outer folders at a time; each run overwrites the last."""
    array = values.contiguous().view(-1).numpy()
    n, strides, leaf_offsets = _offsets(tuple(values.shape), axis)
    n_inner, n_steps = len(inner.sizes), len(outer.folder)
    at_a_time = min(n_steps, max(1, max(_ENTRIES_AT_A_TIME // n, BLOCK) // n_inner))
    stack = np.zeros(((n + LANES - 1) // LANES, int(outer.depth.max()) + 1, n_inner * LANES), array.dtype)
    buffer = np.empty(n * _row_length(at_a_time * n_inner), array.dtype)
    inner_scale = inner_scale.astype(array.dtype)
    for start in range(0, n_steps, at_a_time):
        steps = slice(start, min(start + at_a_time, n_steps))
        n_features = (steps.stop - start) * n_inner
        length = _row_length(n_features)
        out = buffer[: n * length].reshape(n, length)
        out[:, n_features:] = 0
        scale = outer_scale[outer.folder[steps]].astype(array.dtype)
        program = (outer.leaf[steps], outer.depth[steps], outer.is_first[steps])
        folder_sums(array, strides, leaf_offsets, program, (inner.child, inner.parent), (scale, inner_scale[None,None]), stack, out)
        yield steps, out


def _row_length(n_features: int) -> int:
    """Features padded to an odd number of cache lines, since rows a power of two apart would evict each other."""
    return (n_features + 15) // 16 // 2 * 32 + 16


def _offsets(shape: tuple[int, ...], axis: int) -> tuple[int, tuple[int, int], Int[np.ndarray, " inner_leaf"]]:
    """Number of slices, strides of slices and of the outer axis, and offsets of the inner leaves."""
    strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    outer, *inner = (i for i in range(len(shape)) if i != axis)
    offsets = np.zeros(1, dtype=np.int64)
    for i in inner:
        offsets = (offsets[:, None] + np.arange(shape[i]) * strides[i]).ravel()
    return shape[axis], (strides[axis], strides[outer]), offsets


def _unit_maximum(weights: Float[np.ndarray, " folder"]) -> tuple[Float[np.ndarray, " folder"], float]:
    """Weights divided by a power of two so that the largest is near one, and that power."""
    scale = 2.0 ** math.frexp(weights.max())[1]
    return weights / scale, scale


def _other_trees(trees: Sequence[PartitionTree], axis: int, shape: tuple[int, ...]) -> list[PartitionTree]:
    """Trees on the axes other than `axis`, checked against the array's shape."""
    if isinstance(trees, PartitionTree):
        trees = [trees]
    others = _checks.items(trees, "trees", "PartitionTree objects")
    n_given = len(others)
    if len(others) == len(shape):
        del others[axis]
    sizes = [n for i, n in enumerate(shape) if i != axis]
    if len(others) != len(sizes):
        raise InvalidValueError(
            f"trees must hold one tree for each axis of x other than {axis} ({len(sizes)}), or one for every axis "
            f"({len(shape)}), got {n_given}"
        )
    for position, (tree, n) in enumerate(zip(others, sizes, strict=True)):
        if not isinstance(tree, PartitionTree):
            raise InvalidTypeError(f"trees must hold PartitionTree objects, got {type(tree).__name__}")
        if tree.n_leaves != n:
            raise InvalidValueError(
                f"trees must have one leaf for each index of their axis: tree {position} of the other axes has "
                f"{tree.n_leaves} leaves, its axis {n}; pass the trees in axis order"
            )
    return others
