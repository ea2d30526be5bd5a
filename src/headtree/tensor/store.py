"""Tensors on disk: labelled Zarr, written whole or not at all."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import uuid
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headtree._files import checked_path, exists, unusable
from headtree.errors import InvalidTypeError, InvalidValueError
from headtree.tensor.attention_tensor import AttentionTensor, HeadId
from headtree.tensor.stored_array import StoredArray

_FORMAT = "headtree.attention/1"
_AXES = ("head", "query", "key")

#: The files of a saved tensor, as paths in its folder.
_OURS = re.compile(r"zarr\.json|(attention|mask|head|layer|place|query|key|sink)/(zarr\.json|c(/\d+)+)")

#: Bytes of one chunk: small enough that a single head is cheap to read, large enough that there are few files.
_CHUNK_BYTES = 4 << 20


def save_tensor(att: AttentionTensor, path: str | os.PathLike[str], *, half: bool, overwrite: bool) -> None:
    """Write `att` beside `path` under another name, then move it there in one step."""
    target = checked_path(path)
    if target.name in ("", ".."):
        raise InvalidValueError(f"path must end in the name of the folder to make, got {str(path)!r}; add a name")
    _check_labels(att)
    try:
        _check_target(target, overwrite)
        target.parent.mkdir(parents=True, exist_ok=True)
        _sweep(target)
        partial = _sibling(target, "partial")
        try:
            _write(att, partial, half)
            _move_into_place(partial, target)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
    except OSError as error:
        raise unusable(target, "written", error) from error


def _check_target(target: Path, overwrite: bool) -> None:
    if target.is_symlink() or (exists(target) and not target.is_dir()):
        raise InvalidValueError(f"path must name a folder to make, but {target} is a file or a link")
    if not exists(target):
        return
    if not overwrite:
        raise InvalidValueError(f"{target} exists already; choose another name or pass overwrite=True")
    if not _is_ours(target):
        raise InvalidValueError(
            f"{target} is not a tensor that headtree saved, so it is not overwritten; remove it first"
        )
    foreign = _foreign_file(target)
    if foreign is not None:
        raise InvalidValueError(
            f"{target} holds a file that is not part of the tensor, {foreign}, so it is not overwritten; move the "
            "file elsewhere or choose another name"
        )


def open_tensor(path: str | os.PathLike[str]) -> AttentionTensor:
    """Read the labels of a saved tensor; its values and mask stay on disk."""
    import zarr

    target = checked_path(path)
    if not exists(target):
        raise InvalidValueError(f"path must name a saved tensor, but {target} does not exist")
    try:
        group = zarr.open_group(target, mode="r")
        if group.attrs.get("format") != _FORMAT:
            raise InvalidValueError(
                f"{target} is Zarr, but not a tensor that headtree saved (format {group.attrs.get('format')!r} "
                f"instead of {_FORMAT!r}); open it with xarray and pass its array to AttentionTensor.from_array"
            )
        return _read(target, group)
    except (FileNotFoundError, KeyError, ValueError, OSError) as error:
        if isinstance(error, InvalidValueError):
            raise
        raise InvalidValueError(
            f"{target} cannot be read as a tensor that AttentionTensor.save wrote: {error}; save it again"
        ) from error


def _read(target: Path, group: Any) -> AttentionTensor:
    identity = str(group.attrs["identity"])

    def stored(name: str) -> StoredArray:
        array = group[name]
        return StoredArray(target.resolve(), name, identity, tuple(array.shape), np.dtype(array.dtype))

    return AttentionTensor(
        values=stored("attention"),
        heads=tuple(HeadId(int(i), int(j)) for i, j in zip(group["layer"][:], group["place"][:], strict=True)),
        queries=tuple(map(str, group["query"][:])),
        keys=tuple(map(str, group["key"][:])),
        kind=str(group.attrs["kind"]),  # type: ignore[arg-type]
        mask=stored("mask") if "mask" in group else None,
        provenance=json.loads(str(group.attrs["provenance"])),
        sinks=np.asarray(group["sink"][:]) if "sink" in group else None,
    )


def _write(att: AttentionTensor, folder: Path, half: bool) -> None:
    import zarr

    group = zarr.open_group(folder, mode="w-", zarr_format=3)
    dtype = np.dtype("float16") if half else _stored_dtype(att.values)
    group.attrs.update(
        format=_FORMAT,
        identity=uuid.uuid4().hex,
        kind=att.kind,
        provenance=json.dumps(_plain(dict(att.provenance))),
    )
    chunks = chunk_shape(att.shape, dtype.itemsize)
    values = group.create_array(
        "attention",
        shape=att.shape,
        dtype=dtype,
        chunks=chunks,
        dimension_names=_AXES,
        attributes={"coordinates": "layer place sink" if att.sinks is not None else "layer place"},
    )
    largest = 0.0
    for block in blocks(att.shape, chunks):
        entries = as_numpy(att.values[block])
        if half:
            missing = None if att.mask is None else as_numpy(att.mask[block])
            largest = max(largest, _largest(entries if missing is None else entries[~missing]))
        values[block] = _to_half(entries) if half else entries
    if half:
        _check_not_tiny(largest)
    if att.mask is not None:
        mask = group.create_array("mask", shape=att.shape, dtype=bool, chunks=chunks, dimension_names=_AXES)
        for block in blocks(att.shape, chunks):
            mask[block] = as_numpy(att.mask[block])
    _write_labels(att, group)
    with warnings.catch_warnings():
        # the specification of Zarr 3 has no consolidated metadata yet; without them, xarray.open_zarr warns
        warnings.filterwarnings("ignore", message="Consolidated metadata")
        zarr.consolidate_metadata(str(folder))


def _check_labels(att: AttentionTensor) -> None:
    for name, labels in (("queries", att.queries), ("keys", att.keys)):
        for i, label in enumerate(labels):
            try:
                label.encode()
            except UnicodeEncodeError as error:
                raise InvalidValueError(
                    f"{name}[{i}] must be valid Unicode to be saved, got {label!r} ({error.reason}); replace what "
                    'cannot be encoded, for instance with label.encode("utf-8", "backslashreplace").decode()'
                ) from None


def _write_labels(att: AttentionTensor, group: Any) -> None:
    def put(name: str, axis: str, values: list[Any], dtype: Any) -> None:
        array = group.create_array(name, shape=(len(values),), dtype=dtype, dimension_names=(axis,))
        array[:] = np.array(values, dtype=object if dtype is str else dtype)

    put("head", "head", [str(head) for head in att.heads], str)
    put("layer", "head", [head.layer for head in att.heads], "int64")
    put("place", "head", [head.head for head in att.heads], "int64")
    put("query", "query", list(att.queries), str)
    put("key", "key", list(att.keys), str)
    if att.sinks is not None:
        put("sink", "head", att.sinks.tolist(), "float64")


def _stored_dtype(values: Any) -> np.dtype[Any]:
    dtype: np.dtype[Any] = as_numpy(values[:1, :1, :1]).dtype
    if dtype.kind not in "fiub":
        raise InvalidTypeError(f"values must be real numbers to be saved, got {dtype}")
    is_long = dtype.kind == "f" and dtype.itemsize > 8  # Zarr has no longdouble
    return np.dtype("float64") if is_long else dtype


def as_numpy(values: Any) -> np.ndarray[Any, Any]:
    """`values` as a numpy array; bfloat16, which numpy does not have, as float32."""
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu()
        return np.asarray((values.float() if values.dtype == torch.bfloat16 else values).numpy())
    return np.asarray(values)


def _largest(block: np.ndarray[Any, Any]) -> float:
    """The largest finite modulus."""
    return float(np.abs(block[np.isfinite(block)].astype(np.float64)).max(initial=0.0))


def _check_not_tiny(largest: float) -> None:
    smallest = float(np.finfo(np.float16).smallest_normal)
    if 0 < largest < smallest:
        raise InvalidValueError(
            f"half precision keeps its digits down to {smallest:.2g}, but the largest of the values is "
            f"{largest:.2g}; multiply them by a constant first, or pass half=False"
        )


def _to_half(block: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    largest = float(np.finfo(np.float16).max)
    if _largest(block) > largest:
        raise InvalidValueError(
            f"half precision holds numbers up to {largest}, but the values exceed it; pass half=False"
        )
    return block.astype(np.float16)


def chunk_shape(shape: tuple[int, int, int], itemsize: int) -> tuple[int, int, int]:
    """One head after another, whole rows of keys, no chunk over the limit unless a single row is."""
    n_heads, n_queries, n_keys = shape
    rows = max(1, min(n_queries, _CHUNK_BYTES // (n_keys * itemsize)))
    heads = max(1, min(n_heads, _CHUNK_BYTES // (rows * n_keys * itemsize))) if rows == n_queries else 1
    return heads, rows, n_keys


def blocks(shape: tuple[int, int, int], chunks: tuple[int, int, int]) -> Iterator[tuple[slice, slice, slice]]:
    """Chunk after chunk of an array."""
    counts = [math.ceil(n / c) for n, c in zip(shape, chunks, strict=True)]
    for place in np.ndindex(*counts):
        first, second, third = (slice(i * c, (i + 1) * c) for i, c in zip(place, chunks, strict=True))
        yield first, second, third


def _plain(value: Any) -> Any:
    """`value` as JSON takes it; what is neither a number nor a string is written as one."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _sibling(target: Path, role: str) -> Path:
    return target.with_name(f".{target.name}.{role}-{os.getpid()}-{uuid.uuid4().hex[:8]}")


