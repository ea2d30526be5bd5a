"""Arrays with planted trees, which the questionnaire should find."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from headtree.errors import InvalidValueError
from headtree.trees.tree import PartitionTree


@dataclass(frozen=True, eq=False)
class PlantedArray:
    """An array whose slices belong to folders of known trees, in shuffled order."""

    values: Float[np.ndarray, "..."]
    trees: tuple[PartitionTree, ...]  #: one for each axis, on the shuffled slices


def planted_array(
    shape: Sequence[int],
    branching: Sequence[int] = (4, 2),
    *,
    decay: float = 0.5,
    noise: float = 0.1,
    rng: int | np.random.Generator = 0,
) -> PlantedArray:
    """Draw an array that is constant on products of folders on each level, add noise, and shuffle its slices.

    Parameters
    ----------
    shape : sequence of int
        Length of each axis.
    branching : sequence of int
        Every axis is split into ``branching[0]`` folders, each of them into ``branching[1]``, and so on, as
        evenly as possible; the folders of the last level are the finest families.
    decay : float
        Size of each level's differences relative to the level above.
    noise : float
        Standard deviation of independent noise; the differences of the first level have 1.
    rng : int or numpy Generator
        Source of randomness.
    """
    n_finest = int(np.prod(branching))
    if min(shape, default=0) < n_finest or min(branching, default=1) < 1:
        raise InvalidValueError(
            f"shape must have at least {n_finest} slices on every axis for branching {tuple(branching)}, "
            f"got {tuple(shape)}"
        )
    generator = np.random.default_rng(rng)
    trees = [PartitionTree(_planted_labels(n, branching)[:, generator.permutation(n)]) for n in shape]
    values = noise * generator.standard_normal(tuple(shape))
    for level in range(1, len(branching) + 1):
        means = generator.standard_normal([int(tree.n_folders[level]) for tree in trees])
        values += decay ** (level - 1) * means[np.ix_(*(tree.labels[level] for tree in trees))]
    return PlantedArray(values, tuple(trees))


def _planted_labels(n: int, branching: Sequence[int]) -> Int[np.ndarray, "level leaf"]:
    """Consecutive leaves in folders of nearly equal size on each level, from the root to single leaves."""
    counts = np.cumprod([1, *branching])
    finest = np.arange(n) * counts[-1] // n
    levels = [finest // (counts[-1] // count) for count in counts]
    return np.stack([*levels, np.arange(n)])
