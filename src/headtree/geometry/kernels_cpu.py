"""Compiled loops: pairwise L1 distances, folder sums along trees, and the joins of the flexible tree.

All functions take checked numpy arrays in native byte order. Work is divided between threads by output rows or
tiles, never by terms of one sum, so results do not depend on the number of threads.
"""

from __future__ import annotations

import numba
import numpy as np
from jaxtyping import Float, Int

from headtree._threads import for_each_task
from headtree.geometry.vector_intrinsics import (
    LANES,
    add_lanes,
    copy_lanes,
    plus,
    transpose_and_scale_lanes,
    transpose_lanes,
    use_wide_vectors,
)

#: Rows of a tile of the distance matrix, which is the work of one thread, and features read at a time: two TILE ×
#: BLOCK blocks of float32 (512 KiB) fit in a core's second-level cache, and sums of BLOCK terms stay accurate.
TILE, BLOCK = 32, 2048

#: Sums of L1 distances may be taken in any order; NaN must stay what it is.
_ANY_ORDER = {"reassoc", "contract", "nsz"}


# -- pairwise L1 ------------------------------------------------------------------------------------------------


def padded_length(n_features: int) -> int:
    """Row length padded to an odd number of cache lines: rows a power of two apart would evict each other."""
    return (n_features + 15) // 16 // 2 * 32 + 16


