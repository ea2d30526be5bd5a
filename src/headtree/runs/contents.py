"""What a run stores: every file of its folder, the step that writes it, and its contents."""

from __future__ import annotations

from typing import NamedTuple


class StoredFile(NamedTuple):
    """A file of a run, or several of one kind."""

    name: str  #: path in the run folder; * is the number of an input, or a name
    step: str  #: the step that writes it
    about: str


STORED = (
    StoredFile("attention.zarr", "capture", "every head's attention on every input, with labels and masks"),
    StoredFile("samples/input_*.png", "capture", "small pictures of inputs that are images"),
    StoredFile(
        "organization.zarr", "organize", "trees, affinities and coordinates of every input, landmarks if any"
    ),
    StoredFile(
        "similarity.zarr",
        "compare",
        "for each similarity of heads the tree that inputs agree on",
    ),
    StoredFile("measured/input_*.json", "measure", "what was measured on each input"),
    StoredFile("measures.json", "measure", "numbers about the whole network, from all inputs"),
    StoredFile(
        "heads.csv", "diagnose", "one row per head: role, family, confidence, structure score, diagnostics; effects"
    ),
    StoredFile("layers.csv", "diagnose", "one row per layer; the step depth adds columns"),
    StoredFile("overlap.csv", "diagnose", "how far the structure score already contains other measures"),
    StoredFile("sections/diagnostics.json", "diagnose", "roles and diagnostics in words and tables"),
    StoredFile("sections/depth.json", "depth", "rank collapse and paths, if asked for"),
    StoredFile("effects.zarr", "effects", "change of loss without each head, token by token, if asked for"),
    StoredFile("sections/effects.json", "effects", "effects of heads in words and a table"),
    StoredFile("sections/sensitivity.json", "sensitivity", "how much the settings matter, if asked for"),
    StoredFile("figures/*", "draw", "figures as SVG and PNG; depth and sensitivity add theirs"),
    StoredFile("report.html", "page", "the page to explore the run in"),
    StoredFile("array.zarr", "capture", "in place of attention.zarr in a run of a plain array"),
)

#: Names of the files and folders at the top of a run folder that belong to the run.
OWN_FILES = tuple(stored.name for stored in STORED if "/" not in stored.name)
OWN_FOLDERS = tuple(dict.fromkeys(stored.name.split("/")[0] for stored in STORED if "/" in stored.name))


def files_of(step: str) -> tuple[str, ...]:
    """The files that a step of a network's run writes, if their names are known in advance."""
    names = [stored.name for stored in STORED if stored.step == step and "*" not in stored.name]
    return tuple(name for name in names if name != "array.zarr")


def measured_file(i: int) -> str:
    """Path in the run folder of the measures of an input."""
    return f"measured/input_{i:05d}.json"


def sample_file(i: int) -> str:
    """Path in the run folder of the small picture of an input."""
    return f"samples/input_{i:05d}.png"
