"""What changed between two runs of the same heads: heads matched by name and by transport, and how they moved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from headtree._threads import for_each_task, sleeping_threads
from headtree.comparison.exchange import divisions_of
from headtree.comparison.family_changes import FamilyChange, family_changes
from headtree.comparison.run_profile import MEASURES, MEASURES_OF_SIZE, RunProfile, in_memory
from headtree.similarity.attention_distances import distance_across

#: Permutations whose geometries are in memory at a time.
_AT_A_TIME = 50


@dataclass(frozen=True, eq=False)
class HeadChanges:
    """How each head changed from one run to another that has the same heads.

    `moved` is how far a head moved among the others: the root mean square change of its distances to all heads.
    `moved_p` says whether the two networks' inputs, divided at random, would show as much for any head: it is
    adjusted for the number of heads, by the largest value in each division (Westfall and Young). The same holds for
    the measures, whose changes are in standard deviations over inputs, adjusted for heads and measures together.
    """

    first: int  #: which of the compared runs
    second: int
    heads: tuple[str, ...]
    looks: Float[np.ndarray, " head"]  #: Hellinger distance to itself on the same inputs; nan if they are others
    match: Int[np.ndarray, " head"]  #: the head of the second run that transport assigns to it
    match_looks: Float[np.ndarray, " head"]  #: Hellinger distance to that head; nan as above
    moved: Float[np.ndarray, " head"]
    moved_p: Float[np.ndarray, " head"]  #: nan for runs of one input
    change: Mapping[str, Float[np.ndarray, " head"]]  #: of each measure, second minus first
    change_deviations: Mapping[str, Float[np.ndarray, " head"]]
    change_p: Mapping[str, Float[np.ndarray, " head"]]
    role: tuple[tuple[str, str], ...]  #: before and after
    family: tuple[tuple[int, int], ...]
    families: tuple[FamilyChange, ...]

    @property
    def has_moved(self) -> Bool[np.ndarray, " head"]:
        """Which heads moved beyond what inputs do, at a family-wise level of 5 %."""
        return self.moved_p <= 0.05

    def table(self) -> Any:
        """A row per head as a pandas DataFrame, the heads that moved farthest first.

        `largest_change` is the measure with the smallest p-value, and of these the largest change.
        """
        import pandas as pd

        names = list(self.change)
        p = np.array([np.nan_to_num(self.change_p[name], nan=1.0) for name in names])
        size = np.array([np.nan_to_num(np.abs(self.change_deviations[name])) for name in names])
        best = np.lexsort((-size, p), axis=0)[0]
        every = np.arange(len(self.heads))
        picked = {
            "largest_change": [names[i] for i in best],
            "change": np.array([self.change[name] for name in names])[best, every],
            "change_in_deviations": np.array([self.change_deviations[name] for name in names])[best, every],
            "change_p": np.array([self.change_p[name] for name in names])[best, every],
        }
        table = pd.DataFrame(
            {
                "name": self.heads,
                "moved": self.moved,
                "moved_p": self.moved_p,
                "distance_to_itself": self.looks,
                "matched_with": [self.heads[i] for i in self.match],
                "distance_to_match": self.match_looks,
                **picked,
                "role_before": [before for before, _ in self.role],
                "role_after": [after for _, after in self.role],
                "family_before": [before for before, _ in self.family],
                "family_after": [after for _, after in self.family],
            }
        )
        return table.sort_values("moved", ascending=False, kind="stable").reset_index(drop=True)


def same_heads(a: RunProfile, b: RunProfile) -> bool:
    """Whether two runs have heads of the same names, in any order."""
    return len(a.heads) == len(b.heads) and set(a.heads) == set(b.heads)


def head_changes(
    pair: tuple[int, int],
    profiles: tuple[RunProfile, RunProfile],
    coupling: Float[np.ndarray, "head_a head_b"],
    n_permutations: int,
    rng: np.random.Generator,
) -> HeadChanges:
    """Compare the heads of two runs by name and by transport.

    Parameters
    ----------
    pair : tuple of int
        Which of the compared runs they are.
    profiles : tuple of RunProfile
        The two runs.
    coupling : array
        Of their geometries; heads are matched by it if the runs have other inputs.
    n_permutations : int
        Random divisions of the inputs.
    rng : numpy Generator
        Source of the divisions.
    """
    a, b = profiles
    order = np.array([b.heads.index(head) for head in a.heads])  # of b, to have its heads in the order of a
    looks, match, match_looks = _matched(profiles, coupling, order)
    divisions = divisions_of((a.n_inputs, b.n_inputs), n_permutations, rng)
    can_test = min(a.n_inputs, b.n_inputs) > 1
    distances = np.concatenate([a.distance, b.distance[:, order][:, :, order]])
    moved, moved_p = _moved(distances, a.n_inputs, divisions)
    change, deviations, change_p = _measure_changes(a, b, order, divisions)
    return HeadChanges(
        first=pair[0],
        second=pair[1],
        heads=tuple(map(str, a.heads)),
        looks=looks,
        match=match,
        match_looks=match_looks,
        moved=moved,
        moved_p=moved_p if can_test else np.full(len(moved), np.nan),
        change=change,
        change_deviations=deviations,
        change_p=change_p if can_test else {name: np.full(len(moved), np.nan) for name in change},
        role=tuple((a.role[i], b.role[j]) for i, j in enumerate(order)),
        family=tuple((a.family[i], b.family[j]) for i, j in enumerate(order)),
        families=family_changes(np.array(a.family), np.array(b.family)[order]),
    )


def _matched(
    profiles: tuple[RunProfile, RunProfile],
    coupling: Float[np.ndarray, "head_a head_b"],
    order: Int[np.ndarray, " head"],
) -> tuple[Float[np.ndarray, " head"], Int[np.ndarray, " head"], Float[np.ndarray, " head"]]:
    """Distance of each head to itself, its match, and the distance to that; all in the order of the first run.

    On the same inputs, the matching makes the sum of the distances smallest. On other inputs, heads can only be
    matched by their geometry, and have no distance.
    """
    from scipy.optimize import linear_sum_assignment

    a, b = profiles
    if not a.has_inputs_of(b):
        match = linear_sum_assignment(-coupling[:, order])[1]
        return np.full(len(order), np.nan), match, np.full(len(order), np.nan)
    found: list[Any] = [None] * a.n_inputs
    with sleeping_threads():

        def across(i: int) -> None:
            found[i] = distance_across(in_memory(a.attention[i]), in_memory(b.attention[i]))

        for_each_task(across, a.n_inputs)
    distance = np.mean(found, axis=0)[:, order]
    match = linear_sum_assignment(distance)[1]
    every = np.arange(len(order))
    return distance[every, every], match, distance[every, match]


def _moved(
    distances: Float[np.ndarray, "item head head"], n_first: int, divisions: Int[np.ndarray, "draw item"]
) -> tuple[Float[np.ndarray, " head"], Float[np.ndarray, " head"]]:
    """Root mean square change of each head's distances to the others, and its p-value, adjusted for all heads."""
    given = (np.arange(len(distances)) < n_first).astype(np.int64)
    moved = next(_changes_of_rows(distances, given[None]))[0]
    largest = np.concatenate([rows.max(axis=1) for rows in _changes_of_rows(distances, divisions)])
    return moved, _adjusted(moved, largest)


