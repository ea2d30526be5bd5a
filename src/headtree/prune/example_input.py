"""Random tokens or pixels that a model can read, to see what it computes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from headtree.errors import InvalidValueError
from headtree.models import facts

#: Tokens of a random text: enough for every head to attend to several.
_N_TOKENS = 12


def example_input(model: nn.Module) -> dict[str, Tensor]:
    """A random input of a model that reads tokens, images, or tokens in an encoder and a decoder."""
    config: Any = getattr(model, "config", None)
    rng = torch.Generator().manual_seed(0)
    shape = facts.image_shape(model)
    if shape is not None and getattr(config, "vocab_size", None) is None:
        return {"pixel_values": torch.randn(1, *shape, generator=rng)}
    n_words = next((getattr(config, name) for name in ("vocab_size", "vocabulary") if hasattr(config, name)), None)
    if not isinstance(n_words, int):
        raise InvalidValueError(
            f"inputs must be given, because headtree cannot tell what {type(model).__name__} reads; pass one input "
            "as texts=…, images=… or inputs=…"
        )
    ids = torch.randint(min(5, n_words - 1), n_words, (1, _N_TOKENS), generator=rng)
    found = {"input_ids": ids}
    if facts.is_encoder_decoder(model):
        found["decoder_input_ids"] = ids.flip(1)
    return found
