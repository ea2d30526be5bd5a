"""`organization.zarr` of a run: trees, affinities and coordinates of all inputs."""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from headtree.errors import DamagedFileError, InvalidValueError
from headtree.questionnaire.landmarks import Landmarks
from headtree.questionnaire.organization import Iteration, Organization, PerAxis, Status
from headtree.questionnaire.settings import Questionnaire
from headtree.tensor.zarr_dataset import (
    SmallArrays,
    Variable,
    create,
    finish,
    new_array,
    open_group,
    put,
    rows_in_chunks,
)
from headtree.trees.tree import PartitionTree

FORMAT = "headtree.run.organization/4"

#: Bytes of several inputs that are written together: every write has a price of its own.
_AT_ONCE = 32 << 20


def questionnaire_to_dict(settings: Questionnaire) -> dict[str, Any]:
    """The settings as plain JSON values."""
    if not isinstance(settings.rng, int | np.integer):
        raise InvalidValueError(
            "rng must be an integer seed for an organization that is written to a run, got a generator, whose "
            "draws cannot be repeated; pass an integer"
        )
    values = asdict(settings) | {"rng": int(settings.rng)}

    def plain(value: Any) -> Any:
        if isinstance(value, tuple):
            return [plain(each) for each in value]
        return int(value) if isinstance(value, np.integer) else value

    return {name: plain(value) for name, value in values.items()}


def questionnaire_from_dict(values: Mapping[str, Any]) -> Questionnaire:
    """The settings that `questionnaire_to_dict` wrote."""
    known = {field.name for field in fields(Questionnaire)}
    chosen: dict[str, Any] = {
        name: tuple(v) if isinstance(v, list) else v for name, v in values.items() if name in known
    }
    return Questionnaire(**chosen)


def write_organizations(folder: Path, organizations: Sequence[Organization]) -> None:
    """Write organizations of the same axes; levels that a tree lacks are -1, as other integers, and numbers nan.

    They are iterated over twice, one at a time, so a sequence that reads them from disk need not hold them all.
    """
    outlines = [_Outline.of(org) for org in organizations]
    first = outlines[0]
    attributes: dict[str, Any] = {
        "format": FORMAT,
        "axes": list(first.names),
        "settings": json.dumps(first.settings),
        "status": json.dumps([outline.status for outline in outlines]),
    }
    group = create(folder, attributes)
    _write_axes(group, organizations, outlines)
    moved = np.stack([outline.moved for outline in outlines])
    put(group, "moved", Variable(("input", "iteration", "axis"), moved))
    put(group, "axis", Variable(("axis",), np.array(first.names, dtype=object)))
    finish(folder)


@dataclass(frozen=True, eq=False)
class _Outline:
    """What must be known about every organization before the first is written."""

    names: tuple[str, ...]
    sizes: dict[str, int]  #: leaves of each axis
    n_compared: dict[str, int]  #: slices of each axis that have affinities: all, or landmarks
    n_levels: int  #: of the deepest tree
    n_components: int  #: largest number of coordinates of an axis
    moved: np.ndarray[Any, Any]
    status: dict[str, Any]
    settings: dict[str, Any]

    @classmethod
    def of(cls, org: Organization) -> _Outline:
        return cls(
            names=tuple(org.names),
            sizes={name: org.trees[name].n_leaves for name in org.names},
            n_compared={name: len(org.affinities[name]) for name in org.names},
            n_levels=max(tree.n_levels for tree in _all_trees(org)),
            n_components=max(points.shape[1] for points in org.coordinates),
            moved=org.moved,
            status={**asdict(org.status), "notes": list(org.status.notes), "exact": list(org.status.exact)},
            settings=questionnaire_to_dict(org.settings),
        )


