"""Where the tensors of a run come from; for models see `model_source`."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from headtree.errors import InvalidTypeError, InvalidValueError
from headtree.measures.heads.from_model import ModelOfInputs
from headtree.tensor.attention_tensor import AttentionTensor
from headtree.tensor.hidden_mask import check_future_keys
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

    def batches(self) -> list[list[int]]:
        """The inputs by number, in groups that must be captured together; most are single."""

    def only(self, numbers: Sequence[int]) -> Capture:
        """The same for some of the inputs."""

    def tensors(self) -> list[AttentionTensor]:
        """The tensor of each input, bit for bit the same whichever batch is captured first."""

    def sample(self, i: int) -> bytes | None:
        """A small picture (PNG) of an input that is an image; None for other inputs."""

    def to_diagnose(self) -> ModelOfInputs | None:
        """The model and the inputs for diagnostics; None if there is no model."""


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
    own: Sequence[AttentionTensor]
    notes: tuple[str, ...] = ()

    def batches(self) -> list[list[int]]:
        """Every tensor on its own."""
        return [[i] for i in range(len(self.own))]

    def only(self, numbers: Sequence[int]) -> TensorCapture:
        """Some of the tensors."""
        return TensorCapture(self.model, tuple(self.inputs[i] for i in numbers), [self.own[i] for i in numbers])

    def __reduce__(self) -> tuple[Any, ...]:
        """Send everything but the tensors, which travel on their own."""
        return TensorCapture, (self.model, self.inputs, ())

    def tensors(self) -> list[AttentionTensor]:
        """The tensors themselves."""
        return list(self.own)

    def sample(self, i: int) -> bytes | None:
        """Return None: tensors have no pictures."""
        return None

    def to_diagnose(self) -> None:
        """Return None: there is no model to run."""
        return


def _tensor_hash(att: AttentionTensor) -> str:
    """Hash of values, labels of heads, kind and mask; a tensor on disk is read some heads at a time."""
    n_heads = att.shape[0]
    values, mask = hashlib.sha256(), hashlib.sha256()
    for i in range(n_heads):
        values.update(np.ascontiguousarray(as_numpy(att.values[i : i + 1])).tobytes())
    dtype = as_numpy(att.values[:1, :1, :1]).dtype
    parts = [values, hashlib.sha256(str((dtype, att.shape, att.heads, att.kind)).encode())]
    if att.mask is not None:
        for i in range(0, n_heads, 8):  # eight heads are whole bytes
            mask.update(np.packbits(as_numpy(att.mask[i : i + 8])).tobytes())
        parts.append(mask)
    return hashlib.sha256(b"".join(part.digest() for part in parts)).hexdigest()


def tensor_file(
    path: Path, axes: str, *, name: str | None = None, kind: Any = "scores", heads_per_layer: int | None = None
) -> TensorSource:
    """The attention tensor in a file, as a source of one input."""
    att = load_tensor(path, axes, name=name, kind=kind, heads_per_layer=heads_per_layer)
    check_future_keys(att)  # before anything is written
    return TensorSource([att], [path.name], path.name)
