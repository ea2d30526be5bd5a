"""In what networks differ: each aspect of a run as curves, one for each input, that are averaged and compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from headtree.comparison.run_profile import MEASURES, MEASURES_OF_SIZE, RunProfile
from headtree.similarity.head_similarity import affinity_of

#: Points of curves whose breakpoints would be too many.
_POINTS = 512

Square = Float[np.ndarray, "head head"]
Curve = Callable[[Square], Float[np.ndarray, " point"]]


@dataclass(frozen=True, eq=False)
class Aspect:
    r"""A curve for each run and input. The distance of two runs is :math:`\sum_k w_k |\bar x_k - \bar y_k|`.

    The bars are means over inputs. For a measure of heads, the curve holds the quantiles of its distribution over
    heads, and the distance is the Wasserstein distance :math:`W_1` of the distributions.
    """

    name: str
    words: str
    unit: str  #: what a distance of 1 means
    at: Float[np.ndarray, " point"]  #: quantile, share of coefficients, …
    weights: Float[np.ndarray, " point"]
    curves: tuple[Float[np.ndarray, "input point"], ...]  #: of each run

    def mean(self, run: int, inputs: Any = slice(None)) -> Float[np.ndarray, " point"]:
        """The mean curve of a run over some inputs."""
        return np.asarray(self.curves[run][inputs].mean(axis=0))

    def distance(self, first: int, second: int, inputs: Any = slice(None), others: Any = slice(None)) -> float:
        """Distance between the mean curves of two runs, each over some of its inputs."""
        return float(self.weights @ np.abs(self.mean(first, inputs) - self.mean(second, others)))

    def between_inputs(self, runs: Sequence[int]) -> Float[np.ndarray, "item item"]:
        """Distances between the curves of all inputs of some runs."""
        from scipy.spatial.distance import cdist

        items = np.concatenate([self.curves[run] for run in runs]) * self.weights
        return np.asarray(cdist(items, items, "cityblock"))


def aspects_of(profiles: Sequence[RunProfile]) -> tuple[list[Aspect], list[str]]:
    """Every aspect that all runs have, apart from geometry, and why others are missing."""
    notes: list[str] = []
    found = [
        _curves("tree", "shape of the trees", "all heads", profiles, tree_curve),
        _curves("compression", "compression by the tree", "the norm", profiles, compression_curve_of_heads),
        _curves("rank", "rank curve", "the norm", profiles, rank_curve),
        _roles(profiles),
    ]
    words = MEASURES
    if len({shape for profile in profiles for shape in profile.shapes}) == 1:
        words = MEASURES | MEASURES_OF_SIZE
    else:
        notes.append(
            "the inputs differ in their number of tokens, which changes most measures of heads, and so their "
            "distributions; the structure score is left out"
        )
    for name, word in words.items():
        if not all(name in profile.measures for profile in profiles):
            continue
        lacking = [profile.name for profile in profiles if np.isnan(profile.measures[name]).all(axis=1).any()]
        if lacking:
            notes.append(f"{word} is left out: {lacking[0]} has an input on which no head has it")
        else:
            found.append(_distribution(name, word, profiles))
    return found, notes


def _distribution(name: str, words: str, profiles: Sequence[RunProfile]) -> Aspect:
    """Quantiles of a measure over heads; exact, as the breakpoints are those of all runs together."""
    ends = np.unique(np.round(np.concatenate([np.arange(1, n + 1) / n for n in _head_counts(profiles)]), 12))
    widths = np.diff(ends, prepend=0.0)
    curves = tuple(_quantiles(profile.measures[name], ends - widths / 2) for profile in profiles)
    return Aspect(name, words, "units of the measure", ends - widths / 2, widths, curves)


def _head_counts(profiles: Sequence[RunProfile]) -> list[int]:
    return sorted({len(profile.heads) for profile in profiles})


def _quantiles(
    values: Float[np.ndarray, "input value"], at: Float[np.ndarray, " point"]
) -> Float[np.ndarray, "input point"]:
    """Of each row, the steps of its sorted finite values."""
    rows = [np.sort(row[np.isfinite(row)]) for row in values]
    return np.stack([row[np.minimum((at * len(row)).astype(np.int64), len(row) - 1)] for row in rows])


def _middles() -> Float[np.ndarray, " point"]:
    return np.asarray((np.arange(_POINTS) + 0.5) / _POINTS)


def _curves(name: str, words: str, unit: str, profiles: Sequence[RunProfile], curve: Curve) -> Aspect:
    """An aspect that follows from the geometry of each input."""
    curves = tuple(np.stack([curve(distance) for distance in profile.distance]) for profile in profiles)
    return Aspect(name, words, unit, _middles(), np.full(_POINTS, 1 / _POINTS), curves)


def tree_curve(distance: Square) -> Float[np.ndarray, " point"]:
    """Quantiles, over pairs of heads, of the share of all heads in the smallest folder that holds both."""
    from scipy.cluster.hierarchy import cophenet

    if len(distance) < 2:
        return np.ones(_POINTS)
    joins = _joins(distance)
    joins[:, 2] = joins[:, 3] / len(distance)  # the share of the heads in the new folder, in place of its height
    return np.asarray(_quantiles(cophenet(joins)[None], _middles())[0])


def compression_curve_of_heads(distance: Square) -> Float[np.ndarray, " point"]:
    """Relative error if the heads of a folder share one map, against the number of folders per head.

    The maps are the roots of the probabilities, whose products are the Bhattacharyya coefficients 1 - d². The
    folders are those of the tree as it is cut from the leaves to the root: Haar functions of heads, whole folders
    at a time.
    """
    n = len(distance)
    sums = 1 - distance**2  # over the pairs of heads of two folders; the one that joins go to is the second
    sizes, slots = np.ones(n), list(range(n))
    explained = [float(np.trace(sums))]
    for first, second in _joins(distance)[:, :2].astype(np.int64) if n > 1 else ():
        a, b = slots[first], slots[second]
        before = sums[a, a] / sizes[a] + sums[b, b] / sizes[b]
        sums[b] += sums[a]
        sums[:, b] += sums[:, a]
        sizes[b] += sizes[a]
        slots.append(b)
        explained.append(explained[-1] - before + sums[b, b] / sizes[b])
    errors = np.sqrt(np.clip(1 - np.array(explained[::-1]) / explained[0], 0.0, None))  # of 1, 2, …, n folders
    return np.asarray(np.interp(_middles(), np.arange(1, n + 1) / n, errors))


def rank_curve(distance: Square) -> Float[np.ndarray, " point"]:
    """Relative error with the leading directions of the heads' maps, against their number per head.

    It is the same as `compression_curve_of_heads` with the best directions instead of folders: the eigenvectors of
    the matrix of products.
    """
    n = len(distance)
    values = np.linalg.eigvalsh(1 - distance**2).clip(min=0)
    left_out = np.append(np.cumsum(values)[::-1][1:], 0.0)  # after 1, 2, …, n directions
    return np.asarray(np.interp(_middles(), np.arange(1, n + 1) / n, np.sqrt(left_out / values.sum())))


def _joins(distance: Square) -> Float[np.ndarray, "join 4"]:
    from scipy.cluster.hierarchy import linkage
    from scipy.spatial.distance import squareform

    return np.asarray(linkage(squareform(1 - affinity_of(distance), checks=False), "average"))


def _roles(profiles: Sequence[RunProfile]) -> Aspect:
    """Total variation between the shares of heads with each role."""
    n = profiles[0].roles.shape[1]
    curves = tuple(profile.roles for profile in profiles)
    return Aspect("roles", "roles present", "all heads", np.arange(n) + 0.5, np.full(n, 0.5), curves)
