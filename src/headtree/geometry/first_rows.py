"""The first rows of a symmetric matrix: all of it, or those of a few slices against all."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from headtree._threads import for_each_task, sleeping_threads

#: Rows that a thread multiplies at a time.
_ROWS_AT_A_TIME = 128


def add_products(
    total: Float[Tensor, "row column"], left: Float[Tensor, "row entry"], right: Float[Tensor, "column entry"]
) -> None:
    """Add ``left @ right.T``; of two slices that are both in the rows, on the CPU below the diagonal only."""
    if total.is_cuda:
        total.addmm_(left, right.T)
        return
    n = len(total)
    n_bands = -(-n // _ROWS_AT_A_TIME)

    def add_band(task: int) -> None:
        band = n_bands - 1 - task  # the longest first
        rows = slice(band * _ROWS_AT_A_TIME, min((band + 1) * _ROWS_AT_A_TIME, n))
        total[rows, : rows.stop].addmm_(left[rows], right[: rows.stop].T)
        if total.shape[1] > n:
            total[rows, n:].addmm_(left[rows], right[n:].T)

    with sleeping_threads():  # the order of a sum must not depend on how many threads torch would divide it between
        for_each_task(add_band, n_bands)


def mirrored_upper(upper: Float[Tensor, "row column"]) -> Float[Tensor, "row column"]:
    """Fill in, in place, what is below the diagonal from above it."""
    square = upper[:, : len(upper)]
    square += square.T.clone()
    return upper


def mirrored_lower(lower: Float[Tensor, "row column"]) -> Float[Tensor, "row column"]:
    """Replace what is above the diagonal, in the columns of the same slices, by what is below it."""
    n = len(lower)
    square = lower[:, :n].tril() + lower[:, :n].tril(-1).T
    return square if lower.shape[1] == n else torch.cat([square, lower[:, n:]], dim=1)
