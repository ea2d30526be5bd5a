"""A run from beginning to end, or from where it stopped."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from os import PathLike
from pathlib import Path
from typing import Any

from headtree.errors import HeadtreeWarning, InvalidValueError
from headtree.pipeline import array_run as arrays
from headtree.pipeline import steps
from headtree.pipeline.array_run import ArrayFile
from headtree.pipeline.memory_limit import Limit, limit_in_bytes
from headtree.pipeline.sources import Capture, Source, TensorSource
from headtree.pipeline.workers import ThisProcess, Workers
from headtree.questionnaire.settings import Questionnaire
from headtree.runs.contents import files_of
from headtree.runs.folder import RunWriter, rewriting_run, writing_run
from headtree.runs.organization_store import questionnaire_to_dict
from headtree.runs.run import Run, open_run
from headtree.similarity.attention_distances import check_heads_present
from headtree.similarity.head_similarity import SimilarityKind, checked_kind
from headtree.tensor.hidden_mask import check_future_keys
from headtree.tensor.probabilities import checked_tensors

#: Called with the name and seconds of each finished step.
Say = Callable[[str, float], None]


@dataclass(frozen=True)
class PlannedStep:
    """A step: the function that does it, and the files that it writes into the run folder."""

    do: Callable[[RunWriter], None]
    files: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Measures:
    """Settings of the measures; the defaults are those of [OA]."""

    head_functions: int = 400  #: number of coarsest query-key functions in a head's entropy
    network_functions: int = 100  #: number of coarsest head-query-key functions in the network's entropy
    bootstrap: int = 200  #: number of resampled sets of inputs for the support of folders
    seed: int = 0

    def to_dict(self) -> dict[str, Any]:
        """The settings as plain JSON values."""
        return dict(vars(self))


def make_run(
    source: Source,
    path: str | PathLike[str],
    *,
    questionnaire: Questionnaire | None = None,
    measures: Measures | None = None,
    similarity: SimilarityKind = "attention",
    raw: bool = False,
    depth: bool = False,
    effects: bool = False,
    sensitivity: bool = False,
    draw: bool = True,
    force: bool = False,
    say: Say | None = None,
    workers: Workers | None = None,
    memory: str | int | None = None,
) -> Run:
    """Make a run, or finish one that was interrupted; a finished run is returned as it is.

    Parameters
    ----------
    source : Source
        A model with inputs, or tensors.
    path : path
        The folder of the run.
    questionnaire : Questionnaire, optional
        Settings for organizing the tensors.
    measures : Measures, optional
        Settings of the measures.
    similarity : str
        Which similarity of heads families are made of, as in `headtree.head_similarity`, or "function".
    raw : bool
        Organize and measure scores as they are, as [OA] does, and not without the constants that softmax ignores.
    depth : bool
        Whether to measure rank collapse and paths, which runs the model many times.
    effects : bool
        Whether to measure how the loss changes without each head, which runs the model once per head and input.
    sensitivity : bool
        Whether to organize the first three inputs about twenty more times, changing one setting each time.
    draw : bool
        Whether to draw the figures and write the page; `redraw` can do it later.
    force : bool
        Replace an existing run that has other settings.
    say : function, optional
        Called with the name and seconds of each finished step.
    workers : Workers, optional
        Where the inputs are worked on, from `open_workers`; by default in this process. The result is the same.
    memory : str or int, optional
        The most memory that this process, or each worker, may take, such as "2GB". Tensors that need more are read
        by blocks, with the same result; an error says what would be enough if even a block does not fit.
    """
    settings = {
        "source": source.settings,
        "questionnaire": questionnaire_to_dict(_checked_landmarks(questionnaire or Questionnaire())),
        "measures": (measures or Measures()).to_dict(),
        "similarity": _checked_similarity(similarity, source),
        "raw": _checked_raw(raw, source.kind),
    }
    on, limit = workers or ThisProcess(), limit_in_bytes(memory)

    @cache
    def begin() -> Capture:  # a model is loaded once, if any step needs it
        if not isinstance(source, TensorSource):
            Limit(limit).check_process()
        return source.begin()

    if isinstance(source, TensorSource):
        _check_before_writing(source, Limit(limit), questionnaire or Questionnaire())
    plan = {
        "capture": PlannedStep(lambda writer: steps.capture(writer, begin, on), files_of("capture")),
        "organize": PlannedStep(lambda writer: steps.organize_inputs(writer, on, limit), files_of("organize")),
        "compare": PlannedStep(lambda writer: steps.compare_heads(writer, begin, on, limit), files_of("compare")),
        "measure": PlannedStep(lambda writer: steps.measure(writer, on, limit), files_of("measure")),
        "diagnose": PlannedStep(lambda writer: steps.diagnose(writer, begin, on, limit), files_of("diagnose")),
    }
    if depth:
        plan["depth"] = PlannedStep(lambda writer: steps.add_depth(writer, begin), ())
    if effects:
        plan["effects"] = PlannedStep(lambda writer: steps.add_effects(writer, begin), ())
    if sensitivity:
        plan["sensitivity"] = PlannedStep(steps.measure_sensitivity, ())
    with writing_run(path, source.kind, settings, force=force) as writer:
        _carry_out(writer, plan | (_PICTURES if draw else {}), say)
    return open_run(path)


def _check_before_writing(source: TensorSource, limit: Limit, settings: Questionnaire) -> None:
    """Refuse tensors that the steps would refuse later; these warn of what they warn of."""
    for att in checked_tensors(source.tensors):
        limit.check(att, settings)
        check_heads_present(att)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", HeadtreeWarning)
            check_future_keys(att)


def _checked_landmarks(settings: Questionnaire) -> Questionnaire:
    landmarks = settings.landmarks
    if landmarks is not None and not (isinstance(landmarks, tuple) and landmarks[:1] == (None,)):
        raise InvalidValueError(
            f"landmarks must have None for heads in a run, which compares every two of them, got {landmarks}; pass "
            "(None, n, n) for heads, queries and keys"
        )
    return settings


def _checked_similarity(similarity: Any, source: Source) -> str:
    if checked_kind(similarity, argument="similarity") == "function" and isinstance(source, TensorSource):
        raise InvalidValueError(
            "similarity 'function' needs the model, but this run is made from tensors; use headtree run, "
            "ht.ModelView(model).head_similarity, or another similarity"
        )
    return str(similarity)


def _checked_raw(raw: bool, kind: str) -> bool:
    if raw and kind != "scores":
        raise InvalidValueError(f"raw is about scores, but this run is of kind {kind!r}; leave it out")
    return bool(raw)


def redraw(path: str | PathLike[str], *, say: Say | None = None) -> Run:
    """Redraw the figures and rewrite the page of a run, even if they exist."""
    with rewriting_run(path) as writer:
        writer.run.measures  # noqa: B018  (raises an error that names what is missing from an unfinished run)
        writer.save(
            replace(writer.record, steps={k: v for k, v in writer.record.steps.items() if k not in _PICTURES})
        )
        _carry_out(writer, _PICTURES, say)
    return open_run(path)


def make_array_run(
    source: ArrayFile,
    path: str | PathLike[str],
    *,
    questionnaire: Questionnaire | None = None,
    draw: bool = True,
    force: bool = False,
    say: Say | None = None,
    memory: str | int | None = None,
) -> Run:
    """`make_run` for an array that is not attention: trees, affinities and a table for each of its axes."""
    arrays.check_room(source, limit_in_bytes(memory))
    arrays.check_array(source)
    settings = {
        "source": source.settings,
        "questionnaire": questionnaire_to_dict(questionnaire or Questionnaire()),
        "measures": {"seed": 0},
    }
    tables = tuple(f"{name}.csv" for name in source.names)
    plan = {
        "capture": PlannedStep(lambda writer: arrays.keep(writer, source), ("array.zarr",)),
        "organize": PlannedStep(lambda writer: arrays.organize_axes(writer, source), ("organization.zarr",)),
        "measure": PlannedStep(lambda writer: arrays.measure_array(writer, source), (*tables, "measures.json")),
    }
    with writing_run(path, "array", settings, force=force) as writer:
        _carry_out(writer, plan | (_PICTURES if draw else {}), say)
    return open_run(path)


#: The steps that can be repeated at any time from the files of the others.
_PICTURES = {
    "draw": PlannedStep(steps.draw, ()),
    "page": PlannedStep(steps.write_page, files_of("page")),
}


def _carry_out(writer: RunWriter, plan: Mapping[str, PlannedStep], say: Say | None) -> None:
    """Run the steps that are not done yet."""
    for name, step in plan.items():
        if writer.record.is_done(name):
            continue
        if name != "page" and writer.record.is_done("page"):  # the page must show the results of this step
            writer.save(replace(writer.record, steps={k: v for k, v in writer.record.steps.items() if k != "page"}))
        with writer.step(name, step.files):
            step.do(writer)
        if say is not None:
            say(name, writer.record.steps[name].seconds)
    writer.sweep()


def default_folder(name: str) -> Path:
    """The default folder of a run."""
    return Path("runs") / ("".join(c if c.isalnum() or c in "._-" else "_" for c in name).strip(".") or "run")
