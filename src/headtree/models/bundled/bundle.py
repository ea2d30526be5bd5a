"""Load the bundled networks offline: trained weights, sample inputs and a card on how they were trained."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from jaxtyping import Int, UInt8
from torch import Tensor, nn

from headtree._extras import require
from headtree._files import checked_path
from headtree.errors import HeadtreeError, InvalidValueError
from headtree.models.bundled import vit
from headtree.models.bundled.initial_weights import draw_vit_weights, draw_weights
from headtree.models.bundled.transformer_xl import TransformerXL, TransformerXLConfig
from headtree.models.bundled.word_tokenizer import WordTokenizer

NAMES = ("txl", "vit")
STAGES = ("initial", "early", "middle", "late", "trained")
#: Number of sample inputs of each network.
N_SAMPLES = 40
#: Number of words in each sample passage of txl.
N_WORDS = 256


def networks_folder() -> Path:
    """The folder of the package headtree-networks, with the trained weights and sample inputs."""
    require("demo", "a bundled network")
    import headtree_networks

    folder: Path = headtree_networks.FOLDER
    return folder


class MissingBundleError(HeadtreeError, FileNotFoundError):
    """Files of a bundled network are missing."""


@dataclass(frozen=True, eq=False)
class BundledNetwork:
    """A small network of the paper's shape, with 40 inputs that were not in its training data.

    Examples
    --------
    >>> import headtree as ht
    >>> network = ht.load_bundled("txl")
    >>> network
    BundledNetwork('txl', trained, 40 inputs)
    >>> network.tokens[0][:4]  # the first words of the first passage
    ('=', 'Robert', '<unk>', '=')
    >>> atts = ht.capture(network.model, inputs=network.inputs[:1], tokenizer=network.tokenizer, layers=[0])
    >>> atts[0].shape
    (8, 256, 256)
    """

    name: str
    stage: str  #: "trained", or an earlier stage of training
    model: nn.Module  #: in evaluation mode, float32
    inputs: tuple[Mapping[str, Tensor], ...]  #: arguments of the model's forward, each a batch of one
    card: Mapping[str, Any]  #: how it was trained and how well it performs
    tokens: tuple[tuple[str, ...], ...] | None = None  #: txl: the words of each passage
    tokenizer: WordTokenizer | None = None  #: txl
    images: UInt8[Tensor, "image 3 row column"] | None = None  #: vit: the original CIFAR-10 images
    labels: Int[Tensor, " image"] | None = None  #: vit: true classes
    classes: tuple[str, ...] | None = None  #: vit: names of the classes

    def __repr__(self) -> str:
        return f"BundledNetwork({self.name!r}, {self.stage}, {len(self.inputs)} inputs)"


def load_bundled(name: str, stage: str = "trained", *, folder: str | PathLike[str] | None = None) -> BundledNetwork:
    """Load a small trained network to try headtree on; needs no connection to the internet.

    Parameters
    ----------
    name : {"txl", "vit"}
        The Transformer-XL trained on WikiText-2, 16 layers × 8 heads; or the ViT trained on CIFAR-10, 12 × 12.
    stage : {"trained", "late", "middle", "early", "initial"}
        The fully trained network, or the network after 40, 10, 2 and 0 % of its training (the first three with
        8-bit weights).
    folder : path, optional
        Folder of the bundles; by default that of the package headtree-networks.

    Examples
    --------
    >>> import headtree as ht
    >>> network = ht.load_bundled("vit")
    >>> len(network.inputs), network.inputs[0]["pixel_values"].shape
    (40, torch.Size([1, 3, 224, 224]))
    >>> [network.classes[label] for label in network.labels[:3]]
    ['airplane', 'automobile', 'bird']
    >>> ht.load_bundled("vit", "initial")  # the same network before training
    BundledNetwork('vit', initial, 40 inputs)
    """
    if not isinstance(name, str) or name not in NAMES:
        raise InvalidValueError(f"name must be one of {', '.join(map(repr, NAMES))}, got {name!r}")
    if not isinstance(stage, str) or stage not in STAGES:
        raise InvalidValueError(f"stage must be one of {', '.join(map(repr, STAGES))}, got {stage!r}")
    home = (networks_folder() if folder is None else checked_path(folder)) / name
    card = _read_json(home / "card.json")
    config = _read_json(home / "config.json")
    model = _with_weights(home, config, stage, int(card["settings"]["seed"]))
    samples = _read_tensors(home / "samples.safetensors")
    if name == "txl":
        tokenizer = WordTokenizer(tuple(_read_text(home / "vocabulary.txt").removesuffix("\n").split("\n")))
        passages = samples["tokens"].long()
        return BundledNetwork(
            name,
            stage,
            model,
            inputs=tuple({"input_ids": passage[None]} for passage in passages),
            card=MappingProxyType(card),
            tokens=tuple(tuple(tokenizer.convert_ids_to_tokens(passage.tolist())) for passage in passages),
            tokenizer=tokenizer,
        )
    pixels = vit.pixel_values(samples["images"], config["image_size"])
    return BundledNetwork(
        name,
        stage,
        model,
        inputs=tuple({"pixel_values": image[None]} for image in pixels),
        card=MappingProxyType(card),
        images=samples["images"],
        labels=samples["labels"].long(),
        classes=tuple(card["classes"]),
    )


def build(config: Mapping[str, Any]) -> nn.Module:
    """Build a network from the configuration in its files; the weights are not set yet."""
    if config["model_type"] == TransformerXLConfig.model_type:
        return TransformerXL(TransformerXLConfig.from_dict(config))
    sizes = {key: value for key, value in config.items() if key not in ("model_type", "num_labels")}
    return vit.make_vit(sizes, config["num_labels"])


def _with_weights(home: Path, config: Mapping[str, Any], stage: str, seed: int) -> nn.Module:
    if stage == "initial":
        model = build(config)
        draw = draw_weights if config["model_type"] == TransformerXLConfig.model_type else draw_vit_weights
        draw(model, seed)
        return model.eval()
    with torch.device("meta"):  # do not draw random weights that are replaced anyway
        model = build(config)
    name = "weights" if stage == "trained" else stage
    weights = unpacked(_read_tensors(home / f"{name}.safetensors"))
    own_names = {vit.lasting_name(own): own for own in model.state_dict()}
    model.load_state_dict({own_names.get(key, key): value for key, value in weights.items()}, assign=True)
    return model.eval()


def packed(weights: Mapping[str, Tensor], n_bits: int) -> dict[str, Tensor]:
    """Compress weights for a file: to half precision, or to 8 bits with a scale for every row of a matrix."""
    if n_bits == 16:
        return {name: value.half().contiguous() for name, value in weights.items()}
    result = {}
    for name, value in weights.items():
        if value.ndim < 2:
            result[name] = value.half()
            continue
        scale = value.float().flatten(1).abs().amax(dim=1).clamp(min=1e-12) / 127
        shape = (-1,) + (1,) * (value.ndim - 1)
        result[name] = (value.float() / scale.reshape(shape)).round().to(torch.int8)
        result[f"{name}:scale"] = scale
    return result


def unpacked(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Float32 weights from the result of `packed`."""
    result = {}
    for name, value in tensors.items():
        if name.endswith(":scale"):
            continue
        scale = tensors.get(f"{name}:scale")
        # numpy: many small conversions in torch are slow while other programs occupy its threads
        full = torch.from_numpy(value.numpy().astype(np.float32))
        result[name] = full if scale is None else full * scale.reshape((-1,) + (1,) * (value.ndim - 1))
    return result


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise MissingBundleError(
            f"{path} of the bundled network cannot be read ({error}); install 'headtree[demo]' again, or train a "
            "network with `headtree train`, pack it with headtree.study.training.make_bundle and pass its folder"
        ) from error


def _read_json(path: Path) -> dict[str, Any]:
    return json.loads(_read_text(path))  # type: ignore[no-any-return]


def _read_tensors(path: Path) -> dict[str, Tensor]:
    require("models", "a bundled network", "safetensors")
    from safetensors.torch import load_file

    if not path.is_file():
        raise MissingBundleError(f"{path} of the bundled network is missing; install 'headtree[demo]' again")
    tensors: dict[str, Tensor] = load_file(path)
    return tensors
