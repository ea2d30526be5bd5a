"""Read tensors and arrays of other programs: .npy, .npz, .safetensors, .pt, .mat, .csv and Zarr, never pickle."""

from __future__ import annotations

import csv
import math
import os
import re
import warnings
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, TypeVar

import numpy as np
import torch

from headtree import _checks
from headtree._extras import require
from headtree._files import checked_path, exists, read_json, unusable
from headtree.errors import HeadtreeError, HeadtreeWarning, InvalidTypeError, InvalidValueError, first_line
from headtree.tensor.attention_tensor import AttentionTensor, Kind
from headtree.tensor.plain_zarr import PlainZarr

_AXES = "hqk"
_COUNTS = {2: "two", 3: "three"}
_SEPARATORS = {".csv": ",", ".tsv": "\t"}
#: Cells of a table that mark a missing entry.
_EMPTY = ("", "nan", "NaN", "NA", "N/A", "null")
#: Numbers as tables have them; Python's own ``1_000`` is a name.
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?inf(inity)?", re.ASCII | re.IGNORECASE)

#: What numpy says of arrays of Python objects; of large headers it says something else about pickles.
_HAS_PICKLES = re.compile(r"allow_pickle=False|pickled", re.IGNORECASE)

T = TypeVar("T")


def load_tensor(
    path: str | os.PathLike[str],
    axes: str = "hqk",
    *,
    name: str | None = None,
    kind: Kind = "scores",
    heads_per_layer: int | None = None,
    mask: Any = None,
) -> AttentionTensor:
    """Read an attention tensor that another program wrote.

    Parameters
    ----------
    path : path
        A .npy, .npz, .safetensors, .pt or .pth (weights only) or .mat file; a Zarr folder, which is read by blocks
        when they are needed; or a folder that AttentionTensor.save wrote, which takes none of the other arguments.
    axes : str
        The axes of the array in the file, in order: h for heads, q for queries, k for keys, l for layers (l and h
        together give the heads). Axes of length one are called 1: ``"qkh"``, ``"lhqk"``, ``"1hqk"``.
    name : str, optional
        Which array, if the file holds several.
    kind : {"scores", "probs", "weighted", "signed"}
        What the numbers are; see `AttentionTensor`.
    heads_per_layer : int, optional
        Number of heads in a layer, if the file has no axis of layers.
    mask : array of bool, optional
        True where an entry is missing; in the order (head, query, key). In files other than Zarr, entries that are
        nan are missing as well, and scores that are -inf.

    Examples
    --------
    >>> import tempfile
    >>> path = f"{tempfile.mkdtemp()}/scores.npy"
    >>> np.save(path, np.zeros((2, 3, 5, 5)))
    >>> load_tensor(path, "lhqk")
    AttentionTensor(6 heads in 2 layers × 5 queries × 5 keys, scores)
    """
    if not isinstance(axes, str):
        raise InvalidTypeError(f"axes must be a string such as 'hqk', got {axes!r}")
    source = _checked_source(path)
    if source.is_dir() and not is_foreign_zarr(source):
        _check_nothing_else(source, axes, name, kind, heads_per_layer, mask)
        return AttentionTensor.open(source)
    if source.is_dir():
        values, n_per_layer = _ordered_zarr(_zarr_array(source, name, min_axes=3), axes, source)
    else:
        values, n_per_layer = _ordered(_chosen(_found(source), name, source, min_axes=3), axes, source)
    if n_per_layer is not None and heads_per_layer is not None:
        raise InvalidTypeError("heads_per_layer must not be given where axes has a layer axis 'l'")
    values, mask = _without_missing(values, kind, mask)
    return AttentionTensor.from_array(values, heads_per_layer=n_per_layer or heads_per_layer, kind=kind, mask=mask)


