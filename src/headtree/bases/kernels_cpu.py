"""Compiled loops: chains of plane rotations along one axis of an array.

Everything here takes checked, native numpy arrays. Work is shared between threads by fibres, never within one, so
that results do not depend on the number of threads.
"""

from __future__ import annotations

import numba
import numpy as np
from jaxtyping import Float, Int

from headtree.geometry.threads import for_each_task

#: Bytes of the block of fibres that a thread transforms at a time: it stays in a core's second-level cache.
_BLOCK_BYTES = 1 << 18
#: Tasks that the blocks are dealt into: enough for all threads to end together.
_TASKS = 32


def rotate(
    values: Float[np.ndarray, "outer input inner"],
    pairs: tuple[Int[np.ndarray, " step"], Int[np.ndarray, " step"]],
    angles: tuple[Float[np.ndarray, " step"], Float[np.ndarray, " step"]],
    row_in: Int[np.ndarray, " input"],
    row_out: Int[np.ndarray, " output"],
    out: Float[np.ndarray, "outer output inner"],
) -> None:
    """Take every fibre along the middle axis through the steps: see `Rotations`."""
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
    """Fibres along the middle axis; neighbouring fibres are next to each other in memory."""
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
    """Fibres along the last axis: transposed in blocks, so that each step still runs over neighbours."""
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
