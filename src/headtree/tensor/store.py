"""Attention tensors on disk: one Zarr format for a saved tensor and for all inputs of a run.

A dataset has an axis of inputs. A saved tensor is a dataset with one input. The inputs of a run are padded to the
longest, and the padding is masked.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headtree._files import atomic, checked_path, exists, older_format, read_json, unusable
from headtree.errors import InvalidTypeError, InvalidValueError
from headtree.tensor.attention_tensor import AttentionTensor, HeadId
from headtree.tensor.stored_array import StoredArray
from headtree.tensor.zarr_dataset import (
    SmallArrays,
    Variable,
    create,
    finish,
    new_array,
    open_group,
    put,
    texts,
)

FORMAT = "headtree.attention/4"
_AXES = ("input", "head", "query", "key")

#: The files of a saved tensor, as paths in its folder; query and key are those of an older format.
_OURS = re.compile(
    r"zarr\.json|(attention|mask|head|layer|place|query|key|query_token|key_token|n_query|n_key|is_masked|sink)/"
    r"(zarr\.json|c(/\d+)+)"
)

#: Bytes of one chunk: small enough that a single head is cheap to read, large enough that there are few files.
_CHUNK_BYTES = 4 << 20

#: A tensor is written in another tensor's chunks unless that takes this many times as many files as its own.
_MOST_FILES = 16


# -- tensors that users save and open ----------------------------------------------------------------------------


def save_tensor(att: AttentionTensor, path: str | os.PathLike[str], *, half: bool, overwrite: bool) -> None:
    """Write `att` as a dataset with one input."""
    target = checked_path(path)
    if target.name in ("", ".."):
        raise InvalidValueError(f"path must end in the name of the folder to make, got {str(path)!r}; add a name")
    try:
        _check_target(target, overwrite)
        with atomic(target) as draft:
            write_attention(draft, [att], uuid.uuid4().hex, half=half)
    except OSError as error:
        raise unusable(target, "written", error) from error


def open_tensor(
    path: str | os.PathLike[str], input: int | None = None, arrays: SmallArrays | None = None
) -> AttentionTensor:
    """Read the labels of one input; its values and mask stay on disk.

    `arrays` are labels that an earlier call has read.
    """
    target = checked_path(path)
    if not exists(target):
        raise InvalidValueError(f"path must name a saved tensor, but {target} does not exist; check the spelling")
    remedy = "open it with xarray and pass its array to AttentionTensor.from_array"
    group = open_group(target, FORMAT, "a tensor that headtree saved", remedy)
    try:
        number = _checked_input(target, int(group["n_query"].shape[0]), input)
        return _read(target, group, (arrays or SmallArrays()).of(group), number)
    except (KeyError, OSError) as error:
        raise InvalidValueError(f"{target} cannot be read: it lacks {error}; save it again") from error


def _checked_input(target: Path, n_inputs: int, number: int | None) -> int:
    if number is None and n_inputs > 1:
        raise InvalidValueError(
            f"{target} holds {n_inputs} inputs; choose one with AttentionTensor.open(path, input=0), up to "
            f"{n_inputs - 1}"
        )
    if number is None:
        return 0
    if isinstance(number, bool) or not isinstance(number, int | np.integer):
        raise InvalidTypeError(f"input must be an integer, got {number!r}")
    if not -n_inputs <= number < n_inputs:
        raise InvalidValueError(f"input must be below {n_inputs}, the number of inputs in {target}, got {number}")
    return int(number) % n_inputs


def _check_target(target: Path, overwrite: bool) -> None:
    if target.is_symlink() or (exists(target) and not target.is_dir()):
        raise InvalidValueError(f"path must name a folder to make, but {target} is a file or a link")
    if not exists(target):
        return
    if not overwrite:
        raise InvalidValueError(f"{target} exists already; choose another name or pass overwrite=True")
    if not _is_saved_tensor(target):
        raise InvalidValueError(
            f"{target} is not a tensor that headtree saved, so it is not overwritten; remove it first"
        )
    foreign = _foreign_file(target)
    if foreign is not None:
        raise InvalidValueError(
            f"{target} has a file that is not part of the tensor, {foreign}, so it is not overwritten; move that "
            "file elsewhere or choose another name"
        )


def _is_saved_tensor(target: Path) -> bool:
    """Whether a folder is empty or holds a dataset with one input, of this format or an older one."""
    if not any(target.iterdir()):
        return True
    try:
        attributes = read_json(target / "zarr.json")["attributes"]
        found = attributes["format"]
        inputs = json.loads(attributes["provenance"])
    except (OSError, ValueError, KeyError, TypeError):
        return False
    if found == FORMAT:
        return len(inputs) == 1
    return older_format(target, found, FORMAT) is not None and not isinstance(inputs, list)  # a list is a run's


def _foreign_file(target: Path) -> Path | None:
    """The first file or link in the folder of a saved tensor that saving did not make."""
    for folder, folders, files in os.walk(target):
        inside = Path(folder).relative_to(target)
        links = [name for name in folders if (Path(folder) / name).is_symlink()]
        for name in sorted([*files, *links]):
            if not _OURS.fullmatch((inside / name).as_posix()):
                return inside / name
    return None


# -- the format --------------------------------------------------------------------------------------------------


def write_attention(
    folder: Path,
    tensors: Sequence[AttentionTensor],
    identity: str,
    *,
    half: bool = False,
    like: Path | None = None,
    link: bool = False,
) -> None:
    """Write tensors of the same heads, one for each input, block by block; missing entries are stored as 0.

    Parameters
    ----------
    folder : Path
        The folder to make.
    tensors : sequence of AttentionTensor
        In memory or on disk. Integers and booleans are stored as float64.
    identity : str
        Names the contents: a reader that opened an earlier dataset at this path sees that it was replaced.
    half : bool
        Store the values in half precision.
    like : Path, optional
        A dataset whose chunk shape to use, so both can be joined later without copying.
    link : bool
        Share the chunk files of tensors on disk where they are stored as they will be here, instead of copying
        them. Neither dataset may be changed in place afterwards.
    """
    first = tensors[0]
    for i, att in enumerate(tensors):
        if att.heads != first.heads or att.kind != first.kind:
            raise InvalidValueError(
                f"all inputs of a run must have the same heads and kind, but input {i} has {att!r} and input 0 has "
                f"{first!r}; leave it out, or make a run of its own"
            )
    attributes = {
        "format": FORMAT,
        "identity": identity,
        "kind": first.kind,
        "provenance": json.dumps([_plain(dict(att.provenance)) for att in tensors]),
    }
    group = create(folder, attributes)
    dtype = np.dtype(np.float16) if half else np.result_type(*map(_stored_dtype, tensors))
    _Writer(folder, group, tensors, _chunks(tensors, dtype.itemsize, like), link).write(dtype, half)
    _write_labels(group, tensors)
    finish(folder)


def join_attention(folder: Path, tensors: Sequence[AttentionTensor], identity: str) -> None:
    """Write tensors on disk, each a dataset with one input, as one dataset, sharing files where possible."""
    stored = [att.values for att in tensors]
    largest = max(stored, key=lambda values: math.prod(values.shape))
    write_attention(folder, tensors, identity, like=largest.path, link=True)


def _read(target: Path, group: Any, labels: SmallArrays, i: int) -> AttentionTensor:
    layers, numbers = labels.whole("layer"), labels.whole("place")
    n_queries, n_keys = int(labels.row("n_query", i)), int(labels.row("n_key", i))

    def stored(name: str) -> StoredArray:
        shape = (len(layers), n_queries, n_keys)
        identity = str(group.attrs["identity"])
        return StoredArray(target.resolve(), name, identity, shape, labels.dtypes[name], i)

    has_mask = "mask" in labels.dtypes and bool(labels.row("is_masked", i))
    return AttentionTensor(
        values=stored("attention"),
        heads=tuple(HeadId(int(layer), int(number)) for layer, number in zip(layers, numbers, strict=True)),
        queries=tuple(map(str, labels.row("query_token", i)[:n_queries])),
        keys=tuple(map(str, labels.row("key_token", i)[:n_keys])),
        kind=str(group.attrs["kind"]),  # type: ignore[arg-type]
        mask=stored("mask") if has_mask else None,
        provenance=labels.attribute("provenance", i),
        sinks=labels.row("sink", i) if "sink" in labels.dtypes else None,
    )


class _Writer:
    """Writes the values and masks of a dataset."""

    def __init__(
        self,
        folder: Path,
        group: Any,
        tensors: Sequence[AttentionTensor],
        chunks: tuple[int, int, int],
        link: bool,
    ) -> None:
        self.folder, self.group, self.tensors, self.chunks, self.link = folder, group, tensors, chunks, link
        self.sizes = np.array([att.shape for att in tensors])
        n_heads, n_queries, n_keys = map(int, self.sizes.max(axis=0))
        self._longest = n_heads, n_queries, n_keys

    def write(self, dtype: np.dtype[Any], half: bool) -> None:
        """Values always; a mask if an entry is missing or an input is padded."""
        values = self._array("attention", dtype, 0, "layer place query_token key_token n_query n_key")
        largest = 0.0
        for i, att in enumerate(self.tensors):
            self._fill_padding(values, i, 0)
            if self._linked(att.values, values, i):
                continue
            for block in blocks(att.shape, self.chunks):
                entries = _entries(att, block)
                if half:
                    largest = max(largest, _largest(entries))
                    _check_not_huge(largest)
                values[(i, *block)] = entries.astype(dtype)
        if half:
            _check_not_tiny(largest)
        if any(att.mask is not None for att in self.tensors) or (self.sizes != self.sizes[0]).any():
            self._write_mask(self._array("mask", bool, True, "layer place"))  # padding is missing

    def _write_mask(self, mask: Any) -> None:
        for i, att in enumerate(self.tensors):
            self._fill_padding(mask, i, True)
            if self._linked(att.mask, mask, i):
                continue
            for block in blocks(att.shape, self.chunks):
                mask[(i, *block)] = False if att.mask is None else as_numpy(att.mask[block])

    def _array(self, name: str, dtype: Any, fill: Any, coordinates: str) -> Any:
        return new_array(
            self.group,
            name,
            _AXES,
            shape=(len(self.tensors), *self._longest),
            dtype=dtype,
            chunks=(1, *self.chunks),
            fill_value=fill,
            attributes={"coordinates": coordinates},
        )

    def _fill_padding(self, array: Any, i: int, fill: Any) -> None:
        """Write the chunks that have nothing but padding."""
        for block in blocks(self._longest, self.chunks):
            if any(each.start >= n for each, n in zip(block, self.sizes[i], strict=True)):
                array[(i, *block)] = fill

    def _linked(self, source: Any, array: Any, i: int) -> bool:
        """Share the files of a stored array, if its chunks are those of `array`."""
        if not (self.link and isinstance(source, StoredArray)):
            return False
        stored = source.zarr_array()
        if stored.shape[0] != 1 or _encoding(stored) != _encoding(array):
            return False
        chunks = source.path / source.name / "c" / "0"
        for file in sorted(path for path in chunks.rglob("*") if path.is_file()):
            target = self.folder / source.name / "c" / str(i) / file.relative_to(chunks)
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(file, target)
            except OSError:  # not every file system has hard links
                shutil.copyfile(file, target)
        return True


def _encoding(array: Any) -> dict[str, Any]:
    """Everything that decides which bytes a chunk has."""
    metadata: dict[str, Any] = array.metadata.to_dict()
    return {name: item for name, item in metadata.items() if name not in ("shape", "attributes")}


def _entries(att: AttentionTensor, block: tuple[slice, ...]) -> np.ndarray[Any, Any]:
    entries = as_numpy(att.values[block])
    return entries if att.mask is None else np.where(as_numpy(att.mask[block]), entries.dtype.type(0), entries)


def _write_labels(group: Any, tensors: Sequence[AttentionTensor]) -> None:
    first = tensors[0]
    counts = np.array([att.shape for att in tensors], dtype=np.int64)
    put(group, "head", Variable(("head",), np.array([str(head) for head in first.heads], dtype=object)))
    put(group, "layer", Variable(("head",), np.array([head.layer for head in first.heads], dtype=np.int64)))
    put(group, "place", Variable(("head",), np.array([head.head for head in first.heads], dtype=np.int64)))
    put(group, "query_token", Variable(("input", "query"), texts([att.queries for att in tensors])))
    put(group, "key_token", Variable(("input", "key"), texts([att.keys for att in tensors])))
    put(group, "n_query", Variable(("input",), counts[:, 1]))
    put(group, "n_key", Variable(("input",), counts[:, 2]))
    put(group, "is_masked", Variable(("input",), np.array([att.mask is not None for att in tensors])))
    if any(att.sinks is not None for att in tensors):
        absent = np.full(len(first.heads), -np.inf)
        sinks = [absent if att.sinks is None else as_numpy(att.sinks).astype(np.float64) for att in tensors]
        put(group, "sink", Variable(("input", "head"), np.stack(sinks)))


def _stored_dtype(att: AttentionTensor) -> np.dtype[Any]:
    values = att.values
    dtype = values.dtype if isinstance(values, StoredArray) else as_numpy(values[:1, :1, :1]).dtype
    return dtype if dtype.kind == "f" and dtype.itemsize <= 8 else np.dtype(np.float64)


def _plain(value: Any) -> Any:
    """`value` as JSON accepts it; what is neither a number nor a string is written as a string."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def as_numpy(values: Any) -> np.ndarray[Any, Any]:
    """`values` as a numpy array; bfloat16, which numpy does not have, becomes float32."""
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu()
        return np.asarray((values.float() if values.dtype == torch.bfloat16 else values).numpy())
    return np.asarray(values)


