"""`attention.zarr` of a run: the tensors of all inputs in one dataset, shorter inputs filled up."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from headtree.errors import InvalidValueError
from headtree.tensor.attention_tensor import AttentionTensor, HeadId
from headtree.tensor.store import as_numpy, blocks, chunk_shape
from headtree.tensor.stored_array import StoredArray
from headtree.tensor.zarr_dataset import Variable, create, finish, open_group, put, texts

FORMAT = "headtree.run.attention/1"
_AXES = ("input", "head", "query", "key")


def write_attention(folder: Path, tensors: Sequence[AttentionTensor], identity: str) -> None:
    """Write tensors of the same heads, block by block; entries that are missing are stored as 0.

    `identity` names what the entries are: a reader that opened the folder earlier sees by it that it was rewritten.
    """
    first = tensors[0]
    for i, att in enumerate(tensors):
        if att.heads != first.heads or att.kind != first.kind:
            raise InvalidValueError(
                f"all inputs of a run must have the same heads and kind, but input {i} has {att!r} and input 0 "
                f"{first!r}; leave it out, or make a run of its own"
            )
    provenance = [dict(att.provenance) for att in tensors]
    group = create(
        folder,
        {
            "format": FORMAT,
            "identity": identity,
            "kind": first.kind,
            "provenance": json.dumps(provenance, default=str),
        },
    )
    _write_values(group, tensors)
    _write_labels(group, tensors)
    finish(folder)


def read_attention(path: Path, i: int) -> AttentionTensor:
    """The tensor of one input: labels at once, values and mask when a block of them is asked for."""
    group = open_group(path, FORMAT)
    identity = str(group.attrs["identity"])
    n_queries, n_keys = int(group["n_query"][i]), int(group["n_key"][i])
    layers, places = group["layer"][:], group["place"][:]

    def stored(name: str) -> StoredArray:
        shape = (len(layers), n_queries, n_keys)
        return StoredArray(path.resolve(), name, identity, shape, np.dtype(group[name].dtype), i)

    has_mask = "mask" in group and bool(group["is_masked"][i])
    return AttentionTensor(
        values=stored("attention"),
        heads=tuple(HeadId(int(layer), int(head)) for layer, head in zip(layers, places, strict=True)),
        queries=tuple(map(str, group["query_token"][i, :n_queries])),
        keys=tuple(map(str, group["key_token"][i, :n_keys])),
        kind=str(group.attrs["kind"]),  # type: ignore[arg-type]
        mask=stored("mask") if has_mask else None,
        provenance=json.loads(str(group.attrs["provenance"]))[i],
        sinks=np.asarray(group["sink"][i]) if "sink" in group else None,
    )


def _write_values(group: Any, tensors: Sequence[AttentionTensor]) -> None:
    sizes = np.array([att.shape for att in tensors])
    n_heads, n_queries, n_keys = (int(n) for n in sizes.max(axis=0))
    shape = (len(tensors), n_heads, n_queries, n_keys)
    dtype = np.result_type(*(_dtype(att) for att in tensors))
    chunks = chunk_shape((n_heads, n_queries, n_keys), dtype.itemsize)

    def make(name: str, dtype: Any, coordinates: str) -> Any:
        return group.create_array(
            name,
            shape=shape,
            dtype=dtype,
            chunks=(1, *chunks),
            dimension_names=_AXES,
            attributes={"coordinates": coordinates},
        )

    values = make("attention", dtype, "layer place query_token key_token n_query n_key")
    for i, att in enumerate(tensors):
        for block in blocks(att.shape, chunks):
            entries = as_numpy(att.values[block]).astype(dtype, copy=True)
            if att.mask is not None:
                entries[as_numpy(att.mask[block])] = 0
            values[(i, *_within(block, att.shape))] = entries
    if all(att.mask is None for att in tensors) and (sizes == sizes[0]).all():
        return
    mask = make("mask", bool, "layer place")
    for i, att in enumerate(tensors):
        is_present = np.zeros(shape[1:], dtype=bool)
        is_present[tuple(map(slice, att.shape))] = True if att.mask is None else ~as_numpy(att.mask[:])
        mask[i] = ~is_present


def _within(block: tuple[slice, slice, slice], shape: tuple[int, int, int]) -> tuple[slice, ...]:
    return tuple(slice(*part.indices(n)) for part, n in zip(block, shape, strict=True))


def _dtype(att: AttentionTensor) -> np.dtype[Any]:
    dtype: np.dtype[Any] = as_numpy(att.values[:1, :1, :1]).dtype
    return dtype if dtype.kind == "f" and dtype.itemsize <= 8 else np.dtype(np.float64)


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
