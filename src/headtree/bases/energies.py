"""Medians, and energies of coefficients by size, by support and by scale, of millions of numbers without sorting.

Kernels take numpy arrays in native byte order. The division of work does not depend on the number of threads, so
neither do the results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numba
import numpy as np
from jaxtyping import Float, Int

from headtree._threads import for_each_task

#: Energies whose float32 values agree in the first 16 bits after the sign share a bucket: 256 per power of two.
_BUCKETS, _SHIFT = 1 << 16, 15

#: Number of chunks that are counted separately, each by one thread.
_PARTS = 8


def medians(values: Float[np.ndarray, "row n"]) -> Float[np.ndarray, " row"]:
    """Median of every row, defined as in numpy: the mean of the two middle values if there is an even number."""
    found = np.empty(len(values), values.dtype)
    for_each_task(_median, len(values), np.ascontiguousarray(values), found)
    return found


@numba.njit(cache=True, error_model="numpy", nogil=True)
def _median(row, values, found):  # type: ignore[no-untyped-def]
    """Count the numbers by their first 16 bits; sort only those that share these bits with the middle one."""
    n = values.shape[1]
    counts = np.zeros(_BUCKETS, np.int64)
    for value in values[row]:
        counts[_rising_bits(value)] += 1
    lower, upper = (n - 1) // 2, n // 2
    before, bucket = 0, 0
    while before + counts[bucket] <= lower:
        before += counts[bucket]
        bucket += 1
    inside = np.empty(counts[bucket], values.dtype)
    place, next_ = 0, np.inf
    for value in values[row]:
        bits = _rising_bits(value)
        if bits == bucket:
            inside[place] = value
            place += 1
        elif bits > bucket:
            next_ = min(next_, np.float64(value))
    inside.sort()
    second = inside[upper - before] if upper - before < place else next_
    found[row] = inside[lower - before] if lower == upper else (inside[lower - before] + second) / 2


@numba.njit(cache=True, error_model="numpy", inline="always")
def _rising_bits(value):  # type: ignore[no-untyped-def]
    """First 16 bits of a number, as an integer that does not decrease with the number."""
    bits = np.float64(value).view(np.int64) >> 48
    return bits + 32768 if bits >= 0 else -1 - bits


def norms(values: Float[np.ndarray, "row n"]) -> Float[np.ndarray, " row"]:
    """Square root of the sum of squares of every row in float64, even where the squares would overflow."""
    found = np.empty(len(values))
    for_each_task(_norm, len(values), np.ascontiguousarray(values), found)
    return found


@numba.njit(cache=True, error_model="numpy", nogil=True, fastmath={"reassoc", "contract"})
def _norm(row, values, found):  # type: ignore[no-untyped-def]
    largest = 0.0
    for value in values[row]:
        largest = max(largest, abs(np.float64(value)))
    total = 0.0
    if 1e-100 < largest < 1e100:
        for value in values[row]:
            total += np.float64(value) * np.float64(value)
        found[row] = np.sqrt(total)
    else:
        for value in values[row]:
            total += _energy(value, largest) if largest > 0 else 0.0
        found[row] = largest * np.sqrt(total)


# -- the largest first ---------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class LargestFirst:
    """Energies, the squares of coefficients divided by the largest, in decreasing order.

    They are counted and summed in buckets; only the few buckets in which a partial sum ends are sorted. The energy
    left out is summed directly, from the smallest up: the difference of two sums would lose half its digits.
    """

    pieces: Sequence[Float[np.ndarray, " _n"]]  #: the coefficients, one piece after the other
    n: int  #: their number
    largest: float  #: their largest absolute value

    @classmethod
    def of(cls, values: Float[np.ndarray, " n"]) -> LargestFirst:
        """Wrap coefficients in memory; if all are 0, so are all energies."""
        return cls((values,), len(values), float(max(values.max(), -values.min())) or 1.0)

    def sums(
        self, counts: Int[np.ndarray, " point"], shares: tuple[float, ...]
    ) -> tuple[Float[np.ndarray, " point"], list[int], float]:
        """For each count, the energy left out by that many; for each share, the fewest that reach it; the total."""
        counts_of, energies_of = np.zeros((_PARTS, _BUCKETS), np.int64), np.zeros((_PARTS, _BUCKETS))
        size, start = (self.n + _PARTS - 1) // _PARTS, 0
        for piece in self.pieces:
            for_each_task(_add_to_buckets, _PARTS, piece, start, size, self.largest, counts_of, energies_of)
            start += len(piece)
        n_in, energy_in = (table.sum(axis=0)[::-1] for table in (counts_of, energies_of))  # the largest first
        n_up_to, energy_up_to = np.cumsum(n_in), np.cumsum(energy_in)
        total = float(energy_up_to[-1])
        energy_after = _sums_before(energy_in[::-1])[::-1]
        of_counts = np.searchsorted(n_up_to, counts)
        of_shares = np.searchsorted(energy_up_to, [share * total for share in shares])
        wanted = np.unique(np.concatenate([of_counts, of_shares]))
        within = dict(zip(wanted.tolist(), self._sorted_within(wanted, n_in), strict=True))
        left_out = [
            energy_after[b] + within[b][count - (n_up_to[b] - n_in[b]) :][::-1].sum()
            for b, count in zip(of_counts.tolist(), counts.tolist(), strict=True)
        ]
        fewest = []
        for b, share in zip(of_shares.tolist(), shares, strict=True):
            missing = share * total - (energy_up_to[b] - energy_in[b])
            rank = min(int(np.searchsorted(np.cumsum(within[b]), missing)), int(n_in[b]) - 1)
            fewest.append(int(n_up_to[b] - n_in[b]) + rank + 1 if total > 0 else 0)
        return np.array(left_out), fewest, total

    def _sorted_within(
        self, wanted: Int[np.ndarray, " bucket"], n_in: Int[np.ndarray, " bucket"]
    ) -> list[Float[np.ndarray, " _n_in_bucket"]]:
        """The energies in each of some buckets, in decreasing order."""
        is_wanted = np.zeros(_BUCKETS, dtype=np.bool_)
        is_wanted[_BUCKETS - 1 - wanted] = True
        found, place = np.empty(int(n_in[wanted].sum())), 0
        for piece in self.pieces:
            place = _collect(piece, self.largest, is_wanted, found, place)
        found.sort()
        return np.split(found[::-1], np.cumsum(n_in[wanted])[:-1])


def _sums_before(values: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    return np.concatenate([[0.0], np.cumsum(values)[:-1]])


@numba.njit(cache=True, error_model="numpy", inline="always")
def _energy(value, largest):  # type: ignore[no-untyped-def]
    unit = np.float64(value) / largest
    return unit * unit


@numba.njit(cache=True, error_model="numpy", nogil=True)
def _add_to_buckets(part, values, start, size, largest, counts, energies):  # type: ignore[no-untyped-def]
    for i in range(max(0, part * size - start), min((part + 1) * size - start, len(values))):
        energy = _energy(values[i], largest)
        bucket = np.float32(energy).view(np.int32) >> _SHIFT
        counts[part, bucket] += 1
        energies[part, bucket] += energy


@numba.njit(cache=True, error_model="numpy", nogil=True)
def _collect(values, largest, is_wanted, found, place):  # type: ignore[no-untyped-def]
    for value in values:
        energy = _energy(value, largest)
        if is_wanted[np.float32(energy).view(np.int32) >> _SHIFT]:
            found[place] = energy
            place += 1
    return place


# -- the largest support first -------------------------------------------------------------------------------


def energy_after_coarsest(
    energies: LargestFirst, supports: tuple[Int[np.ndarray, " _function"], ...], counts: Int[np.ndarray, " point"]
) -> Float[np.ndarray, " point"]:
    """For each count, the energy left out by that many coefficients of largest support, ties in index order.

    Functions of equal support form one group, and there are few different supports. One pass over the coefficients,
    from the last, adds up every group and records the partial sum at the point where a count ends within it. Pieces
    must be whole rows along the last axis.
    """
    n_left = energies.n - counts
    leading = np.ones(1, dtype=np.int64)
    for support in supports[:-1]:
        leading = np.multiply.outer(leading, support).ravel()
    (rows, row_group, n_rows), (columns, column_group, n_columns) = (
        np.unique(support, return_inverse=True, return_counts=True) for support in (leading, supports[-1])
    )
    by_support, group = np.unique(np.multiply.outer(rows, columns), return_inverse=True)
    group = group.reshape(len(rows), len(columns))
    n_in = np.bincount(group.ravel(), weights=np.multiply.outer(n_rows, n_columns).ravel()).astype(np.int64)
    n_up_to = np.cumsum(n_in)
    order = np.argsort(n_left, kind="stable")
    order = order[n_left[order] > 0]
    group_of_count = np.searchsorted(n_up_to, n_left[order])
    stops = n_left[order] - (n_up_to - n_in)[group_of_count]
    first_stop = np.searchsorted(group_of_count, np.arange(len(by_support) + 1))
    sums, seen = np.zeros(len(by_support)), np.zeros(len(by_support), np.int64)
    next_stop, at_stops = first_stop[:-1].copy(), np.zeros(len(stops))
    end = len(row_group)
    for i in reversed(range(len(energies.pieces))):
        piece = energies.pieces[i]
        start = end - len(piece) // len(column_group)
        groups = row_group[start:end], column_group, group
        _add_groups(piece, energies.largest, *groups, stops, first_stop, sums, seen, next_stop, at_stops)
        end = start
    result = np.zeros(len(counts))
    result[order] = _sums_before(sums)[group_of_count] + at_stops
    return result


@numba.njit(cache=True, error_model="numpy", nogil=True)
def _add_groups(  # type: ignore[no-untyped-def]
    values, largest, row_group, column_group, group, stops, first_stop, sums, seen, next_stop, at_stops
):
    place = len(values) - 1
    for row in row_group[::-1]:
        of_row = group[row]
        for column in column_group[::-1]:
            g = of_row[column]
            sums[g] += _energy(values[place], largest)
            seen[g] += 1
            while next_stop[g] < first_stop[g + 1] and stops[next_stop[g]] == seen[g]:
                at_stops[next_stop[g]] = sums[g]
                next_stop[g] += 1
            place -= 1


# -- by scale ------------------------------------------------------------------------------------------------


def energies_by_level(
    coefficients: Float[np.ndarray, "batch row column"],
    levels: tuple[Int[np.ndarray, " row"], Int[np.ndarray, " column"]],
    n_levels: tuple[int, int],
) -> Float[np.ndarray, "batch row_level column_level"]:
    """Sums of squared coefficients over the functions of each pair of levels, without those of negative level.

    Functions must be ordered by level, as in a `HaarBasis`.
    """
    sums = np.zeros((len(coefficients), *n_levels))
    ends = np.searchsorted(levels[1], np.arange(-1, n_levels[1]), side="right")
    for_each_task(_add_by_level, len(coefficients), coefficients, levels[0], ends, sums)
    return sums


@numba.njit(cache=True, error_model="numpy", nogil=True, fastmath={"reassoc", "contract"})
def _add_by_level(b, coefficients, row_levels, column_ends, sums):  # type: ignore[no-untyped-def]
    for row, level in enumerate(row_levels):
        if level < 0:
            continue
        for k in range(len(column_ends) - 1):
            total = 0.0
            for value in coefficients[b, row, column_ends[k] : column_ends[k + 1]]:
                total += np.float64(value) * np.float64(value)
            sums[b, level, k] += total
