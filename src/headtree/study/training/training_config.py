"""Settings of training: the configurations `small` and `paper` of both networks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from headtree.errors import InvalidValueError
from headtree.models.bundled import vit

Network = Literal["txl", "vit"]


@dataclass(frozen=True)
class Training:
    """Settings of a training. A checkpoint can only be resumed with the settings it was made with."""

    network: Network
    steps: int
    batch: int
    learning_rate: float
    sizes: Mapping[str, Any] = field(default_factory=dict)  #: of the network, by the names in its configuration
    schedule: Literal["one-cycle", "cosine", "constant"] = "one-cycle"
    optimizer: Literal["adamw", "adam"] = "adamw"
    weight_decay: float = 0.0
    clip: float = 1.0  #: largest norm of the gradient
    context: int = 256  #: txl: words per segment
    forget: float = 0.1  #: txl: fraction of steps that start with an empty memory, as in capture
    label_smoothing: float = 0.0
    augment: float = 0.0  #: vit: strength of the random changes to images
    mix: float = 0.0  #: vit: fraction of batches whose images are mixed in pairs
    visible: float = 1.0  #: vit: fraction of patches shown, drawn for each image, …
    visible_until: float = 0.0  #: … during this fraction of the steps; then all are shown
    pretrained: str = ""  #: vit: hub id of the weights to start from
    evaluations: int = 20  #: number of times to validate, measure the heads and write a checkpoint
    stages: tuple[float, ...] = (0.0, 0.02, 0.1, 0.4)  #: fractions of training whose checkpoints stay
    seed: int = 0

    def __post_init__(self) -> None:
        if self.network not in get_args(Network):
            raise InvalidValueError(f"network must be one of {get_args(Network)}, got {self.network!r}")
        for name in ("steps", "batch", "context", "evaluations"):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 1:
                raise InvalidValueError(f"{name} must be an integer of at least 1, got {getattr(self, name)!r}")
        if not 0 < self.visible <= 1:
            raise InvalidValueError(f"visible must be greater than 0 and at most 1, got {self.visible}")
        if not self.learning_rate > 0:
            raise InvalidValueError(f"learning_rate must be greater than 0, got {self.learning_rate}")

    def to_dict(self) -> dict[str, Any]:
        """The settings as plain JSON values, as in checkpoints."""
        return {**asdict(self), "sizes": dict(self.sizes), "stages": list(self.stages)}

    @property
    def evaluation_steps(self) -> frozenset[int]:
        """Steps after which the network is evaluated: evenly spaced from first to last, and the stages."""
        spread = {round(i * self.steps / self.evaluations) for i in range(self.evaluations + 1)}
        return frozenset(spread | self.stage_steps)

    @property
    def stage_steps(self) -> frozenset[int]:
        """The steps whose checkpoints are not removed."""
        return frozenset(round(share * self.steps) for share in self.stages)


TXL_SMALL = Training(
    network="txl",
    steps=12_000,
    batch=32,
    learning_rate=1e-3,
    weight_decay=0.1,
    clip=0.25,
    sizes={"dropout": 0.2},
)

#: From the authors' script; [OA] prints a learning rate of 2.5e-3. Steps and batch are those of Transformer-XL.
TXL_PAPER = Training(
    network="txl",
    steps=200_000,
    batch=60,
    learning_rate=2.5e-4,
    schedule="cosine",
    optimizer="adam",
    clip=0.25,
    forget=0.0,
    evaluations=50,
    sizes={
        "n_layers": 16,
        "n_heads": 8,
        "width": 410,
        "head_size": 128,
        "inner": 2048,
        "embedding": 410,
        "memory": 150,
        "dropout": 0.1,
        "pre_norm": False,
    },
)

VIT_SMALL = Training(
    network="vit",
    steps=17_000,
    batch=512,
    learning_rate=1e-3,
    weight_decay=0.05,
    label_smoothing=0.1,
    augment=0.8,
    mix=0.5,
    visible=0.5,
    visible_until=0.8,
    sizes=vit.SMALL,
)

VIT_PAPER = Training(
    network="vit",
    steps=50_000 // 32,  # one epoch
    batch=32,
    learning_rate=3e-5,
    schedule="constant",
    optimizer="adam",
    pretrained="google/vit-base-patch16-224-in21k",
    evaluations=10,
)

CONFIGS: Mapping[tuple[str, str], Training] = {
    ("txl", "small"): TXL_SMALL,
    ("txl", "paper"): TXL_PAPER,
    ("vit", "small"): VIT_SMALL,
    ("vit", "paper"): VIT_PAPER,
}


def named_config(network: str, config: str) -> Training:
    """The configuration with this name."""
    if network not in get_args(Network):
        raise InvalidValueError(f"network must be one of {get_args(Network)}, got {network!r}")
    if (network, config) not in CONFIGS:
        raise InvalidValueError(f"config must be 'small' or 'paper', got {config!r}")
    return CONFIGS[network, config]
