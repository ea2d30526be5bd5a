"""A loaded model with the inputs of a run, which can be sent to other processes."""

from __future__ import annotations

import io
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from headtree.errors import HeadtreeError, InvalidValueError
from headtree.measures.heads.from_model import ModelOfInputs
from headtree.models.functional_similarity import checked_places, kernels_of_input
from headtree.models.generation import written_items
from headtree.models.inputs import ModelInput
from headtree.models.watching.collect import PreparedInputs
from headtree.models.watching.memory import check_memory
from headtree.models.watching.select import select
from headtree.tensor.attention_tensor import AttentionTensor

if TYPE_CHECKING:
    from headtree.pipeline.model_source import ModelSource

_THUMBNAIL = 96


@dataclass(frozen=True, eq=False)
class ModelCapture:
    """A loaded model with its inputs."""

    model: Mapping[str, Any]
    inputs: tuple[Mapping[str, Any], ...]
    prepared: PreparedInputs
    pictures: Sequence[Any] | None = None  #: files, or arrays (channel, row, column)
    notes: tuple[str, ...] = ()  #: what the user should know about the inputs
    labels: Sequence[int] | None = None  #: true classes of the inputs, where they are known
    source: ModelSource | None = None  #: where further inputs come from
    origin: ModelSource | None = None  #: how the model was loaded, and can be elsewhere
    _found: dict[str, Any] = field(default_factory=dict, repr=False)  # what is found once for all inputs

    @cached_property
    def read(self) -> PreparedInputs:
        """The inputs as texts to read: what the model wrote is part of them."""
        if self.prepared.generate is None:
            return self.prepared
        return replace(self.prepared, items=tuple(written_items(self.prepared)), generate=None)

    def batches(self) -> list[list[int]]:
        """Inputs that go through the model together: each alone, unless a batch size was given.

        By default inputs run alone: in a batch, rounding would depend on the other inputs.
        """
        return replace(self.prepared, batch_size=self.prepared.batch_size or 1).batches()

    def only(self, numbers: Sequence[int]) -> ModelCapture:
        """The model with some of the inputs; what was found out about the model is shared."""
        self._found.setdefault("first", self.prepared.items[0])
        return replace(
            self,
            inputs=tuple(self.inputs[i] for i in numbers),
            prepared=replace(self.prepared, items=tuple(self.prepared.items[i] for i in numbers)),
            pictures=None,
            labels=None,
        )

    def tensors(self) -> list[AttentionTensor]:
        """Run the model on all inputs at once."""
        together = replace(self.prepared, batch_size=len(self.prepared.items))
        check_memory(together.estimate(), None, len(self.prepared.items), together.advice())
        name = self._found.get("name")
        return [
            att if name is None else replace(att, provenance={**att.provenance, "model": name})
            for att in together.run()
        ]

    def to_diagnose(self) -> ModelOfInputs:
        """The model and the inputs for diagnostics."""
        found: ModelOfInputs = self._once("diagnosis", self._diagnosis)
        return replace(found, prepared=replace(found.prepared, items=self.read.items))

    def _diagnosis(self) -> ModelOfInputs:
        layers = None
        try:
            self.whole()
        except InvalidValueError:  # layers of unequal shapes, of which only some can be measured together
            layers = sorted({head.layer for head in self.prepared.selection.head_ids()})
        first = self._found.get("first", self.read.items[0])
        prepared = self.prepared.view.prepare(
            inputs=[dict(first.kwargs)], kind="probs", part=self.prepared.part, layers=layers
        )
        return ModelOfInputs.of(prepared)

    def _once(self, name: str, find: Callable[[], Any]) -> Any:
        if name not in self._found:
            self._found[name] = find()
        return self._found[name]

    def __reduce__(self) -> tuple[Any, ...]:
        """Send the inputs, and how to load the model: it is read from its files where the capture arrives."""
        first = self._found.get("first", self.prepared.items[0])
        name = self.prepared.view.provenance["model"]
        return _arrived, (self.origin, first, self.prepared.items, self.inputs, dict(self.model), name)

    def for_effects(self) -> dict[str, Any]:
        """Arguments of `head_effects`: the inputs of the run, then further ones, on which no head is ablated."""
        prepared = self.read
        items = prepared.items if self.source is None else self.source.further(prepared)
        return {
            "model": prepared.view,
            "inputs": [dict(item.kwargs) for item in items],
            "n_ablated": len(prepared.items),
            "labels": self.labels,
            "part": prepared.part,
            "heads": [tuple(head) for head in prepared.selection.head_ids()],
            "batch_size": prepared.batch_size,
        }

    def functional_kernels(self) -> list[Float[np.ndarray, "2 head head"]]:
        """How alike the attention and the values of heads are on each input."""
        prepared = replace(self.read, kind="probs", window=(slice(None), slice(None)))
        with prepared.view.ready():
            places = self._once("places", partial(checked_places, prepared))
            return [kernels_of_input(prepared, item, places) for item in prepared.items]

    def whole(self) -> PreparedInputs:
        """The inputs with all layers and heads of the model selected."""
        return replace(self.read, selection=select(self.prepared.plan, self.prepared.part, None, None))

    def sample(self, i: int) -> bytes | None:
        """A PNG of the image, at most 96 pixels wide and high; None if inputs are not images."""
        return None if self.pictures is None else _thumbnail(self.pictures[i])


def _arrived(
    origin: ModelSource,
    first: ModelInput,
    items: tuple[ModelInput, ...],
    inputs: tuple[Mapping[str, Any], ...],
    model: Mapping[str, Any],
    name: str,
) -> ModelCapture:
    """A capture that was sent to this process; its model is loaded once for all that arrive."""
    loaded = [getattr(origin, option) for option in _LOADS]
    key = f"{loaded} {origin.modality} {model['weights_sha256']} {first.layout()}"
    if key not in _LOADED:
        _LOADED.clear()  # before another model is loaded
        found = {"first": first, "name": name}
        _LOADED[key] = ModelCapture(model, (), _loaded_here(origin, first, model), origin=origin, _found=found)
    ready = _LOADED[key]
    return replace(ready, inputs=inputs, prepared=replace(ready.prepared, items=items))


#: What of a source decides how its model is loaded, and which heads are looked at.
_LOADS = (
    "model",
    "revision",
    "trust_remote_code",
    "device",
    "dtype",
    "kind",
    "part",
    "layers",
    "heads",
    "batch_size",
    "generate",
)

#: The model of the captures that arrived last, by its source.
_LOADED: dict[str, ModelCapture] = {}


def _loaded_here(origin: ModelSource, first: ModelInput, model: Mapping[str, Any]) -> PreparedInputs:
    where = platform.node()
    try:
        prepared = origin.prepared(origin.view(), first)
    except (HeadtreeError, OSError) as error:
        raise InvalidValueError(
            f"the worker on {where} cannot load the model: {error}; a model must be readable on every worker under "
            "the name given here, so use a hub id, or copy its folder to the same path on each machine"
        ) from error
    if prepared.provenance["weights_sha256"] != model["weights_sha256"]:
        raise InvalidValueError(
            f"the worker on {where} has another model under the name {origin.model!r}: its weights differ; copy "
            "the same files to each machine"
        )
    return prepared


def _thumbnail(picture: Any) -> bytes:
    from PIL import Image

    if isinstance(picture, Path):
        with Image.open(picture) as opened:
            image = opened.convert("RGB")
    else:
        image = Image.fromarray(np.asarray(picture).transpose(1, 2, 0))
    image.thumbnail((_THUMBNAIL, _THUMBNAIL))
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    return buffer.getvalue()
