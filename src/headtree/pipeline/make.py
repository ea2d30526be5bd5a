"""A run from beginning to end, or from where it stopped."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from os import PathLike
from pathlib import Path
from typing import Any

from headtree.pipeline import array_run as arrays
from headtree.pipeline import steps
from headtree.pipeline.array_run import ArrayFile
from headtree.pipeline.sources import Source
from headtree.questionnaire.settings import Questionnaire
from headtree.runs.folder import Workplace, reopened, workplace
from headtree.runs.organization_store import questionnaire_to_dict
from headtree.runs.run import Run, open_run

#: Told the name of each step and its seconds when it is done.
Say = Callable[[str, float], None]


@dataclass(frozen=True)
class PlannedStep:
    """A step: what it does in the run's folder, and which files it writes there."""

    do: Callable[[Workplace], None]
    files: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Measures:
    """Settings of what is measured; the defaults are [OA]'s."""

    head_functions: int = 400  #: coarsest query-key functions that make a head's entropy
    network_functions: int = 100  #: coarsest head-query-key functions that make the network's entropy
    bootstrap: int = 200  #: resampled sets of inputs for the support of folders
    seed: int = 0

    def to_dict(self) -> dict[str, Any]:
        """As JSON takes them."""
        return dict(vars(self))


def make_run(
    source: Source,
    path: str | PathLike[str],
    *,
    questionnaire: Questionnaire | None = None,
    measures: Measures | None = None,
    depth: bool = False,
    sensitivity: bool = False,
    draw: bool = True,
    force: bool = False,
    say: Say | None = None,
) -> Run:
    """Make a run, finish one that was interrupted, or find that there is nothing to do.

    Parameters
    ----------
    source : Source
        A model with inputs, or tensors.
    path : path
        The folder of the run.
    questionnaire : Questionnaire, optional
        How tensors are organized.
    measures : Measures, optional
        What is measured.
    depth : bool
        Whether to measure rank collapse and paths, which runs the model many times.
    sensitivity : bool
        Whether to organize the first three inputs some twenty times more, each with another setting changed.
    draw : bool
        Whether to draw the figures and write the page; `redraw` does it later.
    force : bool
        Replace a run of other settings that is there.
    say : function, optional
        Told each step's name and seconds when it is done.
    """
    settings = {
        "source": source.settings,
        "questionnaire": questionnaire_to_dict(questionnaire or Questionnaire()),
        "measures": (measures or Measures()).to_dict(),
    }
    begin = cache(source.begin)  # a model is loaded once, if any step needs it
    plan = {
        "capture": PlannedStep(lambda place: steps.capture(place, begin), ("attention.zarr",)),
        "organize": PlannedStep(steps.organize_inputs, ("organization.zarr",)),
        "measure": PlannedStep(steps.measure, ("measures.json",)),
        "diagnose": PlannedStep(
            lambda place: steps.diagnose(place, begin),
            ("heads.csv", "layers.csv", "overlap.csv", "sections/diagnostics.json"),
        ),
    }
    if depth:
        plan["depth"] = PlannedStep(lambda place: steps.add_depth(place, begin), ())
    if sensitivity:
        plan["sensitivity"] = PlannedStep(steps.measure_sensitivity, ())
    with workplace(path, source.kind, settings, force=force) as place:
        _carry_out(place, plan | (_PICTURES if draw else {}), say)
    return open_run(path)


def redraw(path: str | PathLike[str], *, say: Say | None = None) -> Run:
    """Draw the figures and write the page of a run again, whatever is there of them."""
    with reopened(path) as place:
        place.run.measures  # noqa: B018  (which says what is missing, if the run is not that far)
        place.save(replace(place.record, steps={k: v for k, v in place.record.steps.items() if k not in _PICTURES}))
        _carry_out(place, _ARRAY_PICTURES if place.record.kind == "array" else _PICTURES, say)
    return open_run(path)


def make_array_run(
    source: ArrayFile,
    path: str | PathLike[str],
    *,
    questionnaire: Questionnaire | None = None,
    draw: bool = True,
    force: bool = False,
    say: Say | None = None,
) -> Run:
    """`make_run` for an array that is no attention: trees, affinities and a table for each of its axes."""
    arrays.check_array(source)
    settings = {
        "source": source.settings,
        "questionnaire": questionnaire_to_dict(questionnaire or Questionnaire()),
        "measures": {"seed": 0},
    }
    tables = tuple(f"{name}.csv" for name in source.names)
    plan = {
        "capture": PlannedStep(lambda place: arrays.keep(place, source), ("array.zarr",)),
        "organize": PlannedStep(lambda place: arrays.organize_axes(place, source), ("organization.zarr",)),
        "measure": PlannedStep(lambda place: arrays.measure_array(place, source), (*tables, "measures.json")),
    }
    with workplace(path, "array", settings, force=force) as place:
        _carry_out(place, plan | (_ARRAY_PICTURES if draw else {}), say)
    return open_run(path)


#: The steps that can be done again at any time, from what the others left.
_PICTURES = {
    "draw": PlannedStep(steps.draw, ()),
    "page": PlannedStep(steps.write_page, ("report.html",)),
}
_ARRAY_PICTURES = {"draw": _PICTURES["draw"]}


def _carry_out(place: Workplace, plan: Mapping[str, PlannedStep], say: Say | None) -> None:
    """Do what is not done."""
    for name, step in plan.items():
        if place.record.is_done(name):
            continue
        if name != "page" and place.record.is_done("page"):  # which shows what this step will have found
            place.save(replace(place.record, steps={k: v for k, v in place.record.steps.items() if k != "page"}))
        with place.step(name, step.files):
            step.do(place)
        if say is not None:
            say(name, place.record.steps[name].seconds)
    place.sweep()


def default_folder(name: str) -> Path:
    """Where a run goes if nobody says where."""
    return Path("runs") / ("".join(c if c.isalnum() or c in "._-" else "_" for c in name).strip(".") or "run")
