"""Are two networks more different than two sets of inputs of one network? A permutation test."""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float, Int


def divisions_of(
    sizes: tuple[int, int], n_permutations: int, rng: np.random.Generator
) -> Int[np.ndarray, "draw item"]:
    """Random divisions of all inputs into two sets of these sizes: 1 for the first, 0 for the second."""
    is_first = (np.arange(sum(sizes)) < sizes[0]).astype(np.int64)
    return rng.permuted(np.tile(is_first, (n_permutations, 1)), axis=1)


def energy_p_value(
    distances: Float[np.ndarray, "item item"], n_first: int, divisions: Int[np.ndarray, "draw item"]
) -> float:
    r"""Probability of so large a difference if the inputs of both networks were inputs of one.

    The statistic is the energy distance of Székely and Rizzo (2004), twice the mean distance between the inputs of
    the two networks minus the mean distances within each. Under the hypothesis every division of the inputs into
    two sets of these sizes is as likely as the given one. If both networks read the same inputs, their items are
    paired and the test is conservative.

    Parameters
    ----------
    distances : array
        Between all items, a network on an input each; those of the first network come first.
    n_first : int
        Number of items of the first network.
    divisions : array
        From `divisions_of`.
    """
    n = len(distances)
    if min(n_first, n - n_first) < 2:
        return math.nan
    given = (np.arange(n) < n_first).astype(np.int64)
    found, *others = _energies(distances, np.vstack([given, divisions]))
    reached = int((np.array(others) >= found - 1e-12 * max(1e-300, float(distances.max()))).sum())
    return (reached + 1) / (len(divisions) + 1)


def _energies(
    distances: Float[np.ndarray, "item item"], divisions: Int[np.ndarray, "draw item"]
) -> Float[np.ndarray, " draw"]:
    n_first = divisions.sum(axis=1, keepdims=True)
    weights = divisions / n_first - (1 - divisions) / (divisions.shape[1] - n_first)
    return np.asarray(-np.einsum("di,di->d", weights @ distances, weights))


def fewest_divisions(n_first: int, n_second: int) -> int:
    """Number of different divisions, which limits how small a p-value can be."""
    return math.comb(n_first + n_second, n_first)