def _without_missing(values: Any, kind: str, mask: Any) -> tuple[Any, Any]:
    """An array in memory with 0 where entries are missing, and the mask with them."""
    if isinstance(values, PlainZarr):
        return values, mask
    if not (values.is_floating_point() if isinstance(values, torch.Tensor) else values.dtype.kind == "f"):
        return values, mask
    missing = values.isnan() if isinstance(values, torch.Tensor) else np.isnan(values)
    if kind == "scores":
        missing |= values == -np.inf
    if not missing.any():
        return values, mask
    own = _checks.missing_entries(mask, "the array", tuple(values.shape))
    if isinstance(values, torch.Tensor):
        return values.masked_fill(missing, 0), missing if own is None else missing | own.cpu()
    return np.where(missing, values.dtype.type(0), values), missing if own is None else missing | own.cpu().numpy()


@dataclass(frozen=True, eq=False)
class LoadedArray:
    """An array from a file, with the labels that the file has."""

    values: Any  #: numpy array or tensor
    labels: tuple[tuple[str, ...] | None, ...]  #: names of the slices of each axis, if the file has them
    axes: tuple[str, ...] | None = None  #: names of the axes, if the file has them


def load_array(path: str | os.PathLike[str], *, name: str | None = None) -> LoadedArray:
    r"""Read any array of two or more axes that another program wrote.

    Parameters
    ----------
    path : path
        A file that `load_tensor` reads, a .csv or .tsv table, or a Zarr folder. The first row and column of a table
        may be names: words, or behind an empty cell 0, 1, 2, …, as pandas writes them.
    name : str, optional
        Which array, if there are several.

    Examples
    --------
    >>> import tempfile
    >>> path = f"{tempfile.mkdtemp()}/table.csv"
    >>> with open(path, "w") as file:
    ...     _ = file.write("gene,day 1,day 2\nA,1,2\nB,,4\n")
    >>> load_array(path).labels
    (('A', 'B'), ('day 1', 'day 2'))
    """
    source = _checked_source(path)
    if source.suffix.lower() in _SEPARATORS and not source.is_dir():
        return _read_guarded(_read_csv, source)
    if source.is_dir():
        return _chosen_from_zarr(source, name)
    values = _chosen(_found(source, _SEPARATORS), name, source, min_axes=2)
    return LoadedArray(values, (None,) * len(values.shape))


def _checked_source(path: Any) -> Path:
    """The path of a file or folder that is there."""
    source = checked_path(path)
    if not exists(source):
        raise InvalidValueError(f"path must name a file, but {source} does not exist; check the path")
    if not (source.is_file() or source.is_dir()):
        raise InvalidValueError(f"path must name a file or a Zarr folder, but {source} is a pipe or a device")
    return source


def _found(source: Path, others: Iterable[str] = ()) -> Mapping[str, Any]:
    """The arrays of a file by name; `others` are endings of files that the caller reads."""
    reader = _READERS.get(source.suffix.lower())
    if reader is _read_safetensors:
        require("models", f"reading {source.name}", "safetensors")
    if reader is None:
        raise InvalidValueError(
            f"path must be a Zarr folder or end in one of {', '.join(sorted([*_READERS, *others]))}, got "
            f"{source.name}; read it yourself and pass the array to AttentionTensor.from_array or organize_array"
        )
    return _read_guarded(reader, source)


def _read_guarded(reader: Callable[[Path], T], source: Path) -> T:
    try:
        return reader(source)
    except Exception as error:  # each format has its own errors for a damaged file
        if isinstance(error, OSError) and error.errno is not None:
            raise unusable(source, "read", error) from error
        if isinstance(error, HeadtreeError):
            raise
        if isinstance(error, MemoryError):
            raise InvalidValueError(f"{source} does not fit into memory ({error}); read a part of it") from error
        if isinstance(error, UnicodeDecodeError) and source.suffix.lower() in _SEPARATORS:
            raise InvalidValueError(f"{source} must be text in UTF-8 ({error}); convert it") from error
        has_pickles = isinstance(error, UnpicklingError) or bool(_HAS_PICKLES.search(str(error)))
        remedy = (
            "pickled objects are refused on purpose, since reading them may run any program: save plain arrays"
            if has_pickles
            else "it may be damaged, or of another format: write it again"
        )
        raise InvalidValueError(
            f"{source} cannot be read as {source.suffix or 'Zarr'}: {type(error).__name__}: {first_line(error)}; "
            f"{remedy}"
        ) from error


