"""One affinity from matrices of several inputs: their weighted mean, or kernels whose mean head is taken out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numba
import numpy as np
from jaxtyping import Float, Int

from headtree.geometry.order_statistics import median, smallest_and_largest

#: A squared norm below this part of the largest is rounding: the item equals the mean item.
_IS_MEAN = 1e-10

#: Pairs of leaves whose cosines have a smaller standard deviation are all alike.
_NO_SPREAD = 1e-12

#: Rows and columns of the squares in which a matrix is mirrored.
_MIRRORED = 16


@dataclass(frozen=True, eq=False)
class InputMatrices:
    """What each input says about every two leaves, and how several inputs are combined to one affinity."""

    parts: Float[np.ndarray, "part input leaf leaf"]
    is_kernel: bool  #: whether the parts are kernels to be combined; otherwise there is one part, of affinities

    @property
    def n_inputs(self) -> int:
        """Number of inputs."""
        return int(self.parts.shape[1])

    @property
    def n_leaves(self) -> int:
        """Number of leaves."""
        return int(self.parts.shape[2])

    def __getstate__(self) -> dict[str, object]:
        return {"parts": self.parts, "is_kernel": self.is_kernel}  # what is packed need not travel

    def combined(self, weights: Float[np.ndarray, " input"] | None = None) -> Float[np.ndarray, "leaf leaf"]:
        """One affinity from weighted inputs; all have the same weight by default."""
        (entries,) = self.packed_affinities(self._weights(weights))
        return np.asarray(unpacked(entries, self.n_leaves))

    def packed_affinities(self, weights: Float[np.ndarray, "sample input"]) -> Float[np.ndarray, "sample entry"]:
        """The affinity of each weighting of the inputs, whose weights sum to one; `unpacked` makes a matrix of it.

        A single part that is no kernel holds affinities; the result is their weighted mean. Kernels are averaged
        over inputs. Each is then centred (the mean leaf is taken out), divided to unit diagonal, and standardized
        over pairs. With S the sum of the kernels and D = max S - S, the affinity is exp(-D / median D).
        """
        if not self.is_kernel:
            return np.asarray(_weighted_means(self._packed[0], weights))
        found = _similarities(self._packed, weights, self.n_leaves)
        _to_exponents(found, self.n_leaves)
        return np.asarray(np.exp(found, out=found))  # numpy takes a tenth of the time of a compiled loop

    @cached_property
    def _packed(self) -> Float[np.ndarray, "part input entry"]:
        return np.asarray(_packed(self.parts))

    def similarity(self, weights: Float[np.ndarray, " input"] | None = None) -> Float[np.ndarray, "leaf leaf"]:
        """The sum of the kernels from which the affinity is made; 0 on the diagonal."""
        (entries,) = _similarities(self._packed, self._weights(weights), self.n_leaves)
        return np.asarray(unpacked(entries, self.n_leaves))

    def cosines(self) -> Float[np.ndarray, "part leaf leaf"]:
        """Every kernel, averaged over inputs, without the mean leaf and with unit diagonal."""
        return np.stack([centred_kernel(part.mean(axis=0)) for part in self.parts])

    def of_inputs(self, chosen: Sequence[int]) -> InputMatrices:
        """Some of the inputs."""
        return InputMatrices(np.ascontiguousarray(self.parts[:, chosen]), self.is_kernel)

    def of_items(self, items: Sequence[Sequence[int]]) -> InputMatrices:
        """The mean of every matrix over the leaves of two items, which are disjoint sets of leaves.

        In a kernel, an item has the length of one of its leaves: the mean of several unlike leaves is shorter, and
        divided to unit diagonal it would be like everything.
        """
        item_of_leaf, size = np.full(self.n_leaves, -1), np.array([len(leaves) for leaves in items])
        for item, leaves in enumerate(items):
            item_of_leaf[list(leaves)] = item
        between = _sums_between(self.parts, item_of_leaf, len(items)) / np.outer(size, size)
        between = (between + between.swapaxes(2, 3)) / 2  # the sums are symmetric only up to rounding
        if self.is_kernel:
            own = np.diagonal(self.parts, axis1=2, axis2=3)
            for item, leaves in enumerate(items):
                between[:, :, item, item] = own[:, :, list(leaves)].mean(axis=2)
        return InputMatrices(between, self.is_kernel)

    def relabelled(self, orders: Int[np.ndarray, "input item"]) -> InputMatrices:
        """Some leaves of every input, in an order of its own."""
        return InputMatrices(_relabelled(self.parts, orders), self.is_kernel)

    def _weights(self, weights: Float[np.ndarray, " input"] | None) -> Float[np.ndarray, "1 input"]:
        if weights is None:
            return np.full((1, self.n_inputs), 1 / self.n_inputs)
        return np.ascontiguousarray(weights, dtype=np.float64)[None]


@numba.njit(cache=True, error_model="numpy", nogil=True)
def _sums_between(parts, item_of_leaf, n_items):  # type: ignore[no-untyped-def]
    """Sums of every matrix over the leaves of two items; leaves in no item have -1."""
    n_parts, n_inputs, n, _ = parts.shape
    found = np.zeros((n_parts, n_inputs, n_items, n_items))
    for part in range(n_parts):
        for i in range(n_inputs):
            for a in range(n):
                if item_of_leaf[a] < 0:
                    continue
                row, sums = parts[part, i, a], found[part, i, item_of_leaf[a]]
                for b in range(n):
                    if item_of_leaf[b] >= 0:
                        sums[item_of_leaf[b]] += row[b]
    return found


@numba.njit(cache=True, error_model="numpy", nogil=True)
def _relabelled(parts, orders):  # type: ignore[no-untyped-def]
    n_parts, (n_inputs, n) = len(parts), orders.shape
    found = np.empty((n_parts, n_inputs, n, n))
    for part in range(n_parts):
        for i in range(n_inputs):
            for a in range(n):
                row = parts[part, i, orders[i, a]]
                for b in range(n):
                    found[part, i, a, b] = row[orders[i, b]]
    return found


@numba.njit(cache=True, error_model="numpy", nogil=True)
def _similarities(packed, weights, n):  # type: ignore[no-untyped-def]
    """Sums of the kernels of each weighting, packed; 0 on the diagonal."""
    found = np.zeros((len(weights), n * (n + 1) // 2))
    kernel = np.empty((n, n))  # once: memory of this size comes from the system, page by page
    for part in range(len(packed)):
        means = _weighted_means(packed[part], weights)
        for sample in range(len(weights)):
            _unpack(means[sample], kernel)
            _add_standardized(kernel, found[sample])
    return found


@numba.njit(cache=True, error_model="numpy", nogil=True)
def _to_exponents(similarities, n):  # type: ignore[no-untyped-def]
    """Replace similarities S of pairs by (S - max S) / median(max S - S)."""
    if n < 2:
        return
    for entries in similarities:
        pairs = entries[: n * (n - 1) // 2]
        largest = smallest_and_largest(pairs)[1]
        width = largest - median(pairs)
        if width <= 0:
            width = 1.0
        for i in range(len(pairs)):
            pairs[i] = (pairs[i] - largest) / width


@numba.njit(cache=True, error_model="numpy", nogil=True)
def _packed(parts):  # type: ignore[no-untyped-def]
    """The entries of symmetric matrices below the diagonal, row by row, and then those on it."""
    n_parts, n_inputs, n, _ = parts.shape
    entries = np.empty((n_parts, n_inputs, n * (n + 1) // 2))
    for part in range(n_parts):
        for i in range(n_inputs):
            first, n_pairs = 0, n * (n - 1) // 2
            for row in range(n):
                entries[part, i, first : first + row] = parts[part, i, row, :row]
                entries[part, i, n_pairs + row] = parts[part, i, row, row]
                first += row
    return entries


@numba.njit(cache=True, error_model="numpy", nogil=True)
def unpacked(entries, n):  # type: ignore[no-untyped-def]
    """The symmetric matrix of packed entries."""
    matrix = np.empty((n, n))
    _unpack(entries, matrix)
    return matrix


@numba.njit(cache=True, error_model="numpy", nogil=True)
def _unpack(entries, matrix):  # type: ignore[no-untyped-def]
    """Write the symmetric matrix of packed entries."""
    n, first = len(matrix), 0
    for row in range(n):
        matrix[row, :row] = entries[first : first + row]
        matrix[row, row] = entries[n * (n - 1) // 2 + row]
        first += row
    _mirror(matrix)


@numba.njit(cache=True, error_model="numpy", nogil=True)
def _mirror(matrix):  # type: ignore[no-untyped-def]
    """Copy what is below the diagonal to above it, a square of cached entries at a time."""
    n = len(matrix)
    for above in range(0, n, _MIRRORED):
        for left in range(0, above + 1, _MIRRORED):
            for column in range(left, min(left + _MIRRORED, n)):
                for row in range(max(above, column + 1), min(above + _MIRRORED, n)):
                    matrix[column, row] = matrix[row, column]


@numba.njit(cache=True, error_model="numpy", nogil=True)
def _weighted_means(inputs, weights):  # type: ignore[no-untyped-def]
    """Means over inputs with each of several weightings; inputs are added in their order, four at a time."""
    n_entries = inputs.shape[1]
    means = np.zeros((len(weights), n_entries))
    for sample in range(len(weights)):
        mean, used = means[sample], np.flatnonzero(weights[sample])
        n_fours = len(used) // 4 * 4
        for i in range(0, n_fours, 4):
            first, second, third, fourth = used[i], used[i + 1], used[i + 2], used[i + 3]
            w0, w1, w2, w3 = (
                weights[sample, first],
                weights[sample, second],
                weights[sample, third],
                weights[sample, fourth],
            )
            a, b, c, d = inputs[first], inputs[second], inputs[third], inputs[fourth]
            for entry in range(n_entries):
                mean[entry] = mean[entry] + w0 * a[entry] + w1 * b[entry] + w2 * c[entry] + w3 * d[entry]
        for i in used[n_fours:]:
            weight, a = weights[sample, i], inputs[i]
            for entry in range(n_entries):
                mean[entry] += weight * a[entry]
    return means


@numba.njit(cache=True, error_model="numpy", nogil=True)
def centred_kernel(kernel):  # type: ignore[no-untyped-def]
    """The kernel without the mean item, divided to unit diagonal; items equal to the mean have 0 everywhere."""
    centred = kernel.copy()
    _centre_below(centred)
    _mirror(centred)
    return centred


@numba.njit(cache=True, error_model="numpy", nogil=True)
def _centre_below(kernel):  # type: ignore[no-untyped-def]
    """Replace a kernel by `centred_kernel` on and below the diagonal."""
    n = len(kernel)
    means = np.zeros(n)
    for row in range(n):
        means += kernel[row]  # of columns, which are those of rows
    means /= n
    mean = means.mean()
    largest = 0.0
    for i in range(n):
        largest = max(largest, kernel[i, i])
    for row in range(n):
        for column in range(row + 1):
            kernel[row, column] += mean - means[row] - means[column]
    scale = np.zeros(n)
    for i in range(n):
        if kernel[i, i] > _IS_MEAN * largest:
            scale[i] = 1 / np.sqrt(kernel[i, i])
    for row in range(n):
        for column in range(row + 1):
            kernel[row, column] *= scale[row] * scale[column]


@numba.njit(cache=True, error_model="numpy", nogil=True)
def _add_standardized(kernel, total):  # type: ignore[no-untyped-def]
    """Add the centred kernel of every pair, minus its mean, over its standard deviation; overwrites the kernel."""
    _centre_below(kernel)
    n = len(kernel)
    n_pairs = max(1, n * (n - 1) // 2)
    sums, squares = np.zeros(n), np.zeros(n)  # of columns, so that entries of a row are added at once
    for row in range(n):
        for column in range(row):
            sums[column] += kernel[row, column]
    mean = sums.sum() / n_pairs
    for row in range(n):
        for column in range(row):
            squares[column] += (kernel[row, column] - mean) ** 2
    deviation = np.sqrt(squares.sum() / n_pairs)
    if deviation > _NO_SPREAD:
        first = 0
        for row in range(n):
            for column in range(row):
                total[first + column] += (kernel[row, column] - mean) / deviation
            first += row
