"""Where the tensors of a run come from; for models see `model_source`."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from headtree.errors import InvalidTypeError, InvalidValueError
from headtree.tensor.attention_tensor import AttentionTensor
from headtree.tensor.load import load_tensor
from headtree.tensor.store import as_numpy


class Capture(Protocol):
    """A loaded source: the names and hashes of its inputs, and their tensors one at a time."""

    @property
    def model(self) -> Mapping[str, Any]:
        """What identifies the model."""

    @property
    def inputs(self) -> tuple[Mapping[str, Any], ...]:
        """Name and hash of each input."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know about the inputs."""

    def tensor(self, i: int) -> AttentionTensor:
        """The tensor of one input, bit for bit the same in any order of calls."""

    def sample(self, i: int) -> bytes | None:
        """A small picture (PNG) of an input that is an image; None for other inputs."""

    def to_run_again(self) -> dict[str, Any]:
        """Model and inputs as arguments of `diagnostics`; empty if there is no model."""


class Source(Protocol):
    """A model with inputs, or tensors, from which a run is made."""

    @property
    def kind(self) -> str:
        """The kind of attention: scores, probs or weighted."""

    @property
    def settings(self) -> dict[str, Any]:
        """What identifies the source, available without loading a model."""

    def begin(self) -> Capture:
        """Load the model, if there is one, and prepare the inputs."""


@dataclass(frozen=True, eq=False)
class TensorSource:
    """Tensors that already exist, one per input."""

    tensors: Sequence[AttentionTensor]
    names: Sequence[str] | None = None
    about: str = "tensors in memory"

    def __post_init__(self) -> None:
        if not self.tensors or not all(isinstance(att, AttentionTensor) for att in self.tensors):
            raise InvalidTypeError("tensors must be one or more AttentionTensors, one per input")
        if self.names is not None and len(self.names) != len(self.tensors):
            raise InvalidValueError(
                f"names must have one name for each of the {len(self.tensors)} tensors, got {len(self.names)}"
            )

    @property
    def kind(self) -> str:
        """The kind of the first tensor."""
        return self.tensors[0].kind

    @property
    def settings(self) -> dict[str, Any]:
        """The hashes of the tensors."""
        return {"type": "tensors", "file": self.about, "sha256": [_tensor_hash(att) for att in self.tensors]}

    def begin(self) -> TensorCapture:
        """The tensors with their names and hashes."""
        names = self.names or [f"input {i}" for i in range(len(self.tensors))]
        hashes = self.settings["sha256"]
        return TensorCapture(
            {}, tuple({"name": n, "sha256": h} for n, h in zip(names, hashes, strict=True)), self.tensors
        )


@dataclass(frozen=True, eq=False)
class TensorCapture:
    """Tensors that need no model."""

    model: Mapping[str, Any]
    inputs: tuple[Mapping[str, Any], ...]
    tensors: Sequence[AttentionTensor]
    notes: tuple[str, ...] = ()

    def tensor(self, i: int) -> AttentionTensor:
        """The tensor itself."""
        return self.tensors[i]

    def sample(self, i: int) -> bytes | None:
        """Return None: tensors have no pictures."""
        return None

    def to_run_again(self) -> dict[str, Any]:
        """Return an empty dictionary: there is no model to run."""
        return {}


def _tensor_hash(att: AttentionTensor) -> str:
    values = as_numpy(att.load().values)
    parts = [np.ascontiguousarray(values).tobytes(), str((values.dtype, att.shape, att.heads, att.kind)).encode()]
    if att.mask is not None:
        parts.append(np.packbits(as_numpy(att.load().mask)).tobytes())
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()


def tensor_file(
    path: Path, axes: str, *, name: str | None = None, kind: Any = "scores", heads_per_layer: int | None = None
) -> TensorSource:
    """The attention tensor in a file, as a source of one input."""
    att = load_tensor(path, axes, name=name, kind=kind, heads_per_layer=heads_per_layer)
    return TensorSource([att], [path.name], path.name)
