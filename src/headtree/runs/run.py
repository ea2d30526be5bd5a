"""A run on disk, with everything in it accessible by name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from headtree import _notebook
from headtree._files import checked_path
from headtree.errors import InvalidValueError
from headtree.measures.consensus import Consensus
from headtree.measures.heads.effects import HeadEffects
from headtree.measures.per_input import MeasuredInput
from headtree.questionnaire.organization import Organization
from headtree.runs.checksums import check
from headtree.runs.containers import AttrMapping, LazySequence, attr_tree
from headtree.runs.contents import measured_file
from headtree.runs.effects_store import read_effects
from headtree.runs.organization_store import read_organization
from headtree.runs.record import Record, read_record
from headtree.runs.similarity_store import read_similarities
from headtree.section import Section, read_section
from headtree.tensor.attention_tensor import AttentionTensor
from headtree.tensor.slice_names import HEAD, reduction_of, slices_of
from headtree.tensor.store import open_tensor
from headtree.tensor.stored_array import StoredArray
from headtree.tensor.zarr_dataset import SmallArrays, open_group

ARRAY_FORMAT = "headtree.run.array/2"

#: What was organized and measured in a run, where its kind says it.
_VALUES = {"probs": "probabilities", "weighted": "value-weighted attention", "signed": "signed values"}


@dataclass(frozen=True, eq=False, repr=False)
class Run:
    """The result of `headtree run` or `headtree demo`: one network on several inputs, organized and measured.

    Everything is read on first use. A run of a plain array (`headtree organize`) has `array` instead of
    `attention`, one organization, and a table for each axis instead of `heads` and `layers`.

    Examples
    --------
    >>> import tempfile
    >>> import headtree as ht
    >>> from headtree.pipeline.make_run import make_run
    >>> from headtree.pipeline.sources import TensorSource
    >>> scores = np.random.default_rng(0).normal(size=(2, 6, 8, 8))
    >>> tensors = [ht.AttentionTensor.from_array(x, heads_per_layer=3) for x in scores]
    >>> run = make_run(TensorSource(tensors), f"{tempfile.mkdtemp()}/run", draw=False)
    >>> run.attention[1].take("L1H0").shape
    (1, 8, 8)
    >>> run.organization[0].trees.head.n_leaves == len(run.heads) == 6
    True
    >>> run.settings.measures.head_functions
    400
    """

    path: Path
    record: Record

    @property
    def name(self) -> str:
        """Name of the folder."""
        return self.path.resolve().name

    @property
    def kind(self) -> str:
        """The kind of the values: "scores", "probs", "weighted", "signed", or "array"."""
        return self.record.kind

    @cached_property
    def settings(self) -> AttrMapping[Any]:
        """The settings of the run: model, inputs, questionnaire, measures."""
        settings: AttrMapping[Any] = attr_tree(self.record.settings, "setting")
        return settings

    @cached_property
    def info(self) -> AttrMapping[Any]:
        """Everything in run.json: versions, model, inputs with their hashes, state of the steps."""
        info: AttrMapping[Any] = attr_tree(json.loads(self.record.to_json()), "information")
        return info

    @property
    def is_complete(self) -> bool:
        """Whether every step that was started is done."""
        return bool(self.record.steps) and all(step.status == "done" for step in self.record.steps.values())

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the inputs."""
        return tuple(str(item["name"]) for item in self.record.inputs)

    @property
    def n_inputs(self) -> int:
        """Number of inputs."""
        return len(self.record.inputs)

    @cached_property
    def attention(self) -> LazySequence[AttentionTensor]:
        """The attention tensor of each input; values stay on disk until a block of them is needed."""
        if self.kind == "array":
            raise InvalidValueError(
                f"{self.path} is a run of an array and has no attention; its array is run.array"
            )
        path = self._file("attention.zarr", "capture")
        labels = SmallArrays()
        return LazySequence(self.n_inputs, lambda i: open_tensor(path, i, labels))

    @cached_property
    def values(self) -> LazySequence[AttentionTensor]:
        """What was organized and measured, in memory: of scores the centred ones, unless the run is of raw scores.

        Constants that are added to rows of scores, which softmax ignores, are not in them.
        """
        attention = self.attention
        is_centred = self.kind == "scores" and not self.record.settings["raw"]
        return LazySequence(self.n_inputs, lambda i: attention[i].centred() if is_centred else attention[i].load())

    @cached_property
    def array(self) -> StoredArray:
        """The array of a run made by `headtree organize`."""
        if self.kind != "array":
            raise InvalidValueError(f"{self.path} is a run of a network; its tensors are run.attention[i]")
        path = self._file("array.zarr", "capture")
        group = open_group(path, ARRAY_FORMAT)
        values = group["array"]
        return StoredArray(
            path.resolve(), "array", str(group.attrs["identity"]), tuple(values.shape), np.dtype(values.dtype)
        )

    @cached_property
    def organization(self) -> LazySequence[Organization]:
        """Trees, affinities and coordinates of each input."""
        path = self._file("organization.zarr", "organize")
        trees = SmallArrays()
        return LazySequence(self.n_inputs, lambda i: read_organization(path, i, trees))

    @cached_property
    def similarities(self) -> AttrMapping[Consensus]:
        """For each similarity of heads, the tree that the inputs agree on; families are made of the first.

        The kinds are "attention" (looks alike), "function" (does alike; in runs of a model) and "questionnaire".
        """
        if self.kind == "array":
            raise InvalidValueError(
                f"{self.path} is a run of an array, which has no consensus; use run.organization"
            )
        return AttrMapping(read_similarities(self._file("similarity.zarr", "compare")), "similarity")

    @property
    def consensus(self) -> Consensus:
        """The tree of heads that families are made of, with the support of its folders (nan for a single input)."""
        return next(iter(self.similarities.values()))

    @cached_property
    def slices(self) -> str:
        """What the run has slices of, "head" or of token tensors "depth"."""
        return HEAD if self.kind == "array" else slices_of(self.attention[0].provenance)

    @property
    def values_words(self) -> str:
        """What was organized and measured: centred scores, raw scores, probabilities, or weighted attention."""
        reduction = None if self.kind == "array" else reduction_of(self.attention[0].provenance)
        if reduction is not None:
            return reduction[1]
        if self.kind == "scores":
            return "raw scores" if self.record.settings["raw"] else "centred scores"
        return _VALUES.get(self.kind, self.kind)

    @cached_property
    def effects(self) -> HeadEffects:
        """Change of loss without each head, if the run was made with effects."""
        if not self.record.is_done("effects"):
            raise InvalidValueError(f"{self.path} has no effects of heads; make the run with --effects")
        return read_effects(self._file("effects.zarr", "effects"))

    @cached_property
    def measured(self) -> LazySequence[MeasuredInput]:
        """The measures of each input."""
        if self.kind == "array":
            raise InvalidValueError(f"{self.path} is a run of an array; its measures are run.measures")
        self._file("measures.json", "measure")

        def read(i: int) -> MeasuredInput:
            return MeasuredInput.from_json(self._file(measured_file(i), "measure").read_text(encoding="utf-8"))

        return LazySequence(self.n_inputs, read)

    @cached_property
    def heads(self) -> Any:
        """A row per head, as a pandas DataFrame."""
        return self.tables["heads"]

    @cached_property
    def layers(self) -> Any:
        """A row per layer, as a pandas DataFrame."""
        return self.tables["layers"]

    @cached_property
    def tables(self) -> AttrMapping[Any]:
        """Every table of the run as a pandas DataFrame."""
        import pandas as pd

        if self.kind == "array":
            self._file("measures.json", "measure")
        else:
            self._file("heads.csv", "diagnose")
        paths = self._glob(".", "*.csv")
        return AttrMapping({path.stem: pd.read_csv(path) for path in paths}, "table")

    @cached_property
    def measures(self) -> AttrMapping[Any]:
        """Numbers about the whole network."""
        text = self._file("measures.json", "measure").read_text(encoding="utf-8")
        measures: AttrMapping[Any] = attr_tree(json.loads(text), "measure")
        return measures

    @cached_property
    def figures(self) -> AttrMapping[Path]:
        """Paths of the figures by name; SVG if it exists, else PNG."""
        found = {path.stem: path for pattern in ("*.png", "*.svg") for path in self._glob("figures", pattern)}
        return AttrMapping(dict(sorted(found.items())), "figure")

    @cached_property
    def sections(self) -> AttrMapping[Section]:
        """Optional sections: diagnostics, depth, effects, claims, sensitivity."""
        return AttrMapping({path.stem: read_section(path) for path in self._glob("sections", "*.json")}, "section")

    @cached_property
    def samples(self) -> tuple[Path, ...]:
        """One small picture per input, if the inputs are images."""
        return tuple(self._glob("samples", "*.png"))

    @property
    def page(self) -> Path | None:
        """The page that was written with the run; None if there is none."""
        file = self.path / "report.html"
        return self._checked(file) if self.record.is_done("page") and file.is_file() else None

    def _glob(self, folder: str, pattern: str) -> list[Path]:
        found = {name for name in self.record.files if PurePosixPath(name).match(f"{folder}/{pattern}")}
        found |= {path.relative_to(self.path).as_posix() for path in (self.path / folder).glob(pattern)}
        return [self._checked(self.path / name) for name in sorted(found)]

    def _file(self, name: str, step: str) -> Path:
        if not self.record.is_done(step):
            raise InvalidValueError(
                f"{self.path} has no {name} yet: its step {step} is not done; finish the run with the command that "
                "started it"
            )
        return self._checked(self.path / name)

    def _checked(self, path: Path) -> Path:
        """The path of a file or folder, once it is known to be as it was written."""
        check(self.path, self.record.files, path.relative_to(self.path).as_posix())
        return path

    def __repr__(self) -> str:
        state = "" if self.is_complete else ", not finished"
        return f"Run({str(self.path)!r}: {self.kind} of {self._about()} on {self.n_inputs} inputs{state})"

    def _repr_html_(self) -> str:
        lines = [f"inputs: {', '.join(self.inputs[:8])}{', …' if self.n_inputs > 8 else ''}"]
        pictures = []
        if self.kind != "array" and self.record.is_done("diagnose"):
            table = self.heads
            grid = np.full((int(table["layer"].max()) + 1, int(table["head"].max()) + 1), np.nan)
            grid[table["layer"], table["head"]] = table["structure"]
            pictures.append(_notebook.heatmap(grid, "structure score of heads: layers down, heads across", 240))
            lines.append("ht.show(run) opens the page here; ht.write_report(run, 'report.html') writes it")
        return _notebook.panel(repr(self), lines, pictures)

    def _about(self) -> str:
        source: Mapping[str, Any] = self.record.settings.get("source", {})
        return str(source.get("model") or source.get("file") or "an array")


def open_run(path: str | PathLike[str]) -> Run:
    """Open the folder of a run.

    Parameters
    ----------
    path : path
        A folder made by `headtree run`, `headtree demo` or `headtree organize`. If the run is unfinished, using
        what is still missing raises an error.

    Examples
    --------
    >>> import tempfile
    >>> import headtree as ht
    >>> from headtree.pipeline.make_run import make_run
    >>> from headtree.pipeline.sources import TensorSource
    >>> scores = ht.AttentionTensor.from_array(np.random.default_rng(0).normal(size=(6, 8, 8)))
    >>> folder = make_run(TensorSource([scores]), f"{tempfile.mkdtemp()}/run", draw=False).path
    >>> run = ht.open_run(folder)
    >>> run.inputs, run.is_complete
    (('input 0',), True)
    >>> list(run.heads.columns[:4])
    ['name', 'layer', 'head', 'role']
    """
    folder = checked_path(path)
    return Run(folder, read_record(folder))