def add_pairwise_l1(
    features: Float[np.ndarray, "row feature"], total: Float[np.ndarray, "row row"], *, has_gaps: bool = False
) -> None:
    """Add ``sum(|features[i] - features[j]|)`` to ``total[i, j]`` for i < j.

    Differences and sums over `BLOCK` features are computed in the dtype of `features`, their total in float64. With
    gaps, a feature that is NaN in either row adds nothing; this takes four instructions instead of three.
    """
    n_bands = (len(features) + TILE - 1) // TILE
    gaps = 1 if has_gaps else None  # the type selects the compiled kernel
    for_each_task(_add_tile, n_bands * (n_bands + 1) // 2, features, total, features.dtype.type(1), gaps)


@numba.njit(cache=True, fastmath=_ANY_ORDER, error_model="numpy", nogil=True)
def _add_tile(tile, features, total, one, gaps):  # type: ignore[no-untyped-def]
    n, n_features = features.shape
    left, right = tile, 0
    while left > right:  # tiles are numbered (0,0) (0,1) (1,1) (0,2) …
        right += 1
        left -= right
    first, second = left * TILE, right * TILE
    end_a, end_b = min(first + TILE, n), min(second + TILE, n)
    for start in range(0, n_features, BLOCK):
        end = min(start + BLOCK, n_features)
        for i in range(first, end_a, 4):
            for j in range(second if left < right else i, end_b, 4):
                sums = _l1_4x4(features, i, j, start, end, one, gaps)
                for di in range(min(4, end_a - i)):
                    for dj in range(min(4, end_b - j)):
                        if i + di < j + dj:
                            total[i + di, j + dj] += sums[di][dj]


@numba.njit(cache=True, nogil=True)
def _four(first, n):  # type: ignore[no-untyped-def]
    """Four consecutive rows, clipped at the last; unsigned, so numba skips the handling of negative indices."""
    last = n - 1
    return (
        np.uint64(first),
        np.uint64(min(first + 1, last)),
        np.uint64(min(first + 2, last)),
        np.uint64(min(first + 3, last)),
    )


@numba.njit(cache=True, error_model="numpy", nogil=True)
def _size(difference, gaps):  # type: ignore[no-untyped-def]
    """Absolute value; 0 for NaN if there are gaps."""
    size = abs(difference)
    if gaps is None:
        return size
    return size if size > 0 else type(size)(0)


@numba.njit(cache=True, fastmath=_ANY_ORDER, error_model="numpy", nogil=True)
def _l1_4x4(x, i, j, start, end, one, gaps):  # type: ignore[no-untyped-def]
    """Sixteen distances at once: eight loads serve sixteen differences."""
    use_wide_vectors()
    i0, i1, i2, i3 = _four(i, len(x))
    j0, j1, j2, j3 = _four(j, len(x))
    s00 = s01 = s02 = s03 = s10 = s11 = s12 = s13 = x.dtype.type(0)
    s20 = s21 = s22 = s23 = s30 = s31 = s32 = s33 = x.dtype.type(0)
    for k in range(np.uint64(start), np.uint64(end)):
        x0, x1, x2, x3 = x[i0, k], x[i1, k], x[i2, k], x[i3, k]
        y0, y1, y2, y3 = x[j0, k], x[j1, k], x[j2, k], x[j3, k]
        s00 = plus(s00, _size(x0 - y0, gaps), one)
        s01 = plus(s01, _size(x0 - y1, gaps), one)
        s02 = plus(s02, _size(x0 - y2, gaps), one)
        s03 = plus(s03, _size(x0 - y3, gaps), one)
        s10 = plus(s10, _size(x1 - y0, gaps), one)
        s11 = plus(s11, _size(x1 - y1, gaps), one)
        s12 = plus(s12, _size(x1 - y2, gaps), one)
        s13 = plus(s13, _size(x1 - y3, gaps), one)
        s20 = plus(s20, _size(x2 - y0, gaps), one)
        s21 = plus(s21, _size(x2 - y1, gaps), one)
        s22 = plus(s22, _size(x2 - y2, gaps), one)
        s23 = plus(s23, _size(x2 - y3, gaps), one)
        s30 = plus(s30, _size(x3 - y0, gaps), one)
        s31 = plus(s31, _size(x3 - y1, gaps), one)
        s32 = plus(s32, _size(x3 - y2, gaps), one)
        s33 = plus(s33, _size(x3 - y3, gaps), one)
    return ((s00, s01, s02, s03), (s10, s11, s12, s13), (s20, s21, s22, s23), (s30, s31, s32, s33))


# -- folder sums ------------------------------------------------------------------------------------------------


def folder_sums(
    array: Float[np.ndarray, " entry"],
    strides: tuple[int, int],
    leaf_offsets: Int[np.ndarray, " inner_leaf"],
    steps: tuple[Int[np.ndarray, " step"], Int[np.ndarray, " step"], Int[np.ndarray, " step"]],
    edges: tuple[Int[np.ndarray, " edge"], Int[np.ndarray, " edge"]],
    scales: tuple[Float[np.ndarray, " step"], Float[np.ndarray, "row_or_1 step_or_1 inner"]],
    stack: Float[np.ndarray, "band depth lanes_of_inner"],
    out: Float[np.ndarray, "row feature"],
) -> None:
    """Scaled sums of every row over products of outer and inner folders, for a run of outer folders.

    Entry (row, outer leaf, inner leaf) is at offset ``row * strides[0] + outer leaf * strides[1] +
    leaf_offsets[inner leaf]`` in `array`. `steps` are outer folders in post-order: the leaf if the folder is a leaf
    (otherwise -1), the depth on the path from the root, and whether it is the first of its siblings. Inner folders
    begin with the single leaves; `edges` are all their (child, parent) pairs, and every folder is a parent before
    it is a child. `stack` carries the unfinished sums on the path from one run to the next, interleaved for LANES
    rows so that one instruction adds for all of them. The sum over outer folder `step` and inner folder i is
    column ``step * inner + i`` of `out`, times ``scales[0][step] * scales[1][row, step, i]``.
    """
    for_each_task(_sum_band, len(stack), array, *strides, leaf_offsets, *steps, *edges, *scales, stack, out)


@numba.njit(cache=True, error_model="numpy", nogil=True)
def _sum_band(  # type: ignore[no-untyped-def]
    band, array, stride, outer_stride, leaf_offsets, leaf, depth, is_first, child, parent, factor, scale, stack, out
):
    use_wide_vectors()
    first = band * LANES
    n_band, n_inner = min(LANES, len(out) - first), scale.shape[2]
    for step in range(len(leaf)):
        sums = stack[band, depth[step]]
        if leaf[step] >= 0:
            _fetch(array, first * stride + leaf[step] * outer_stride, stride, n_band, leaf_offsets, sums)
            for edge in range(len(child)):
                add_lanes(sums, parent[edge] * LANES, child[edge] * LANES)
        if depth[step] > 0:
            above = stack[band, depth[step] - 1]
            if is_first[step]:
                for k in range(len(sums)):
                    above[k] = sums[k]
            else:
                for k in range(len(sums)):
                    above[k] += sums[k]
        _write(sums, n_band, first, factor[step], scale[:, min(step, scale.shape[1] - 1)], step * n_inner, out)


@numba.njit(cache=True, error_model="numpy", nogil=True)
def _fetch(array, start, stride, n_band, leaf_offsets, sums):  # type: ignore[no-untyped-def]
    """Set the sums of single inner leaves to the entries of a band, and all others to zero."""
    n_leaves = len(leaf_offsets)
    for k in range(n_leaves * LANES, len(sums)):
        sums[k] = 0
    if stride == 1 and n_band == LANES:  # rows are adjacent in memory
        for k in range(n_leaves):
            copy_lanes(array, start + leaf_offsets[k], sums, k * LANES)
        return
    for k in range(0, n_leaves, LANES):
        end = min(k + LANES, n_leaves)
        if n_band == end - k == leaf_offsets[end - 1] - leaf_offsets[k] + 1 == LANES:  # leaves are adjacent
            transpose_lanes(array, start + leaf_offsets[k], stride, sums, k * LANES, LANES)
        else:
            for j in range(k, end):
                for i in range(n_band):
                    sums[j * LANES + i] = array[start + leaf_offsets[j] + i * stride]


@numba.njit(cache=True, error_model="numpy", nogil=True)
def _write(sums, n_band, first, factor, scale, begin, out):  # type: ignore[no-untyped-def]
    """Write the sums of a band row by row, times ``factor * scale``."""
    n_inner, length, flat = scale.shape[1], out.shape[1], out.reshape(-1)
    scale_stride = 0 if len(scale) == 1 else scale.strides[0] // scale.itemsize
    n_whole = n_inner // LANES * LANES if n_band == LANES else 0
    for k in range(0, n_whole, LANES):
        place = first * length + begin + k, length
        scale_place = first * scale_stride + k, scale_stride
        transpose_and_scale_lanes(sums, k * LANES, flat, place, factor, scale, scale_place)
    for i in range(n_band):
        row_scale = scale[min(first + i, len(scale) - 1)]
        for k in range(n_whole, n_inner):
            out[first + i, begin + k] = sums[k * LANES + i] * (factor * row_scale[k])


# -- the flexible tree ------------------------------------------------------------------------------------------


@numba.njit(cache=True, error_model="numpy")
def mean_distances(points, labels):  # type: ignore[no-untyped-def]
    """Mean Euclidean distance over all pairs of leaves of two clusters; `points` is (component, leaf)."""
    n_clusters = labels.max() + 1
    total = np.zeros((n_clusters, n_clusters))
    sizes = np.zeros(n_clusters)
    distances = np.empty(len(labels))
    for i in range(len(labels)):
        sizes[labels[i]] += 1
        for j in range(i):
            distances[j] = 0
        for component in range(len(points)):
            row = points[component]
            for j in range(i):
                distances[j] += (row[i] - row[j]) ** 2
        for j in range(i):
            distances[j] = np.sqrt(distances[j])
        for j in range(i):
            total[labels[i], labels[j]] += distances[j]
    for a in range(n_clusters):
        for b in range(a):
            total[a, b] = total[b, a] = (total[a, b] + total[b, a]) / (sizes[a] * sizes[b])
    return total


@numba.njit(cache=True, error_model="numpy")
def rounded_distances(distances, n_digits):  # type: ignore[no-untyped-def]
    """Distances in units of the largest, rounded to `n_digits` significant digits; their minimum and maximum.

    Those below ``10**-n_digits`` are zero. The diagonal is not read, and is infinite in the result.
    """
    n = len(distances)
    unit = 0.0
    for a in range(n):
        for b in range(n):
            if a != b:
                unit = max(unit, distances[a, b])
    result = np.full((n, n), np.inf)
    smallest, largest = (1.0, 0.0) if n > 1 else (0.0, 0.0)
    for a in range(n):
        for b in range(n):
            if a != b:
                value = distances[a, b] / unit if unit > 0 else 0.0
                digits, power = n_digits, 0.1
                while digits < 2 * n_digits and value < power:
                    digits += 1
                    power = 10.0 ** (n_digits - 1 - digits)
                scale = 10.0**digits
                value = np.rint(value * scale) / scale if digits < 2 * n_digits else 0.0
                result[a, b] = value
                smallest, largest = min(smallest, value), max(largest, value)
    return result, smallest, largest


@numba.njit(cache=True)
def join_in_order(pairs, distances, limit, group, size, may_start):  # type: ignore[no-untyped-def]
    """Join clusters pair by pair on one level of the flexible tree.

    `pairs` encodes (row, column) as ``row * n + column``; `distances` has one number for each. A group is named
    after its smallest cluster. The function updates the `group` of each cluster, the `size` of each group by name,
    and whether a cluster `may_start` a join.
    """
    n = len(group)
    trials = np.empty((len(pairs), 4), np.int64)
    n_trials = 0
    for k in range(len(pairs)):
        row, column = pairs[k] // n, pairs[k] % n
        if not may_start[row]:
            continue
        name = group[column]
        members = size[name]
        accepted = members == 1 or distances[k] < limit * 2.0 ** (1 - members)
        trials[n_trials, 0] = row
        trials[n_trials, 1] = column
        trials[n_trials, 2] = members
        trials[n_trials, 3] = accepted
        n_trials += 1
        if accepted:
            may_start[row] = False
            may_start[column] = False
            group[row] = name
            size[name] += 1
            if row < name:  # the group's smallest cluster, and so its name, is now `row`
                for cluster in range(n):
                    if group[cluster] == name:
                        group[cluster] = row
                size[row] = size[name]
    return trials[:n_trials]
