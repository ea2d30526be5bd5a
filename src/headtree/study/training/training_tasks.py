"""The training task of each network: its batches, its loss, and its evaluation on unseen data."""

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

#: Largest number of logits in memory while the loss of text is computed.
_LOGITS_AT_ONCE = 2**29

#: Number of parallel streams in validation.
_STREAMS = 32


class TrainingTask(Protocol):
    """What the training loop requires of a task."""

    can_be_recorded: bool  #: whether its loss and gradients may run as a CUDA graph

    @property
    def model(self) -> nn.Module:
        """The network to train."""

    def batch(self, step: int) -> dict[str, Tensor]:
        """The arguments of `loss` for a step; they depend only on the settings and the step."""

    @property
    def loss(self) -> Callable[..., tuple[Tensor, ...]]:
        """A function of the tensors of `batch` that returns the loss, then the arguments of `keep`."""

    @property
    def keep(self) -> Callable[..., None]:
        """A function that stores what the next step needs."""

    def evaluate(self) -> dict[str, float]:
        """Validation measures; the loss is first."""

    def test(self) -> dict[str, float]:
        """The same measures on the test split."""

    def probe(self) -> list[Mapping[str, Any]]:
        """One unseen input on which the heads are captured."""

    def config(self) -> dict[str, Any]:
        """The configuration of the network, to be stored."""

    def tensors(self) -> dict[str, Tensor]:
        """Tensors that a checkpoint must hold besides those of weights and optimizer."""

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the tensors of a checkpoint."""


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
        """Each epoch starts the streams at a different word; the memory carries over."""
        context, batch = self.settings.context, self.settings.batch
        epoch, segment = divmod(step, self.n_segments)
        offset = int(np.random.default_rng([self.settings.seed, 1, epoch]).integers(context))
        streams = self.train[: len(self.train) // batch * batch].view(batch, -1)
        start = offset + segment * context
        forgets = np.random.default_rng([self.settings.seed, 2, step]).random() < self.settings.forget
        return {
            "words": streams[:, start : start + context + 1],
            "memory": self.memory[:, :, :0] if forgets else self.memory,
        }

    def loss(
        self, words: Int[Tensor, "stream word"], memory: Float[Tensor, "stream layer position width"]
    ) -> tuple[Tensor, ...]:
        """The mean loss over all words except the first, and the memory for the next segment."""
        hidden, memory = self.model.hidden_states(words[:, :-1], memory)
        targets = words[:, 1:].flatten()
        return _text_loss(self.model, hidden.flatten(0, 1), targets) / targets.numel(), memory

    def keep(self, memory: Float[Tensor, "stream layer position width"]) -> None:
        """Append to the memory and drop its oldest positions."""
        n_new = min(memory.shape[2], self.memory.shape[2])
        self.memory = torch.cat([self.memory, memory[:, :, memory.shape[2] - n_new :]], dim=2)[:, :, n_new:]

    def evaluate(self) -> dict[str, float]:
        """Loss and perplexity of the validation text, in several streams."""
        return self._perplexity(self.valid, _STREAMS)

    def test(self) -> dict[str, float]:
        """Loss and perplexity of the test text, in a single stream."""
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
        """The sizes of the Transformer-XL."""
        return self.model.config.to_dict()

    def tensors(self) -> dict[str, Tensor]:
        """The memory of the streams."""
        return {"memory": self.memory}

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the memory."""
        self.memory = tensors["memory"].to(self.device)


@torch.no_grad()
def text_loss(
    model: TransformerXL, text: Int[Tensor, " word"], context: int = 256, n_streams: int = 1, memory: bool = True
) -> float:
    """Mean loss over all words of a text except the first, read in segments with or without memory between them."""
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
    """Sum of the losses; if there are too many logits, in chunks that are recomputed for the gradient."""

    def chunk(states: Tensor, words: Tensor) -> Tensor:
        return F.cross_entropy(model.logits(states), words, reduction="sum")

    size = max(1, _LOGITS_AT_ONCE // model.config.vocabulary)
    if len(hidden) <= size:
        return chunk(hidden, targets)
    losses = [
        checkpoint(
            chunk,
            hidden[start : start + size],
            targets[start : start + size],
            use_reentrant=False,
            preserve_rng_state=False,  # the chunk draws no random numbers
        )
        for start in range(0, len(hidden), size)
    ]
    return torch.stack(losses).sum()


class ImageTask:
    """Classify images."""

    can_be_recorded = False  # transformers checks whether a graph is being recorded, which recompiles

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
        # on the device in advance, so no step waits for a transfer from the CPU
        self._one_hot = torch.eye(self.n_classes, device=device)
        self._order: tuple[int, Tensor] | None = None
        self._show = vit.show_some_tokens(self.model)

    def batch(self, step: int) -> dict[str, Tensor]:
        """Each epoch takes the images in a different order."""
        settings = self.settings
        epoch, index = divmod(step, len(self.images) // settings.batch)
        if self._order is None or self._order[0] != epoch:
            order = np.random.default_rng([settings.seed, 1, epoch]).permutation(len(self.images))
            self._order = epoch, torch.as_tensor(order, device=self.device)
        chosen = self._order[1][index * settings.batch : (index + 1) * settings.batch]
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
        """Cross entropy, with all tokens of the images or only some."""
        with self._show(tokens):
            logits = self.model(pixel_values=pixels).logits
        return (F.cross_entropy(logits, labels, label_smoothing=self.settings.label_smoothing),)

    def keep(self) -> None:
        """Do nothing: steps are independent."""

    def evaluate(self) -> dict[str, float]:
        """Accuracy on the first 2000 test images: CIFAR-10 has no validation split, and no choice depends on it."""
        return self._accuracy(2000)

    def test(self) -> dict[str, float]:
        """Loss and accuracy on all test images."""
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
        """The sizes of the ViT."""
        config = self.model.config.to_dict()
        names = (*vit.SMALL, "num_channels", "qkv_bias", "hidden_act", "layer_norm_eps")
        return {"model_type": "vit", **{name: config[name] for name in names}, "num_labels": self.n_classes}

    def tensors(self) -> dict[str, Tensor]:
        """Return no tensors: batches depend only on the step."""
        return {}

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Do nothing: there is nothing to restore."""


def _pretrained_vit(name: str, n_classes: int) -> Any:
    from transformers import ViTForImageClassification

    try:
        return ViTForImageClassification.from_pretrained(name, num_labels=n_classes)
    except (OSError, ValueError) as error:
        raise InvalidValueError(
            f"the weights {name} cannot be downloaded: {error}; connect to the internet, or train the "
            "configuration 'small'"
        ) from error
