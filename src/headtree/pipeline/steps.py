"""The steps of a run. Each finds its parts that are there already, makes the others, and puts them together."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from headtree.measures.consensus import Consensus, consensus
from headtree.measures.heads.diagnostics import diagnostics
from headtree.pipeline import tables
from headtree.pipeline.sources import Capture
from headtree.progress import progress
from headtree.questionnaire.organization import Organization
from headtree.questionnaire.organize import organize
from headtree.report.words.diagnostics_section import diagnostics_content
from headtree.runs.folder import Workplace
from headtree.runs.organization_store import questionnaire_from_dict, read_organization, write_organizations
from headtree.section import Section
from headtree.tensor.store import join_attention, open_tensor, write_attention


def capture(place: Workplace, begin: Callable[[], Capture]) -> None:
    """Run the model on one input after another and keep every head's attention."""
    ready = begin()
    n = len(ready.inputs)
    place.save(replace(place.record, model=dict(ready.model), inputs=tuple(dict(item) for item in ready.inputs)))
    parts = [place.part(f"attention-{i:05d}.zarr") for i in range(n)]
    samples = []
    with _steps("capturing", n) as step:
        for i, part in enumerate(parts):
            if not part.exists():
                with place.whole(part) as draft:
                    like = parts[0] if i else None
                    write_attention(draft, [ready.tensor(i)], f"{place.identity} {i}", like=like)
            picture = ready.sample(i)
            if picture is not None:
                samples.append(f"samples/input_{i:05d}.png")
                with place.whole(place.path / samples[-1]) as draft:
                    draft.write_bytes(picture)
            step(f"input {i + 1} of {n}")
    place.announce("capture", ("attention.zarr", *samples))
    with place.whole(place.path / "attention.zarr") as draft:
        join_attention(draft, parts, place.identity)


def organize_inputs(place: Workplace) -> None:
    """Organize every input, then average their heads' affinities into one tree."""
    settings = questionnaire_from_dict(place.record.settings["questionnaire"])
    n = len(place.record.inputs)
    organizations = []
    with _steps("organizing", n) as step:
        for i in range(n):
            part = place.part(f"organization-{i:05d}.zarr")
            if part.exists():
                organizations.append(read_organization(part, 0))
            else:
                att = open_tensor(place.path / "attention.zarr", i).load()
                organizations.append(organize(att, settings))
                if i < n - 1:  # the last is at once written with all others
                    with place.whole(part) as draft:
                        write_organizations(draft, organizations[-1:])
            step(f"input {i + 1} of {n}")
    with place.whole(place.path / "organization.zarr") as draft:
        write_organizations(draft, organizations, _agreement(organizations, place.record.settings["measures"]))


def _agreement(organizations: list[Organization], settings: Mapping[str, Any]) -> Consensus:
    if len(organizations) > 1:
        return consensus(organizations, n_bootstrap=settings["bootstrap"], rng=settings["seed"])
    only = organizations[0]
    n_folders = max(0, int((~only.trees[0].distinct.is_leaf).sum()) - 1)  # but the root
    unknown = np.full(n_folders, np.nan)  # one input cannot disagree with itself
    return Consensus(
        tree=only.trees[0],
        affinity=only.affinities[0],
        share=unknown,
        support=unknown,
        n_inputs=1,
        n_bootstrap=0,
    )


def measure(place: Workplace) -> None:
    """Entropies, sparsity, regularity and softmax invariance of every input; the tables of heads and layers."""
    settings = place.record.settings["measures"]
    run, rows = place.run, []
    with _steps("measuring", run.n_inputs) as step:
        for i in range(run.n_inputs):
            part = place.part(f"measures-{i:05d}.json")
            if not part.exists():
                numbers = tables.measured(run.attention[i], run.organization[i], settings)
                with place.whole(part) as draft:
                    draft.write_text(json.dumps(numbers), encoding="utf-8")
            rows.append(json.loads(part.read_text(encoding="utf-8")))
            step(f"input {i + 1} of {run.n_inputs}")
    heads = run.attention[0].heads
    table = tables.head_table(heads, rows, run.consensus)
    write_table(place, "heads.csv", table)
    write_table(place, "layers.csv", tables.layer_table(table))
    numbers = tables.network_measures(heads, rows, run.consensus, settings["seed"])
    place.write_text("measures.json", json.dumps(numbers, indent=1) + "\n")


def diagnose(place: Workplace, begin: Callable[[], Capture]) -> None:
    """Add what other works measure to the tables, and a section that says what the heads' roles are."""
    found = diagnostics([att.load() for att in place.run.attention], **begin().to_run_again())
    for name, table in (("heads.csv", found.heads), ("layers.csv", found.layers)):
        join_tables(place, name, table)
    content = diagnostics_content(
        found, heads=place.run.heads, consensus=place.run.consensus, rng=place.record.settings["measures"]["seed"]
    )
    write_section(place, "diagnostics", Section.from_dict(content))


def write_section(place: Workplace, name: str, section: Section) -> None:
    """Write a section of the run."""
    with place.whole(place.path / "sections" / f"{name}.json") as draft:
        draft.write_text(section.to_json(), encoding="utf-8")


def join_tables(place: Workplace, name: str, columns: Any) -> None:
    """Append columns to a table of the run; those that it has already stay as they are."""
    import pandas as pd

    names = {"role": str, "leaning": str}
    table = pd.read_csv(place.path / name, keep_default_na=False, na_values=[""], dtype=names)
    more = {column: columns[column] for column in columns if column not in table}
    write_table(place, name, {column: table[column] for column in table} | more)


def write_table(place: Workplace, name: str, columns: Mapping[str, Any]) -> None:
    """A table as CSV: twelve digits, the same bytes for the same numbers everywhere."""
    import pandas as pd

    text = pd.DataFrame(dict(columns)).to_csv(index=False, float_format="%.12g", lineterminator="\n")
    place.write_text(name, text)


@contextmanager
def _steps(description: str, n: int) -> Iterator[Callable[[str], None]]:
    """A bar over inputs; of a single input, its own bars say more."""
    if n == 1:
        yield lambda note: None
        return
    with progress(description, n) as step:
        yield step
