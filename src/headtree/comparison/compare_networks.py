"""`compare`: how different two or more networks are, in what, and whether inputs alone could explain it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from headtree import _checks
from headtree._extras import require
from headtree.comparison.aspects import Aspect, aspects_of
from headtree.comparison.exchange import divisions_of, energy_p_value, fewest_divisions
from headtree.comparison.gromov import Matched, between_geometries, descend, gromov_wasserstein
from headtree.comparison.head_changes import HeadChanges, head_changes, same_heads
from headtree.comparison.run_profile import RunProfile, run_profile
from headtree.errors import InvalidTypeError, InvalidValueError
from headtree.measures.jackknife import Estimate, jackknife
from headtree.progress import progress
from headtree.runs.run import Run, open_run

#: Random divisions of a run's inputs into halves whose distance is the yardstick.
_HALVINGS = 10

GEOMETRY = "geometry"


@dataclass(frozen=True)
class AspectDistance:
    """The distance of two runs in one aspect."""

    aspect: str
    first: int
    second: int
    estimate: Estimate  #: the distance, with its 95 % interval over inputs
    p_value: float  #: that two sets of inputs of one network differ so much; nan for runs of one input
    of_halves: float  #: distance between two halves of the inputs of one of the networks, the larger of the two


@dataclass(frozen=True, eq=False)
class Comparison:
    """Distances between networks in every aspect, and what changed between those that have the same heads.

    Examples
    --------
    Two networks on three inputs each, the second with stronger scores:

    >>> import tempfile
    >>> import headtree as ht
    >>> import numpy as np
    >>> from headtree.pipeline.make_run import make_run
    >>> from headtree.pipeline.sources import TensorSource
    >>> def run(strength):
    ...     scores = strength * np.random.default_rng(0).normal(size=(3, 6, 8, 8))
    ...     tensors = [ht.AttentionTensor.from_array(x, heads_per_layer=3) for x in scores]
    ...     return make_run(TensorSource(tensors), f"{tempfile.mkdtemp()}/strength {strength}", draw=False)
    >>> found = ht.compare(run(1), run(3))
    >>> found
    Comparison('strength 1', 'strength 3': 13 aspects)
    >>> bool(found.distance("confidence")[0, 1] > 0.1)
    True
    >>> len(found.changes[0].table())
    6
    """

    profiles: tuple[RunProfile, ...]
    aspects: tuple[Aspect, ...]  #: all but geometry
    distances: tuple[AspectDistance, ...]  #: for every pair of runs and every aspect
    couplings: Mapping[tuple[int, int], Float[np.ndarray, "head_a head_b"]]  #: of the geometries of two runs
    changes: tuple[HeadChanges, ...]  #: between each run and the next, where both have the same heads
    notes: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the runs."""
        return tuple(profile.name for profile in self.profiles)

    @property
    def words(self) -> dict[str, str]:
        """Every aspect in words, geometry first."""
        return {GEOMETRY: "geometry of heads", **{aspect.name: aspect.words for aspect in self.aspects}}

    def between(self, aspect: str, first: int, second: int) -> AspectDistance:
        """The distance of two runs in one aspect, with its evidence."""
        self._check(aspect)
        pair = {first, second}
        return next(d for d in self.distances if d.aspect == aspect and {d.first, d.second} == pair)

    def distance(self, aspect: str = GEOMETRY) -> Float[np.ndarray, "run run"]:
        """Distances of all runs in one aspect."""
        self._check(aspect)
        matrix = np.zeros((len(self.profiles), len(self.profiles)))
        for item in self.distances:
            if item.aspect == aspect:
                matrix[item.first, item.second] = matrix[item.second, item.first] = item.estimate.number
        return matrix

    def table(self) -> Any:
        """A row for each pair of runs and aspect, as a pandas DataFrame."""
        import pandas as pd

        return pd.DataFrame(
            {
                "first": [self.names[item.first] for item in self.distances],
                "second": [self.names[item.second] for item in self.distances],
                "aspect": [item.aspect for item in self.distances],
                "distance": [item.estimate.number for item in self.distances],
                "low": [item.estimate.interval[0] for item in self.distances],
                "high": [item.estimate.interval[1] for item in self.distances],
                "p_value": [item.p_value for item in self.distances],
                "of_halves": [item.of_halves for item in self.distances],
            }
        )

    def _check(self, aspect: str) -> None:
        if aspect not in self.words:
            raise InvalidValueError(f"aspect must be one of {', '.join(self.words)}, got {aspect!r}")

    def __repr__(self) -> str:
        return f"Comparison({', '.join(map(repr, self.names))}: {len(self.words)} aspects)"


