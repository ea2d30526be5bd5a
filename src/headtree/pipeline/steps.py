"""The steps of a run. Each reuses the results of an interrupted run, computes the rest, and combines the two."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from headtree.depth.model_depth import measure_depth
from headtree.errors import HeadtreeWarning, InvalidValueError
from headtree.geometry.linkage import linkage_tree
from headtree.measures.consensus import consensus, of_one_input
from headtree.measures.heads.diagnostics import diagnostics
from headtree.measures.heads.effects import head_effects
from headtree.measures.overlap import overlap
from headtree.measures.per_input import MeasuredInput, measure_input
from headtree.measures.sensitivity import sensitivity
from headtree.measures.similarity import from_organizations, head_similarity
from headtree.pipeline import tables
from headtree.pipeline.model_source import INPUTS, ModelCapture
from headtree.pipeline.sources import Capture
from headtree.progress import progress
from headtree.questionnaire.organize import organize
from headtree.report.words.depth_section import depth_section
from headtree.report.words.diagnostics_section import diagnostics_section
from headtree.report.words.effects_section import effects_section
from headtree.report.words.sensitivity_section import sensitivity_section
from headtree.runs.containers import LazySequence
from headtree.runs.contents import measured_file, sample_file
from headtree.runs.effects_store import write_effects
from headtree.runs.folder import RunWriter
from headtree.runs.organization_store import questionnaire_from_dict, read_organization, write_organizations
from headtree.runs.run import Run
from headtree.runs.similarity_store import write_similarities
from headtree.section import Section
from headtree.similarity.head_similarity import HeadSimilarity
from headtree.tensor.store import join_attention, write_attention

#: Number of inputs on which the sensitivity to settings is measured.
_SENSITIVITY_INPUTS = 3
#: With fewer inputs, two halves of them hardly ever show the same families of heads.
_ENOUGH_INPUTS = 10


def capture(writer: RunWriter, begin: Callable[[], Capture]) -> None:
    """Run the model on one input after another and store the attention of every head."""
    ready = begin()
    n = len(ready.inputs)
    inputs = tuple(dict(item) for item in ready.inputs)
    notes = (*ready.notes, *_too_few(ready))
    writer.save(replace(writer.record, model=dict(ready.model), inputs=inputs, notes=notes))
    parts = [writer.part(f"attention-{i:05d}.zarr") for i in range(n)]
    samples = []
    with _steps("capturing", n) as step:
        for i, part in enumerate(parts):
            if not part.exists():
                with writer.whole(part) as draft:
                    like = parts[0] if i else None
                    write_attention(draft, [ready.tensor(i)], f"{writer.identity} {i}", like=like)
            picture = ready.sample(i)
            if picture is not None:
                samples.append(sample_file(i))
                with writer.whole(writer.path / samples[-1]) as draft:
                    draft.write_bytes(picture)
            step(f"input {i + 1} of {n}")
    writer.announce("capture", ("attention.zarr", *samples))
    with writer.whole(writer.path / "attention.zarr") as draft:
        join_attention(draft, parts, writer.identity)


def _too_few(ready: Capture) -> tuple[str, ...]:
    """A note, also given as a warning, if a model has too few inputs for families of heads; otherwise nothing."""
    n = len(ready.inputs)
    if n >= _ENOUGH_INPUTS or not isinstance(ready, ModelCapture):  # tensors are what they are
        return ()
    note = (
        f"{n} input{'s' * (n > 1)}: fewer than {_ENOUGH_INPUTS} are too few for families of heads to replicate; "
        f"the default of headtree run is --inputs {INPUTS}"
    )
    warnings.warn(note, HeadtreeWarning, stacklevel=2)
    return (note,)


def organize_inputs(writer: RunWriter) -> None:
    """Organize every input."""
    settings = questionnaire_from_dict(writer.record.settings["questionnaire"])
    n, run = len(writer.record.inputs), writer.run
    device = writer.record.settings["source"].get("device") or "cpu"
    with _steps("organizing", n) as step:
        for i in range(n):
            part = writer.part(f"organization-{i:05d}.zarr")
            if not part.exists():
                org = organize(run.values[i], settings, device=device if device.startswith("cuda") else "cpu")
                with writer.whole(part) as draft:
                    write_organizations(draft, [org])
            step(f"input {i + 1} of {n}")
    parts = LazySequence(n, lambda i: read_organization(writer.part(f"organization-{i:05d}.zarr"), 0))
    with writer.whole(writer.path / "organization.zarr") as draft:
        write_organizations(draft, parts)


def compare_heads(writer: RunWriter, begin: Callable[[], Capture]) -> None:
    """Find the tree of heads that the inputs agree on, for every similarity; families are made of the first."""
    settings, run = writer.record.settings, writer.run
    chosen = settings["similarity"]
    found: dict[str, HeadSimilarity] = {}
    kinds = dict.fromkeys((chosen, "attention", "function", "questionnaire"))
    for kind in kinds:
        similarity = _similarity(kind, run, begin, is_chosen=kind == chosen)
        if isinstance(similarity, HeadSimilarity):
            found[kind] = similarity
        elif similarity is not None:
            notes = dict.fromkeys((*writer.record.notes, similarity))
            writer.save(replace(writer.record, notes=tuple(notes)))
    measures = settings["measures"]
    agreed = {
        kind: consensus(each, n_bootstrap=measures["bootstrap"], rng=measures["seed"])
        if each.n_inputs > 1
        else of_one_input(kind, linkage_tree(each.combine()), each.combine())
        for kind, each in found.items()
    }
    with writer.whole(writer.path / "similarity.zarr") as draft:
        write_similarities(draft, agreed)


def _similarity(
    kind: str, run: Run, begin: Callable[[], Capture], *, is_chosen: bool
) -> HeadSimilarity | str | None:
    """The similarity of one kind; why it is missing; or None for tensors, which have no values."""
    if kind == "questionnaire":
        return from_organizations(list(run.organization), run.attention[0].heads)
    if kind != "function":
        return head_similarity(list(run.attention), kind)  # type: ignore[arg-type]  # checked with the settings
    ready = begin()
    if not isinstance(ready, ModelCapture):
        return None  # refused before anything was done if it was asked for
    try:
        return ready.functional_similarity()
    except InvalidValueError as error:
        if is_chosen:
            raise
        return f"heads that do alike are unknown: {error}"


def measure(writer: RunWriter) -> None:
    """Measure entropies, sparsity, regularity and softmax invariance of every input and of the network."""
    settings = writer.record.settings["measures"]
    files = [measured_file(i) for i in range(len(writer.record.inputs))]
    writer.announce("measure", (*files, "measures.json"))
    run, inputs = writer.run, []
    with _steps("measuring", run.n_inputs) as step:
        for i, name in enumerate(files):
            if writer.has(name):  # left by an earlier start of the same run
                inputs.append(MeasuredInput.from_json((writer.path / name).read_text(encoding="utf-8")))
            else:
                inputs.append(
                    measure_input(
                        run.values[i],
                        run.organization[i],
                        head_functions=settings["head_functions"],
                        network_functions=settings["network_functions"],
                        rng=settings["seed"],
                        probs=run.attention[i],
                    )
                )
                writer.write_text(name, inputs[-1].to_json())
                writer.remember(name)
            step(f"input {i + 1} of {run.n_inputs}")
    numbers = tables.network_measures(inputs, run.consensus, settings["seed"])
    writer.write_text("measures.json", json.dumps(numbers, indent=1) + "\n")


def diagnose(writer: RunWriter, begin: Callable[[], Capture]) -> None:
    """Write the tables of heads and layers with diagnostics from the literature, and a section on roles."""
    import pandas as pd

    run, seed = writer.run, writer.record.settings["measures"]["seed"]
    found = diagnostics(run.attention, **begin().to_run_again())
    of_heads = tables.head_table(list(run.measured), run.consensus, run.measures.get("stability"))
    of_layers = tables.layer_table(of_heads)
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
