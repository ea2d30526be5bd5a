"""Vector instructions that numba cannot express, as functions to call in a kernel."""

from __future__ import annotations

from typing import Any

import numba
from llvmlite import ir
from numba.core import cgutils
from numba.extending import intrinsic

#: Values that a vector instruction handles at a time: one cache line, or one wide register, of float32.
LANES = 16
_LANE_NUMBERS = ir.VectorType(ir.IntType(32), LANES)
_LANE_0 = ir.Constant(ir.IntType(32), 0)


@intrinsic
def use_wide_vectors(typing_context):  # type: ignore[no-untyped-def]
    """Request vectors of 64 bytes in the calling function; LLVM prefers 32 bytes on many processors."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        # llvmlite's own `add` rejects attributes that have a value
        set.add(builder.function.attributes, '"prefer-vector-width"="512"')
        return context.get_dummy_value()

    return numba.types.none(), generate


@intrinsic
def plus(typing_context, total, x, one):  # type: ignore[no-untyped-def]
    """``total + x * one`` as one multiply-add.

    On processors with separate units for additions and multiply-adds, this leaves the adders free for other work:
    pairwise L1 distances ran a quarter faster on an AMD Zen 4. `one` must be an argument: the compiler would
    optimize away a constant.
    """

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        total_value, x_value, one_value = arguments
        kind = x_value.type
        multiply_add = builder.module.declare_intrinsic(
            "llvm.fmuladd", [kind], ir.FunctionType(kind, [kind, kind, kind])
        )
        return builder.call(multiply_add, [x_value, one_value, total_value], fastmath=("fast",))

    return total(total, x, one), generate


@intrinsic
def add_lanes(typing_context, values, target, source):  # type: ignore[no-untyped-def]
    """``values[target : target + LANES] += values[source : source + LANES]`` of a one-dimensional array."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        start = _Lanes(context, builder, signature.args[0], arguments[0])
        total = builder.fadd(start.load(arguments[1]), start.load(arguments[2]))
        start.store(total, arguments[1])
        return context.get_dummy_value()

    return numba.types.none(values, target, source), generate


