"""How much the settings of the questionnaire matter for a run, as a section of its page."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headtree.measures.sensitivity import DEGREES, Change, Sensitivity
from headtree.report.words.numbers import interval_words
from headtree.section import Picture, Section, Table

_COLUMNS = (
    "setting", "value", "tree of heads", "tree of queries", "tree of keys", "affinity of heads", "ranking of heads",
    "moves the tree of heads, compared with another input", "moves the ranking, compared with another input",
)  # fmt: skip


def sensitivity_section(found: Sensitivity, values: str = "") -> Section:
    """The table, the figure, and which settings matter; `values` says what was organized."""
    n = found.other_input.ranking.n_inputs[0]
    rows = [
        (
            change.setting,
            change.value,
            *(interval_words(getattr(change, name)) for name in ("head_tree", "query_tree", "key_tree")),
            interval_words(change.affinity),
            interval_words(change.ranking),
            found.matters_for_tree(change),
            found.matters(change),
        )
        for change in found.changes
    ]
    between = found.other_input
    text = (
        f"One setting is changed at a time, on {n} inputs. Trees are compared by tree distance (0: equal), "
        "affinities by correlation, and the heads' ranking by Haar entropy by Spearman's correlation. Intervals "
        "are 95 % over inputs.",
        f"For comparison, two inputs with the same settings: tree of heads {interval_words(between.head_tree)}, "
        f"affinity {interval_words(between.affinity)}, ranking {interval_words(between.ranking)}.",
        _in_words("tree", found.changes, found.matters_for_tree),
        _in_words("ranking", found.changes, found.matters),
    )
    table = Table("What changes when one setting is changed.", _COLUMNS, rows)
    picture = Picture("figures/sensitivity.svg", "How much each setting changes trees, affinities and ranking.")
    title = f"How sensitive the questionnaire of {values} is" if values else "How sensitive the result is"
    return Section(title, text, (table,), (picture,))


def _in_words(what: str, changes: Sequence[Change], matters: Callable[[Change], str]) -> str:
    by_degree: dict[str, list[str]] = {}
    for change in changes:
        by_degree.setdefault(matters(change), []).append(f"{change.setting} = {change.value}")
    found = [f"{degree}: {', '.join(by_degree[degree])}" for degree in DEGREES if degree in by_degree]
    return f"Compared with swapping the input, changing a setting moves the {what} of heads: {'; '.join(found)}."
