"""Runs of plain arrays: `headtree organize` for anything with two or more axes, no transformer needed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from headtree import _checks
from headtree._memory import format_bytes
from headtree.errors import InvalidValueError
from headtree.measures.orders import orders
from headtree.measures.sparsity import compression_curve
from headtree.pipeline.memory_limit import memory_in_use
from headtree.pipeline.steps import write_table
from headtree.pipeline.tables import curves_to_dict
from headtree.questionnaire.organization import Organization
from headtree.questionnaire.organize import organize_array
from headtree.runs.folder import RunWriter
from headtree.runs.organization_store import questionnaire_from_dict, write_organizations
from headtree.runs.run import ARRAY_FORMAT
from headtree.tensor.load import LoadedArray, load_array, zarr_bytes
from headtree.tensor.store import as_numpy
from headtree.tensor.zarr_dataset import Variable, create, finish, put

_LEVELS = 3
#: Entries up to which an array's noise is organized as well, which takes as long as the array.
_LARGEST_NOISE = 1 << 24
#: Names that organization.zarr already uses for its own axes.
_TAKEN = ("axis", "component", "input", "iteration", "level")


@dataclass(frozen=True, eq=False)
class ArrayFile:
    """An array in a file.

    Parameters
    ----------
    path : path
        Any file that `load_array` reads.
    name : str, optional
        Which array to read, if the file holds several.
    axes : sequence of str, optional
        Names of the axes; by default those in the file, else axis0, axis1, …
    """

    path: Path
    name: str | None = None
    axes: Sequence[str] | None = None

    @cached_property
    def loaded(self) -> LoadedArray:
        """The contents of the file."""
        return load_array(self.path, name=self.name)

    @cached_property
    def values(self) -> np.ndarray[Any, Any]:
        """The array; nan where an entry is missing."""
        values = as_numpy(self.loaded.values)
        if values.dtype.kind not in "fiub":
            raise InvalidValueError(f"{self.path} must hold real numbers, got {values.dtype}; convert them first")
        return values if values.dtype in (np.float32, np.float64) else values.astype(np.float64)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the axes, valid as file names and as axis names in the run's datasets."""
        n = self.values.ndim
        if self.axes is None:
            own = self.loaded.axes or ()
            return (
                tuple(own) if len(set(own)) == n and all(map(_is_fit, own)) else tuple(f"axis{i}" for i in range(n))
            )
        names = tuple(self.axes)
        if len(names) != n or len(set(names)) != n:
            raise InvalidValueError(
                f"axes must be {n} different names, one for each axis of the shape {self.values.shape}, got "
                f"{', '.join(names)}"
            )
        unfit = [name for name in names if not _is_fit(name)]
        if unfit:
            raise InvalidValueError(
                "names of axes must consist of letters, digits, - and _, and must not be one of "
                f"{', '.join(_TAKEN)}, got {unfit[0]!r}"
            )
        return names

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The name of the file, the names of the array and its axes, and the hash of the array."""
        values = np.ascontiguousarray(self.values)
        return {
            "type": "array",
            "file": self.path.name,
            "array": self.name,
            "axes": list(self.names),
            "shape": list(values.shape),
            "sha256": hashlib.sha256(values.tobytes()).hexdigest(),
        }


def _is_fit(name: str) -> bool:
    return bool(name) and name not in _TAKEN and all(c.isalnum() or c in "_-" for c in name)


def keep(writer: RunWriter, source: ArrayFile) -> None:
    """Copy the array into the run."""
    values = source.values
    missing = np.isnan(values)
    item = {"name": source.path.name, "sha256": source.settings["sha256"]}
    writer.save(replace(writer.record, inputs=(item,)))
    with writer.whole(writer.path / "array.zarr") as draft:
        group = create(draft, {"format": ARRAY_FORMAT, "identity": writer.identity})
        put(group, "array", Variable(source.names, values))
        if missing.any():
            put(group, "mask", Variable(source.names, missing))
        for axis, labels in zip(source.names, source.loaded.labels, strict=True):
            if labels is not None:
                put(group, axis, Variable((axis,), np.array(labels, dtype=object)))
        finish(draft)


def organize_axes(writer: RunWriter, source: ArrayFile) -> None:
    """Organize every axis."""
    settings = questionnaire_from_dict(writer.record.settings["questionnaire"])
    missing = np.isnan(source.values)
    org = organize_array(source.values, settings, mask=missing if missing.any() else None, names=source.names)
    with writer.whole(writer.path / "organization.zarr") as draft:
        write_organizations(draft, [org])


def measure_array(writer: RunWriter, source: ArrayFile) -> None:
    """Write a table for each axis, and measure how few Haar coefficients represent the array."""
    org = writer.run.organization[0]
    for axis, labels in zip(org.names, source.loaded.labels, strict=True):
        write_table(writer, f"{axis}.csv", _axis_table(org, axis, labels))
    missing = np.isnan(source.values)
    full = source.values
    if missing.any():
        full = np.where(missing, full[~missing].mean(), full)
    seed = writer.record.settings["measures"]["seed"]
    curves = {name: compression_curve(full, trees) for name, trees in orders(list(org.trees), seed).items()}
    organized = curves["organized"].n_for_99
    measures = {
        "missing": int(missing.sum()),
        "effort": {"found": _effort(full, org, seed), "noise": _effort_of_noise(full, org, seed)},
        "moved": [[None if np.isnan(value) else float(value) for value in row] for row in org.moved],
        "sparsity": {
            "gain": curves["given"].n_for_99 / organized if organized else 1.0,
            "orders": list(curves),
            "n_for_90": [curve.n_for_90 for curve in curves.values()],
            "n_for_99": [curve.n_for_99 for curve in curves.values()],
            "n_coefficients": full.size,
            "curves": curves_to_dict(curves),
        },
    }
    writer.write_text("measures.json", json.dumps(measures, indent=1) + "\n")


def _effort(values: np.ndarray[Any, Any], org: Organization, seed: int) -> float:
    """Coefficients that hold 90 % of the variation on the found trees, as a share of those with shuffled leaves."""
    trees = orders(list(org.trees), seed)
    centred = values - values.mean()
    found, shuffled = (compression_curve(centred, trees[name]).n_for_90 for name in ("organized", "shuffled"))
    return found / max(1, shuffled)


def _effort_of_noise(values: np.ndarray[Any, Any], org: Organization, seed: int) -> float | None:
    """The same for the array's entries in random places, organized too: trees fit even noise to some extent."""
    if values.size > _LARGEST_NOISE:
        return None
    noise = np.random.default_rng(seed).permutation(values.ravel()).reshape(values.shape)
    return _effort(noise, organize_array(noise, org.settings, names=org.names), seed)