def _write_axes(group: Any, organizations: Sequence[Organization], outlines: Sequence[_Outline]) -> None:
    """Write trees, affinities, distances and coordinates, one input after another."""
    n_levels = max(outline.n_levels for outline in outlines)
    n_components = max(outline.n_components for outline in outlines)
    for name in outlines[0].names:
        sizes = np.array([outline.sizes[name] for outline in outlines], dtype=np.int64)
        put(group, f"n_{name}", Variable(("input",), sizes))
        n_compared = np.array([outline.n_compared[name] for outline in outlines], dtype=np.int64)
        if (n_compared < sizes).any():
            put(group, f"n_compared_{name}", Variable(("input",), n_compared))
    arrays: dict[str, Any] = {}
    waiting: dict[str, list[np.ndarray[Any, Any]]] = {}
    n_bytes = 0
    for i, org in enumerate(organizations):
        for name in org.names:
            longest, compared = (
                max(sizes[name] for sizes in each)
                for each in ([x.sizes for x in outlines], [x.n_compared for x in outlines])
            )
            rows = _axis_rows(org, name, longest, n_levels, n_components)
            rows |= _pair_rows(org, name, compared, longest if f"n_compared_{name}" in group else None)
            for key, row in rows.items():
                if key not in arrays:
                    arrays[key] = _empty(group, key, row, len(outlines))
                waiting.setdefault(key, []).append(row.values)
                n_bytes += row.values.nbytes
        if n_bytes > _AT_ONCE or i == len(outlines) - 1:
            for key, values in waiting.items():
                if values[0].size:
                    arrays[key][i + 1 - len(values) : i + 1] = np.stack(values)
            waiting, n_bytes = {}, 0


def _empty(group: Any, key: str, row: Variable, n_inputs: int) -> Any:
    """An array of such rows."""
    shape, dtype = (n_inputs, *row.values.shape), row.values.dtype
    chunks = rows_in_chunks(shape, dtype) if row.values.size else "auto"
    return new_array(group, key, ("input", *row.axes), shape=shape, dtype=dtype, chunks=chunks)


def _axis_rows(org: Organization, name: str, n: int, n_levels: int, n_components: int) -> dict[str, Variable]:
    """The stored variables of one axis of one input, padded to n leaves."""

    def table(tree: PartitionTree | None) -> Int[np.ndarray, "level leaf"]:
        labels = np.full((n_levels, n), -1)
        if tree is not None:
            labels[: tree.n_levels, : tree.n_leaves] = tree.labels
        return labels

    history = np.stack([table(step.trees[name]) for step in org.history])
    return {
        f"tree_{name}": Variable(("level", name), table(org.trees[name])),
        f"coordinate_{name}": Variable((name, "component"), _padded(org.coordinates[name], n, n_components)),
        f"initial_tree_{name}": Variable(("level", name), table(org.initial_trees[name])),
        f"history_tree_{name}": Variable(("iteration", "level", name), history),
    }


def _pair_rows(org: Organization, name: str, n: int, n_slices: int | None) -> dict[str, Variable]:
    """Affinities and distances of one axis of one input, padded to n slices; and landmarks, if any input has them.

    Then `n_slices` is given, to which the nearest landmarks are padded.
    """
    word = name if n_slices is None else f"{name}_landmark"
    rows = {
        f"{kind}_{name}": Variable((word, f"{word}_2"), _padded(every[name], n, n))
        for kind, every in (("affinity", org.affinities), ("distance", org.distances))
    }
    if n_slices is None:
        return rows
    every = np.arange(org.trees[name].n_leaves)
    own = org.landmarks[name] or Landmarks(every, every)
    return rows | {
        f"landmark_{name}": Variable((word,), _padded(own.slices, n)),
        f"nearest_{name}": Variable((name,), _padded(own.nearest, n_slices)),
    }


def _padded(known: np.ndarray[Any, Any], *shape: int) -> np.ndarray[Any, Any]:
    result = np.full(shape, -1 if known.dtype.kind == "i" else np.nan, dtype=known.dtype)
    result[tuple(map(slice, known.shape))] = known
    return result


def _all_trees(org: Organization) -> list[PartitionTree]:
    initial = [tree for tree in org.initial_trees if tree is not None]
    return [*initial, *(tree for step in org.history for tree in step.trees), *org.trees]


def write_part(file: Path, org: Organization) -> None:
    """Write one organization by itself, until those of all inputs are there."""
    outline = _Outline.of(org)
    rows: dict[str, Any] = {"moved": outline.moved}
    for name in outline.names:
        n, n_compared = outline.sizes[name], outline.n_compared[name]
        found = _axis_rows(org, name, n, outline.n_levels, outline.n_components)
        found |= _pair_rows(org, name, n_compared, n if n_compared < n else None)
        rows |= {key: row.values for key, row in found.items()}
        rows |= {f"n_{name}": n, f"n_compared_{name}": n_compared}
    about = {"axes": outline.names, "settings": outline.settings, "status": outline.status}
    with file.open("wb") as opened:
        np.savez(opened, about=json.dumps(about), **rows)


