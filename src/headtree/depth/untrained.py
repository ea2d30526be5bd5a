"""Make the same network with untrained weights."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from headtree.errors import InvalidValueError
from headtree.models import facts


def fresh_copy(model: nn.Module, seed: int) -> nn.Module:
    """A network of the same class and sizes, with new weights drawn by its own code.

    Models with a configuration are built again from it. In other models, every module resets its weights with
    `reset_parameters`.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed % 2**63)
        config = getattr(model, "config", None)
        kind: Any = type(model)
        if facts.config_of(model) is not None and hasattr(kind, "_from_config"):
            implementation = getattr(config, "_attn_implementation", None)
            new = kind._from_config(copy.deepcopy(config), attn_implementation=implementation)
        elif config is not None:
            try:
                new = kind(config)
            except TypeError:
                new = _with_reset_weights(model)
        else:
            new = _with_reset_weights(model)
    parameter = next(model.parameters(), None)
    if parameter is not None:
        new = new.to(device=parameter.device, dtype=parameter.dtype)
    result: nn.Module = new.eval()
    return result


def _with_reset_weights(model: nn.Module) -> nn.Module:
    new = copy.deepcopy(model)
    drawn: set[int] = set()
    for module in new.modules():
        reset = getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)
        if callable(reset):
            reset()
            drawn |= {id(parameter) for parameter in module.parameters()}
    rest = [name for name, parameter in new.named_parameters() if id(parameter) not in drawn]
    if rest:
        raise InvalidValueError(
            f"{type(model).__name__} has no configuration to build it again from, and {rest[0]!r} belongs to a "
            "module without reset_parameters; pass an untrained network as fresh=…, or fresh=False"
        )
    return new
