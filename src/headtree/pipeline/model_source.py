"""Runs from models: any transformer with a text or images, and the bundled networks with their samples."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from headtree._checks import checked_device
from headtree._files import checked_path, exists, is_model_folder
from headtree.errors import HeadtreeWarning, InvalidTypeError, InvalidValueError
from headtree.models import facts
from headtree.models.bundled import vit
from headtree.models.bundled.bundle import NAMES, BundledNetwork, load_bundled
from headtree.models.inputs import ModelInput
from headtree.models.model_dtype import checked_model_dtype
from headtree.models.model_files import is_gguf
from headtree.models.view import ModelView
from headtree.models.watching.collect import PreparedInputs
from headtree.pipeline.model_capture import ModelCapture
from headtree.tensor.attention_tensor import CapturedKind, HeadId

#: Default number of inputs.
INPUTS = 20
#: Default number of tokens per input, if the model's context is not shorter.
TOKENS = 64
#: Characters read per token: more than long words need, far fewer than a whole corpus.
_CHARACTERS = 32
_PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".tif", ".tiff")
#: Effects of heads use up to so many times the inputs of the run for their first-order terms.
_TIMES_MORE = 10


@dataclass(frozen=True, kw_only=True)
class ModelSource:
    """A model by name or folder, or a bundled network, with a text file or a folder of images.

    Parameters
    ----------
    model : str
        A hub id, a folder, or ``txl`` or ``vit``.
    text : path, optional
        A text file, cut into inputs of `tokens` tokens. Needed unless `images` is given or the network is bundled,
        which then reads its own samples.
    images : path, optional
        A folder of images, used in alphabetical order.
    prompts : sequence of str
        Texts themselves, one input each.
    generate : int, optional
        Number of tokens that the model writes after each prompt, whose attention is captured then.
    inputs : int
        Number of inputs; fewer if the text, folder or samples are fewer.
    tokens : int, optional
        Tokens per input of text; by default 64, or the model's context or the whole text if that is shorter.
    kind, part, layers, heads
        Which attention to capture, as in `headtree.capture`.
    batch_size : int, optional
        Number of inputs that go through the model together. By default each input goes alone in a capture, so that
        its values do not depend on the other inputs; other measures choose it from the length of the inputs.
    device : str, optional
        Where the model runs.
    dtype : str, optional
        Type of number that the model computes in, as `model_dtype` of `headtree.ModelView`.
    revision, trust_remote_code
        As in `headtree.ModelView`. The revisions of a bundled network are its stages of training.
    usual_tokens : int
        Tokens per input if `tokens` is not given and neither the model's context nor the text is shorter.
    """

    model: str
    text: Path | None = None
    images: Path | None = None
    prompts: Sequence[str] = ()
    generate: int | None = None
    inputs: int = INPUTS
    tokens: int | None = None
    kind: CapturedKind = "scores"
    part: str | None = None
    layers: Sequence[int] | None = None
    heads: Sequence[int] | Sequence[tuple[int, int]] | None = None
    batch_size: int | None = None
    device: str | None = None
    dtype: str | None = None
    revision: str | None = None
    trust_remote_code: bool = False
    usual_tokens: int = TOKENS

    def __post_init__(self) -> None:
        n_kinds = sum([self.text is not None, self.images is not None, bool(self.prompts)])
        if n_kinds > 1:
            raise InvalidTypeError(
                "give either a text, images or prompts, not several of them: a run has one kind of input"
            )
        if not n_kinds and not self.is_bundled:
            raise InvalidTypeError(
                f"inputs for {self.model!r} are missing: name a text file with --text or a folder with --images, "
                "or give a text itself with --prompt"
            )
        if self.generate is not None and not self.prompts:
            raise InvalidTypeError("generate needs a text to go on from; give one with --prompt")
        if self.tokens is not None and self.prompts:
            raise InvalidTypeError("tokens cut a text file into inputs; leave --tokens out with --prompt")
        for name in ("inputs", "tokens", "batch_size", "generate"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidValueError(f"{name} must be at least 1, got {value}")
        if self.kind not in get_args(CapturedKind):
            raise InvalidValueError(f"kind must be one of {', '.join(get_args(CapturedKind))}, got {self.kind!r}")
        checked_device(self.device)
        checked_model_dtype(self.dtype, "dtype")

    @property
    def is_bundled(self) -> bool:
        """Whether the model is bundled with headtree; a model's folder of the same name takes precedence."""
        return self.model in NAMES and not is_model_folder(self.model)

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The model, the hashes of the inputs, and how the inputs are cut."""
        path = Path(self.model).expanduser()
        is_local = not self.is_bundled and (path.is_dir() or is_gguf(path))
        return {
            "model": os.path.normpath(self.model) if is_local else self.model,
            "fingerprint": _fingerprint(path) if is_local else None,
            "part": self.part,
            "layers": None if self.layers is None else list(self.layers),
            "heads": None if self.heads is None else [_head_name(head) for head in self.heads],
            "batch_size": self.batch_size,
            "device": self.device,
            "dtype": self.dtype,
            "revision": self.revision,
            "trust_remote_code": self.trust_remote_code,
            "inputs": self.inputs,
            "tokens": self.tokens,
            **self._input_settings(),
        }

    def _input_settings(self) -> dict[str, Any]:
        if self.text is not None:
            return {"type": "text", "file": self.text.name, "sha256": _file_hash(self.text)}
        if self.images is not None:
            files = image_files(self.images)[: self.inputs]
            return {"type": "images", "files": {path.name: _file_hash(path) for path in files}}
        if self.prompts:
            return {"type": "prompts", "prompts": list(self.prompts), "generate": self.generate}
        return {"type": "samples"}

    def begin(self) -> ModelCapture:
        """Load the model and cut the inputs."""
        ready = self._begin()
        for note in ready.notes:
            warnings.warn(note, HeadtreeWarning, stacklevel=2)
        return ready

    def _begin(self) -> ModelCapture:
        if not self.is_bundled:
            return self._of_files(self.view())
        network = self._network()
        view = self._view_of(network)
        return self._of_files(view) if self.modality != "inputs" else self._of_samples(network, view)

    @property
    def modality(self) -> str:
        """What the model reads: texts, images, or inputs that are its own arguments."""
        if self.text is not None or self.prompts:
            return "texts"
        return "images" if self.images is not None else "inputs"

    def view(self) -> ModelView:
        """The model, loaded when first needed."""
        if self.is_bundled:
            return self._view_of(self._network())
        return ModelView(
            self.model,
            revision=self.revision,
            trust_remote_code=self.trust_remote_code,
            device=self.device,
            model_dtype=self.dtype,
        )

    def _network(self) -> BundledNetwork:
        network = load_bundled(self.model, self.revision or "trained")
        network.model.to(device=checked_device(self.device), dtype=checked_model_dtype(self.dtype))
        return network

    def _view_of(self, network: BundledNetwork) -> ModelView:
        return ModelView(network.model, tokenizer=network.tokenizer, processor=_BundledProcessor(network))

    def prepared(self, view: ModelView, first: ModelInput) -> PreparedInputs:
        """The heads of the source, found in a view on one prepared input."""
        with_head = view if self.generate is None else view.headed
        found = with_head.for_modality(self.modality).prepare(inputs=[dict(first.kwargs)], **self._options)
        return replace(found, generate=self.generate)

    @property
    def _options(self) -> dict[str, Any]:
        """Options of `ModelView.prepare`."""
        names = ("kind", "part", "layers", "heads", "batch_size")
        return {name: getattr(self, name) for name in names}

    def _of_files(self, view: ModelView) -> ModelCapture:
        if self.images is not None:
            paths = image_files(self.images)[: self.inputs]
            prepared = view.prepare(images=list(map(str, paths)), **self._options)
            names = [path.name for path in paths]
            note = self._note(len(paths), f"{self.images} has no more images")
            return self._ready(prepared, names, [_file_hash(path) for path in paths], [note], paths)
        if self.is_bundled and self.model == "vit":
            raise InvalidValueError(f"{self.model!r} reads images; name a folder of them with --images")
        if self.prompts:
            prepared = view.prepare(texts=list(self.prompts), generate=self.generate, **self._options)
            hashes = [_tensor_hash(item.kwargs) for item in prepared.items]
            return self._ready(prepared, [f"prompt {i}" for i in range(len(hashes))], hashes, [])
        prepared, note = self._windows(view)
        hashes = [_tensor_hash(item.kwargs) for item in prepared.items]
        return self._ready(prepared, [f"window {i}" for i in range(len(prepared.items))], hashes, [note])

    def _windows(self, view: ModelView) -> tuple[PreparedInputs, str]:
        """Cut the text into inputs; only as much of a long text is tokenized as is needed."""
        file = self.text or Path()
        tokenizer = view.tokenizer  # raises before the weights are loaded if there is none
        limit = facts.context_length(facts.select_tower(view.model, "texts"))
        tokens = self.tokens or min(self.usual_tokens, limit or self.usual_tokens)
        text = _read_text(file)
        head = _cut(text, self.inputs * tokens * _CHARACTERS)
        if self.tokens is None and len(tokenizer(head, verbose=False)["input_ids"]) < tokens:
            prepared = view.prepare(texts=[text], **self._options)
            length = prepared.items[0].length()
            return prepared, f"1 input of {length} tokens instead of {tokens}: {file.name} has no more"
        prepared = view.prepare(texts=[head], tokens=tokens, **self._options)
        if len(prepared.items) < self.inputs and len(head) < len(text):
            prepared = view.prepare(texts=[text], tokens=tokens, **self._options)
        prepared = replace(prepared, items=prepared.items[: self.inputs])
        return prepared, self._note(len(prepared.items), f"{file.name} is too short for more of {tokens} tokens")

    def further(self, prepared: PreparedInputs) -> tuple[ModelInput, ...]:
        """The inputs of a run, and more of the same text or folder: at most ten times as many in all."""
        more = replace(self, inputs=_TIMES_MORE * len(prepared.items))
        if self.text is not None and len(prepared.items) == self.inputs:
            return more._windows(prepared.view)[0].items
        if self.images is not None:
            paths = image_files(self.images)[: more.inputs]
            return prepared.view.prepare(images=list(map(str, paths)), **self._options).items
        return prepared.items

    def _note(self, n: int, reason: str) -> str:
        """A note if there are fewer inputs than asked for; empty if there are enough."""
        return "" if n == self.inputs else f"{n} input{'s' * (n > 1)} instead of {self.inputs}: {reason}"

    def _of_samples(self, network: BundledNetwork, view: ModelView) -> ModelCapture:
        inputs, short = self._cut_samples(network)
        number = next(network.model.parameters())
        arguments = [
            {name: value.to(number.dtype) if value.is_floating_point() else value for name, value in item.items()}
            for item in inputs
        ]
        prepared = view.prepare(inputs=arguments, **self._options)
        names = [f"passage {i}" for i in range(len(inputs))]
        if network.labels is not None and network.classes is not None:
            names = [network.classes[label] for label in network.labels.tolist()]
        pictures = None if network.images is None else [image.numpy() for image in network.images]
        notes = [self._note(len(inputs), f"{self.model} has no more samples"), short]
        hashes = [_tensor_hash(item) for item in inputs]
        ready = self._ready(prepared, names[: len(inputs)], hashes, notes, pictures)
        labels = None if network.labels is None else network.labels[: len(inputs)].tolist()
        return replace(ready, labels=labels, source=None)

    def _cut_samples(self, network: BundledNetwork) -> tuple[list[Mapping[str, Tensor]], str]:
        """The first samples, passages cut to `tokens` words; and a note if they have fewer."""
        chosen = list(network.inputs[: self.inputs])
        if network.tokens is None:
            return chosen, ""
        tokens, length = self.tokens or self.usual_tokens, len(network.tokens[0])
        cut: list[Mapping[str, Tensor]] = [{name: ids[:, :tokens] for name, ids in item.items()} for item in chosen]
        short = f"{length} tokens per input instead of {tokens}: the samples of {self.model} have no more"
        return cut, short if length < tokens else ""

    def _ready(
        self,
        prepared: PreparedInputs,
        names: Sequence[str],
        hashes: Sequence[str],
        notes: Sequence[str],
        pictures: Sequence[Any] | None = None,
    ) -> ModelCapture:
        inputs = tuple({"name": n, "sha256": h} for n, h in zip(names, hashes, strict=True))
        model = {**prepared.provenance, "model": self.model}
        notes = tuple(filter(None, notes))
        return ModelCapture(model, inputs, prepared, pictures, notes, source=self, origin=self)


class _BundledProcessor:
    """Resizes any image first to the size of the ViT's training images, then to its input size."""

    def __init__(self, network: BundledNetwork) -> None:
        self._network = network

    def __call__(self, images: Any, **_: Any) -> dict[str, Tensor]:
        if self._network.images is None:
            raise InvalidValueError(f"{self._network.name!r} reads text; name a file with --text")
        side = int(self._network.images.shape[-1])
        pixels = np.asarray(images.convert("RGB").resize((side, side))).transpose(2, 0, 1)
        size = int(self._network.inputs[0]["pixel_values"].shape[-1])
        return {"pixel_values": vit.pixel_values(torch.from_numpy(pixels.copy())[None], size)}


