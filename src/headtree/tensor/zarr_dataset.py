"""Labelled arrays in one Zarr folder that `xarray.open_zarr` reads."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from headtree._files import older_format
from headtree.errors import InvalidValueError


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
    """Write an array of the group; one with an axis of inputs has a chunk for each input."""
    values = variable.values
    is_text = values.dtype == object
    per_input = variable.axes[:1] == ("input",) and values.ndim > 2
    array = group.create_array(
        name,
        shape=values.shape,
        dtype=str if is_text else values.dtype,
        chunks=(1, *values.shape[1:]) if per_input and 0 not in values.shape else "auto",
        dimension_names=variable.axes,
        attributes={"coordinates": " ".join(coordinates)} if coordinates else {},
    )
    if values.size:
        array[...] = np.vectorize(_encodable, otypes=[object])(values) if is_text else values


def finish(folder: Path) -> None:
    """Collect the metadata of all arrays in one file."""
    import zarr

    with warnings.catch_warnings():
        # the specification of Zarr 3 has no consolidated metadata yet; without them, xarray.open_zarr warns
        warnings.filterwarnings("ignore", message="Consolidated metadata")
        zarr.consolidate_metadata(str(folder))


def open_group(
    path: Path, format_name: str, what: str = "a dataset of a run", remedy: str = "make the run again"
) -> Any:
    """A group that headtree wrote in this format; `what` and `remedy` are for the error if it is another."""
    import zarr

    try:
        group = zarr.open_group(path, mode="r")
        found = group.attrs.get("format")
    except (OSError, ValueError, KeyError) as error:
        raise InvalidValueError(
            f"{path} cannot be read as {what} ({type(error).__name__}: {error}); write it again"
        ) from error
    if found != format_name:
        raise InvalidValueError(
            older_format(path, found, format_name)
            or f"{path} is Zarr, but not {what} (format {found!r} instead of {format_name!r}); {remedy}"
        )
    return group


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
