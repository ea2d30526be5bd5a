"""The folder of `headtree prune`: curves, a table, sentences and figures; an interrupted run continues."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headtree._files import checked_path
from headtree.errors import InvalidTypeError, InvalidValueError
from headtree.pipeline.model_source import ModelSource
from headtree.pipeline.tables import csv_text
from headtree.prune.curve import PruneCurve, prune_curve
from headtree.report.figures.prune_figures import draw_prune
from headtree.report.words.prune_section import prune_section
from headtree.runs.folder import RunWriter, writing_run
from headtree.section import Section

TABLE, PAIRS, ORDERS = "prune.csv", "comparisons.csv", "orders.json"
SECTION, FIGURES = "sections/prune.json", "figures"


@dataclass(frozen=True, kw_only=True)
class PruneSettings:
    """How heads are removed, as in `headtree.prune_curve`."""

    criteria: Sequence[str]
    steps: int = 10
    n_random: int = 10
    iterative: bool = False
    refit: bool = False
    rng: int = 0


def make_prune_run(
    path: Any,
    source: ModelSource,
    settings: PruneSettings,
    *,
    labels: Sequence[int] | None = None,
    force: bool = False,
) -> tuple[PruneCurve, Section]:
    """Measure prune curves in a folder; what an interrupted run measured is not measured again."""
    whole = {
        "source": dict(source.settings),
        "prune": {**vars(settings), "criteria": list(settings.criteria)},
        "labels": None if labels is None else list(labels),
    }
    with (
        writing_run(path, "prune", whole, force=force) as writer,
        writer.step("prune", (TABLE, PAIRS, ORDERS, SECTION)),
    ):
        ready = source.begin()
        classes = ready.labels if labels is None else labels
        inputs = [dict(item.kwargs) for item in ready.prepared.items]
        if labels is not None and len(labels) < len(inputs):
            raise InvalidValueError(
                f"--labels must have a line for each of {len(inputs)} inputs, got {len(labels)}"
            )
        found = prune_curve(
            ready.prepared.view,
            list(settings.criteria),
            inputs=inputs,
            labels=None if classes is None else list(classes)[: len(inputs)],
            steps=settings.steps,
            n_random=settings.n_random,
            iterative=settings.iterative,
            refit=settings.refit,
            rng=settings.rng,
            remember=_stored_in(writer),
            part=source.part,
            batch_size=source.batch_size,
        )
        writer.write_text(TABLE, csv_text(found.table()))
        writer.write_text(PAIRS, csv_text(found.comparisons()))
        orders = {name: [[str(head) for head in order] for order in each] for name, each in found.orders.items()}
        writer.write_text(ORDERS, json.dumps(orders, indent=1))
        with writer.aside() as aside:
            drawn = draw_prune(found, aside / FIGURES)
            for file in sorted((aside / FIGURES).iterdir()):
                with writer.whole(writer.path / FIGURES / file.name) as draft:
                    draft.write_bytes(file.read_bytes())
        section = prune_section(found, drawn)
        writer.write_text(SECTION, section.to_json())
        pictures = tuple(f"{FIGURES}/{file.name}" for file in (writer.path / FIGURES).iterdir())
        writer.announce("prune", (TABLE, PAIRS, ORDERS, SECTION, *sorted(pictures)))
    return found, section


def _stored_in(writer: RunWriter) -> Callable[[str, Callable[[], Any]], Any]:
    def remember(name: str, compute: Callable[[], Any]) -> Any:
        part = writer.part(f"{name}.json")
        if not part.exists():
            result = compute()
            with writer.whole(part) as draft:
                draft.write_text(json.dumps(result))
        return json.loads(part.read_text())

    return remember


def read_labels(file: Path) -> list[int]:
    """Class numbers, one per line."""
    try:
        return [int(line) for line in checked_path(file).read_text(encoding="utf-8").split()]
    except ValueError as error:
        raise InvalidTypeError(
            f"--labels must be a file with one class number per line, got {file}: {error}"
        ) from None