def _changes_of_rows(
    distances: Float[np.ndarray, "item head head"], divisions: Int[np.ndarray, "draw item"]
) -> Iterator[Float[np.ndarray, "draw head"]]:
    n = distances.shape[1]
    flat = distances.reshape(len(distances), -1)
    for i in range(0, len(divisions), _AT_A_TIME):
        change = (_weights(divisions[i : i + _AT_A_TIME]) @ flat).reshape(-1, n, n)
        yield np.sqrt((change * change).sum(axis=2) / max(1, n - 1))


def _weights(divisions: Int[np.ndarray, "draw item"]) -> Float[np.ndarray, "draw item"]:
    """What makes the mean over the second set minus the mean over the first."""
    n_first = divisions.sum(axis=1, keepdims=True)
    return np.asarray((1 - divisions) / (divisions.shape[1] - n_first) - divisions / n_first)


def _adjusted(found: Float[np.ndarray, "..."], largest: Float[np.ndarray, " draw"]) -> Float[np.ndarray, "..."]:
    """Share of the divisions in which the largest value of all is at least this; nan where nothing was found."""
    least = found - 1e-9 * max(1e-300, float(np.nanmax(np.abs(found), initial=0.0)))
    reached = len(largest) - np.searchsorted(np.sort(largest), least)
    return np.where(np.isnan(found), np.nan, (reached + 1) / (len(largest) + 1))


def _measure_changes(
    a: RunProfile, b: RunProfile, order: Int[np.ndarray, " head"], divisions: Int[np.ndarray, "draw item"]
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Change of every measure of every head, the same in standard deviations over inputs, and its p-value."""
    words = MEASURES | (MEASURES_OF_SIZE if len({*a.shapes, *b.shapes}) == 1 else {})
    names = [name for name in words if name in a.measures and name in b.measures]
    first = np.stack([a.measures[name] for name in names], axis=1)
    items = np.concatenate([first, np.stack([b.measures[name][:, order] for name in names], axis=1)])
    flat = items.reshape(len(items), -1)
    given = (np.arange(len(items)) < a.n_inputs).astype(np.int64)
    change = (_weights(given[None]) @ flat)[0]
    spread = _spread(flat, given[None])[0]
    in_deviations = np.divide(change, spread, out=np.full(len(change), np.nan), where=spread > 0)
    in_deviations[(spread == 0) & (change == 0)] = 0.0
    in_deviations[(spread == 0) & (change != 0)] = np.inf
    largest = []
    for i in range(0, len(divisions), _AT_A_TIME):
        some = divisions[i : i + _AT_A_TIME]
        changes, spreads = np.abs(_weights(some) @ flat), _spread(flat, some)
        ratio = np.divide(changes, spreads, out=np.zeros_like(changes), where=spreads > 0)
        largest.append(np.nanmax(ratio, axis=1, initial=0.0))
    p = _adjusted(np.abs(in_deviations), np.concatenate(largest))
    shape = (len(names), len(order))
    return tuple(  # type: ignore[return-value]
        dict(zip(names, values.reshape(shape), strict=True)) for values in (change, in_deviations, p)
    )


def _spread(
    items: Float[np.ndarray, "item n"], divisions: Int[np.ndarray, "draw item"]
) -> Float[np.ndarray, "draw n"]:
    """Standard deviation within the two sets, both together; 0 below what rounding can tell from 0."""
    n_items, n_first = len(items), divisions.sum(axis=1, keepdims=True)
    centred = items - items.mean(axis=0)
    squares = (centred * centred).sum(axis=0)
    first, second = divisions @ centred, (1 - divisions) @ centred
    within = squares - first**2 / n_first - second**2 / (n_items - n_first)
    noise = 1e-12 * np.maximum(squares, (items**2).sum(axis=0) * 1e-12)
    return np.asarray(np.sqrt(np.where(within > noise, within, 0.0) / max(1, n_items - 2)))
