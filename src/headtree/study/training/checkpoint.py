"""Training on disk: checkpoints that are written whole or not at all, and read back exactly."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from headtree._files import atomic, write_text
from headtree.errors import InvalidValueError

_NAME = re.compile(r"checkpoint-(\d+)")
_FILES = ("weights.safetensors", "state.safetensors", "checkpoint.json")


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """Everything needed to continue: weights, states of optimizer and random generators, settings and history."""

    step: int
    weights: Mapping[str, Tensor]
    state: Mapping[str, Tensor]
    about: Mapping[str, Any]  #: JSON: network, settings, config, history


def checkpoints(folder: Path) -> dict[int, Path]:
    """The complete checkpoints of a run by their steps, in order."""
    found = {}
    for path in folder.glob("checkpoint-*"):
        match = _NAME.fullmatch(path.name)
        if match and all((path / name).is_file() for name in _FILES):
            found[int(match[1])] = path
    return dict(sorted(found.items()))


def save(folder: Path, checkpoint: Checkpoint, keep: frozenset[int] = frozenset()) -> Path:
    """Write a checkpoint beside the others, then remove the earlier ones except the steps in `keep`.

    It is written whole or not at all; an interruption leaves the old checkpoints in place.
    """
    from safetensors.torch import save_file

    path = folder / f"checkpoint-{checkpoint.step:07d}"
    with atomic(path) as draft:  # replaces the same step if training resumed from an earlier one
        draft.mkdir()
        for name, tensors in zip(_FILES, (checkpoint.weights, checkpoint.state), strict=False):
            save_file({key: value.detach().cpu().contiguous() for key, value in tensors.items()}, draft / name)
        text = json.dumps({**checkpoint.about, "step": checkpoint.step}, indent=1)
        (draft / _FILES[2]).write_text(text, encoding="utf-8")
    for step, old in checkpoints(folder).items():
        if step < checkpoint.step and step not in keep:
            _remove(old)
    return path


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON file whole or not at all."""
    write_text(path, json.dumps(value, indent=1) + "\n")


def _remove(path: Path) -> None:
    """Rename before removing, since a half-removed checkpoint must not look complete."""
    doomed = path.with_name(f".removed-{path.name}")
    shutil.rmtree(doomed, ignore_errors=True)
    path.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def load(path: Path) -> Checkpoint:
    """Read a checkpoint."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        about = json.loads((path / _FILES[2]).read_text(encoding="utf-8"))
        weights, state = (load_file(path / name) for name in _FILES[:2])
        return Checkpoint(int(about["step"]), weights, state, about)
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise InvalidValueError(
            f"the checkpoint {path} cannot be read ({type(error).__name__}: {error}); remove that folder to "
            "continue from the checkpoint before it"
        ) from error


def check_same(path: Path, expected: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """Refuse a checkpoint of another configuration, naming what differs."""
    names = sorted({*expected, *found})
    different = [name for name in names if expected.get(name) != found.get(name)]
    if different:
        listing = ", ".join(
            f"{name} {found.get(name)!r} there and {expected.get(name)!r} here" for name in different
        )
        raise InvalidValueError(
            f"the checkpoint {path} has another configuration: {listing}; train with its settings, or "
            "choose another output folder"
        )
