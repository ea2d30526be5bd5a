"""A comparison in sentences and tables."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from headtree.comparison.family_changes import FamilyChange
from headtree.report.words.numbers import interval_words, number_words

if TYPE_CHECKING:
    from headtree.comparison.compare_networks import AspectDistance, Comparison
    from headtree.comparison.head_changes import HeadChanges

#: Level of the tests, of all aspects of a pair together.
_LEVEL = 0.05


def p_words(p_value: float) -> str:
    """A p-value in words.

    Examples
    --------
    >>> p_words(0.001), p_words(0.5), p_words(float("nan"))
    ('p = 0.001', 'p = 0.50', 'no p-value')
    """
    if not math.isfinite(p_value):
        return "no p-value"
    return f"p = {p_value:.3f}" if p_value < 0.1 else f"p = {p_value:.2f}"


def pair_sentence(comparison: Comparison, first: int, second: int) -> str:
    """How different two networks are."""
    found = [comparison.between(aspect, first, second) for aspect in comparison.words]
    geometry = found[0]
    names = f"{comparison.names[first]} and {comparison.names[second]}"
    sentence = f"{names}: the geometry of heads differs by {interval_words(geometry.estimate)}{_times(geometry)}"
    if not math.isfinite(geometry.p_value):
        return f"{sentence}; without several inputs of both, nobody can say what of it inputs explain."
    clear = _clear(found)
    words = [comparison.words[item.aspect] for item in found if item.aspect not in clear]
    if not clear:
        return f"{sentence}; in no aspect do they differ more than two sets of inputs of one network."
    rest = f", not in {_listed(words)}" if words else ""
    return (
        f"{sentence}; they differ more than two sets of inputs of one network in {len(clear)} of {len(found)} "
        f"aspects{rest} (permutation tests, Holm's correction)."
    )


def _times(item: AspectDistance) -> str:
    if not item.of_halves > 0:
        return ""
    return (
        f", {number_words(round(item.estimate.number / item.of_halves, 1))} times what two halves of the inputs do"
    )


def _clear(found: list[AspectDistance]) -> set[str]:
    """Aspects in which two networks differ, at a level of 5 % for all together (Holm 1979)."""
    clear = set()
    for i, item in enumerate(sorted(found, key=lambda each: each.p_value)):
        if not item.p_value <= _LEVEL / (len(found) - i):
            break
        clear.add(item.aspect)
    return clear


def change_sentence(comparison: Comparison, change: HeadChanges) -> str:
    """What happened to the heads from one run to the next."""
    names = f"{comparison.names[change.first]} to {comparison.names[change.second]}"
    n = len(change.heads)
    moved = int(change.has_moved.sum())
    if np.isnan(change.moved_p).all():
        said = "without several inputs of both, nobody can say which heads moved beyond what inputs do"
    else:
        said = f"{moved} of {n} heads moved farther than inputs explain"
    measures = sum(np.nan_to_num(p, nan=1.0) <= _LEVEL for p in change.change_p.values())
    also = f"; {int((np.asarray(measures) > 0).sum())} changed in some measure" if change.change_p else ""
    renamed = int((change.match != np.arange(n)).sum())
    match = f"; transport matches {n - renamed} of {n} heads with themselves"
    return f"From {names}, {said}{also}{match}; families: {_events(change)}."


def _events(change: HeadChanges) -> str:
    counts = {event: sum(item.event == event for item in change.families) for event in _EVENTS}
    words = [f"{n} {_EVENTS[event][n > 1]}" for event, n in counts.items() if n]
    return _listed(words) if words else "none"


_EVENTS = {
    "continues": ("continues", "continue"),
    "splits": ("splits", "split"),
    "merges": ("merger", "mergers"),
    "appears": ("appears", "appear"),
    "dissolves": ("dissolves", "dissolve"),
}


def event_words(change: FamilyChange) -> str:
    """What became of some families.

    Examples
    --------
    >>> event_words(FamilyChange("splits", (0,), (1, 2), 9))
    'family 0 splits into 1 and 2 (9 heads)'
    >>> event_words(FamilyChange("appears", (), (3,), 0))
    'family 3 appears'
    """
    before, after = (_listed(list(map(str, side))) for side in (change.before, change.after))
    shared = f" ({change.shared} head{'s' * (change.shared != 1)})"
    return {
        "continues": f"family {before} continues as {after}{shared}",
        "splits": f"family {before} splits into {after}{shared}",
        "merges": f"families {before} merge into {after}{shared}",
        "appears": f"family {after} appears",
        "dissolves": f"family {before} dissolves",
    }[change.event]


def _listed(words: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def distance_rows(comparison: Comparison, first: int, second: int) -> list[list[str]]:
    """For each aspect of a pair: its name, the distance, that of halves, and the p-value, as text."""
    found = [comparison.between(aspect, first, second) for aspect in comparison.words]
    return [
        [
            comparison.words[item.aspect],
            interval_words(item.estimate),
            number_words(item.of_halves),
            p_words(item.p_value).removeprefix("p = "),
        ]
        for item in found
    ]


def changed_head_rows(change: HeadChanges, words: dict[str, str]) -> list[list[str]]:
    """For each head, the one that moved farthest first, the columns of `CHANGED_COLUMNS` as text."""
    rows = []
    for row in change.table().to_dict("records"):
        largest = f"{words.get(row['largest_change'], row['largest_change'])} {_signed(row['change'])}"
        rows.append(
            [
                str(row["name"]),
                number_words(row["moved"]),
                p_words(row["moved_p"]).removeprefix("p = "),
                number_words(row["distance_to_itself"]),
                str(row["matched_with"]),
                f"{largest} ({p_words(row['change_p'])})",
                _from_to(row["role_before"] or "none", row["role_after"] or "none"),
                _from_to(*("none" if row[f"family_{when}"] < 0 else str(row[f"family_{when}"]) for when in _WHEN)),
            ]
        )
    return rows


_WHEN = ("before", "after")
CHANGED_COLUMNS = (
    "head",
    "moved",
    "p",
    "distance to itself",
    "matched with",
    "changed most",
    "role",
    "family",
)


def _signed(value: Any) -> str:
    return ("+" if value > 0 else "") + number_words(float(value))


def _from_to(before: str, after: str) -> str:
    return before if before == after else f"{before} → {after}"
