"""One level of the flexible tree by operations of torch, for clusters whose distances are on a GPU.

The joins themselves are sequential and run on the CPU. They need only the pairs that may still be tried, in order,
and most clusters find a partner among the few nearest pairs. Everything quadratic is done on the GPU.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from headtree.geometry.kernels_cpu import join_in_order
from headtree.geometry.order_statistics import order_statistics

#: Pairs that are copied to the CPU at a time.
_PAIRS_AT_A_TIME = 1 << 20


def mean_cluster_distances(
    points: Float[Tensor, "leaf component"], labels: Int[np.ndarray, " leaf"]
) -> Float[Tensor, "cluster cluster"]:
    """Mean Euclidean distance over all pairs of leaves of two clusters; the diagonal has no meaning."""
    distances = torch.zeros(len(points), len(points), dtype=points.dtype, device=points.device)
    for component in points.T:
        difference = component[:, None] - component[None, :]
        distances.addcmul_(difference, difference)
    distances.sqrt_()
    if np.array_equal(labels, np.arange(len(labels))):  # every leaf is a cluster, in this order
        return distances
    by_cluster = torch.from_numpy(np.argsort(labels, kind="stable")).to(points.device)
    sizes = torch.from_numpy(np.bincount(labels)).to(points.device)
    for _ in range(2):  # sums over rows, then over columns
        ordered = distances.index_select(0, by_cluster)
        distances = torch.segment_reduce(ordered, "sum", lengths=sizes, axis=0).T.contiguous()
    return (distances + distances.T) / 2 / sizes[:, None] / sizes[None, :]


def rounded_to_digits(
    distances: Float[Tensor, "cluster cluster"], n_digits: int
) -> Float[Tensor, "cluster cluster"]:
    """`kernels_cpu.rounded_distances` by operations of torch; the diagonal is infinite."""
    largest = distances.fill_diagonal_(0).max()
    values = distances / torch.where(largest > 0, largest, 1.0)
    tenths = torch.tensor(
        [10.0 ** (i - n_digits) for i in range(n_digits)], dtype=values.dtype, device=values.device
    )
    scales = torch.tensor([10.0 ** (2 * n_digits - i) for i in range(n_digits + 1)], dtype=values.dtype)
    magnitude = torch.bucketize(values, tenths, right=True, out_int32=True)
    scale = scales.to(values.device)[magnitude]
    values = torch.where(magnitude == 0, 0.0, (values * scale).round_() / scale)
    return values.fill_diagonal_(torch.inf)


def groups_of_clusters(
    distances: Float[Tensor, "cluster cluster"], tree_constant: float, n_digits: int, pairs_first: int
) -> Int[np.ndarray, " cluster"]:
    """`grow_tree.join_clusters` of distances on a GPU, without the list of trials."""
    n = len(distances)
    rounded = rounded_to_digits(distances, n_digits)
    smallest = float(rounded.min())
    largest = float(rounded.masked_fill(rounded == torch.inf, -torch.inf).max())
    if n == 1 or smallest == largest:
        return np.zeros(n, dtype=np.int64)
    flat = rounded.view(-1)
    ranks = [(n * n - 1) // 2, n * n // 2, min(pairs_first, n - 1) * n - 1]
    low, high, nearest = order_statistics(flat, ranks)
    median = (low + high) / 2
    if median == 0:
        positive = flat[(flat > 0) & flat.isfinite()]
        median = sum(order_statistics(positive, [(len(positive) - 1) // 2, len(positive) // 2])) / 2
    limit = median / tree_constant
    state = np.arange(n), np.ones(n, dtype=np.int64), np.ones(n, dtype=bool)
    if smallest >= median:
        join_in_order(np.array([int(flat.argmin())]), np.array([smallest]), limit, *state)
    else:
        every_row = torch.arange(n, device=flat.device)
        for pairs, values in _in_order(rounded, every_row, -math.inf, min(nearest, _below(median))):
            join_in_order(pairs, values, limit, *state)
        left = torch.from_numpy(np.flatnonzero(state[2])).to(flat.device)
        for pairs, values in _in_order(rounded, left, nearest, _below(median)):
            join_in_order(pairs, values, limit, *state)
            if not state[2].any():
                break
    return np.unique(state[0], return_inverse=True)[1]


def _below(value: float) -> float:
    """The largest number below `value`."""
    return float(np.nextafter(value, -math.inf))


def _in_order(
    distances: Float[Tensor, "cluster cluster"], rows: Int[Tensor, " row"], above: float, up_to: float
) -> Iterator[tuple[Int[np.ndarray, " pair"], Float[np.ndarray, " pair"]]]:
    """Pairs of some rows with distances in a range, by distance, row and column; and their distances."""
    n = len(distances)
    some = distances if len(rows) == n else distances.index_select(0, rows)
    chosen = ((some > above) & (some <= up_to)).view(-1).nonzero()[:, 0]
    values, order = some.reshape(-1)[chosen].sort(stable=True)
    chosen = chosen[order]
    pairs = rows[chosen // n] * n + chosen % n
    for start in range(0, len(pairs), _PAIRS_AT_A_TIME):
        block = slice(start, start + _PAIRS_AT_A_TIME)
        yield pairs[block].cpu().numpy(), values[block].cpu().numpy()
