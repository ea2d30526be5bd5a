"""Steps that a run has if they are asked for: rank collapse with depth, sensitivity to settings."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace

from headtree.claims.sensitivity import Change, Sensitivity, sensitivity
from headtree.errors import InvalidValueError
from headtree.pipeline.models import ModelCapture
from headtree.pipeline.sources import Capture
from headtree.pipeline.steps import join_tables, write_section
from headtree.pipeline.workplace import Workplace
from headtree.runs.organization_data import questionnaire_from_dict
from headtree.runs.section import Section, Table


def measure_depth(place: Workplace, begin: Callable[[], Capture]) -> None:
    """Add relative residuals and paths by length to the layers' table, with a section and its figures."""
    from headtree.depth.content import depth_content

    ready = begin()
    if not isinstance(ready, ModelCapture):
        raise InvalidValueError("depth is measured by running the model, and this run was made from tensors alone")
    with place.aside("figures") as folder:
        content = depth_content(
            replace(ready.job, kind="probs"), folder, seed=place.record.settings["measures"]["seed"]
        )
        names = sorted(path.name for path in folder.iterdir())
        place.announce("depth", ("layers.csv", "sections/depth.json", *(f"figures/{name}" for name in names)))
        (place.path / "figures").mkdir(exist_ok=True)
        for name in names:
            os.replace(folder / name, place.path / "figures" / name)
    join_tables(place, "layers.csv", content.layers)
    write_section(place, "depth", Section.from_dict(content.section))


def measure_sensitivity(place: Workplace) -> None:
    """Organize every input again with each setting changed, and say what that does to the ranking of heads."""
    settings = questionnaire_from_dict(place.record.settings["questionnaire"])
    found = sensitivity(place.run.attention, settings, rng=place.record.settings["measures"]["seed"])
    write_section(place, "sensitivity", sensitivity_section(found))


def sensitivity_section(found: Sensitivity) -> Section:
    """The changes as a table, and which of them matter."""
    moving = [change for change in found.changes if found.matters(change) == "more than it"]
    listing = ", ".join(f"{change.setting} {change.value}" for change in moving) or "none"
    text = [
        "Every input was organized again with one setting changed at a time. Correlations are of head affinities "
        "and of head entropies with those of the run, distances are between trees of heads; means over inputs.",
        f"Settings that move the ranking of heads more than another input does: {listing}.",
    ]
    rows: list[tuple[object, ...]] = [(*_row(change), found.matters(change)) for change in found.changes]
    rows.append((*_row(found.other_input), "what the others are held against"))
    columns = ("setting", "value", "tree distance", "affinities", "ranking of heads", "moves it")
    return Section("Sensitivity to settings", text, [Table("One setting changed at a time", columns, rows)])


def _row(change: Change) -> tuple[str, str, float, float, float]:
    numbers = (round(value.number, 3) for value in (change.head_tree, change.affinity, change.ranking))
    distance, affinity, ranking = numbers
    return change.setting, change.value, distance, affinity, ranking
