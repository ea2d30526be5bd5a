"""Compiled loops: pairwise L1 distances, and folder sums along trees.

Everything here takes checked, native numpy arrays. Work is shared between threads by output rows or tiles,
never by terms of one sum, so that results do not depend on the number of threads.
"""

from __future__ import annotations

import threading

import numba
import numpy as np
from jaxtyping import Float, Int

#: Rows of a tile of the distance matrix that one thread finishes, and features it reads at a time. Two
#: blocks of TILE × BLOCK float32 values (256 KiB) stay in a core's second-level cache.
TILE, BLOCK = 32, 1024

# numba's fallback threading layer must not be entered from two threads at once; with any layer the
# kernels use all cores already, so that waiting costs nothing.
_one_at_a_time = threading.Lock()


def add_pairwise_l1(features: Float[np.ndarray, "row feature"], total: Float[np.ndarray, "row row"]) -> None:
    """Add ``sum(|features[i] - features[j]|)`` to ``total[i, j]`` for i < j.

    Differences and sums of `BLOCK` features are in the dtype of `features`, their total in float64.
    """
    with _one_at_a_time:
        _add_pairwise_l1(features, total)


@numba.njit(parallel=True, cache=True, fastmath=True, error_model="numpy", nogil=True)
def _add_pairwise_l1(features, total):  # type: ignore[no-untyped-def]
    n, n_features = features.shape
    n_bands = (n + TILE - 1) // TILE
    n_tiles = n_bands * (n_bands + 1) // 2
    for tile in numba.prange(n_tiles):
        # tiles are numbered (0,0) (0,1) (1,1) (0,2) …; the root of the triangular number gives the column
        right = int((np.sqrt(8.0 * tile + 1.0) - 1.0) / 2.0)
        if right * (right + 1) // 2 > tile:
            right -= 1
        if (right + 1) * (right + 2) // 2 <= tile:
            right += 1
        left = tile - right * (right + 1) // 2
        a = np.zeros((TILE, BLOCK), features.dtype)
        b = np.zeros((TILE, BLOCK), features.dtype)
        for start in range(0, n_features, BLOCK):
            width = min(BLOCK, n_features - start)
            n_a = _copy_block(features, left * TILE, start, width, a)
            n_b = _copy_block(features, right * TILE, start, width, b)
            for i in range(0, n_a, 4):
                for j in range(0 if left < right else i, n_b, 4):
                    _add_4x4(a, b, i, j, width, left * TILE, right * TILE, n, total)


@numba.njit(cache=True, fastmath=True, error_model="numpy", inline="always")
def _copy_block(features, row, start, width, block):  # type: ignore[no-untyped-def]
    """Copy up to TILE rows of one feature block next to each other; return how many there were."""
    n_rows = min(TILE, features.shape[0] - row)
    for i in range(n_rows):
        block[i, :width] = features[row + i, start : start + width]
    return n_rows


@numba.njit(cache=True, fastmath=True, error_model="numpy")
def _add_4x4(a, b, i, j, width, row, column, n, total):  # type: ignore[no-untyped-def]
    """Sixteen distances at once: eight loads serve sixteen differences. Rows past the end are not stored."""
    a0, a1, a2, a3 = a[i, :width], a[i + 1, :width], a[i + 2, :width], a[i + 3, :width]
    b0, b1, b2, b3 = b[j, :width], b[j + 1, :width], b[j + 2, :width], b[j + 3, :width]
    zero = a.dtype.type(0)
    s00 = s01 = s02 = s03 = s10 = s11 = s12 = s13 = zero
    s20 = s21 = s22 = s23 = s30 = s31 = s32 = s33 = zero
    for k in range(width):
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
    sums = ((s00, s01, s02, s03), (s10, s11, s12, s13), (s20, s21, s22, s23), (s30, s31, s32, s33))
    for di in range(4):
        for dj in range(4):
            p, q = row + i + di, column + j + dj
            if p < q and q < n:
                total[p, q] += sums[di][dj]


def folder_sums(
    values: Float[np.ndarray, "row leaf inner_leaf"],
    program: tuple[Int[np.ndarray, " step"], Int[np.ndarray, " step"], Int[np.ndarray, " step"]],
    inner: tuple[Int[np.ndarray, " inner"], Int[np.ndarray, " edge"], Int[np.ndarray, " inner_plus_1"]],
    scale: Float[np.ndarray, " step"],
    inner_scale: Float[np.ndarray, " inner"],
    stack: Float[np.ndarray, "row depth inner"],
    out: Float[np.ndarray, "row step inner"],
) -> None:
    """Scaled sums over the products of outer and inner folders, for a run of outer folders in post-order.

    `program` has one step per outer folder: its column of `values` if it is a leaf (else -1), its depth on the
    path from the root, and whether it is the first of its siblings. `inner` has, for every inner folder, its
    leaf (else -1), and the children of the others with pointers; children come after their parents. `stack`
    carries the unfinished sums on the path from one run to the next.
    """
    with _one_at_a_time:
        _folder_sums(values, *program, *inner, scale, inner_scale, stack, out)


@numba.njit(parallel=True, cache=True, fastmath=True, error_model="numpy", nogil=True)
def _folder_sums(  # type: ignore[no-untyped-def]
    values, column, depth, is_first, inner_leaf, edges, pointers, scale, inner_scale, stack, out
):
    n_inner = len(inner_leaf)
    for row in numba.prange(values.shape[0]):
        for step in range(len(column)):
            sums = stack[row, depth[step]]
            if column[step] >= 0:
                leaves = values[row, column[step]]
                for folder in range(n_inner - 1, -1, -1):
                    if inner_leaf[folder] >= 0:
                        sums[folder] = leaves[inner_leaf[folder]]
                    else:
                        total = values.dtype.type(0)
                        for edge in range(pointers[folder], pointers[folder + 1]):
                            total += sums[edges[edge]]
                        sums[folder] = total
            if depth[step] > 0:
                above = stack[row, depth[step] - 1]
                if is_first[step]:
                    for folder in range(n_inner):
                        above[folder] = sums[folder]
                else:
                    for folder in range(n_inner):
                        above[folder] += sums[folder]
            for folder in range(n_inner):
                out[row, step, folder] = sums[folder] * (scale[step] * inner_scale[folder])