def _read_csv(path: Path) -> LoadedArray:
    """A table of numbers; empty cells are nan.

    A first row or column of words names the columns or rows; beside an empty first cell, any names do if those of
    the other axis are words, or both are 0, 1, 2, ….
    """
    import pandas as pd

    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, delimiter=_SEPARATORS[path.suffix.lower()])
        rows_of = [(line, reader.line_num) for line in reader if len(line) > 1 or "".join(line).strip()]
    lines, numbers_of = [line for line, _ in rows_of], [number for _, number in rows_of]
    uneven = next((i for i, line in enumerate(lines) if len(line) != len(lines[0])), None)
    if not lines or uneven is not None:
        found = ["nothing"] if uneven is None else [f"{len(lines[i])} in line {numbers_of[i]}" for i in (uneven, 0)]
        raise InvalidValueError(
            f"{path} must have the same number of cells in every row, got {' and '.join(found)}; an empty cell is "
            "a missing entry"
        )
    table = pd.DataFrame(lines, index=numbers_of)
    words = table.map(lambda cell: not _is_number(cell))
    beside = words.iloc[0, 1:] if table.shape[1] > 1 else words.iloc[0]  # above names of rows may be anything
    is_framed = _is_framed(table, words)
    has_header = is_framed or (bool(beside.all()) and len(table) > 1)
    rows = table.iloc[int(has_header) :]
    has_index = is_framed or (bool(words.iloc[int(has_header) :, 0].all()) and table.shape[1] > 1)
    cells = rows.iloc[:, int(has_index) :]
    wrong = np.argwhere(words.loc[cells.index, cells.columns].to_numpy())
    if len(wrong):
        row, column = cells.index[wrong[0][0]], cells.columns[wrong[0][1]]
        raise InvalidValueError(
            f"{path} must hold numbers outside its first row and column, got {table.loc[row, column]!r} in line "
            f"{row}, column {column + 1}; empty cells are missing entries"
        )
    numbers = [[np.nan if cell.strip() in _EMPTY else float(cell) for cell in row] for row in cells.to_numpy()]
    return LoadedArray(
        np.array(numbers, dtype=np.float64),
        (
            tuple(map(str, rows.iloc[:, 0])) if has_index else None,
            tuple(map(str, table.iloc[0, int(has_index) :])) if has_header else None,
        ),
    )


def _is_framed(table: Any, words: Any) -> bool:
    """Whether names of rows and columns meet in an empty cell, as pandas writes them: words, or 0, 1, 2, …."""
    if table.iloc[0, 0].strip() or min(table.shape) < 2:
        return False
    across, down = table.iloc[0, 1:], table.iloc[1:, 0]
    if bool(words.iloc[0, 1:].all()) or bool(words.iloc[1:, 0].all()):
        return True
    if any(list(names) != [str(i) for i in range(len(names))] for names in (across, down)):
        return False
    warnings.warn(
        "the first row and the first column of the table are 0, 1, 2, … behind an empty cell, and taken for names",
        HeadtreeWarning,
        stacklevel=2,
    )
    return True


def _is_number(cell: str) -> bool:
    return cell.strip() in _EMPTY or _NUMBER.fullmatch(cell.strip()) is not None


def zarr_bytes(folder: Path, name: str | None) -> int:
    """Bytes of an array of a Zarr folder in memory, without reading it."""
    array = _zarr_array(folder, name)
    size: int = math.prod(array.shape) * np.dtype(array.dtype).itemsize
    return size