def read_part(file: Path) -> Organization:
    """The organization that `write_part` wrote; zip files have checksums."""
    try:
        with file.open("rb") as raw, np.load(raw, allow_pickle=False) as opened:
            rows = {key: opened[key] for key in opened.files}
        about = json.loads(str(rows["about"]))
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise DamagedFileError(f"{file} is damaged ({error}); delete it and give the same command again") from error
    return _organization(rows.__getitem__, about["axes"], rows.keys(), about["settings"], about["status"])


def read_organization(path: Path, i: int, arrays: SmallArrays | None = None) -> Organization:
    """The organization of one input; `arrays` are those that an earlier call has read."""
    group = open_group(path, FORMAT)
    known = (arrays or SmallArrays()).of(group)
    settings, status = json.loads(str(group.attrs["settings"])), known.attribute("status", i)
    names = list(map(str, group.attrs["axes"]))
    return _organization(lambda key: known.row(key, i), names, known.dtypes, settings, status)


def _organization(
    row: Callable[[str], np.ndarray[Any, Any]],
    axes: Sequence[str],
    stored: Container[str],
    settings: Mapping[str, Any],
    status: Mapping[str, Any],
) -> Organization:
    """The organization whose rows, perhaps padded, are stored under these names."""
    names = tuple(axes)
    sizes = [int(row(f"n_{name}")) for name in names]
    compared = [
        int(row(f"n_compared_{name}")) if f"n_compared_{name}" in stored else n
        for name, n in zip(names, sizes, strict=True)
    ]

    def squares(kind: str) -> PerAxis[np.ndarray[Any, Any]]:
        every = [row(f"{kind}_{name}")[:n, :n] for name, n in zip(names, compared, strict=True)]
        return PerAxis(names, [np.ascontiguousarray(each) for each in every])

    landmarks = [
        None if n_compared == n else Landmarks(row(f"landmark_{name}")[:n_compared], row(f"nearest_{name}")[:n])
        for name, n, n_compared in zip(names, sizes, compared, strict=True)
    ]
    trees = PerAxis(names, [_tree(row(f"tree_{name}"), n) for name, n in zip(names, sizes, strict=True)])
    return Organization(
        trees=trees,
        affinities=squares("affinity"),
        distances=squares("distance"),
        coordinates=PerAxis(
            names, [_coordinates(row(f"coordinate_{name}"), n) for name, n in zip(names, sizes, strict=True)]
        ),
        initial_trees=PerAxis(
            names, [_initial(row(f"initial_tree_{name}"), n) for name, n in zip(names, sizes, strict=True)]
        ),
        history=_history(row, names, sizes),
        status=Status(**{**status, **{name: tuple(status.get(name, ())) for name in ("notes", "exact")}}),
        settings=questionnaire_from_dict(settings),
        landmarks=PerAxis(names, landmarks),
    )


def _tree(table: Any, n: int) -> PartitionTree:
    labels = np.asarray(table)[:, :n]
    return PartitionTree(labels[labels[:, 0] >= 0])


def _initial(table: Any, n: int) -> PartitionTree | None:
    return _tree(table, n) if (np.asarray(table)[0, :n] >= 0).all() else None


def _coordinates(table: Any, n: int) -> np.ndarray[Any, Any]:
    values = np.asarray(table)[:n]
    return values[:, ~np.isnan(values[0])]


def _history(
    row: Callable[[str], np.ndarray[Any, Any]], names: tuple[str, ...], sizes: Sequence[int]
) -> tuple[Iteration, ...]:
    moved = row("moved")
    tables = [row(f"history_tree_{name}") for name in names]
    return tuple(
        Iteration(
            PerAxis(names, [_tree(table[step], n) for table, n in zip(tables, sizes, strict=True)]),
            PerAxis(names, [float(value) for value in of_axes]),
        )
        for step, of_axes in enumerate(moved)
    )
