"""What each network learns: its batches, its loss, and how well it does on data it has not seen."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from headtree.errors import InvalidValueError
from headtree.models.bundled import vit
from headtree.models.bundled.initial_weights import draw_vit_weights, draw_weights
from headtree.models.bundled.transformer_xl import TransformerXL, TransformerXLConfig
from headtree.study.training.datasets import ImageData, TextData
from headtree.study.training.training_config import Training

#: Logits that are held at once while the loss of text is computed.
_LOGITS_AT_ONCE = 2**29

#: Validation runs in this many streams side by side.
_STREAMS = 32


class TrainingTask(Protocol):
    """What the training loop needs to know."""

    can_be_recorded: bool  #: whether its loss and gradients may run as a CUDA graph

    @property
    def model(self) -> nn.Module:
        """What is trained."""

    def batch(self, step: int) -> dict[str, Tensor]:
        """What the step learns from; which data that is depends on the settings and the step alone."""

    @property
    def loss(self) -> Callable[..., tuple[Tensor, ...]]:
        """From what `batch` gave: the loss, then what `keep` takes."""

    @property
    def keep(self) -> Callable[..., None]:
        """Take over what a step leaves for the next."""

    def evaluate(self) -> dict[str, float]:
        """Validation, the loss first."""

    def test(self) -> dict[str, float]:
        """The same on the test part."""

    def probe(self) -> list[Mapping[str, Any]]:
        """One unseen input to capture the heads on."""

    def config(self) -> dict[str, Any]:
        """The network's configuration, for files."""

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint must hold beyond weights and optimizer."""

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Continue from there."""