def _zarr_array(folder: Path, name: str | None, min_axes: int = 2) -> Any:
    import zarr

    def read(path: Path) -> Mapping[str, Any]:
        node = zarr.open(path, mode="r")
        return dict(node.arrays()) if isinstance(node, zarr.Group) else {path.stem: node}

    return _chosen(_read_guarded(read, folder), name, folder, min_axes=min_axes, kinds="fiub")


def is_foreign_zarr(folder: Path) -> bool:
    """Whether a folder is Zarr, but not headtree's."""
    if any(exists(folder / name) for name in (".zarray", ".zgroup")):
        return True
    try:
        attributes = read_json(folder / "zarr.json").get("attributes", {})
        return not str(attributes.get("format", "")).startswith("headtree.")
    except (OSError, ValueError, AttributeError):
        return False  # what is wrong with it is said when it is opened


def _chosen_from_zarr(folder: Path, name: str | None) -> LoadedArray:
    values = _zarr_array(folder, name)
    axes = getattr(values.metadata, "dimension_names", None)
    return LoadedArray(
        _read_guarded(lambda _: np.asarray(values[...]), folder),
        (None,) * len(values.shape),
        tuple(map(str, axes)) if axes and all(axes) else None,
    )


def _check_nothing_else(source: Path, axes: Any, name: Any, kind: Any, heads_per_layer: Any, mask: Any) -> None:
    is_given = {
        "axes": axes != _AXES,
        "name": name is not None,
        "kind": kind != "scores",
        "heads_per_layer": heads_per_layer is not None,
        "mask": mask is not None,
    }
    names = [argument for argument, given in is_given.items() if given]
    if names:
        raise InvalidTypeError(
            f"{', '.join(names)} must not be given for a folder that AttentionTensor.save wrote, which has its "
            f"own, got {source}; leave {'it' if len(names) == 1 else 'them'} out"
        )


def _read_npy(path: Path) -> Mapping[str, Any]:
    with path.open("rb") as file:
        if file.read(len(np.lib.format.MAGIC_PREFIX)) != np.lib.format.MAGIC_PREFIX:
            raise ValueError("it does not begin as a .npy file")  # numpy would take it for a pickle
    return {path.stem: np.load(path, allow_pickle=False)}


@dataclass(frozen=True, eq=False)
class _Member:
    """An array of an archive, of which nothing is read before it is needed."""

    path: Path
    name: str

    @cached_property
    def shape(self) -> tuple[int, ...]:
        return _read_guarded(self._read_shape, self.path)

    def _read_shape(self, path: Path) -> tuple[int, ...]:
        with zipfile.ZipFile(path) as archive, archive.open(f"{self.name}.npy") as file:
            version = np.lib.format.read_magic(file)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape: tuple[int, ...] = read(file)[0]
        return shape

    def read(self) -> np.ndarray[Any, Any]:
        with np.load(self.path, allow_pickle=False) as archive:
            return np.asarray(archive[self.name])


def _read_npz(path: Path) -> Mapping[str, Any]:
    """The arrays of an archive by name."""
    with zipfile.ZipFile(path) as archive:
        names = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
    return {name: _Member(path, name) for name in names}


def _read_safetensors(path: Path) -> Mapping[str, Any]:
    from safetensors.torch import load_file

    tensors: dict[str, Any] = load_file(path)
    return tensors


def _read_pt(path: Path) -> Mapping[str, Any]:
    content = torch.load(path, map_location="cpu", weights_only=True)
    if isinstance(content, torch.Tensor):
        return {path.stem: content}
    if isinstance(content, Mapping):
        return {str(key): value for key, value in content.items() if isinstance(value, torch.Tensor)}
    if isinstance(content, list | tuple):
        return {str(i): value for i, value in enumerate(content) if isinstance(value, torch.Tensor)}
    raise InvalidTypeError(f"the file holds a {type(content).__name__}, not tensors")