def image_files(folder: Path) -> list[Path]:
    """The images of a folder in alphabetical order."""
    if not checked_path(folder).is_dir():
        raise InvalidValueError(
            f"images must name a folder of images, but {folder} is not a folder; check the path"
        )
    files = sorted(path for path in folder.iterdir() if path.suffix.lower() in _PICTURES and path.is_file())
    if not files:
        raise InvalidValueError(f"the folder {folder} holds no images; image files end in {', '.join(_PICTURES)}")
    return files


def _read_text(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InvalidValueError(
            f"text must be a file in UTF-8, but {path} is not ({error.reason} at byte {error.start}); convert "
            "it first"
        ) from error
    except OSError as error:
        raise _unreadable(path, error) from error
    if not text.strip():
        raise InvalidValueError(f"the text {path} is empty; name a file with words in it")
    return text


def _cut(text: str, n: int) -> str:
    """The first n characters and the rest of the word."""
    if len(text) <= n:
        return text
    while n < len(text) and not text[n].isspace():
        n += 1
    return text[:n]


def _unreadable(path: Path, error: OSError) -> InvalidValueError:
    return InvalidValueError(
        f"{path} cannot be read ({error.strerror or error}); check the path and its permissions"
    )


def _file_hash(path: Path) -> str:
    if not exists(checked_path(path)):
        raise InvalidValueError(f"{path} does not exist; check the path")
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise _unreadable(path, error) from error


def _tensor_hash(values: Mapping[str, Any]) -> str:
    digest = hashlib.sha256()
    for name, value in sorted(values.items()):
        if isinstance(value, Tensor):
            digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
            digest.update(np.ascontiguousarray(value.numpy()).tobytes())
    return digest.hexdigest()


def _head_name(head: Any) -> Any:
    """A head as it is stored in run.json: its name, or its number in every layer."""
    return str(HeadId(*head)) if isinstance(head, tuple) else int(head)


def _fingerprint(model: Path) -> str:
    """Hash a model's files by names, sizes and both ends of each, without reading large weights in full."""
    digest = hashlib.sha256()
    suffixes = (".json", ".safetensors", ".bin", ".txt", ".model")
    inside = [path for path in sorted(model.iterdir()) if path.suffix in suffixes] if model.is_dir() else [model]
    for path in filter(Path.is_file, inside):
        size = path.stat().st_size
        digest.update(f"{path.name} {size}".encode())
        with path.open("rb") as file:
            digest.update(file.read(1 << 20))
            file.seek(max(0, size - (1 << 20)))
            digest.update(file.read())
    return digest.hexdigest()