def _sweep(target: Path) -> None:
    """Remove what interrupted writers of this tensor left, unless one of them is still running."""
    for role in ("partial", "old"):
        for leftover in target.parent.glob(f".{_escaped(target.name)}.{role}-*"):
            owner = leftover.name.rsplit("-", 2)[-2]
            if not (owner.isdigit() and int(owner) != os.getpid() and _is_running(int(owner))):
                shutil.rmtree(leftover, ignore_errors=True)


def _escaped(name: str) -> str:
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _move_into_place(partial: Path, target: Path) -> None:
    if not target.exists():
        partial.rename(target)
        return
    old = _sibling(target, "old")  # a folder that is not empty cannot be replaced in one rename
    target.rename(old)
    try:
        partial.rename(target)
    except BaseException:
        old.rename(target)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _is_ours(target: Path) -> bool:
    if not any(target.iterdir()):
        return True
    try:
        attributes = json.loads((target / "zarr.json").read_text(encoding="utf-8")).get("attributes", {})
    except (OSError, ValueError):
        return False
    return isinstance(attributes, dict) and attributes.get("format") == _FORMAT


def _foreign_file(target: Path) -> Path | None:
    """The first file or link in a saved tensor's folder that `_write` did not make."""
    for folder, folders, files in os.walk(target):
        place = Path(folder).relative_to(target)
        links = [name for name in folders if (Path(folder) / name).is_symlink()]
        for name in sorted([*files, *links]):
            if not _OURS.fullmatch((place / name).as_posix()):
                return place / name
    return None