def compare(
    *runs: Run | str | PathLike[str], names: Sequence[str] | None = None, n_permutations: int = 999, rng: int = 0
) -> Comparison:
    r"""Compare two or more networks, given as runs.

    Heads and tokens need not correspond. Each aspect is measured on every input of a run and averaged:

    ``geometry``
        Distances between heads by where they look, as in `headtree.head_similarity`. Two networks are matched by
        the Gromov-Wasserstein distance: the root mean square by which distances of matched heads differ.
    ``tree``, ``compression``, ``rank``
        Mean distance of two curves: how many heads the smallest folder with two heads has; the relative error if
        the heads of each folder share one map; and that with the best directions instead of folders.
    ``roles``
        Half the sum of the differences between the shares of heads with each role.
    measures of heads
        Wasserstein distance :math:`W_1` between the distributions over heads.

    Every distance has a jackknife interval over inputs, and a p-value for "more different than two sets of inputs
    of one network", from random divisions of the inputs of both. Runs of one input have neither. The p-values are
    not adjusted for the number of aspects and pairs.

    Runs with the same heads, such as checkpoints, are also compared head by head, each run with the next: which
    heads moved beyond what inputs do, in what measure, and which families split, merge, appear or dissolve.

    Parameters
    ----------
    *runs : Run or path
        Two or more runs of the same kind of values, in the order in which they are to be compared.
    names : sequence of str, optional
        A name for each run; by default that of its folder.
    n_permutations : int
        Random divisions of the inputs.
    rng : int
        Seed of the divisions.

    Examples
    --------
    A network and the same network with its heads in another order:

    >>> import tempfile
    >>> import headtree as ht
    >>> import numpy as np
    >>> from headtree.pipeline.make_run import make_run
    >>> from headtree.pipeline.sources import TensorSource
    >>> scores = np.random.default_rng(0).normal(size=(3, 6, 8, 8))
    >>> tensors = [ht.AttentionTensor.from_array(x, heads_per_layer=3) for x in scores]
    >>> shuffled = [att.take([3, 0, 5, 1, 4, 2]) for att in tensors]
    >>> folder = tempfile.mkdtemp()
    >>> a = make_run(TensorSource(tensors), f"{folder}/a", draw=False)
    >>> b = make_run(TensorSource(shuffled), f"{folder}/b", draw=False)
    >>> found = ht.compare(a, b)
    >>> bool(found.table()["distance"].max() < 1e-6)
    True
    """
    require("compare", "comparing networks")
    opened = _opened(runs)
    n_permutations = _checks.at_least_one(n_permutations, "n_permutations")
    seed = _checks.seed(rng)
    chosen = zip(opened, _names(opened, names), strict=True)
    return compare_profiles([run_profile(run, name) for run, name in chosen], n_permutations, seed)


def compare_profiles(profiles: Sequence[RunProfile], n_permutations: int, seed: int) -> Comparison:
    """`compare` from what was read of the runs."""
    aspects, notes = aspects_of(profiles)
    pairs = list(itertools.combinations(range(len(profiles)), 2))
    distances: list[AspectDistance] = []
    couplings, changes = {}, []
    with progress("comparing", len(pairs)) as step:
        for first, second in pairs:
            pair = (profiles[first], profiles[second])
            seeds = np.random.default_rng([seed, first, second])
            divisions = divisions_of((pair[0].n_inputs, pair[1].n_inputs), n_permutations, seeds)
            matched = gromov_wasserstein(*_mean_geometries(pair), _by_name(*pair))
            couplings[first, second] = matched.coupling
            distances.append(_geometry(pair, (first, second), matched, divisions, seeds))
            distances += [_distance(aspect, (first, second), divisions, seeds) for aspect in aspects]
            if second == first + 1 and same_heads(*pair):
                changes.append(head_changes((first, second), pair, matched.coupling, n_permutations, seeds))
            step(f"{pair[0].name} and {pair[1].name}")
    few = _few(profiles)
    return Comparison(tuple(profiles), tuple(aspects), tuple(distances), couplings, tuple(changes), (*few, *notes))


# -- input -------------------------------------------------------------------------------------------------------


def _opened(runs: Sequence[Any]) -> list[Run]:
    if len(runs) == 1 and isinstance(runs[0], list | tuple):
        raise InvalidTypeError("runs must be passed one by one: ht.compare(a, b), or ht.compare(*runs) for a list")
    if len(runs) < 2:
        raise InvalidValueError(f"runs must be two or more, got {len(runs)}; a network is compared with another")
    opened = [run if isinstance(run, Run) else open_run(run) for run in runs]
    for run in opened:
        if run.kind == "array":
            raise InvalidValueError(f"{run.path} is a run of an array, which has no heads; pass runs of networks")
        run.heads  # noqa: B018  (raises an error that names what is missing from an unfinished run)
    kinds = {run.values_words: run for run in opened}
    if len(kinds) > 1:
        words = " but ".join(f"{run.path} is of {kind}" for kind, run in list(kinds.items())[:2])
        raise InvalidValueError(
            f"runs must all be of the same kind of values, {words}; make one of them again with the other's --kind "
            "and --raw"
        )
    return opened


