"""Tensors that others made: .npy, .npz, .safetensors, .pt and .mat, never pickle."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headtree.attention.paths import checked_path, exists
from headtree.attention.tensor import AttentionTensor, Kind
from headtree.errors import InvalidTypeError, InvalidValueError

_AXES = "hqk"


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
        A .npy, .npz, .safetensors, .pt or .pth (weights only) or .mat file, or a folder AttentionTensor.save wrote,
        which takes none of the other arguments.
    axes : str
        What the axes of the array in the file are, in order: h for heads, q for queries, k for keys, l for layers
        (then l and h together give the heads). Axes of length one may be called 1: ``"qkh"``, ``"lhqk"``,
        ``"1hqk"``.
    name : str, optional
        Which array, where the file holds several.
    kind : {"scores", "probs"}
        What the numbers are.
    heads_per_layer : int, optional
        How many heads make a layer, where the file has no axis of layers.
    mask : array of bool, optional
        True where an entry is missing; in the order (head, query, key).
    """
    source = checked_path(path)
    if not isinstance(axes, str):
        raise InvalidTypeError(f"axes must be a string such as 'hqk', got {axes!r}")
    if not exists(source):
        raise InvalidValueError(f"path must name a file, but {source} does not exist")
    if source.is_dir():
        _check_nothing_else(source, axes, name, kind, heads_per_layer, mask)
        return AttentionTensor.open(source)
    reader = _READERS.get(source.suffix.lower())
    if reader is None:
        raise InvalidValueError(
            f"path must end in one of {', '.join(sorted(_READERS))}, got {source.name}; "
            "read it yourself and pass the array to AttentionTensor.from_array"
        )
    try:
        found = reader(source)
    except Exception as error:  # each format has its own errors for a damaged file
        raise InvalidValueError(
            f"{source} cannot be read as {source.suffix}: {type(error).__name__}: {error}; files with pickled "
            "objects are refused on purpose, a damaged file must be written again"
        ) from error
    array = _chosen(found, name, source)
    values, n_per_layer = _ordered(array, axes, source)
    if n_per_layer is not None and heads_per_layer is not None:
        raise InvalidTypeError("heads_per_layer must not be given where axes has a layer axis 'l'")
    return AttentionTensor.from_array(values, heads_per_layer=n_per_layer or heads_per_layer, kind=kind, mask=mask)


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
            f"{', '.join(names)} must not be given for a folder that AttentionTensor.save wrote, which knows its "
            f"own, got {source}; leave out {'it' if len(names) == 1 else 'them'}"
        )


def _read_npy(path: Path) -> Mapping[str, Any]:
    return {path.stem: np.load(path, allow_pickle=False)}


def _read_npz(path: Path) -> Mapping[str, Any]:
    with np.load(path, allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


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


def _chosen(found: Mapping[str, Any], name: str | None, source: Path) -> Any:
    listing = ", ".join(f"{key!r} {tuple(value.shape)}" for key, value in found.items()) or "nothing"
    if name is not None:
        if name not in found:
            raise InvalidValueError(f"name must be one of the arrays in {source}, got {name!r}; it holds {listing}")
        return found[name]
    candidates = [value for value in found.values() if len(value.shape) >= 3]
    if len(candidates) != 1:
        problem = "no array of three axes" if not candidates else f"{len(candidates)} arrays of three or more axes"
        raise InvalidValueError(f"{source} holds {problem}; choose one with name=…: it holds {listing}")
    return candidates[0]


def _ordered(array: Any, axes: str, source: Path) -> tuple[Any, int | None]:
    """The array as (head, query, key), and the number of heads of a layer if it has an axis of layers."""
    letters = axes.replace("1", "")
    if sorted(letters) not in (sorted(_AXES), sorted("l" + _AXES)):
        raise InvalidValueError(f"axes must name h, q and k once each, and may name l and 1, got {axes!r}")
    shape = tuple(array.shape)
    if len(axes) != len(shape):
        raise InvalidValueError(
            f"axes must name every axis of the array, got {axes!r} for shape {shape} in {source}"
        )
    if any(letter == "1" and n != 1 for letter, n in zip(axes, shape, strict=True)):
        raise InvalidValueError(
            f"an axis called 1 must have length one, got {axes!r} for shape {shape} in {source}"
        )
    values = array if isinstance(array, torch.Tensor) else np.asarray(array)
    values = values.reshape([n for letter, n in zip(axes, shape, strict=True) if letter != "1"])
    order = [letters.index(letter) for letter in ("lhqk" if "l" in letters else _AXES)]
    values = values.permute(order) if isinstance(values, torch.Tensor) else values.transpose(order)
    if "l" not in letters:
        return values, None
    n_layers, n_per_layer, n_queries, n_keys = values.shape
    return values.reshape(n_layers * n_per_layer, n_queries, n_keys), int(n_per_layer)
