"""Pairwise L1 distances and prefix sums on a GPU, in Triton.

A difference costs two instructions, a subtraction and the addition of an absolute value: an H200 cannot exceed 16.7
T differences per second. The kernel keeps its sums in registers and reaches about 10 T.

Prefix sums read an entry and its mask once and write their sum once; nothing else is written on the way.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from jaxtyping import Bool, Float
from torch import Tensor

from headtree.geometry.first_rows import mirrored_upper

#: Rows and columns of a tile of distances, threads that share it (32 each), and features read in one step.
_TILE, _WARPS, _UNROLLED = 64, 2, 8

#: Features whose differences are summed before the sums are added in float64.
_FEATURES_AT_A_TIME = 1024

#: Bytes of such sums that are kept at a time, and features of all rows together that 32-bit numbers can address.
_BYTES_AT_A_TIME = 1 << 30
_ENTRIES_AT_A_TIME = 1 << 30


def pairwise_l1(
    features: Float[Tensor, "row feature"], *, n_first: int | None = None, has_gaps: bool = False
) -> Float[Tensor, "first row"]:
    """L1 distance between every two rows, or the first few and all, in float64; symmetric with a zero diagonal.

    With gaps, a feature that is NaN in either row adds nothing.

    Sums over some features are in the dtype of `features`, float32 or float64.
    """
    n, n_features = features.shape
    n_padded = -(-n // _TILE) * _TILE
    columns = features.new_zeros(-(-n_features // _UNROLLED) * _UNROLLED, n_padded)
    columns[:n_features, :n] = features.T
    n_rows = n if n_first is None else n_first
    n_bands, n_tiles = -(-n_rows // _TILE), n_padded // _TILE
    n_tiles = n_bands * (n_bands + 1) // 2 + n_bands * (n_tiles - n_bands)
    n_above = n_bands * _TILE
    n_chunks = _BYTES_AT_A_TIME // (features.itemsize * n_padded) // n_above
    n_chunks = min(n_chunks, _ENTRIES_AT_A_TIME // (_FEATURES_AT_A_TIME * n_padded))
    at_a_time = max(1, n_chunks) * _FEATURES_AT_A_TIME
    total = torch.zeros(n_above, n_padded, dtype=torch.float64, device=features.device)
    for start in range(0, len(columns), at_a_time):
        part = columns[start : start + at_a_time]
        n_chunks = -(-len(part) // _FEATURES_AT_A_TIME)
        sums = features.new_zeros(n_chunks, n_above, n_padded)
        _add_tile[(n_tiles, n_chunks)](
            part,
            sums,
            n_bands,
            n_padded,
            len(part),
            _FEATURES_AT_A_TIME,
            TILE=_TILE,
            UNROLLED=_UNROLLED,
            GAPS=has_gaps,
            num_warps=_WARPS,
        )
        total += sums.sum(dim=0, dtype=torch.float64)
    return mirrored_upper(total[:n_rows, :n].triu(1))


@triton.jit  # type: ignore[untyped-decorator]
def _add_tile(  # type: ignore[no-untyped-def]
    columns, sums, n_bands, n, n_features, at_a_time,
    TILE: tl.constexpr, UNROLLED: tl.constexpr, GAPS: tl.constexpr,
):  # fmt: skip
    tile, chunk = tl.program_id(0), tl.program_id(1)
    right = ((tl.sqrt(8.0 * tile + 1) - 1) / 2).to(tl.int32)  # tiles are numbered (0,0) (0,1) (1,1) (0,2) …
    right = tl.where(right * (right + 1) // 2 > tile, right - 1, right)
    right = tl.where((right + 1) * (right + 2) // 2 <= tile, right + 1, right)
    left = tile - right * (right + 1) // 2
    beyond = tile - n_bands * (n_bands + 1) // 2  # of columns to the right of the square
    left = tl.where(beyond >= 0, beyond % n_bands, left)
    right = tl.where(beyond >= 0, n_bands + beyond // n_bands, right)
    first = left * TILE + tl.arange(0, TILE)
    second = right * TILE + tl.arange(0, TILE)
    total = tl.zeros((TILE, TILE), dtype=columns.dtype.element_ty)
    start = chunk * at_a_time
    for feature in range(start, tl.minimum(start + at_a_time, n_features), UNROLLED):
        for step in tl.static_range(UNROLLED):
            row = columns + (feature + step) * n
            size = tl.abs(tl.load(row + first)[:, None] - tl.load(row + second)[None, :])
            total += tl.where(size > 0, size, 0.0) if GAPS else size
    place = chunk.to(tl.int64) * n_bands * TILE * n + first.to(tl.int64)[:, None] * n + second[None, :]
    tl.store(sums + place, total)


#: Entries along the axis that is summed, and lines beside each other, that a program sums at a time: where lines
#: are contiguous in memory, and where they are not.
_ALONG, _ACROSS = (1024, 2), (64, 64)


def prefix_sums(
    x: Float[Tensor, "a b c"], axis: int, hidden: Bool[Tensor, "#a #b #c"] | None, factor: float
) -> Float[Tensor, "a b c"]:
    """``torch.cumsum(factor · x, axis)`` in float64, along axis 1 or 2, with 0 in place of hidden entries."""
    x = x.contiguous()
    out = torch.empty(x.shape, dtype=torch.float64, device=x.device)
    beside = 3 - axis
    along, n_lines = _ALONG if axis == 2 else _ACROSS
    seen = x if hidden is None else hidden.expand(x.shape)
    _add_up[(len(x), -(-x.shape[beside] // n_lines))](
        x, seen, out, factor, x.shape[beside], x.shape[axis], x.stride(0), x.stride(beside), x.stride(axis),
        seen.stride(0), seen.stride(beside), seen.stride(axis),
        HAS_HIDDEN=hidden is not None, LINES=n_lines, ALONG=along, num_warps=4,
    )  # fmt: skip
    return out


@triton.jit  # type: ignore[untyped-decorator]
def _add_up(  # type: ignore[no-untyped-def]
    x, hidden, out, factor, n_lines, n, x_first, x_line, x_along, h_first, h_line, h_along,
    HAS_HIDDEN: tl.constexpr, LINES: tl.constexpr, ALONG: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0).to(tl.int64)
    line = (tl.program_id(1) * LINES + tl.arange(0, LINES)).to(tl.int64)[:, None]
    before = tl.zeros((LINES, 1), dtype=tl.float64)
    for start in range(0, n, ALONG):
        at = start + tl.arange(0, ALONG)[None, :]
        inside = (line < n_lines) & (at < n)
        place = first * x_first + line * x_line + at.to(tl.int64) * x_along
        value = tl.load(x + place, mask=inside, other=0.0).to(tl.float64) * factor
        if HAS_HIDDEN:
            is_hidden = tl.load(hidden + first * h_first + line * h_line + at * h_along, mask=inside, other=0)
            value = tl.where(is_hidden != 0, 0.0, value)
        tl.store(out + place, tl.cumsum(value, axis=1) + before, mask=inside)
        before += tl.sum(value, axis=1, keep_dims=True)
