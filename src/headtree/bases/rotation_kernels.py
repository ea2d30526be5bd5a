"""Compiled loops: chains of plane rotations along one axis of an array, and sums over all scales of a matrix.

All functions take checked numpy arrays in native byte order. Work is divided between threads by fibres or by
matrices, never within one, so results do not depend on the number of threads.
"""

from __future__ import annotations

import numba
import numpy as np
from jaxtyping import Float, Int

from headtree._threads import for_each_task

#: Bytes of the block of fibres that a thread transforms at a time: it fits in a core's second-level cache.
_BLOCK_BYTES = 1 << 18
#: Number of tasks into which the blocks are divided: enough to keep all threads busy to the end.
_TASKS = 32


def rotate(
    values: Float[np.ndarray, "outer input inner"],
    pairs: tuple[Int[np.ndarray, " step"], Int[np.ndarray, " step"]],
    angles: tuple[Float[np.ndarray, " step"], Float[np.ndarray, " step"]],
    row_in: Int[np.ndarray, " input"],
    row_out: Int[np.ndarray, " output"],
    out: Float[np.ndarray, "outer output inner"],
) -> None:
    """Apply the rotations to every fibre along the middle axis: see `Rotations`."""
    n_outer, _, n_inner = values.shape
    width = max(8, _BLOCK_BYTES // (values.itemsize * values.shape[1]) // 8 * 8)
    steps = (*pairs, *angles, row_in, row_out)
    if n_inner == 1:
        n_tasks = min(_TASKS, (n_outer + width - 1) // width)
        for_each_task(_rotate_rows, n_tasks, n_tasks, values[:, :, 0], *steps, width, out[:, :, 0])
    else:
        width = min(width, n_inner)
        n_tasks = min(_TASKS, n_outer * ((n_inner + width - 1) // width))
        for_each_task(_rotate_columns, n_tasks, n_tasks, values, *steps, width, out)


@numba.njit(cache=True, error_model="numpy", nogil=True)
def _rotate_columns(  # type: ignore[no-untyped-def]
    task, n_tasks, values, first, second, cos, sin, row_in, row_out, width, out
):
    """Fibres along the middle axis; adjacent fibres are adjacent in memory."""
    n_outer, n, n_inner = values.shape
    n_blocks = (n_inner + width - 1) // width
    block = np.empty((n, width), values.dtype)
    for item in range(task * n_outer * n_blocks // n_tasks, (task + 1) * n_outer * n_blocks // n_tasks):
        outer, start = item // n_blocks, item % n_blocks * width
        end = min(start + width, n_inner)
        for i in range(n):
            block[row_in[i], : end - start] = values[outer, i, start:end]
        _rotate_block(block, end - start, first, second, cos, sin)
        for i in range(len(row_out)):
            out[outer, i, start:end] = block[row_out[i], : end - start]


@numba.njit(cache=True, error_model="numpy", nogil=True)
def _rotate_rows(  # type: ignore[no-untyped-def]
    task, n_tasks, values, first, second, cos, sin, row_in, row_out, width, out
):
    """Fibres along the last axis, transposed in blocks so that each step still runs over contiguous memory."""
    n_fibres, n = values.shape
    n_blocks = (n_fibres + width - 1) // width
    block = np.empty((n, width), values.dtype)
    for item in range(task * n_blocks // n_tasks, (task + 1) * n_blocks // n_tasks):
        start = item * width
        count = min(width, n_fibres - start)
        for fibre in range(count):
            for i in range(n):
                block[row_in[i], fibre] = values[start + fibre, i]
        _rotate_block(block, count, first, second, cos, sin)
        for fibre in range(count):
            for i in range(len(row_out)):
                out[start + fibre, i] = block[row_out[i], fibre]


@numba.njit(cache=True, error_model="numpy", nogil=True)
def _rotate_block(block, width, first, second, cos, sin):  # type: ignore[no-untyped-def]
    for step in range(len(first)):
        p, q, c, s = block[first[step]], block[second[step]], cos[step], sin[step]
        for i in range(width):
            at_p, at_q = p[i], q[i]
            p[i] = s * at_p + c * at_q
            q[i] = s * at_q - c * at_p


def sum_scales(
    f: Float[np.ndarray, "batch row column"],
    rows: tuple[np.ndarray, ...],
    columns: tuple[np.ndarray, ...],
    is_exp: bool,
    first: Float[np.ndarray, "batch row column"],
    second: Float[np.ndarray, "batch row column"],
) -> None:
    """First and second terms of eq. (12) of [OA] for A' = A'' = exp, or 1; see `folder_arrays` for the trees.

    `first` and `second` must be filled with zeros.
    """
    for_each_task(_sum_scales, len(f), f, *rows, *columns[:4], is_exp, first, second)


@numba.njit(cache=True, error_model="numpy", nogil=True)
def _sum_scales(  # type: ignore[no-untyped-def]
    b, f, r_parent, r_share, r_leaf, r_kept, order, depths, c_parent, c_share, c_leaf, c_kept, is_exp, first, second
):
    """One matrix. Row folders are visited depth first, with the sums along the path from the root in `above`."""
    u = np.zeros((len(r_parent), len(c_parent)), f.dtype)
    _average(f[b], r_parent, r_share, r_leaf, c_parent, c_share, c_leaf, u)
    # for the folder at each depth: both sums, and the three arrays that its children need (see _expand)
    above = np.zeros((5, depths.max() + 1, len(c_parent)), f.dtype)
    for v in order:
        depth = depths[v]
        if depth > 0:
            _add_scale(u[v], above, depth, c_parent, r_kept[v])
        if r_leaf[v] < 0:
            _expand(u[v], above[2:, depth], c_parent, c_leaf, c_kept, is_exp)
        else:
            _descend(above[0, depth], c_parent, c_leaf, first[b, r_leaf[v]])
            _descend(above[1, depth], c_parent, c_leaf, second[b, r_leaf[v]])


@numba.njit(cache=True, error_model="numpy")
def _average(f, r_parent, r_share, r_leaf, c_parent, c_share, c_leaf, u):  # type: ignore[no-untyped-def]
    """Means over all products of folders, starting from the entries; children come after their parents."""
    for v in range(len(r_parent) - 1, -1, -1):
        if r_leaf[v] >= 0:
            for c in range(len(c_parent) - 1, -1, -1):
                if c_leaf[c] >= 0:
                    u[v, c] = f[r_leaf[v], c_leaf[c]]
                if c > 0:
                    u[v, c_parent[c]] += c_share[c] * u[v, c]
        if v > 0:
            upper, own, share = u[r_parent[v]], u[v], r_share[v]
            for c in range(len(c_parent)):
                upper[c] += share * own[c]


@numba.njit(cache=True, error_model="numpy")
def _expand(own, above, c_parent, c_leaf, c_kept, is_exp):  # type: ignore[no-untyped-def]
    """What the children of a row folder need from it, per column folder: A' and u at its parent, and d'."""
    derivative, average, difference = above[0], above[1], above[2]
    for c in range(len(c_parent)):  # A' at inner folders, passed on to their children
        if c_leaf[c] < 0:
            average[c] = np.exp(own[c]) if is_exp else own.dtype.type(1)
    for c in range(1, len(c_parent)):
        derivative[c] = average[c_parent[c]] if c_kept[c] else own.dtype.type(0)
    for c in range(1, len(c_parent)):
        average[c] = own[c_parent[c]]
        difference[c] = own[c] - average[c]


@numba.njit(cache=True, error_model="numpy")
def _add_scale(own, above, depth, c_parent, is_kept):  # type: ignore[no-untyped-def]
    """Sums at a row folder: those at its parent, plus the scale between the two."""
    first, second = above[0, depth], above[1, depth]
    first_above, second_above = above[0, depth - 1], above[1, depth - 1]
    if not is_kept:
        first[:] = first_above
        second[:] = second_above
        return
    derivative, average, difference = above[2, depth - 1], above[3, depth - 1], above[4, depth - 1]
    for c in range(1, len(c_parent)):
        at_parent = own[c_parent[c]]
        first[c] = first_above[c] + derivative[c] * (own[c] - at_parent - difference[c])
        second[c] = second_above[c] + derivative[c] * (at_parent - average[c]) * difference[c]


@numba.njit(cache=True, error_model="numpy")
def _descend(sums, c_parent, c_leaf, out):  # type: ignore[no-untyped-def]
    """Sum over the column folders that contain each leaf, in place; parents come first."""
    for c in range(1, len(c_parent)):
        if c_parent[c] > 0:
            sums[c] += sums[c_parent[c]]
        if c_leaf[c] >= 0:
            out[c_leaf[c]] = sums[c]