def _axis_table(org: Organization, axis: str, labels: Sequence[str] | None) -> dict[str, Any]:
    """One row per slice: its rank in tree order, its folders on the upper levels, its coordinates."""
    tree, points = org.trees[axis], org.coordinates[axis]
    n = tree.n_leaves
    rank = np.empty(n, dtype=np.int64)
    rank[org.order(axis)] = np.arange(n)
    table: dict[str, Any] = {"slice": np.arange(n)}
    if labels is not None:
        table["label"] = list(labels)
    table["place_in_tree"] = rank
    for level in range(1, min(_LEVELS + 1, tree.n_levels)):
        table[f"folder_{level}"] = tree.labels[level]
    for i in range(min(3, points.shape[1])):
        table[f"coordinate_{i + 1}"] = points[:, i]
    return table


#: Copies of an array while it is organized and measured, some of them in float64.
_COPIES = 8


def check_room(source: ArrayFile, memory: int | None) -> None:
    """Raise an error for an array that takes more memory than allowed: such runs read it as a whole."""
    if memory is None:
        return
    size = source.path.stat().st_size if source.path.is_file() else zarr_bytes(source.path, source.name)
    needed = memory_in_use() + _COPIES * size
    if needed > memory:
        raise InvalidValueError(
            f"a run of {source.path} takes about {format_bytes(needed)} of memory, but the limit is "
            f"{format_bytes(memory)}; allow that much, or organize a part of it"
        )


def check_array(source: ArrayFile) -> None:
    """Raise an error for an array that cannot be organized, before anything is written."""
    missing = np.isnan(source.values)
    _checks.scaled_array(source.values, str(source.path), mask=missing if missing.any() else None, min_axes=2)