class TextTask:
    """Predict the next word, segment after segment, in `batch` streams through the training text."""

    can_be_recorded = True

    def __init__(self, settings: Training, data: TextData, device: torch.device) -> None:
        self.settings, self.device = settings, device
        self.train, self.valid, self.test_text = (part.to(device) for part in (data.train, data.valid, data.test))
        self.n_segments = (len(self.train) // settings.batch - 1 - settings.context) // settings.context
        if self.n_segments < 1:
            raise InvalidValueError(
                f"data must hold at least {settings.batch * (2 * settings.context + 1)} words for a batch of "
                f"{settings.batch} segments of {settings.context}, got {len(self.train)}"
            )
        self.model: TransformerXL = TransformerXL(TransformerXLConfig(len(data.tokenizer), **settings.sizes))
        draw_weights(self.model, settings.seed)
        self.model.to(device)
        sizes = self.model.config
        self.memory = torch.zeros(settings.batch, sizes.n_layers, sizes.memory, sizes.width, device=device)

    def batch(self, step: int) -> dict[str, Tensor]:
        """Streams start anew at another word in every round through the text; memory goes on."""
        context, batch = self.settings.context, self.settings.batch
        around, segment = divmod(step, self.n_segments)
        offset = int(np.random.default_rng([self.settings.seed, 1, around]).integers(context))
        streams = self.train[: len(self.train) // batch * batch].view(batch, -1)
        start = offset + segment * context
        forgets = np.random.default_rng([self.settings.seed, 2, step]).random() < self.settings.forget
        return {
            "words": streams[:, start : start + context + 1],
            "memory": self.memory[:, :, :0] if forgets else self.memory,
        }

    def loss(
        self, words: Int[Tensor, "stream word"], memory: Float[Tensor, "stream layer place width"]
    ) -> tuple[Tensor, ...]:
        """Of every word but the first; then the memory for the next segment."""
        hidden, memory = self.model.hidden_states(words[:, :-1], memory)
        targets = words[:, 1:].flatten()
        return _text_loss(self.model, hidden.flatten(0, 1), targets) / targets.numel(), memory

    def keep(self, memory: Float[Tensor, "stream layer place width"]) -> None:
        """Add to the memory at its end."""
        n_kept = min(memory.shape[2], self.memory.shape[2])
        self.memory = torch.cat([self.memory, memory[:, :, memory.shape[2] - n_kept :]], dim=2)[:, :, n_kept:]

    def evaluate(self) -> dict[str, float]:
        """The validation text, in several streams."""
        return self._perplexity(self.valid, _STREAMS)

    def test(self) -> dict[str, float]:
        """The test text, in one stream from its start."""
        return self._perplexity(self.test_text, 1)

    @torch.no_grad()
    def _perplexity(self, text: Int[Tensor, " word"], n_streams: int) -> dict[str, float]:
        return {
            "loss": (loss := text_loss(self.model, text, self.settings.context, n_streams)),
            "perplexity": math.exp(min(loss, 50)),
        }

    def probe(self) -> list[Mapping[str, Any]]:
        """The first segment of the validation text."""
        return [{"input_ids": self.valid[None, : self.settings.context]}]

    def config(self) -> dict[str, Any]:
        """The Transformer-XL's sizes."""
        return self.model.config.to_dict()

    def tensors(self) -> dict[str, Tensor]:
        """The memory."""
        return {"memory": self.memory}

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Take the memory."""
        self.memory = tensors["memory"].to(self.device)


@torch.no_grad()
def text_loss(
    model: TransformerXL, text: Int[Tensor, " word"], context: int = 256, n_streams: int = 1, memory: bool = True
) -> float:
    """Mean loss over all words of a text but the first, read in segments; with memory from each to the next."""
    n_streams = max(1, min(n_streams, len(text) // (context + 1)))
    length = (len(text) - 1) // n_streams
    inputs, targets = (part[: n_streams * length].view(n_streams, length) for part in (text[:-1], text[1:]))
    total, state = 0.0, None
    for start in range(0, length, context):
        hidden, state = model.hidden_states(inputs[:, start : start + context], state if memory else None)
        words = targets[:, start : start + context]
        total += float(_text_loss(model, hidden.flatten(0, 1), words.flatten()))
    return total / (n_streams * length)


def _text_loss(
    model: TransformerXL, hidden: Float[Tensor, "word width"], targets: Int[Tensor, " word"]
) -> Float[Tensor, ""]:
    """Sum of the losses; where the logits would not fit, in pieces that are computed again for the gradient."""

    def piece(states: Tensor, words: Tensor) -> Tensor:
        return F.cross_entropy(model.logits(states), words, reduction="sum")

    size = max(1, _LOGITS_AT_ONCE // model.config.vocabulary)
    if len(hidden) <= size:
        return piece(hidden, targets)
    losses = [
        checkpoint(
            piece,
            hidden[start : start + size],
            targets[start : start + size],
            use_reentrant=False,
            preserve_rng_state=False,  # nothing random in there
        )
        for start in range(0, len(hidden), size)
    ]
    return torch.stack(losses).sum()


class ImageTask:
    """Name what an image shows."""

    can_be_recorded = False  # transformers asks whether a graph is being recorded, and then compiles again

    def __init__(self, settings: Training, data: ImageData, device: torch.device) -> None:
        self.settings, self.device, self.n_classes = settings, device, len(data.classes)
        self.images, self.labels = data.images.to(device), data.labels.to(device)
        self.test_images, self.test_labels = data.test_images.to(device), data.test_labels.to(device)
        if len(self.images) < settings.batch:
            raise InvalidValueError(f"data must hold at least a batch of {settings.batch}, got {len(self.images)}")
        if settings.pretrained:
            self.model = _pretrained_vit(settings.pretrained, self.n_classes)
        else:
            self.model = vit.make_vit(settings.sizes, self.n_classes)
            draw_vit_weights(self.model, settings.seed)
        self.model.to(device)
        self.size: int = self.model.config.image_size
        # on the device beforehand: a step waits for nothing that has to come from the processor
        self._one_hot = torch.eye(self.n_classes, device=device)
        self._order: tuple[int, Tensor] | None = None
        self._show = vit.show_some_tokens(self.model)

    def batch(self, step: int) -> dict[str, Tensor]:
        """Every round through the images takes them in another order."""
        settings = self.settings
        around, place = divmod(step, len(self.images) // settings.batch)
        if self._order is None or self._order[0] != around:
            order = np.random.default_rng([settings.seed, 1, around]).permutation(len(self.images))
            self._order = around, torch.as_tensor(order, device=self.device)
        chosen = self._order[1][place * settings.batch : (place + 1) * settings.batch]
        images, labels = self.images[chosen], self._one_hot[self.labels[chosen]]
        if settings.augment > 0:
            pixels = vit.augmented(images, self.size, settings.augment)
        else:
            pixels = vit.pixel_values(images, self.size)
        rng = np.random.default_rng([settings.seed, 2, step])
        if rng.random() < settings.mix:
            pixels, labels = vit.mixed(pixels, labels, rng)
        batch = {"pixels": pixels, "labels": labels}
        if settings.visible < 1 and step < settings.visible_until * settings.steps:
            n_patches = (self.size // self.model.config.patch_size) ** 2
            batch["tokens"] = vit.drawn_tokens(len(pixels), n_patches, settings.visible, self.device)
        return batch

    def loss(
        self,
        pixels: Float[Tensor, "image 3 row column"],
        labels: Float[Tensor, "image class"],
        tokens: Int[Tensor, "image shown"] | None = None,
    ) -> tuple[Tensor, ...]:
        """Cross entropy, of the images or of some of their tokens."""
        with self._show(tokens):
            logits = self.model(pixel_values=pixels).logits
        return (F.cross_entropy(logits, labels, label_smoothing=self.settings.label_smoothing),)

    def keep(self) -> None:
        """Nothing."""

    def evaluate(self) -> dict[str, float]:
        """On the first 2000 test images: CIFAR-10 has no validation part, and nothing is chosen by this curve."""
        return self._accuracy(2000)

    def test(self) -> dict[str, float]:
        """All test images."""
        return self._accuracy(len(self.test_images))

    @torch.no_grad()
    def _accuracy(self, n: int) -> dict[str, float]:
        losses, hits = 0.0, 0
        n = min(n, len(self.test_images))
        for start in range(0, n, self.settings.batch):
            part = slice(start, min(n, start + self.settings.batch))
            logits = self.model(pixel_values=vit.pixel_values(self.test_images[part], self.size)).logits.float()
            losses += float(F.cross_entropy(logits, self.test_labels[part], reduction="sum"))
            hits += int((logits.argmax(dim=-1) == self.test_labels[part]).sum())
        return {"loss": losses / n, "accuracy": hits / n}

    def probe(self) -> list[Mapping[str, Any]]:
        """The first test image."""
        return [{"pixel_values": vit.pixel_values(self.test_images[:1], self.size)}]

    def config(self) -> dict[str, Any]:
        """The ViT's sizes."""
        config = self.model.config.to_dict()
        kept = (*vit.SMALL, "num_channels", "qkv_bias", "hidden_act", "layer_norm_eps")
        return {"model_type": "vit", **{name: config[name] for name in kept}, "num_labels": self.n_classes}

    def tensors(self) -> dict[str, Tensor]:
        """Nothing: batches follow from the step."""
        return {}

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Nothing to take."""


def _pretrained_vit(name: str, n_classes: int) -> Any:
    from transformers import ViTForImageClassification

    try:
        return ViTForImageClassification.from_pretrained(name, num_labels=n_classes)
    except (OSError, ValueError) as error:
        raise InvalidValueError(
            f"the weights {name} cannot be fetched: {error}; connect to the network, or train the configuration "
            "'small'"
        ) from error
