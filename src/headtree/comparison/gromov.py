"""The Gromov-Wasserstein distance between two sets of heads, of which only distances within each set are known."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from headtree._extras import require

Square = Float[np.ndarray, "head head"]
Coupling = Float[np.ndarray, "head_a head_b"]

#: Iterations of the solver; it needs about ten.
_MOST_ITERATIONS = 200
_TOLERANCE = 1e-9
#: Mass of a coupling below this share of a head's is rounding.
_NO_MASS = 1e-9
#: Entries of a sparse coupling, times the number of heads.
_SPARSE = 4
#: Alignments of principal axes from which the solver descends.
_ALIGNMENTS = 8


class Matched(NamedTuple):
    """A distance between two sets of heads, and the coupling that attains it."""

    distance: float
    coupling: Coupling  #: rows and columns sum to the mass of a head


def gromov_wasserstein(a: Square, b: Square, starts: Sequence[Coupling] = ()) -> Matched:
    r"""Match the heads of two networks in such a way that distances between heads change as little as possible.

    .. math:: GW(a, b)^2 = \min_\pi \sum_{ii'jj'} (a_{ii'} - b_{jj'})^2 \, \pi_{ij} \pi_{i'j'}

    over couplings :math:`\pi` of uniform masses (Mémoli 2011; his distance is half of it). It is the root mean
    square by which distances of matched pairs of heads differ: 0 if one set is the other in another order. The
    problem is not convex. The solver of POT descends from the coupling that `profile_bound` finds, from the best
    alignments of the principal axes, from the product of the masses and from `starts`; the best result is returned.
    So it is an upper bound of the distance. None of the starts depends on the order of the heads.

    Parameters
    ----------
    a, b : array
        Distances between the heads of each network; the numbers of heads may differ.
    starts : sequence of arrays
        Further couplings to descend from.

    References ---------- Mémoli, Gromov-Wasserstein distances and the metric approach to object matching, 2011;
    Flamary et al., POT: Python Optimal Transport, 2021.
    """
    masses = np.full(len(a), 1 / len(a)), np.full(len(b), 1 / len(b))
    best: Matched | None = None
    tried = itertools.chain([profile_bound(a, b).coupling], starts, [np.outer(*masses)], _axis_couplings(a, b))
    for start in tried:
        found = _descend(a, b, start)
        if best is None or found.distance < best.distance:
            best = found
        if best.distance == 0:
            break
    return best  # type: ignore[return-value]  # there is at least one start


def _axis_couplings(a: Square, b: Square) -> list[Coupling]:
    """Couplings of heads that are close once the principal axes of both sets are aligned, in any order and sense.

    Of the 48 ways to align three axes, those with the smallest distances are returned.
    """
    from scipy.spatial.distance import cdist

    x, y = principal_coordinates(a, 3), principal_coordinates(b, 3)
    found = [
        _transport(cdist(x, y[:, list(order)] * np.array(signs), "sqeuclidean"))
        for order in itertools.permutations(range(3))
        for signs in itertools.product((1, -1), repeat=3)
    ]
    return sorted(found, key=lambda coupling: coupling_distance(a, b, coupling))[:_ALIGNMENTS]


def principal_coordinates(distance: Square, n_axes: int) -> Float[np.ndarray, "head n_axes"]:
    """Classical scaling: points whose distances approximate the given ones, along their principal axes."""
    centred = distance**2 / -2
    centred = centred - centred.mean(axis=0)
    centred = centred - centred.mean(axis=1, keepdims=True)
    values, vectors = np.linalg.eigh((centred + centred.T) / 2)
    points = np.zeros((len(distance), n_axes))
    chosen = np.argsort(-values)[:n_axes]
    points[:, : len(chosen)] = vectors[:, chosen] * np.sqrt(values[chosen].clip(min=0))
    return points


def descend(a: Square, b: Square, start: Coupling) -> float:
    """The distance that the solver reaches from one coupling: quick if that was found for similar distances."""
    return _descend(a, b, start).distance


def profile_bound(a: Square, b: Square) -> Matched:
    r"""Match heads by the distribution of their distances to all heads: a lower bound of `gromov_wasserstein`.

    .. math:: \min_\pi \sum_{ij} W_2^2(a_{i\cdot}, b_{j\cdot}) \, \pi_{ij}

    is Mémoli's third lower bound. It is a transport problem, which has one answer, and does not depend on the order
    of the heads.
    """
    cost = _profile_costs(a, b)
    coupling = _transport(cost)
    return Matched(float(np.sqrt(max(0.0, float((cost * coupling).sum())))), coupling)


def between_geometries(geometries: Sequence[Square]) -> Float[np.ndarray, "item item"]:
    """Quick distances between many geometries, for tests that need all of them.

    Each row of a geometry is sorted, then the rows are, by their mean. Two geometries differ by the root mean
    square difference of these tables: the cost of one way to match heads in `profile_bound`. The order of the heads
    does not matter. Where networks have different numbers of heads, rows and columns are repeated as quantiles are.
    """
    from scipy.spatial.distance import cdist

    n = max(map(len, geometries))
    tables = np.stack([_sorted_table(geometry, n).ravel() for geometry in geometries])
    return np.asarray(cdist(tables, tables) / n)


def _sorted_table(distance: Square, n_points: int) -> Float[np.ndarray, "n_points n_points"]:
    rows = np.sort(distance, axis=1)
    rows = rows[np.argsort(rows.mean(axis=1), kind="stable")]
    at = ((np.arange(n_points) + 0.5) / n_points * len(distance)).astype(np.int64)
    return rows[np.ix_(at, at)]


def _profile_costs(a: Square, b: Square) -> Coupling:
    """W₂² between the sorted rows of two matrices, which are step functions of their quantiles."""
    steps = np.union1d(np.arange(1, len(a) + 1) / len(a), np.arange(1, len(b) + 1) / len(b))
    steps = steps[np.append(np.diff(steps) > 1e-12, True)]  # breakpoints that differ by rounding are one
    widths = np.diff(steps, prepend=0.0)
    middles = steps - widths / 2
    of_a, of_b = (np.sort(d, axis=1)[:, (middles * len(d)).astype(np.int64)] for d in (a, b))
    root = np.sqrt(widths)
    return _squared_distances(of_a * root, of_b * root)


def _squared_distances(x: Float[np.ndarray, "head_a n"], y: Float[np.ndarray, "head_b n"]) -> Coupling:
    from scipy.spatial.distance import cdist

    return np.asarray(cdist(x, y, "sqeuclidean"))  # without cancellation: equal rows are at exactly 0


def _transport(cost: Coupling) -> Coupling:
    """The cheapest coupling of uniform masses; of as many heads, each goes to one."""
    n, m = cost.shape
    if n == m:
        from scipy.optimize import linear_sum_assignment

        coupling = np.zeros((n, m))
        coupling[linear_sum_assignment(cost)] = 1 / n
        return coupling
    require("compare", "comparing networks")
    import ot

    return np.asarray(ot.emd(np.full(n, 1 / n), np.full(m, 1 / m), np.ascontiguousarray(cost)))


def _descend(a: Square, b: Square, start: Coupling) -> Matched:
    require("compare", "comparing networks")
    import ot

    given = Matched(coupling_distance(a, b, start), start)
    if given.distance == 0:
        return given
    masses = np.full(len(a), 1 / len(a)), np.full(len(b), 1 / len(b))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the solver may stop before it converges: what it has is still a coupling
        coupling = np.asarray(
            ot.gromov.gromov_wasserstein(
                a, b, *masses, "square_loss", G0=start, max_iter=_MOST_ITERATIONS, tol_rel=_TOLERANCE, tol_abs=0.0
            )
        )
    found = Matched(coupling_distance(a, b, coupling), coupling)
    return min(found, given, key=lambda matched: matched.distance)


def coupling_distance(a: Square, b: Square, coupling: Coupling) -> float:
    """Root mean square by which distances of coupled pairs of heads differ.

    For couplings with few entries, as all optimal ones are, it is summed over pairs of entries. The usual expansion
    of the square, which is quicker for others, loses half of the digits.
    """
    rows, columns = np.nonzero(coupling > _NO_MASS * coupling.max())
    if len(rows) > _SPARSE * (len(a) + len(b)):
        squares = coupling.sum(axis=1) @ (a * a) @ coupling.sum(axis=1)
        squares += coupling.sum(axis=0) @ (b * b) @ coupling.sum(axis=0)
        return float(np.sqrt(max(0.0, squares - 2 * float(((a @ coupling @ b) * coupling).sum()))))
    mass = coupling[rows, columns]
    difference = a[np.ix_(rows, rows)] - b[np.ix_(columns, columns)]
    return float(np.sqrt(mass @ (difference * difference) @ mass) / mass.sum())
