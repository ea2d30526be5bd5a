"""The steps of a run. Each reuses the results of an interrupted run, computes the rest, and combines the two."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from headtree.depth.model_depth import measure_depth
from headtree.errors import HeadtreeWarning, InvalidValueError
from headtree.measures.heads.diagnostics import Diagnostics, combined
from headtree.measures.heads.effects import head_effects
from headtree.measures.overlap import overlap
from headtree.measures.per_input import MeasuredInput
from headtree.measures.sensitivity import sensitivity
from headtree.measures.similarity import from_organizations
from headtree.models.functional_similarity import similarity_of_kernels
from headtree.pipeline import divided_inputs, tables
from headtree.pipeline import input_tasks as tasks
from headtree.pipeline.divided_inputs import Divided, each_divided, workers_for_each
from headtree.pipeline.memory_limit import Limit
from headtree.pipeline.model_capture import ModelCapture
from headtree.pipeline.model_source import INPUTS
from headtree.pipeline.sources import Capture
from headtree.pipeline.workers import ClusterError, ThisProcess, Workers
from headtree.progress import progress
from headtree.questionnaire.organization import Organization
from headtree.report.words.depth_section import depth_section
from headtree.report.words.diagnostics_section import diagnostics_section
from headtree.report.words.effects_section import effects_section
from headtree.report.words.sensitivity_section import sensitivity_section
from headtree.runs.containers import LazySequence
from headtree.runs.contents import measured_file, sample_file
from headtree.runs.effects_store import write_effects
from headtree.runs.folder import RunWriter
from headtree.runs.kept import KeptPiece
from headtree.runs.organization_store import questionnaire_from_dict, read_part, write_organizations
from headtree.runs.run import Run
from headtree.runs.similarity_store import write_similarities
from headtree.section import Section
from headtree.similarity.head_similarity import HeadSimilarity, from_distances
from headtree.tensor.attention_tensor import AttentionTensor
from headtree.tensor.store import join_attention, open_tensor

#: Number of inputs on which the sensitivity to settings is measured.
_SENSITIVITY_INPUTS = 3
#: With fewer inputs, two halves of them hardly ever show the same families of heads.
_ENOUGH_INPUTS = 10


def capture(writer: RunWriter, begin: Callable[[], Capture], workers: Workers) -> None:
    """Run the model on the inputs and store the attention of every head."""
    ready = begin()
    n = len(ready.inputs)
    inputs = tuple(dict(item) for item in ready.inputs)
    notes = (*ready.notes, *too_few(ready))
    writer.save(replace(writer.record, model=dict(ready.model), inputs=inputs, notes=notes))
    if not isinstance(ready, ModelCapture):
        workers = ThisProcess()  # the tensors are here
    kept = [writer.kept(f"attention-{i:05d}.zarr") for i in range(n)]
    batches = [batch for batch in ready.batches() if not all(kept[i].part.exists() for i in batch)]
    stored: dict[int, AttentionTensor] = {}
    with _steps("capturing", len(batches)) as step:
        # the first input decides in which chunks workers write the others
        alone = int(workers.sees_files and not kept[0].part.exists())
        for some in (batches[:alone], batches[alone:]):
            for batch, tensors in _captured(writer, ready, workers, some, kept):
                stored |= dict(zip(batch, tensors, strict=True))
                step(f"input {batch[-1] + 1} of {n}")
    samples = _write_samples(writer, ready)
    writer.announce("capture", ("attention.zarr", *samples))
    with writer.whole(writer.path / "attention.zarr") as draft:
        in_order = [stored[i] if i in stored else open_tensor(kept[i].part, 0) for i in range(n)]
        join_attention(draft, in_order, writer.identity)


def _captured(
    writer: RunWriter, ready: Capture, workers: Workers, batches: Sequence[list[int]], kept: Sequence[KeptPiece]
) -> Iterator[tuple[list[int], list[AttentionTensor]]]:
    """Capture some batches and keep their tensors; yields each batch with its tensors as they are on disk."""
    like = kept[0].part
    names = [f"{writer.identity} {i}" for i in range(len(kept))]

    def call(batch: list[int]) -> Callable[[], list[AttentionTensor]]:
        own = ready.only(batch)
        if not workers.sees_files:
            return partial(tasks.captured, own)
        return partial(tasks.captured_and_kept, own, [kept[i] for i in batch], [names[i] for i in batch], like)

    for batch, tensors in zip(batches, workers.each(map(call, batches)), strict=True):
        if not workers.sees_files:
            for row, i in enumerate(batch):
                tensors[row] = kept[i].attention(tensors[row], names[i], like)
        yield batch, tensors


def _write_samples(writer: RunWriter, ready: Capture) -> list[str]:
    """Write small pictures of the inputs, if they are images; returns the names of the files."""
    samples = []
    for i in range(len(ready.inputs)):
        picture = ready.sample(i)
        if picture is not None:
            samples.append(sample_file(i))
            with writer.whole(writer.path / samples[-1]) as draft:
                draft.write_bytes(picture)
    return samples


def too_few(ready: Capture) -> tuple[str, ...]:
    """A note, also given as a warning, if a model has too few inputs for families of heads; otherwise nothing."""
    n = len(ready.inputs)
    if n >= _ENOUGH_INPUTS or not isinstance(ready, ModelCapture):  # tensors are what they are
        return ()
    remedy = f"the default of headtree run is --inputs {INPUTS}"
    if ready.origin is not None and ready.origin.prompts:
        remedy = "give --prompt again for each further input"
    few = f"fewer than {_ENOUGH_INPUTS} are too few for families of heads to replicate"
    note = f"{n} input{'s' * (n > 1)}: {few}; {remedy}"
    warnings.warn(note, HeadtreeWarning, stacklevel=2)
    return (note,)


def organize_inputs(writer: RunWriter, workers: Workers, memory: int | None) -> None:
    """Organize every input."""
    settings = questionnaire_from_dict(writer.record.settings["questionnaire"])
    n, run, is_raw = len(writer.record.inputs), writer.run, writer.record.settings["raw"]
    device = writer.record.settings["source"].get("device") or "cpu"
    where = device if device.startswith("cuda") else "cpu"
    kept = [writer.kept(f"organization-{i:05d}.npz") for i in range(n)]
    missing = [i for i in range(n) if not kept[i].part.exists()]
    with writer.aside() as folder, _steps("organizing", n) as step:
        limit = Limit(memory, folder)

        def call(i: int) -> Callable[[], Organization | None]:
            given = workers.sendable(run.attention[i]), is_raw, settings, where, limit
            if workers.sees_files:
                return partial(tasks.organized_and_kept, kept[i], *given)
            return partial(tasks.organized, *given)

        for i, org in zip(missing, workers.each(map(call, missing)), strict=True):
            if org is not None:
                kept[i].organization(org)
            step(f"input {i + 1} of {n}")
    with writer.whole(writer.path / "organization.zarr") as draft:
        write_organizations(draft, LazySequence(n, lambda i: read_part(kept[i].part)))


def compare_heads(writer: RunWriter, begin: Callable[[], Capture], workers: Workers, memory: int | None) -> None:
    """Find the tree of heads that the inputs agree on, for every similarity; families are made of the first."""
    settings, run = writer.record.settings, writer.run
    chosen, measures = settings["similarity"], settings["measures"]
    similarities: dict[str, HeadSimilarity] = {}
    for kind in dict.fromkeys(("attention", chosen, "function", "questionnaire")):
        similarity = _similarity(kind, run, begin, workers, memory, is_chosen=kind == chosen)
        if isinstance(similarity, HeadSimilarity):
            similarities[kind] = similarity
            _add_notes(writer, similarity.notes)
        elif similarity is not None:
            _add_notes(writer, (similarity,))
    # comparisons would wait behind trees; that of functions takes longest, and the others are made beside it
    in_turn = sorted(similarities, key=lambda kind: kind != "function")
    calls = (partial(tasks.agreed, similarities[kind], measures["bootstrap"], measures["seed"]) for kind in in_turn)
    agreed = dict(zip(in_turn, workers.each(calls, long=True), strict=True))
    in_order = dict.fromkeys((chosen, "attention", "function", "questionnaire"))
    with writer.whole(writer.path / "similarity.zarr") as draft:
        write_similarities(draft, {kind: agreed[kind] for kind in in_order if kind in agreed})


def _add_notes(writer: RunWriter, notes: Sequence[str]) -> None:
    known = dict.fromkeys((*writer.record.notes, *notes))
    writer.save(replace(writer.record, notes=tuple(known)))


def _similarity(
    kind: str,
    run: Run,
    begin: Callable[[], Capture],
    workers: Workers,
    memory: int | None,
    *,
    is_chosen: bool,
) -> HeadSimilarity | str | None:
    """The similarity of one kind; why it is missing; or None for tensors, which have no values."""
    heads = run.attention[0].heads
    if kind == "questionnaire":
        return from_organizations(list(run.organization), heads)
    if kind != "function":
        n = run.n_inputs
        calls = (
            partial(tasks.head_distances, workers.sendable(run.attention[i]), kind, Limit(memory))  # type: ignore[arg-type]
            for i in range(n)
        )
        distances = []
        with _steps("comparing heads", n) as step:
            for i, distance in enumerate(workers.each(calls)):
                distances.append(distance)
                step(f"input {i + 1} of {n}")
        return from_distances(kind, heads, distances)  # type: ignore[arg-type]  # checked with the settings
    ready = begin()
    if not isinstance(ready, ModelCapture):
        return None  # refused before anything was done if it was asked for
    try:
        kernels = [
            found
            for each in workers.each(
                partial(tasks.functional_kernels, ready.only([i])) for i in range(run.n_inputs)
            )
            for found in each
        ]
    except ClusterError:
        raise
    except InvalidValueError as error:
        if is_chosen:
            raise
        return f"heads that do alike are unknown: {error}"
    return similarity_of_kernels(ready.prepared.selection.head_ids(), kernels)


def measure(writer: RunWriter, workers: Workers, memory: int | None) -> None:
    """Measure entropies, sparsity, regularity and softmax invariance of every input and of the network."""
    settings = writer.record.settings["measures"]
    files = [measured_file(i) for i in range(len(writer.record.inputs))]
    writer.announce("measure", (*files, "measures.json"))
    run, is_raw = writer.run, writer.record.settings["raw"]
    missing = [i for i, name in enumerate(files) if not writer.has(name)]  # others: from an earlier start
    n_each = workers_for_each(workers, len(missing), memory)

    def call(i: int, limit: Limit) -> Divided[MeasuredInput]:
        att, org = run.attention[i], run.organization[i]
        if n_each > 1:
            return divided_inputs.measures(att, org, is_raw, settings, workers, n_each)
        return Divided.whole(partial(tasks.measured, workers.sendable(att), org, is_raw, settings, limit))

    with writer.aside() as folder, _steps("measuring", run.n_inputs) as step:
        found = each_divided(workers, (call(i, Limit(memory, folder)) for i in missing))
        measured = {}
        for i, measures in zip(missing, found, strict=True):
            writer.write_text(files[i], measures.to_json())
            writer.remember(files[i])
            measured[i] = measures
            step(f"input {i + 1} of {run.n_inputs}")
    for i in set(range(run.n_inputs)) - set(missing):
        measured[i] = MeasuredInput.from_json((writer.path / files[i]).read_text(encoding="utf-8"))
    in_order = [measured[i] for i in range(run.n_inputs)]
    numbers = tables.network_measures(in_order, run.consensus, settings["seed"])
    writer.write_text("measures.json", json.dumps(numbers, indent=1) + "\n")


def diagnose(writer: RunWriter, begin: Callable[[], Capture], workers: Workers, memory: int | None) -> None:
    """Write the tables of heads and layers with diagnostics from the literature, and a section on roles."""
    import pandas as pd

    run, seed = writer.run, writer.record.settings["measures"]["seed"]
    found = _diagnostics(run, begin(), workers, Limit(memory))
    of_heads = tables.head_table(list(run.measured), run.consensus, run.measures.get("stability"))
    of_layers = tables.layer_table(of_heads)
    if writer.record.settings["raw"]:
        for table in (of_heads, of_layers):
            table["organized"] = [run.values_words] * len(table["layer"])
    about = run.attention[0].provenance
    together = tables.with_model_layers(tables.joined(of_heads, found.heads), about)
    heads = pd.DataFrame(tables.with_leading(together))
    write_table(writer, "heads.csv", heads)
    write_table(writer, "layers.csv", tables.with_model_layers(tables.joined(of_layers, found.layers), about))
    reference = "haar_entropy" if writer.record.settings["raw"] else "structure"
    contained = overlap(heads[["name", reference]].merge(found.heads, on="name"), reference, rng=seed)
    write_table(writer, "overlap.csv", contained)
    section = diagnostics_section(
        found, overlap=contained, consensus=run.consensus, values=run.values_words, rng=seed
    )
    write_section(writer, "diagnostics", section)


def _diagnostics(run: Run, ready: Capture, workers: Workers, limit: Limit) -> Diagnostics:
    heads, n = run.attention[0].heads, run.n_inputs
    n_each = workers_for_each(workers, n, limit.bytes)

    def calls() -> Iterator[Divided[Any]]:
        if isinstance(ready, ModelCapture):
            yield Divided.whole(partial(tasks.same_for_all, ready.only([0]), heads))
        for i in range(n):
            att, own = run.attention[i], ready.only([i])
            if n_each > 1:
                yield divided_inputs.diagnostics(att, own, workers, n_each)
            else:
                yield Divided.whole(partial(tasks.diagnosed, workers.sendable(att), own, limit))

    found = each_divided(workers, calls())
    shared = next(found) if isinstance(ready, ModelCapture) else {}
    with _steps("diagnosing", n) as step:
        of_inputs = []
        for i, each in enumerate(found):
            of_inputs.append(each)
            step(f"input {i + 1} of {n}")
    return combined(heads, of_inputs, shared)


def measure_sensitivity(writer: RunWriter) -> None:
    """Organize the first inputs again with one setting changed at a time; write a section and its figure."""
    from headtree.report.figures import save, sensitivity_intervals

    run = writer.run
    n = min(_SENSITIVITY_INPUTS, run.n_inputs)
    if n < 2:
        raise InvalidValueError(
            f"sensitivity needs a run of two or more inputs, but {run.path} has one; use --inputs"
        )
    settings = questionnaire_from_dict(run.record.settings["questionnaire"])
    found = sensitivity(list(run.values[:n]), settings, rng=run.record.settings["measures"]["seed"])
    with new_figures(writer, "sensitivity", "sections/sensitivity.json") as folder:
        save(sensitivity_intervals((*found.changes, found.other_input)), folder, "sensitivity")
    write_section(writer, "sensitivity", sensitivity_section(found, run.values_words))


@contextmanager
def new_figures(writer: RunWriter, step: str, *other_files: str) -> Iterator[Path]:
    """An empty folder for the figures of a step, which are moved into the run when the block ends.

    Parameters
    ----------
    writer : RunWriter
        The run.
    step : str
        Name of the step.
    *other_files : str
        Other files that the step writes into the run, recorded at the same time.
    """
    with writer.aside() as folder:
        yield folder
        names = sorted(path.name for path in folder.iterdir())
        writer.announce(step, (*other_files, *(f"figures/{name}" for name in names)))
        for name in names:
            writer.move(folder / name, f"figures/{name}")


def add_depth(writer: RunWriter, begin: Callable[[], Capture]) -> None:
    """Add relative residuals and path lengths to the table of layers, with a section and its figures."""
    from headtree.report.figures import draw_depth

    ready = begin()
    if not isinstance(ready, ModelCapture):
        raise InvalidValueError(
            "depth needs the model, but this run was made from tensors; make a run of a model with headtree run"
        )
    found = measure_depth(replace(ready.whole(), kind="probs"), seed=writer.record.settings["measures"]["seed"])
    with new_figures(writer, "depth", "layers.csv", "sections/depth.json") as folder:
        draw_depth(found, folder)
    layers = found.layer_table()
    _append_columns(
        writer, "layers.csv", layers[layers["layer"].isin(writer.run.layers["layer"])].reset_index(drop=True)
    )
    write_section(writer, "depth", depth_section(found))


def add_effects(writer: RunWriter, begin: Callable[[], Capture]) -> None:
    """Add the change of loss without each head to the table of heads, with its arrays and a section."""
    ready = begin()
    if not isinstance(ready, ModelCapture):
        raise InvalidValueError(
            "effects need the model, but this run was made from tensors; make a run of a model with headtree run"
        )
    found = head_effects(**ready.for_effects(), rng=writer.record.settings["measures"]["seed"])
    writer.announce("effects", ("effects.zarr", "heads.csv", "sections/effects.json"))
    with writer.whole(writer.path / "effects.zarr") as draft:
        write_effects(draft, found)
    _append_columns(writer, "heads.csv", {"effect": found.effect, "effect_error": found.error})
    write_section(writer, "effects", effects_section(found, writer.run.heads))


def draw(writer: RunWriter) -> None:
    """Draw every figure."""
    from headtree.report.figures import draw_all

    with new_figures(writer, "draw") as folder:
        draw_all(writer.run, folder)


def write_page(writer: RunWriter) -> None:
    """Write the page."""
    from headtree.report.page.document import write_report

    with writer.whole(writer.path / "report.html") as draft:
        write_report(writer.run, draft)


def write_section(writer: RunWriter, name: str, section: Section) -> None:
    """Write a section of the run."""
    writer.write_text(f"sections/{name}.json", section.to_json())


def _append_columns(writer: RunWriter, name: str, columns: Any) -> None:
    """Add columns to a table of an earlier step, which has the same rows; existing columns stay as they are."""
    import pandas as pd

    names = {"role": str, "leaning": str}
    table = pd.read_csv(writer.path / name, keep_default_na=False, na_values=[""], dtype=names)
    together = tables.joined(table, columns)
    write_table(writer, name, tables.with_leading(together) if name == "heads.csv" else together)


def write_table(writer: RunWriter, name: str, columns: Mapping[str, Any]) -> None:
    """Write a table of the run as CSV."""
    writer.write_text(name, tables.csv_text(columns))


@contextmanager
def _steps(description: str, n: int) -> Iterator[Callable[[str], None]]:
    """A progress bar over inputs; none for a single input, whose own bars are more informative."""
    if n == 1:
        yield lambda note: None
        return
    with progress(description, n) as step:
        yield step