def _names(runs: Sequence[Run], names: Any) -> list[str]:
    if names is not None:
        given = [str(name) for name in _checks.as_list(names, "names", "strings, one per run")]
        if len(given) != len(runs):
            raise InvalidValueError(f"names must have one name for each of the {len(runs)} runs, got {len(given)}")
        return given
    found = [run.name for run in runs]
    if len(set(found)) == len(found):
        return found
    return [f"{run.path.resolve().parent.name}/{run.name}" for run in runs]


def _few(profiles: Sequence[RunProfile]) -> list[str]:
    """What cannot be said because of too few inputs."""
    notes = []
    alone = [profile.name for profile in profiles if profile.n_inputs < 2]
    if alone:
        notes.append(
            f"{alone[0]} is a run of one input: its distances have neither an interval nor a p-value, since nobody "
            "can tell what another input would change; make runs with --inputs 10 or more"
        )
    short = [profile.name for profile in profiles if profile.n_inputs == 2]
    if short:
        notes.append(f"{short[0]} is a run of two inputs: its distances have no interval, which takes three")
    sizes = [profile.n_inputs for profile in profiles if profile.n_inputs > 1]
    worst = min((fewest_divisions(a, b) for a, b in itertools.combinations(sizes, 2)), default=math.inf)
    if worst < 40:
        notes.append(
            f"with so few inputs there are only {worst} ways to divide them, so no p-value can be below "
            f"{(1 if len(set(sizes)) > 1 else 2) / worst:.2g}"
        )
    return notes


# -- distances ---------------------------------------------------------------------------------------------------


def _mean_geometries(pair: tuple[RunProfile, RunProfile]) -> tuple[Any, Any]:
    return pair[0].distance.mean(axis=0), pair[1].distance.mean(axis=0)


def _by_name(a: RunProfile, b: RunProfile) -> list[Float[np.ndarray, "head_a head_b"]]:
    """The coupling of heads of the same name, if all heads have one."""
    if not same_heads(a, b):
        return []
    coupling = np.zeros((len(a.heads), len(b.heads)))
    coupling[np.arange(len(a.heads)), [b.heads.index(head) for head in a.heads]] = 1 / len(a.heads)
    return [coupling]


def _geometry(
    pair: tuple[RunProfile, RunProfile],
    which: tuple[int, int],
    matched: Matched,
    divisions: Int[np.ndarray, "draw item"],
    rng: np.random.Generator,
) -> AspectDistance:
    a, b = pair

    def statistic(of_a: Int[np.ndarray, " draw"], of_b: Int[np.ndarray, " draw"]) -> float:
        if len(of_a) == a.n_inputs and len(of_b) == b.n_inputs:
            return matched.distance
        return descend(a.distance[of_a].mean(axis=0), b.distance[of_b].mean(axis=0), matched.coupling)

    estimate = _not_negative(jackknife(statistic, a.n_inputs, b.n_inputs))
    halves = [_geometry_of_halves(profile, rng) for profile in pair]
    p_value = energy_p_value(between_geometries([*a.distance, *b.distance]), a.n_inputs, divisions)
    return AspectDistance(GEOMETRY, *which, estimate, p_value, max(halves))


def _geometry_of_halves(profile: RunProfile, rng: np.random.Generator) -> float:
    """Mean distance between the geometries of two halves of the inputs of a run, from heads matched by name."""
    itself = np.eye(len(profile.heads)) / len(profile.heads)
    return _mean_of_halves(
        profile.n_inputs,
        lambda a, b: descend(profile.distance[a].mean(axis=0), profile.distance[b].mean(axis=0), itself),
        rng,
    )


def _mean_of_halves(n_inputs: int, distance: Any, rng: np.random.Generator) -> float:
    """Mean distance between two halves of the inputs, over random divisions; nan for a single input."""
    if n_inputs < 2:
        return math.nan
    divided = (rng.permutation(n_inputs) for _ in range(_HALVINGS))
    return float(np.mean([distance(order[: n_inputs // 2], order[n_inputs // 2 :]) for order in divided]))


def _distance(
    aspect: Aspect, which: tuple[int, int], divisions: Int[np.ndarray, "draw item"], rng: np.random.Generator
) -> AspectDistance:
    first, second = which
    sizes = len(aspect.curves[first]), len(aspect.curves[second])
    estimate = jackknife(lambda a, b: aspect.distance(first, second, a, b), *sizes)
    halves = [
        _mean_of_halves(n, lambda a, b, run=run: aspect.distance(run, run, a, b), rng)
        for run, n in zip(which, sizes, strict=True)
    ]
    p_value = energy_p_value(aspect.between_inputs(which), sizes[0], divisions)
    return AspectDistance(aspect.name, first, second, _not_negative(estimate), p_value, max(halves))


def _not_negative(estimate: Estimate) -> Estimate:
    """An interval of a distance begins at 0 at the earliest."""
    low, high = estimate.interval
    return Estimate(estimate.number, (max(0.0, low) if math.isfinite(low) else low, high), estimate.n_inputs)