@intrinsic
def copy_lanes(typing_context, source, start, target, target_start):  # type: ignore[no-untyped-def]
    """``target[target_start : target_start + LANES] = source[start : start + LANES]``, both one-dimensional."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        reader = _Lanes(context, builder, signature.args[0], arguments[0])
        writer = _Lanes(context, builder, signature.args[2], arguments[2])
        writer.store(reader.load(arguments[1]), arguments[3])
        return context.get_dummy_value()

    return numba.types.none(source, start, target, target_start), generate


@intrinsic
def add_to_previous_lanes(typing_context, sums, target, source, start):  # type: ignore[no-untyped-def]
    """``sums[target : target + LANES] = sums[target - LANES : target] + source[start : start + LANES]``.

    Both are one-dimensional; `sums` is float64.
    """

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        sums_lanes, source_lanes = (_Lanes(context, builder, signature.args[i], arguments[i]) for i in (0, 2))
        previous = builder.sub(arguments[1], ir.Constant(arguments[1].type, LANES))
        added = source_lanes.load(arguments[3])
        if signature.args[2].dtype == numba.float32:
            added = builder.fpext(added, sums_lanes.vector)
        sums_lanes.store(builder.fadd(sums_lanes.load(previous), added), arguments[1])
        return context.get_dummy_value()

    return numba.types.none(sums, target, source, start), generate


@intrinsic
def transpose_lanes(typing_context, source, start, stride, target, target_start, target_stride):  # type: ignore[no-untyped-def]
    """Copy a block of LANES × LANES values from one one-dimensional array to another, transposed.

    ``target[target_start + j * target_stride + i] = source[start + i * stride + j]``.
    """

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        reader = _Lanes(context, builder, signature.args[0], arguments[0])
        writer = _Lanes(context, builder, signature.args[3], arguments[3])
        _, first, step, _, to, to_step = arguments
        rows = [reader.load(_line(builder, first, step, i)) for i in range(LANES)]
        for j, row in enumerate(_transposed(builder, rows)):
            writer.store(row, _line(builder, to, to_step, j))
        return context.get_dummy_value()

    signature = numba.types.none(source, start, stride, target, target_start, target_stride)
    return signature, generate


@intrinsic
def transpose_and_scale_lanes(typing_context, source, start, target, place, factor, scale, scale_place):  # type: ignore[no-untyped-def]
    """Copy a block of LANES × LANES values, transposed and multiplied. `place`, `scale_place` are (start, stride).

    ``target[place[0] + j * place[1] + i] = source[start + i * LANES + j] * (factor * weight)``, where the weight is
    ``scale[scale_place[0] + j * scale_place[1] + i]``.
    """

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        reader, writer, weights = (_Lanes(context, builder, signature.args[i], arguments[i]) for i in (0, 2, 5))
        (to, to_step), (weight, weight_step) = (cgutils.unpack_tuple(builder, arguments[i]) for i in (3, 6))
        lines = ir.Constant(arguments[1].type, LANES)
        rows = [reader.load(_line(builder, arguments[1], lines, i)) for i in range(LANES)]
        for j, row in enumerate(_transposed(builder, rows)):
            by = builder.fmul(weights.load(_line(builder, weight, weight_step, j)), weights.splat(arguments[4]))
            writer.store(builder.fmul(row, by), _line(builder, to, to_step, j))
        return context.get_dummy_value()

    return numba.types.none(source, start, target, place, factor, scale, scale_place), generate


def _transposed(builder: ir.IRBuilder, rows: list[Any]) -> list[Any]:
    """Transpose a block given as LANES row vectors."""
    rows = list(rows)
    for half in (8, 4, 2, 1):  # exchange the off-diagonal quarters of every block of 2 × half rows
        for i in range(LANES):
            if not i & half:
                rows[i], rows[i + half] = _exchange(builder, rows[i], rows[i + half], half)
    return rows


def _line(builder: ir.IRBuilder, start: Any, stride: Any, i: int) -> Any:
    return builder.add(start, builder.mul(stride, ir.Constant(stride.type, i)))


def _exchange(builder: ir.IRBuilder, upper: Any, lower: Any, half: int) -> tuple[Any, Any]:
    """Two rows after the exchange: lanes whose index has bit `half` set move up, the others down."""
    lanes = range(LANES)
    masks = (
        [LANES + j - half if j & half else j for j in lanes],
        [LANES + j if j & half else j + half for j in lanes],
    )
    up, down = (builder.shuffle_vector(upper, lower, ir.Constant(_LANE_NUMBERS, mask)) for mask in masks)
    return up, down


class _Lanes:
    """Read and write LANES consecutive values of a one-dimensional array, at any offset."""

    def __init__(self, context: Any, builder: ir.IRBuilder, kind: Any, value: Any) -> None:
        self._builder = builder
        self._data = context.make_array(kind)(context, builder, value).data
        element = context.get_data_type(kind.dtype)
        self.vector = ir.VectorType(element, LANES)
        self._align = context.get_abi_sizeof(element)

    def load(self, start: Any) -> Any:
        loaded = self._builder.load(self._pointer(start), typ=self.vector)
        loaded.align = self._align
        return loaded

    def store(self, lanes: Any, start: Any) -> None:
        self._builder.store(lanes, self._pointer(start)).align = self._align

    def splat(self, value: Any) -> Any:
        one_lane = self._builder.insert_element(ir.Constant(self.vector, ir.Undefined), value, _LANE_0)
        return self._builder.shuffle_vector(one_lane, one_lane, ir.Constant(_LANE_NUMBERS, [0] * LANES))

    def _pointer(self, start: Any) -> Any:
        pointer = cgutils.gep_inbounds(self._builder, self._data, start)
        return self._builder.bitcast(pointer, self.vector.as_pointer())
