"""Compiled loops: pairwise L1 distances, folder sums along trees, and the joins of the flexible tree.

Everything here takes checked, native numpy arrays. Work is shared between threads by output rows or tiles,
never by terms of one sum, so that results do not depend on the number of threads.
"""

from __future__ import annotations

import threading

import numba
import numpy as np
from jaxtyping import Float, Int, UInt

#: Rows of a tile of the distance matrix that one thread finishes, and features it reads at a time: eight rows of
#: BLOCK float32 values stay in a core's first-level cache, two TILE × BLOCK blocks (256 KiB) in its second.
TILE, BLOCK = 32, 1024
#: Rows whose entries are fetched together: 16 float32 values are one cache line.
ROWS = 16

# numba's fallback threading layer must not be entered from two threads at once; with any layer the
# kernels use all cores already, so that waiting costs nothing.
one_at_a_time = threading.Lock()


def add_pairwise_l1(features: Float[np.ndarray, "row feature"], total: Float[np.ndarray, "row row"]) -> None:
    """Add ``sum(|features[i] - features[j]|)`` to ``total[i, j]`` for i < j.

    Differences and sums of `BLOCK` features are in the dtype of `features`, their total in float64.
    """
    with one_at_a_time:
        _add_pairwise_l1(features, total)


# Parallel loops are short calls, and arrays are filled entry by entry: both cut compile times by seconds.


