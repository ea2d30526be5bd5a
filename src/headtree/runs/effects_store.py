"""The effects of heads in a run folder, as Zarr that xarray opens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from headtree.measures.heads.effects import HeadEffects
from headtree.tensor.attention_tensor import HeadId
from headtree.tensor.zarr_dataset import Variable, create, finish, open_group, put

EFFECTS_FORMAT = "headtree.run.effects/2"
_PER_HEAD = ("effect", "error", "raw", "first_order")
_NUMBERS = ("reliability", "raw_reliability", "loss")
_WORDS = ("objective", "how", "n_inputs", "n_ablated")


def write_effects(folder: Path, found: HeadEffects) -> None:
    """Write the effects of heads, with the change of loss at every token."""
    numbers = {name: _plain(getattr(found, name)) for name in _NUMBERS}
    words = {name: getattr(found, name) for name in _WORDS}
    group = create(folder, {"format": EFFECTS_FORMAT, **numbers, **words})
    put(group, "layer", Variable(("head",), np.array([head.layer for head in found.heads])))
    put(group, "index", Variable(("head",), np.array([head.head for head in found.heads])))
    for name in _PER_HEAD:
        put(group, name, Variable(("head",), getattr(found, name)), ("layer", "index"))
    put(group, "input", Variable(("token",), found.input_of))
    put(
        group, "changes", Variable(("head", "token"), found.changes.astype(np.float32)), ("layer", "index", "input")
    )
    finish(folder)


def read_effects(path: Path) -> HeadEffects:
    """Read what `write_effects` wrote."""
    group = open_group(path, EFFECTS_FORMAT)
    heads = zip(group["layer"][...].tolist(), group["index"][...].tolist(), strict=True)
    numbers: dict[str, Any] = {
        name: float("nan") if group.attrs[name] is None else group.attrs[name] for name in _NUMBERS
    }
    return HeadEffects(
        heads=tuple(HeadId(layer, index) for layer, index in heads),
        **{name: group[name][...] for name in _PER_HEAD},
        changes=group["changes"][...].astype(np.float64),
        input_of=group["input"][...],
        **numbers,
        **{name: group.attrs[name] for name in _WORDS},
    )


def _plain(number: float) -> float | None:
    return number if np.isfinite(number) else None
