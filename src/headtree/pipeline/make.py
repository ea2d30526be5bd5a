"""A run from beginning to end, or from where it stopped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from os import PathLike
from typing import Any

from headtree.pipeline import steps
from headtree.pipeline.sources import Source
from headtree.pipeline.workplace import Workplace, workplace
from headtree.questionnaire.settings import Questionnaire
from headtree.runs.organization_data import questionnaire_to_dict
from headtree.runs.run import Run, open_run


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
    force: bool = False,
    say: Callable[[str, float], None] | None = None,
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
    plan: dict[str, tuple[Callable[[Workplace], None], tuple[str, ...]]] = {
        "capture": (lambda place: steps.capture(place, source), ("attention.zarr",)),
        "organize": (steps.organize_inputs, ("organization.zarr",)),
        "measure": (steps.measure, ("heads.csv", "layers.csv", "measures.json")),
    }
    with workplace(path, source.kind, settings, force=force) as place:
        for name, (step, files) in plan.items():
            if place.record.is_done(name):
                continue
            with place.step(name, files):
                step(place)
            if say is not None:
                say(name, place.record.steps[name].seconds)
        place.sweep()
    return open_run(path)
