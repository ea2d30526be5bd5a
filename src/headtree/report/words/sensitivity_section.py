"""How much the settings of the questionnaire matter for a run, as a section of its page."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headtree.measures.sensitivity import Change, Matters, Sensitivity
from headtree.report.words.numbers import interval_words
from headtree.section import Picture, Section, Table

#: How much a change moves the result, compared with another input, most first.
_DEGREES: dict[Matters, str] = {
    "more than it": "more",
    "as much as another input": "about as much",
    "less than another input": "less",
    "no more than rounding": "not at all",
}

_COLUMNS = (
    "setting", "value", "tree of heads", "tree of queries", "tree of keys", "affinity of heads", "ranking of heads",
    "moves the tree of heads, compared with another input", "moves the ranking, compared with another input",
)  # fmt: skip


def sensitivity_section(found: Sensitivity) -> Section:
    """The table, the figure, and which settings matter."""
    n = found.other_input.ranking.n_inputs[0]
    rows = [
        (
            change.setting,
            change.value,
            *(interval_words(getattr(change, name)) for name in ("head_tree", "query_tree", "key_tree")),
            interval_words(change.affinity),
            interval_words(change.ranking),
            _DEGREES[found.matters_for_tree(change)],
            _DEGREES[found.matters(change)],
        )
        for change in found.changes
    ]
    between = found.other_input
    text = (
        f"One setting is changed at a time, on {n} inputs. Trees are compared by tree distance (0: equal), "
        "affinities by correlation, and the heads' ranking by entropy by Spearman's correlation. Intervals are 95 "
        "% over inputs.",
        f"For comparison, two inputs with the same settings: tree of heads {interval_words(between.head_tree)}, "
        f"affinity {interval_words(between.affinity)}, ranking {interval_words(between.ranking)}.",
        _in_words("tree", found.changes, found.matters_for_tree),
        _in_words("ranking", found.changes, found.matters),
    )
    table = Table("What changes when one setting is changed.", _COLUMNS, rows)
    picture = Picture("figures/sensitivity.svg", "How much each setting changes trees, affinities and ranking.")
    return Section("How sensitive the result is", text, (table,), (picture,))


def _in_words(what: str, changes: Sequence[Change], matters: Callable[[Change], Matters]) -> str:
    by_degree: dict[str, list[str]] = {}
    for change in changes:
        by_degree.setdefault(_DEGREES[matters(change)], []).append(f"{change.setting} = {change.value}")
    said = [f"{degree}: {', '.join(by_degree[degree])}" for degree in _DEGREES.values() if degree in by_degree]
    return f"Compared with swapping the input, changing a setting moves the {what} of heads: {'; '.join(said)}."