def _read_mat(path: Path) -> Mapping[str, Any]:
    from scipy.io import loadmat

    return {name: value for name, value in loadmat(path).items() if not name.startswith("__")}


_READERS: dict[str, Callable[[Path], Mapping[str, Any]]] = {
    ".npy": _read_npy,
    ".npz": _read_npz,
    ".safetensors": _read_safetensors,
    ".pt": _read_pt,
    ".pth": _read_pt,
    ".mat": _read_mat,
}


def _chosen(
    found: Mapping[str, Any], name: str | None, source: Path, *, min_axes: int, kinds: str | None = None
) -> Any:
    def listing() -> str:
        return ", ".join(f"{key!r} {tuple(value.shape)}" for key, value in found.items()) or "nothing"

    if name is not None:
        if name not in found:
            raise InvalidValueError(
                f"name must be one of the arrays in {source}, got {name!r}; it holds {listing()}"
            )
        if len(found[name].shape) < min_axes:
            raise InvalidValueError(
                f"{name!r} must have {_COUNTS[min_axes]} axes or more; {source} holds {listing()}"
            )
        return _materialized(found[name], source)
    candidates = [
        value
        for value in found.values()
        if len(value.shape) >= min_axes and (kinds is None or value.dtype.kind in kinds)
    ]
    if len(candidates) != 1:
        count = _COUNTS[min_axes]
        problem = (
            f"no array of {count} axes" if not candidates else f"{len(candidates)} arrays of {count} or more axes"
        )
        raise InvalidValueError(f"{source} holds {problem}; choose one with name=…: it holds {listing()}")
    return _materialized(candidates[0], source)


def _materialized(value: Any, source: Path) -> Any:
    if isinstance(value, torch.Tensor):
        dense = _checks.real_tensor(value, f"the array in {source}")
        return dense if value.dtype.itemsize == 1 and value.is_floating_point() else value  # numpy has no float8
    return _read_guarded(lambda _: value.read(), source) if isinstance(value, _Member) else value


def _ordered(array: Any, axes: str, source: Path) -> tuple[Any, int | None]:
    """The array as (head, query, key), and the number of heads per layer if it has an axis of layers."""
    letters = _checked_axes(axes, tuple(array.shape), source)
    values = array if isinstance(array, torch.Tensor) else np.asarray(array)
    values = values.reshape([n for letter, n in zip(axes, array.shape, strict=True) if letter != "1"])
    order = [letters.index(letter) for letter in ("lhqk" if "l" in letters else _AXES)]
    values = values.permute(order) if isinstance(values, torch.Tensor) else values.transpose(order)
    if "l" not in letters:
        return values, None
    n_layers, n_per_layer, n_queries, n_keys = values.shape
    return values.reshape(n_layers * n_per_layer, n_queries, n_keys), int(n_per_layer)


def _ordered_zarr(array: Any, axes: str, source: Path) -> tuple[PlainZarr, int | None]:
    """The same of an array that stays on disk."""
    letters = _checked_axes(axes, tuple(array.shape), source)
    return PlainZarr(array, axes), int(array.shape[axes.index("h")]) if "l" in letters else None


def _checked_axes(axes: str, shape: tuple[int, ...], source: Path) -> str:
    """The letters of the axes that are longer than one."""
    letters = axes.replace("1", "")
    if sorted(letters) not in (sorted(_AXES), sorted("l" + _AXES)):
        raise InvalidValueError(f"axes must name h, q and k once each, and may name l and 1, got {axes!r}")
    if len(axes) != len(shape):
        raise InvalidValueError(
            f"axes must name every axis of the array, got {axes!r} for shape {shape} in {source}"
        )
    if any(letter == "1" and n != 1 for letter, n in zip(axes, shape, strict=True)):
        raise InvalidValueError(
            f"an axis called 1 must have length one, got {axes!r} for shape {shape} in {source}"
        )
    return letters