@numba.njit(parallel=True, cache=True, nogil=True)
def _add_pairwise_l1(features, total):  # type: ignore[no-untyped-def]
    n_bands = (features.shape[0] + TILE - 1) // TILE
    for tile in numba.prange(n_bands * (n_bands + 1) // 2):
        _add_tile(features, total, np.int64(tile))  # prange counts without sign


@numba.njit(cache=True, fastmath=True, error_model="numpy", nogil=True)
def _add_tile(features, total, tile):  # type: ignore[no-untyped-def]
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
                sums = _l1_4x4(features, i, j, start, end)
                for di in range(min(4, end_a - i)):
                    for dj in range(min(4, end_b - j)):
                        if i + di < j + dj:
                            total[i + di, j + dj] += sums[di][dj]


@numba.njit(cache=True, fastmath=True, error_model="numpy", nogil=True)
def _l1_4x4(x, i, j, start, end):  # type: ignore[no-untyped-def]
    """Sixteen distances at once: eight loads serve sixteen differences. Rows past the last repeat it."""
    last = len(x) - 1
    i1, i2, i3 = min(i + 1, last), min(i + 2, last), min(i + 3, last)
    j1, j2, j3 = min(j + 1, last), min(j + 2, last), min(j + 3, last)
    a0, a1, a2, a3 = x[i, start:end], x[i1, start:end], x[i2, start:end], x[i3, start:end]
    b0, b1, b2, b3 = x[j, start:end], x[j1, start:end], x[j2, start:end], x[j3, start:end]
    zero = x.dtype.type(0)
    s00 = s01 = s02 = s03 = s10 = s11 = s12 = s13 = zero
    s20 = s21 = s22 = s23 = s30 = s31 = s32 = s33 = zero
    for k in range(end - start):
        x0, x1, x2, x3 = a0[k], a1[k], a2[k], a3[k]
        y0, y1, y2, y3 = b0[k], b1[k], b2[k], b3[k]
        s00 += abs(x0 - y0)
        s01 += abs(x0 - y1)
        s02 += abs(x0 - y2)
        s03 += abs(x0 - y3)
        s10 += abs(x1 - y0)
        s11 += abs(x1 - y1)
        s12 += abs(x1 - y2)
        s13 += abs(x1 - y3)
        s20 += abs(x2 - y0)
        s21 += abs(x2 - y1)
        s22 += abs(x2 - y2)
        s23 += abs(x2 - y3)
        s30 += abs(x3 - y0)
        s31 += abs(x3 - y1)
        s32 += abs(x3 - y2)
        s33 += abs(x3 - y3)
    return ((s00, s01, s02, s03), (s10, s11, s12, s13), (s20, s21, s22, s23), (s30, s31, s32, s33))


def folder_sums(
    array: Float[np.ndarray, " entry"],
    strides: tuple[int, int],
    leaf_offsets: UInt[np.ndarray, " inner_leaf"],
    steps: tuple[Int[np.ndarray, " step"], Int[np.ndarray, " step"], Int[np.ndarray, " step"]],
    edges: tuple[UInt[np.ndarray, " inner_leaf"], UInt[np.ndarray, " edge"], UInt[np.ndarray, " edge"]],
    scales: tuple[Float[np.ndarray, " step"], Float[np.ndarray, " inner"]],
    stack: Float[np.ndarray, "padded_row depth inner"],
    out: Float[np.ndarray, "row step inner"],
) -> None:
    """Scaled sums of every row over products of outer and inner folders, for a run of outer folders.

    Entry (row, outer leaf, inner leaf) stands at ``row * strides[0] + outer leaf * strides[1] +
    leaf_offsets[inner leaf]`` of `array`. `steps` are outer folders in post-order: the leaf if the folder is one
    (else -1), the depth on the path from the root, and whether it is the first of its siblings. `stack`, with a
    multiple of four rows, carries the unfinished sums on that path from one run to the next. `edges` are the folder
    of each inner leaf, and all (child, parent) pairs of inner folders, every folder as parent before as child.
    Offsets and edges are unsigned: a compiled loop need not ask whether an index counts from the end.
    """
    with one_at_a_time:
        _folder_sums(array, strides, leaf_offsets, steps, edges, scales, stack, out)


@numba.njit(parallel=True, cache=True, nogil=True)
def _folder_sums(array, strides, leaf_offsets, steps, edges, scales, stack, out):  # type: ignore[no-untyped-def]
    for band in numba.prange((out.shape[0] + ROWS - 1) // ROWS):
        _sum_band(np.int64(band) * ROWS, array, strides, leaf_offsets, steps, edges, scales, stack, out)


@numba.njit(cache=True, fastmath=True, error_model="numpy", nogil=True)
def _sum_band(first, array, strides, leaf_offsets, steps, edges, scales, stack, out):  # type: ignore[no-untyped-def]
    leaf, depth, is_first = steps
    leaf_folder, child, parent = edges
    scale, inner_scale = scales
    n_inner = len(inner_scale)
    n_band = min(ROWS, out.shape[0] - first)
    block = np.zeros((ROWS, len(leaf_offsets)), array.dtype)
    for step in range(len(leaf)):
        starts_sum, factor = is_first[step], scale[step]
        if leaf[step] >= 0:
            # rows may be neighbours in memory: fetch a band of them at once
            start = first * strides[0] + leaf[step] * strides[1]
            for k in range(len(leaf_offsets)):
                entry = np.uint64(start) + leaf_offsets[k]
                for i in range(n_band):
                    block[i, k] = array[entry]
                    entry += np.uint64(strides[0])
            for i in range(0, n_band, 4):
                _sum_up_4(
                    block[i : i + 4], stack[first + i : first + i + 4, depth[step]], leaf_folder, child, parent
                )
        for i in range(n_band):
            sums = stack[first + i, depth[step]]
            if depth[step] > 0:
                above = stack[first + i, depth[step] - 1]
                if starts_sum:
                    for folder in range(n_inner):
                        above[folder] = sums[folder]
                else:
                    for folder in range(n_inner):
                        above[folder] += sums[folder]
            row = out[first + i, step]
            for folder in range(n_inner):
                row[folder] = sums[folder] * (factor * inner_scale[folder])


@numba.njit(cache=True, fastmath=True, error_model="numpy", nogil=True)
def _sum_up_4(leaves, sums, leaf_folder, child, parent):  # type: ignore[no-untyped-def]
    """Sums over inner folders of four rows at once: four chains of additions that do not wait for each other."""
    l0, l1, l2, l3 = leaves[0], leaves[1], leaves[2], leaves[3]
    s0, s1, s2, s3 = sums[0], sums[1], sums[2], sums[3]
    for folder in range(len(s0)):
        s0[folder] = s1[folder] = s2[folder] = s3[folder] = 0
    for k in range(len(leaf_folder)):
        folder = leaf_folder[k]
        s0[folder], s1[folder], s2[folder], s3[folder] = l0[k], l1[k], l2[k], l3[k]
    for edge in range(len(child)):
        c, p = child[edge], parent[edge]
        s0[p] += s0[c]
        s1[p] += s1[c]
        s2[p] += s2[c]
        s3[p] += s3[c]


@numba.njit(cache=True)
def join_in_order(n, rows, columns, distances, limit):  # type: ignore[no-untyped-def]
    """Join clusters pair by pair on one level of the flexible tree; a group is named by its smallest cluster."""
    group = np.arange(n)
    size = np.ones(n, np.int64)  # of the group with this name
    may_start = np.ones(n, np.bool_)
    trials = np.empty((len(rows), 4), np.int64)
    n_trials = 0
    for k in range(len(rows)):
        row, column = rows[k], columns[k]
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
    return group, trials[:n_trials]
