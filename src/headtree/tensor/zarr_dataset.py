"""Labelled arrays in one Zarr folder that `xarray.open_zarr` reads.

Every chunk ends in its checksum and is written even if it is empty, and the metadata have a checksum of their own:
what was changed or lost on disk is never read as data.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
import os
import warnings
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from headtree._files import older_format, read_json
from headtree.errors import DamagedFileError, InvalidValueError

_METADATA = "zarr.json"
#: Attribute of a group with the SHA-256 of its metadata.
_CHECKSUM = "sha256"
#: Entries up to which an array is read as a whole and remembered.
_SMALL = 1 << 19
#: Bytes up to which a chunk holds several inputs.
_CHUNK_BYTES = 1 << 20


class Variable(NamedTuple):
    """An array and the names of its axes; object arrays hold strings."""

    axes: tuple[str, ...]
    values: np.ndarray[Any, Any]


def create(folder: Path, attributes: Mapping[str, Any]) -> Any:
    """A new Zarr group."""
    import zarr

    group = zarr.open_group(folder, mode="w-", zarr_format=3)
    group.attrs.update(attributes)
    return group


def put(group: Any, name: str, variable: Variable, coordinates: Sequence[str] = ()) -> None:
    """Write an array of the group."""
    values = variable.values
    is_text = values.dtype == object
    per_input = variable.axes[:1] == ("input",) and values.ndim > 2
    array = new_array(
        group,
        name,
        variable.axes,
        shape=values.shape,
        dtype=str if is_text else values.dtype,
        chunks=rows_in_chunks(values.shape, values.dtype) if per_input and 0 not in values.shape else "auto",
        attributes={"coordinates": " ".join(coordinates)} if coordinates else {},
    )
    if values.size:
        array[...] = np.vectorize(_encodable, otypes=[object])(values) if is_text else values


def rows_in_chunks(shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[int, ...]:
    """Chunks of whole rows of an axis of inputs: few files, and little to read for a single input."""
    row = dtype.itemsize * math.prod(shape[1:])
    return (max(1, min(shape[0], _CHUNK_BYTES // row)), *shape[1:])


def new_array(group: Any, name: str, axes: tuple[str, ...], **layout: Any) -> Any:
    """An empty array of the group, with a checksum in every chunk; all of its chunks must be written."""
    from zarr.codecs import Crc32cCodec, ZstdCodec

    return group.create_array(
        name,
        dimension_names=axes,
        compressors=(ZstdCodec(level=0), Crc32cCodec()),
        config={"write_empty_chunks": True},
        **layout,
    )


def finish(folder: Path) -> None:
    """Collect the metadata of all arrays in one file, and add their checksum."""
    import zarr

    with warnings.catch_warnings():
        # the specification of Zarr 3 has no consolidated metadata yet; without them, xarray.open_zarr warns
        warnings.filterwarnings("ignore", message="Consolidated metadata")
        zarr.consolidate_metadata(str(folder))
    content = json.loads((folder / _METADATA).read_text(encoding="utf-8"))
    content["attributes"][_CHECKSUM] = _checksum(content)
    (folder / _METADATA).write_text(json.dumps(content), encoding="utf-8")


def _checksum(metadata: Mapping[str, Any]) -> str:
    """SHA-256 of metadata without their own checksum."""
    attributes = {key: value for key, value in metadata["attributes"].items() if key != _CHECKSUM}
    return hashlib.sha256(json.dumps({**metadata, "attributes": attributes}, sort_keys=True).encode()).hexdigest()


def open_group(
    path: Path, format_name: str, what: str = "a dataset of a run", remedy: str = "make the run again"
) -> Any:
    """A group that headtree wrote in this format; `what` and `remedy` are for the error if it is another."""
    try:
        metadata = _read_metadata(path)
        found = metadata["attributes"].get("format")
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise InvalidValueError(
            f"{path} cannot be read as {what} ({type(error).__name__}: {error}); write it again"
        ) from error
    if found != format_name:
        raise InvalidValueError(
            older_format(path, found, format_name)
            or f"{path} is Zarr, but not {what} (format {found!r} instead of {format_name!r}); {remedy}"
        )
    return checked_group(path)


def checked_group(path: Path) -> Any:
    """A group that `finish` finished, once its metadata agree with their checksum.

    Opening takes longer than reading a small array, so a group is opened again only if its files have changed.
    """
    content = (path / _METADATA).read_bytes()
    files = sorted((name, _stamp(path / name / _METADATA)) for name in os.listdir(path))
    return _checked_group(path, content, tuple(files))


def _stamp(file: Path) -> tuple[int, ...]:
    """What changes when a file is written again; nothing if there is none."""
    try:
        found = file.stat()
    except OSError:
        return ()
    return found.st_ino, found.st_size, found.st_mtime_ns


@lru_cache(maxsize=16)
def _checked_group(path: Path, content: bytes, files: tuple[tuple[str, tuple[int, ...]], ...]) -> Any:
    """The group in a folder with these metadata."""
    import zarr

    from headtree.tensor.checked_store import REMEDY, CheckedStore

    metadata = _read_metadata(path)
    if metadata["attributes"].get(_CHECKSUM) != _checksum(metadata):
        raise DamagedFileError(f"{path / _METADATA} is damaged: its checksum does not match; {REMEDY}")
    for name, expected in metadata["consolidated_metadata"]["metadata"].items():
        try:
            found = _read_metadata(path / name)
        except (OSError, ValueError):
            found = None
        if found != expected:
            raise DamagedFileError(f"{path / name / _METADATA} is gone or damaged; {REMEDY}")
    return zarr.open_group(CheckedStore(path, read_only=True), mode="r")


class SmallArrays:
    """The small arrays of a dataset, each read as a whole, once: every read has a price of its own."""

    def __init__(self) -> None:
        self._group: Any = None
        self._known: dict[str, np.ndarray[Any, Any]] = {}
        self._attributes: dict[str, Any] = {}
        self.dtypes: dict[str, np.dtype[Any]] = {}  #: of every array

    def of(self, group: Any) -> SmallArrays:
        """These; forgotten if the group is another one by now, since its files have changed."""
        if group is not self._group:
            self._group, self._known, self._attributes = group, {}, {}
            self.dtypes = {name: np.dtype(array.dtype) for name, array in group.arrays()}
        return self

    def attribute(self, name: str, i: int) -> Any:
        """Item i of an attribute that is a list in JSON."""
        if name not in self._attributes:
            self._attributes[name] = json.loads(str(self._group.attrs[name]))
        return copy.deepcopy(self._attributes[name][i])

    def whole(self, name: str) -> np.ndarray[Any, Any]:
        """An array of the group."""
        if name in self._known:
            return self._known[name]
        array = self._group[name]
        found = np.asarray(array[...])
        if array.size <= _SMALL:
            found.flags.writeable = False
            self._known[name] = found
        return found

    def row(self, name: str, i: int) -> np.ndarray[Any, Any]:
        """A copy of row i of an array of the group; of a large array, only that row is read."""
        if name not in self._known and self._group[name].size > _SMALL:
            return np.asarray(self._group[name][i])
        return np.array(self.whole(name)[i])


def _read_metadata(folder: Path) -> dict[str, Any]:
    metadata: dict[str, Any] = read_json(folder / _METADATA)
    return metadata


def texts(rows: Sequence[Sequence[str]]) -> np.ndarray[Any, Any]:
    """Rows of strings as an object array, shorter rows padded with empty strings."""
    width = max(map(len, rows), default=0)
    table = np.full((len(rows), width), "", dtype=object)
    for i, row in enumerate(rows):
        table[i, : len(row)] = list(row)
    return table


def padded(arrays: Sequence[np.ndarray[Any, Any]], fill: Any) -> np.ndarray[Any, Any]:
    """Arrays of different shapes, padded and stacked along a new first axis."""
    shape = np.max([array.shape for array in arrays], axis=0)
    result = np.full((len(arrays), *shape), fill, dtype=arrays[0].dtype)
    for row, array in zip(result, arrays, strict=True):
        row[tuple(map(slice, array.shape))] = array
    return result


def _encodable(text: str) -> str:
    """Lone surrogates, which UTF-8 cannot encode, are written with backslashes."""
    return text.encode("utf-8", "backslashreplace").decode()
