"""Runs from models: any transformer with a text or images, and the bundled networks with their samples."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from headtree._files import checked_path, exists
from headtree.errors import InvalidTypeError, InvalidValueError
from headtree.models import facts
from headtree.models.bundled import vit
from headtree.models.bundled.bundle import NAMES, BundledNetwork, load_bundled
from headtree.models.view import ModelView
from headtree.models.watching.collect import PreparedInputs
from headtree.models.watching.memory import check_memory
from headtree.tensor.attention_tensor import AttentionTensor, Kind

#: Default number of tokens per input, if the model's context is not shorter.
TOKENS = 256
#: Characters read per token: more than long words need, far fewer than a whole corpus.
_CHARACTERS = 32
_PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".tif", ".tiff")
_THUMBNAIL = 96


@dataclass(frozen=True, eq=False)
class ModelCapture:
    """A loaded model with its inputs."""

    model: Mapping[str, Any]
    inputs: tuple[Mapping[str, Any], ...]
    prepared: PreparedInputs
    pictures: Sequence[Any] | None = None  #: files, or arrays (channel, row, column)

    def to_run_again(self) -> dict[str, Any]:
        """The view of the model, and the keyword arguments of its forward method for each input."""
        return {"model": self.prepared.view, "inputs": [dict(item.kwargs) for item in self.prepared.items]}

    def tensor(self, i: int) -> AttentionTensor:
        """Run the model on one input alone: in a batch, rounding would depend on the other inputs."""
        alone = replace(self.prepared, items=(self.prepared.items[i],), batch_size=1)
        check_memory(alone.estimate(), None, 1, alone.advice())
        return alone.run()[0]

    def sample(self, i: int) -> bytes | None:
        """A PNG of the image, at most 96 pixels wide and high; None if inputs are not images."""
        return None if self.pictures is None else _thumbnail(self.pictures[i])


@dataclass(frozen=True, kw_only=True)
class ModelSource:
    """A model by name or folder, or a bundled network, with a text file or a folder of images.

    Parameters
    ----------
    model : str
        A hub id, a folder, or ``txl`` or ``vit``.
    text : path, optional
        A text file, cut into inputs of `tokens` tokens. Needed unless `images` is given or the network is bundled.
    images : path, optional
        A folder of images, used in alphabetical order.
    batches : int
        Number of inputs; fewer if the text or folder has fewer.
    tokens : int, optional
        Tokens per input; by default 256, or the model's context or the whole text if that is shorter.
    """

    model: str
    text: Path | None = None
    images: Path | None = None
    batches: int = 10
    tokens: int | None = None
    kind: Kind = "scores"
    part: str | None = None
    revision: str | None = None
    trust_remote_code: bool = False

    def __post_init__(self) -> None:
        if self.text is not None and self.images is not None:
            raise InvalidTypeError("give either a text or images, not both: a run has one kind of input")
        if self.text is None and self.images is None and not self.is_bundled:
            raise InvalidTypeError(
                f"inputs for {self.model!r} are missing: name a text file with --text or a folder with --images"
            )
        for name, value in (("batches", self.batches), ("tokens", self.tokens)):
            if value is not None and value < 1:
                raise InvalidValueError(f"{name} must be at least 1, got {value}")
        if self.kind not in get_args(Kind):
            raise InvalidValueError(f"kind must be one of {', '.join(get_args(Kind))}, got {self.kind!r}")

    @property
    def is_bundled(self) -> bool:
        """Whether the model is bundled with headtree; a folder of the same name takes precedence."""
        return self.model in NAMES and not Path(self.model).is_dir()

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The model, the hashes of the inputs, and how the inputs are cut."""
        folder = Path(self.model).expanduser()
        return {
            "model": os.path.normpath(self.model) if folder.is_dir() else self.model,
            "fingerprint": _fingerprint(folder) if folder.is_dir() and not self.is_bundled else None,
            "part": self.part,
            "revision": self.revision,
            "trust_remote_code": self.trust_remote_code,
            "batches": self.batches,
            "tokens": self.tokens,
            **self._input_settings(),
        }

    def _input_settings(self) -> dict[str, Any]:
        if self.text is not None:
            return {"type": "text", "file": self.text.name, "sha256": _file_hash(self.text)}
        if self.images is not None:
            files = image_files(self.images)[: self.batches]
            return {"type": "images", "files": {path.name: _file_hash(path) for path in files}}
        return {"type": "samples"}

    def begin(self) -> ModelCapture:
        """Load the model and cut the inputs."""
        if self.is_bundled:
            network = load_bundled(self.model)
            if self.text is None and self.images is None:
                return self._of_samples(network)
            processor = _BundledProcessor(network)
            return self._of_files(ModelView(network.model, tokenizer=network.tokenizer, processor=processor))
        return self._of_files(
            ModelView(self.model, revision=self.revision, trust_remote_code=self.trust_remote_code)
        )

    def _of_files(self, view: ModelView) -> ModelCapture:
        if self.images is not None:
            paths = image_files(self.images)[: self.batches]
            prepared = view.prepare(images=list(map(str, paths)), kind=self.kind, part=self.part)
            names = [path.name for path in paths]
            return self._ready(prepared, names, [_file_hash(path) for path in paths], paths)
        if self.is_bundled and self.model == "vit":
            raise InvalidValueError(f"{self.model!r} reads images; name a folder of them with --images")
        prepared = self._windows(view)
        hashes = [_tensor_hash(item.kwargs) for item in prepared.items]
        return self._ready(prepared, [f"window {i}" for i in range(len(prepared.items))], hashes, None)

    def _windows(self, view: ModelView) -> PreparedInputs:
        """Cut the text into inputs; only as much of a long text is tokenized as is needed."""
        options: dict[str, Any] = {"kind": self.kind, "part": self.part}
        tokenizer = view.tokenizer  # raises before the weights are loaded if there is none
        limit = facts.context_length(facts.select_tower(view.model, "texts"))
        tokens = self.tokens or min(TOKENS, limit or TOKENS)
        text = _read_text(self.text or Path())
        head = _cut(text, self.batches * tokens * _CHARACTERS)
        if self.tokens is None and len(tokenizer(head, verbose=False)["input_ids"]) < tokens:
            return view.prepare(texts=[text], **options)  # one short input
        prepared = view.prepare(texts=[head], tokens=tokens, **options)
        if len(prepared.items) < self.batches and len(head) < len(text):
            prepared = view.prepare(texts=[text], tokens=tokens, **options)
        return replace(prepared, items=prepared.items[: self.batches])

    def _of_samples(self, network: BundledNetwork) -> ModelCapture:
        inputs = list(network.inputs[: self.batches])
        view = ModelView(network.model, tokenizer=network.tokenizer)
        prepared = view.prepare(inputs=inputs, kind=self.kind, part=self.part)
        names = [f"passage {i}" for i in range(len(inputs))]
        if network.labels is not None and network.classes is not None:
            names = [network.classes[label] for label in network.labels.tolist()]
        pictures = None if network.images is None else [image.numpy() for image in network.images]
        return self._ready(prepared, names[: len(inputs)], [_tensor_hash(item) for item in inputs], pictures)

    def _ready(
        self, prepared: PreparedInputs, names: Sequence[str], hashes: Sequence[str], pictures: Sequence[Any] | None
    ) -> ModelCapture:
        inputs = tuple({"name": n, "sha256": h} for n, h in zip(names, hashes, strict=True))
        return ModelCapture({**prepared.provenance, "model": self.model}, inputs, prepared, pictures)


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


def _fingerprint(folder: Path) -> str:
    """Hash a model folder by names, sizes and both ends of its files, without reading large weights in full."""
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.is_file() and path.suffix in (".json", ".safetensors", ".bin", ".txt", ".model"):
            size = path.stat().st_size
            digest.update(f"{path.name} {size}".encode())
            with path.open("rb") as file:
                digest.update(file.read(1 << 20))
                file.seek(max(0, size - (1 << 20)))
                digest.update(file.read())
    return digest.hexdigest()


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
