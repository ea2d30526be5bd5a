"""Compiled loops for sums of slices over boxes: tuples of folders whose leaves lie side by side on every axis.

The sum over a box is a signed sum of prefix sums at its corners. These are never stored for a whole slice. The
leaves of its first axis are added one after the other to the prefix sums over the other axes, a *sheet*, and every
box takes what it needs from the sheet when the leaf at which it starts or stops has been added. A slice is read
once, and the sheet stays in the cache.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numba
import numpy as np
from jaxtyping import Float, Int

from headtree._threads import for_each_task
from headtree.geometry.vector_intrinsics import LANES, add_to_previous_lanes, use_wide_vectors

#: Leaves of the first axis whose sheets are summed side by side: sums along a line wait for each other.
_SIDE_BY_SIDE = 4


class Boxes(NamedTuple):
    """Boxes by where they start and stop on the first axis, with their corners in a sheet."""

    pointers: Int[np.ndarray, " leaf_and_1"]  #: where the entries of `box` for this leaf begin
    box: Int[np.ndarray, " end"]  #: boxes that start or stop after a leaf
    sign: Float[np.ndarray, " end"]  #: 1 if it stops there, -1 if it starts
    corners: Int[np.ndarray, "box corner"]  #: places in a sheet, which is longer by one along each axis
    signs: Float[np.ndarray, " corner"]

    @classmethod
    def of(cls, lengths: Sequence[int], ends: Sequence[Int[np.ndarray, "box 2"]]) -> Boxes:
        """Boxes in an array of these lengths, from where they stop and start on each axis."""
        n_boxes = len(ends[0])
        corners, signs = np.zeros((n_boxes, 1), dtype=np.uint64), np.ones(1)
        for j in range(1, len(lengths)):
            stride = math.prod(n + 1 for n in lengths[j + 1 :])
            along = ends[j].astype(np.uint64) * np.uint64(stride)
            corners = (corners[:, :, None] + along[:, None, :]).reshape(n_boxes, -1)
            signs = np.outer(signs, [1, -1]).ravel()
        after = ends[0].T.ravel()
        is_inside = after > 0  # nothing has been added before the first leaf
        order = np.argsort(after[is_inside], kind="stable")
        pointers = np.searchsorted(after[is_inside][order], np.arange(1, lengths[0] + 2))
        box = np.tile(np.arange(n_boxes), 2)[is_inside][order].astype(np.uint64)
        sign = np.repeat([1.0, -1.0], n_boxes)[is_inside][order]
        return cls(pointers, box, sign, np.ascontiguousarray(corners), signs)


def box_features(
    array: Float[np.ndarray, " entry"],
    strides: tuple[int, Sequence[int]],
    orders: Sequence[Int[np.ndarray, " leaf"]],
    ends: Sequence[Int[np.ndarray, "feature 2"]],
    scale: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, float],
    out: Float[np.ndarray, "row feature"],
) -> None:
    """Scaled sums of every row over boxes, in float64.

    `strides` are those of the rows in `array`, and of the other axes, which have the leaves of `orders`. In these
    orders boxes are contiguous: `ends` are where they stop and start. `scale` are weights and sizes of the
    features, the counts of groups of them (row_or_1, group), the group of each feature, and what stands for a
    feature whose group has a count of zero: the sum is multiplied by ``weight / (count * size)``.
    """
    row_stride, others = strides
    if len(orders) == 1:  # one leaf of an axis before it
        orders, others = [np.zeros(1, dtype=np.int64), *orders], [0, *others]
        ends = [np.tile([[1, 0]], (len(ends[0]), 1)), *ends]
    lengths = [len(order) for order in orders]
    # unsigned: numba then skips the handling of negative indices
    offsets = np.concatenate(
        [order.astype(np.uint64) * np.uint64(s) for order, s in zip(orders, others, strict=True)]
    )
    boxes = Boxes.of(lengths, ends)
    of_band = _side_by_side_band if row_stride == 1 and len(out) >= LANES else _band
    n_bands = (len(out) + LANES - 1) // LANES
    for_each_task(of_band, n_bands, array, row_stride, np.array(lengths), offsets, *boxes, *scale, out)


@numba.njit(cache=True, error_model="numpy", nogil=True)
def _band(  # type: ignore[no-untyped-def]
    band, array, row_stride, lengths, offsets, pointers, box, sign, corners, signs, weight, size, counts, group,
    absent, out
):  # fmt: skip
    """The features of some rows, one after the other."""
    n_lines, n_sheet = _sheet_size(lengths)
    sheets, before = np.zeros((_SIDE_BY_SIDE, n_sheet)), np.empty(n_sheet)
    totals, lines = np.empty(len(corners)), _lines(lengths, offsets)
    last = offsets[len(offsets) - lengths[-1] :]
    for row in range(band * LANES, min((band + 1) * LANES, len(out))):
        totals[:] = 0
        before[:] = 0
        for first in range(0, lengths[0], _SIDE_BY_SIDE):
            n = min(_SIDE_BY_SIDE, lengths[0] - first)
            start = np.uint64(row * row_stride)
            for line in range(n_lines):
                _sum_lines(array, start + lines[line, 0], offsets[first : first + n], last, lines[line, 1], sheets)
            for j in range(n):
                sheet = sheets[j]
                _sum_along_middle(sheet, lengths, 1)
                for k in range(n_sheet):
                    before[k] += sheet[k]
                for end in range(pointers[first + j], pointers[first + j + 1]):
                    total = 0.0
                    for corner in range(len(signs)):
                        total += signs[corner] * before[corners[box[end], corner]]
                    totals[box[end]] += sign[end] * total
        of_row = counts[min(row, len(counts) - 1)]
        for feature in range(len(corners)):
            entries = of_row[group[feature]] * size[feature]
            out[row, feature] = totals[feature] * (weight[feature] / entries) if entries > 0 else absent


@numba.njit(cache=True, error_model="numpy", nogil=True)
def _side_by_side_band(  # type: ignore[no-untyped-def]
    band, array, row_stride, lengths, offsets, pointers, box, sign, corners, signs, weight, size, counts, group,
    absent, out
):  # fmt: skip
    """The features of LANES rows that lie side by side in memory, all at once; the last band overlaps another."""
    use_wide_vectors()
    n_lines, n_sheet = _sheet_size(lengths)
    sheet, before = np.zeros(n_sheet * LANES), np.zeros(n_sheet * LANES)
    totals, lines = np.zeros((len(corners), LANES)), _lines(lengths, offsets)
    last = offsets[len(offsets) - lengths[-1] :]
    first_row = min(band * LANES, len(out) - LANES)
    for first in range(lengths[0]):
        for line in range(n_lines):
            start, into = np.uint64(first_row) + offsets[first] + lines[line, 0], lines[line, 1] * np.uint64(LANES)
            for k in range(len(last)):
                into += np.uint64(LANES)
                add_to_previous_lanes(sheet, into, array, start + last[k])
        _sum_along_middle(sheet, lengths, LANES)
        for k in range(len(sheet)):
            before[k] += sheet[k]
        for end in range(pointers[first], pointers[first + 1]):
            into_total = totals[box[end]]
            for corner in range(len(signs)):
                place, factor = corners[box[end], corner] * np.uint64(LANES), sign[end] * signs[corner]
                at_corner = before[place : place + np.uint64(LANES)]
                for i in range(LANES):
                    into_total[i] += factor * at_corner[i]
    rows, of_rows = out[first_row : first_row + LANES], counts[first_row : first_row + LANES]
    for feature in range(len(corners)):
        for i in range(LANES):
            entries = (of_rows[i] if len(counts) > 1 else counts[0])[group[feature]] * size[feature]
            rows[i, feature] = totals[feature, i] * (weight[feature] / entries) if entries > 0 else absent


@numba.njit(cache=True, error_model="numpy", nogil=True)
def _sheet_size(lengths):  # type: ignore[no-untyped-def]
    """Lines along the last axis of a sheet, and its prefix sums."""
    n_lines, n_sheet = 1, lengths[-1] + 1
    for length in lengths[1:-1]:
        n_lines *= length
        n_sheet *= length + 1
    return n_lines, n_sheet


@numba.njit(cache=True, error_model="numpy", nogil=True)
def _lines(lengths, offsets):  # type: ignore[no-untyped-def]
    """Where the lines of a sheet begin, relative to its first entry: in the array, and among the prefix sums."""
    n_lines, _ = _sheet_size(lengths)
    found = np.zeros((n_lines, 2), dtype=np.uint64)
    for line in range(n_lines):
        rest, stride, end = line, lengths[-1] + 1, len(offsets) - lengths[-1]
        for axis in range(len(lengths) - 2, 0, -1):
            place = rest % lengths[axis]
            rest //= lengths[axis]
            found[line, 0] += offsets[end - lengths[axis] + place]
            found[line, 1] += np.uint64((place + 1) * stride)
            stride *= lengths[axis] + 1
            end -= lengths[axis]
    return found


@numba.njit(cache=True, error_model="numpy", nogil=True)
def _sum_lines(array, start, firsts, last, into, sheets):  # type: ignore[no-untyped-def]
    """Sums up to each entry of the same line of up to four sheets, side by side."""
    n = len(last)
    if len(firsts) < _SIDE_BY_SIDE:
        for j in range(len(firsts)):
            line, place, total = sheets[j, into + np.uint64(1) :], start + firsts[j], 0.0
            for k in range(n):
                total += array[place + last[k]]
                line[k] = total
        return
    x0, x1, x2, x3 = (array[start + firsts[0] :], array[start + firsts[1] :], array[start + firsts[2] :],
                      array[start + firsts[3] :])  # fmt: skip
    begin = into + np.uint64(1)
    line0, line1, line2, line3 = sheets[0, begin:], sheets[1, begin:], sheets[2, begin:], sheets[3, begin:]
    t0 = t1 = t2 = t3 = 0.0
    for k in range(n):
        place = last[k]
        t0 += x0[place]
        t1 += x1[place]
        t2 += x2[place]
        t3 += x3[place]
        line0[k] = t0
        line1[k] = t1
        line2[k] = t2
        line3[k] = t3


@numba.njit(cache=True, error_model="numpy", nogil=True)
def _sum_along_middle(sheet, lengths, n_rows):  # type: ignore[no-untyped-def]
    """Sum a sheet whose lines are summed already along its other axes, for rows that lie side by side."""
    after = (lengths[-1] + 1) * n_rows
    for axis in range(len(lengths) - 2, 0, -1):
        length = lengths[axis] + 1
        for start in range(0, len(sheet), length * after):
            for k in range(start + after, start + length * after, after):
                previous, here = sheet[k - after : k], sheet[k : k + after]
                for j in range(after):
                    here[j] += previous[j]
        after *= length
