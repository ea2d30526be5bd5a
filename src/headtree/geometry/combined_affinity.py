"""One affinity from matrices of several inputs: their weighted mean, or kernels whose mean head is taken out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numba
import numpy as np
from jaxtyping import Float, Int

from headtree.geometry.order_statistics import median

#: A squared norm below this part of the largest is rounding: the item equals the mean item.
_IS_MEAN = 1e-10


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

    def combined(self, weights: Float[np.ndarray, " input"] | None = None) -> Float[np.ndarray, "leaf leaf"]:
        """One affinity from weighted inputs; all have the same weight by default."""
        return np.asarray(combined_affinity(self.parts, self._weights(weights), self.is_kernel))

    def similarity(self, weights: Float[np.ndarray, " input"] | None = None) -> Float[np.ndarray, "leaf leaf"]:
        """The sum of the kernels from which the affinity is made; 0 on the diagonal."""
        total = np.asarray(_summed_kernels(self.parts, self._weights(weights)))
        return np.asarray(total + total.T)

    def cosines(self) -> Float[np.ndarray, "part leaf leaf"]:
        """Every kernel, averaged over inputs, without the mean leaf and with unit diagonal."""
        return np.stack([centred_kernel(part.mean(axis=0)) for part in self.parts])

    def of_inputs(self, chosen: Sequence[int]) -> InputMatrices:
        """Some of the inputs."""
        return InputMatrices(np.ascontiguousarray(self.parts[:, chosen]), self.is_kernel)

    def of_items(self, items: Sequence[Sequence[int]]) -> InputMatrices:
        """The mean of every matrix over the leaves of two items, which are disjoint sets of leaves."""
        item_of_leaf, size = np.full(self.n_leaves, -1), np.array([len(leaves) for leaves in items])
        for item, leaves in enumerate(items):
            item_of_leaf[list(leaves)] = item
        between = _sums_between(self.parts, item_of_leaf, len(items)) / np.outer(size, size)
        between = (between + between.swapaxes(2, 3)) / 2  # the sums are symmetric only up to rounding
        return InputMatrices(between, self.is_kernel)

    def relabelled(self, orders: Int[np.ndarray, "input item"]) -> InputMatrices:
        """Some leaves of every input, in an order of its own."""
        return InputMatrices(_relabelled(self.parts, orders), self.is_kernel)

    def _weights(self, weights: Float[np.ndarray, " input"] | None) -> Float[np.ndarray, " input"]:
        if weights is None:
            return np.full(self.n_inputs, 1 / self.n_inputs)
        return np.ascontiguousarray(weights, dtype=np.float64)


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
def combined_affinity(parts, weights, is_kernel):  # type: ignore[no-untyped-def]
    """Combine ``parts[part, input, leaf, leaf]`` with the weights of the inputs, which sum to one.

    A single part that is no kernel holds affinities; the result is their weighted mean. Kernels are averaged over
    inputs. Each is then centred (the mean leaf is taken out), divided to unit diagonal, and standardized over
    pairs. With S the sum of the kernels and D = max S - S, the affinity is exp(-D / median D).
    """
    if not is_kernel:
        return _weighted_mean(parts[0], weights)
    return _affinity_of_similarity(_summed_kernels(parts, weights))


@numba.njit(cache=True, error_model="numpy", nogil=True)
def _summed_kernels(parts, weights):  # type: ignore[no-untyped-def]
    total = np.zeros(parts.shape[2:])
    for part in range(len(parts)):
        _add_standardized(_weighted_mean(parts[part], weights), total)
    return total


@numba.njit(cache=True, error_model="numpy", nogil=True)
def _weighted_mean(matrices, weights):  # type: ignore[no-untyped-def]
    n_inputs, n, _ = matrices.shape
    flat = matrices.reshape((n_inputs, n * n))
    total = np.zeros(n * n)
    for i in range(n_inputs):
        weight, row = weights[i], flat[i]
        if weight != 0:
            for entry in range(n * n):
                total[entry] += weight * row[entry]
    return total.reshape((n, n))


@numba.njit(cache=True, error_model="numpy", nogil=True)
def centred_kernel(kernel):  # type: ignore[no-untyped-def]
    """The kernel without the mean item, divided to unit diagonal; items equal to the mean have 0 everywhere."""
    n = len(kernel)
    means = np.zeros(n)
    for row in range(n):
        means += kernel[row]  # of columns, which are those of rows
    means /= n
    mean = means.mean()
    centred = np.empty((n, n))
    for row in range(n):
        for column in range(n):
            centred[row, column] = kernel[row, column] - means[row] - means[column] + mean
    largest = 0.0
    for i in range(n):
        largest = max(largest, kernel[i, i])
    scale = np.zeros(n)
    for i in range(n):
        if centred[i, i] > _IS_MEAN * largest:
            scale[i] = 1 / np.sqrt(centred[i, i])
    for row in range(n):
        for column in range(n):
            centred[row, column] *= scale[row] * scale[column]
    return centred


@numba.njit(cache=True, error_model="numpy", nogil=True)
def _add_standardized(kernel, total):  # type: ignore[no-untyped-def]
    """Add the centred kernel, minus its mean and over its standard deviation over pairs, below the diagonal."""
    centred = centred_kernel(kernel)
    n = len(centred)
    n_pairs = max(1, n * (n - 1) // 2)
    sums, squares = np.zeros(n), np.zeros(n)  # of columns, so that entries of a row are added at once
    for row in range(n):
        for column in range(row):
            sums[column] += centred[row, column]
    mean = sums.sum() / n_pairs
    for row in range(n):
        for column in range(row):
            squares[column] += (centred[row, column] - mean) ** 2
    deviation = np.sqrt(squares.sum() / n_pairs)
    if deviation > 1e-12:
        for row in range(n):
            for column in range(row):
                total[row, column] += (centred[row, column] - mean) / deviation


@numba.njit(cache=True, error_model="numpy", nogil=True)
def _affinity_of_similarity(total):  # type: ignore[no-untyped-def]
    """exp(-D / median) of the distance D = largest - similarity; both over pairs, which are below the diagonal."""
    n = len(total)
    pairs = np.empty(max(1, n * (n - 1) // 2))
    pairs[0] = 0.0
    i = 0
    for row in range(n):
        for column in range(row):
            pairs[i] = total[row, column]
            i += 1
    largest = pairs.max()
    width = largest - median(pairs)
    if width <= 0:
        width = 1.0
    for row in range(n):
        total[row, row] = 1.0
        for column in range(row):
            value = np.exp((total[row, column] - largest) / width)
            total[row, column] = total[column, row] = value
    return total