# -- half precision ----------------------------------------------------------------------------------------------


def _largest(block: np.ndarray[Any, Any]) -> float:
    """The largest finite magnitude."""
    return float(np.abs(block[np.isfinite(block)].astype(np.float64)).max(initial=0.0))


def _check_not_huge(largest: float) -> None:
    limit = float(np.finfo(np.float16).max)
    if largest > limit:
        raise InvalidValueError(
            f"half precision holds numbers up to {limit}, but the values exceed it; pass half=False"
        )


def _check_not_tiny(largest: float) -> None:
    smallest = float(np.finfo(np.float16).smallest_normal)
    if 0 < largest < smallest:
        raise InvalidValueError(
            f"half precision keeps its digits down to {smallest:.2g}, but the largest of the values is "
            f"{largest:.2g}; multiply them by a constant first, or pass half=False"
        )


# -- chunks ------------------------------------------------------------------------------------------------------


def _chunks(tensors: Sequence[AttentionTensor], itemsize: int, like: Path | None) -> tuple[int, int, int]:
    n_heads, n_queries, n_keys = (int(n) for n in np.max([att.shape for att in tensors], axis=0))
    shape = (n_heads, n_queries, n_keys)
    own = chunk_shape(shape, itemsize)
    if like is None:
        return own
    _, heads, rows, keys = open_group(like, FORMAT)["attention"].chunks
    given = (int(heads), int(rows), int(keys))
    return given if _n_chunks(shape, given) <= _MOST_FILES * _n_chunks(shape, own) else own


def chunk_shape(shape: tuple[int, int, int], itemsize: int) -> tuple[int, int, int]:
    """One head after another, whole rows of keys, no chunk over the limit unless a single row is."""
    n_heads, n_queries, n_keys = shape
    rows = max(1, min(n_queries, _CHUNK_BYTES // (n_keys * itemsize)))
    heads = max(1, min(n_heads, _CHUNK_BYTES // (rows * n_keys * itemsize))) if rows == n_queries else 1
    return heads, rows, n_keys


def _n_chunks(shape: tuple[int, int, int], chunks: tuple[int, int, int]) -> int:
    return math.prod(math.ceil(n / c) for n, c in zip(shape, chunks, strict=True))


def blocks(shape: tuple[int, int, int], chunks: tuple[int, int, int]) -> Iterator[tuple[slice, slice, slice]]:
    """Chunk after chunk of an array, each within its shape."""
    counts = [math.ceil(n / c) for n, c in zip(shape, chunks, strict=True)]
    for index in np.ndindex(*counts):
        first, second, third = (
            slice(i * c, min((i + 1) * c, n)) for i, c, n in zip(index, chunks, shape, strict=True)
        )
        yield first, second, third
