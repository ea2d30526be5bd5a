"""Pairwise L1 distances and prefix sums on a GPU, in Triton.

A difference costs two instructions, a subtraction and the addition of an absolute value: an H200 cannot exceed 16.7
T differences per second. What limits the rate is how fast operands reach the registers. Each thread therefore keeps
8 × 8 sums in its own registers, and reads the same feature of 8 rows and of 8 columns for 64 differences, from
memory in which the rows of a feature are side by side.

Prefix sums read an entry and its mask once and write their sum once; nothing else is written on the way.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from jaxtyping import Bool, Float
from torch import Tensor

from headtree.geometry.first_rows import mirrored_upper

#: Rows and columns whose differences a thread sums; threads of a warp below and beside each other; warps likewise.
_OWN, _LANES_DOWN, _LANES_ACROSS, _WARPS = 8, 4, 8, 2
#: Rows and columns of a tile.
_TILE_ROWS, _TILE_COLUMNS = _WARPS * _LANES_DOWN * _OWN, _WARPS * _LANES_ACROSS * _OWN
#: The rows of a feature begin at a multiple of so many entries.
_ALIGNED = 16
#: Features that are read together, and how many features ahead memory is moved near to where it will be read.
_STEPS, _AHEAD = 8, 16

#: Features whose differences are summed in their own dtype before the sums are added in float64.
_FEATURES_AT_A_TIME = 1024
#: Tiles that a multiprocessor works on at a time, and registers that leave room for the threads of all of them.
_TILES_AT_A_TIME, _REGISTERS = 3, 168
#: Differences that take as long as moving a byte to or from memory, and bytes that sums of programs may take.
_DIFFERENCES_PER_BYTE, _BYTES_OF_SUMS = 3, 1 << 30


def features_side_by_side(
    n_rows: int, n_features: int, dtype: torch.dtype, device: torch.device
) -> Float[Tensor, "row feature"]:
    """Room for features in the order in which `pairwise_l1` reads them without a copy."""
    apart = -(-n_rows // _ALIGNED) * _ALIGNED
    room = torch.zeros(n_features * apart + _TILE_COLUMNS, dtype=dtype, device=device)
    return room[: n_features * apart].view(n_features, apart).T[:n_rows]


def _can_be_read(features: Float[Tensor, "row feature"], n_padded: int) -> bool:
    """Whether rows are side by side, and whole tiles of them in memory: what is beyond the last row is not used."""
    (beside, apart), n_features = features.stride(), features.shape[1]
    n_entries = features.untyped_storage().nbytes() // features.itemsize - features.storage_offset()
    is_aligned = beside == 1 and apart % _ALIGNED == 0 and features.storage_offset() % _ALIGNED == 0
    return is_aligned and (n_features - 1) * apart + n_padded <= n_entries


def pairwise_l1(
    features: Float[Tensor, "row feature"], *, n_first: int | None = None, has_gaps: bool = False
) -> Float[Tensor, "first row"]:
    """L1 distance between every two rows, or the first few and all, in float64; symmetric with a zero diagonal.

    With gaps, a feature that is NaN in either row adds nothing.

    Sums over some features are in the dtype of `features`, float32 or float64.
    """
    n, n_features = features.shape
    n_rows = n if n_first is None else n_first
    if n_features == 0:
        return torch.zeros(n_rows, n, dtype=torch.float64, device=features.device)
    n_bands, n_padded = -(-n_rows // _TILE_ROWS), -(-n // _TILE_COLUMNS) * _TILE_COLUMNS
    if not _can_be_read(features, n_padded):
        features = features_side_by_side(n, n_features, features.dtype, features.device).copy_(features)
    n_tiles = sum(n_padded // _TILE_COLUMNS - (band * _TILE_ROWS + 1) // _TILE_COLUMNS for band in range(n_bands))
    at_a_time = _features_of_a_program(n_features, n_tiles, n_bands * _TILE_ROWS * n_padded, features.device)
    n_chunks = -(-n_features // at_a_time)
    sums = torch.empty(n_chunks, n_bands * _TILE_ROWS, n_padded, dtype=torch.float64, device=features.device)
    _add_tile[(n_bands, n_padded // _TILE_COLUMNS, n_chunks)](
        features,
        sums,
        features.stride(1),
        n_bands * _TILE_ROWS,
        n_padded,
        n_features,
        at_a_time,
        _FEATURES_AT_A_TIME,
        ROWS=_TILE_ROWS,
        COLUMNS=_TILE_COLUMNS,
        OWN=_OWN,
        DOWN=_LANES_DOWN,
        ACROSS=_LANES_ACROSS,
        WARPS=_WARPS,
        STEPS=_STEPS,
        AHEAD=_AHEAD if features.is_cuda else 0,
        GAPS=has_gaps,
        num_warps=_WARPS**2,
        maxnreg=_REGISTERS if features.dtype == torch.float32 else None,
    )
    total = sums[0] if n_chunks == 1 else sums.sum(dim=0)
    return mirrored_upper(total[:n_rows, :n].triu_(1))


def _features_of_a_program(n_features: int, n_tiles: int, n_sums: int, device: torch.device) -> int:
    """How many features of a tile one program adds up, a multiple of those whose sums are made together.

    Programs run in waves, and the last wave should be full; but each of them writes its own sums.
    """
    n_blocks = -(-n_features // _FEATURES_AT_A_TIME)
    n_processors = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
    at_a_time = n_processors * _TILES_AT_A_TIME
    most = min(max(16, 4 * at_a_time // n_tiles), max(1, _BYTES_OF_SUMS // (8 * n_sums)), n_blocks)

    def cost(n_chunks: int) -> float:
        waves = -(-n_tiles * n_chunks // at_a_time)
        n_differences = _TILE_ROWS * _TILE_COLUMNS * -(-n_blocks // n_chunks) * _FEATURES_AT_A_TIME
        return waves * at_a_time * n_differences + 12 * n_chunks * n_sums * _DIFFERENCES_PER_BYTE

    return -(-n_blocks // min(range(1, most + 1), key=cost)) * _FEATURES_AT_A_TIME


@triton.jit  # type: ignore[untyped-decorator]
def _add_tile(  # type: ignore[no-untyped-def]
    features, sums, apart, n_above, n, n_features, at_a_time, block_size,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    OWN: tl.constexpr, DOWN: tl.constexpr, ACROSS: tl.constexpr, WARPS: tl.constexpr,
    STEPS: tl.constexpr, AHEAD: tl.constexpr, GAPS: tl.constexpr,
):  # fmt: skip
    band, column, chunk = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    if (column + 1) * COLUMNS <= band * ROWS + 1:  # all of the tile is below the diagonal
        return
    thread = tl.arange(0, WARPS * WARPS * DOWN * ACROSS)
    warp, lane = thread // (DOWN * ACROSS), thread % (DOWN * ACROSS)
    # a thread has groups of four rows, and of four columns; those of its warp are side by side
    first = band * ROWS + warp // WARPS * (DOWN * OWN) + lane // ACROSS * 4
    second = column * COLUMNS + warp % WARPS * (ACROSS * OWN) + lane % ACROSS * 4
    left, right = features + tl.multiple_of(first, 4), features + tl.multiple_of(second, 4)
    piece = thread % ((ROWS + COLUMNS) // 32) * 32
    soon = features + tl.where(piece < ROWS, band * ROWS + piece, column * COLUMNS + piece - ROWS)
    apart = apart.to(tl.int64)
    start = chunk * at_a_time
    stop = tl.minimum(start + at_a_time, n_features)
    last = n_features - 1
    for block in range(start, stop, block_size):
        end = tl.minimum(block + block_size, stop)
        end_of_steps = block + (end - block) // STEPS * STEPS
        total = ()
        for _ in tl.static_range(OWN * OWN):
            # (Triton does not unpack tuples)
            total = total + (tl.zeros(thread.shape, features.dtype.element_ty),)  # type: ignore[assignment]  # noqa: RUF005
        # operands are read two features before their differences are added up
        now = _operands(left, right, block * apart, DOWN, ACROSS)
        then = _operands(left, right, tl.minimum(block + 1, last) * apart, DOWN, ACROSS)
        for feature in range(block, end_of_steps, STEPS):
            if AHEAD:  # each thread moves 32 entries of one of the next features
                later = feature + AHEAD + thread // ((ROWS + COLUMNS) // 32) % STEPS
                _fetch(soon + tl.minimum(later, last) * apart)
            at = feature * apart
            for step in tl.static_range(STEPS):
                following = at + (step + 2) * apart
                if step + 2 >= STEPS:
                    following = tl.minimum(feature + (step + 2), last) * apart
                total = _with_feature(total, now, OWN, GAPS)
                now, then = then, _operands(left, right, following, DOWN, ACROSS)
        for feature in range(end_of_steps, end):
            total = _with_feature(total, now, OWN, GAPS)
            now, then = then, _operands(left, right, tl.minimum(feature + 2, last) * apart, DOWN, ACROSS)
        is_later = first >= tl.where(block > start, 0, n)
        for i in tl.static_range(OWN):
            row = first + (i // 4 * 4 * DOWN + i % 4)
            place = sums + (chunk.to(tl.int64) * n_above + row) * n + second
            for j in tl.static_range(OWN):
                here = place + (j // 4 * 4 * ACROSS + j % 4)
                before = tl.load(here, mask=is_later, other=0.0)
                tl.store(here, before + total[i * OWN + j])


@triton.jit  # type: ignore[untyped-decorator]
def _operands(left, right, at, DOWN: tl.constexpr, ACROSS: tl.constexpr):  # type: ignore[no-untyped-def]
    """A feature of the rows and of the columns of each thread."""
    a = _four(left + at) + _four(left + at + 4 * DOWN)
    b = _four(right + at) + _four(right + at + 4 * ACROSS)
    return a, b


@triton.jit  # type: ignore[untyped-decorator]
def _with_feature(total, operands, OWN: tl.constexpr, GAPS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Sums of a thread with the differences of one more feature."""
    a, b = operands
    new = ()
    for i in tl.static_range(OWN * OWN):
        size = tl.abs(a[i // OWN] - b[i % OWN])
        size = tl.where(size > 0, size, 0.0) if GAPS else size
        new = new + (total[i] + size,)  # type: ignore[assignment]  # noqa: RUF005
    return new


@triton.jit
def _four(pointers):  # type: ignore[no-untyped-def]
    """Four entries side by side, for each thread."""
    if pointers.dtype.element_ty == tl.float64:  # a load has 16 bytes
        return _two(pointers) + _two(pointers + 2)
    several = tl.load(pointers[:, None] + tl.arange(0, 4)[None, :])
    even, odd = tl.split(tl.reshape(several, (pointers.shape[0], 2, 2)))
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    return first, second, third, fourth


@triton.jit
def _two(pointers):  # type: ignore[no-untyped-def]
    return tl.split(tl.load(pointers[:, None] + tl.arange(0, 2)[None, :]))


@triton.jit
def _fetch(pointers):  # type: ignore[no-untyped-def]
    """Begin to move memory into the cache of this multiprocessor."""
    tl.inline_asm_elementwise(
        "prefetch.global.L1 [$1]; mov.u32 $0, 0;", "=r,l", [pointers], dtype=tl.int32, is_pure=False, pack=1
    )


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
