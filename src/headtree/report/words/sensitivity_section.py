"""`headtree run --sensitivity`: how much the settings of the questionnaire matter for a run."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from headtree.errors import InvalidValueError
from headtree.measures.jackknife import Estimate
from headtree.measures.sensitivity import DEGREES, Change, Sensitivity, sensitivity
from headtree.runs.folder import Workplace
from headtree.runs.organization_store import questionnaire_from_dict
from headtree.section import Picture, Section, Table
from headtree.study.claims_report import interval_words

_INPUTS = 3
FILES = ("sections/sensitivity.json", "figures/sensitivity.svg", "figures/sensitivity.png")


def measure_sensitivity(place: Workplace) -> None:
    """Organize the first inputs again with one setting changed at a time; a section and its figure."""
    from headtree.report.figures import save
    from headtree.report.figures import sensitivity as draw_sensitivity

    run = place.run
    settings = questionnaire_from_dict(run.record.settings["questionnaire"])
    atts = [run.attention[i].load() for i in range(min(_INPUTS, run.n_inputs))]
    if len(atts) < 2:
        raise InvalidValueError(f"sensitivity needs a run of two or more inputs, {run.path} has one; use --batches")
    found = sensitivity(atts, settings, rng=run.record.settings["measures"]["seed"])
    with place.aside("sensitivity") as folder:
        rows = [_drawn(change) for change in (*found.changes, found.other_input)]
        files = save(draw_sensitivity(rows), folder, "sensitivity")
        (place.path / "figures").mkdir(exist_ok=True)
        for file in files:
            os.replace(file, place.path / "figures" / file.name)
    place.write_text("sections/sensitivity.json", section_of(found).to_json())


def section_of(found: Sensitivity) -> Section:
    """The table, the figure, and which choices matter."""
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
    columns = (
        "setting", "value", "tree of heads", "tree of queries", "tree of keys", "affinity of heads",
        "ranking of heads", "moves the tree (vs. another input)", "moves the ranking (vs. another input)",
    )  # fmt: skip
    between = found.other_input
    text = (
        f"One setting is changed at a time on {n} inputs; trees are compared by tree distance (0: the same), "
        "affinities "
        "by correlation, heads ranked by entropy by Spearman's correlation; intervals are 95 % over inputs.",
        f"For comparison, two inputs with the same settings: tree of heads {interval_words(between.head_tree)}, "
        f"affinity {interval_words(between.affinity)}, ranking {interval_words(between.ranking)}.",
        _in_words("tree", found.changes, found.matters_for_tree),
        _in_words("ranking", found.changes, found.matters),
    )
    table = Table("What moves when one setting is changed.", columns, tuple(rows))
    picture = Picture("figures/sensitivity.svg", "How far trees, affinities and ranking move with each setting.")
    return Section("How sensitive the result is", text, (table,), (picture,))


def _in_words(what: str, changes: Sequence[Change], matters: Callable[[Change], str]) -> str:
    by_degree: dict[str, list[str]] = {}
    for change in changes:
        by_degree.setdefault(matters(change), []).append(f"{change.setting} = {change.value}")
    parts = [f"{degree}: {', '.join(by_degree[degree])}" for degree in DEGREES if degree in by_degree]
    return f"Compared with swapping the input, changing one setting moves the {what} of heads {'; '.join(parts)}."


def _drawn(change: Change) -> dict[str, Any]:
    row: dict[str, Any] = {"setting": change.setting, "value": change.value}
    measures: dict[str, Estimate] = {
        "tree_distance": change.head_tree,
        "affinity_correlation": change.affinity,
        "rank_correlation": change.ranking,
    }
    for name, measured in measures.items():
        row |= {name: measured.number, f"{name}_low": measured.interval[0], f"{name}_high": measured.interval[1]}
    return row
