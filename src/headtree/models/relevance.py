"""Which attention a chosen output rests on: attention weighted with the gradient of that output."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from headtree.errors import InvalidTypeError, InvalidValueError
from headtree.models.inputs import ModelInput
from headtree.models.watching.collect import PreparedInputs
from headtree.models.watching.probe import arguments
from headtree.models.watching.watch import AttentionCall, implementation, recording
from headtree.tensor.attention_tensor import HeadId

#: Which number of the model's answer is asked about: a class or word, or a function of the answer.
Target = int | Callable[[Any], Tensor] | None


@dataclass(frozen=True, eq=False)
class Relevance:
    """What one output of the model rests on, for one input."""

    tokens: Float[np.ndarray, "query key"]  #: relevance of each input token to each position
    heads: tuple[HeadId, ...]
    share: Float[np.ndarray, " head"]  #: of the sum over all heads of their positive gradient-weighted attention
    output: float  #: the number that was asked about


def relevance_of(prepared: PreparedInputs, item: ModelInput, target: Target = None) -> Relevance:
    """Relevance on one input of a capture."""
    probs, output = _differentiable_run(prepared, item)
    number = _number(output, target, type(prepared.model).__name__)
    gradients = torch.autograd.grad(number, probs, allow_unused=True)
    layers = []
    for site, attention, gradient in zip(prepared.selection.sites, probs, gradients, strict=True):
        slope = torch.zeros_like(attention) if gradient is None else gradient
        weighted = (slope * attention).clamp(min=0).detach().cpu().double()
        weighted = weighted[..., :-1] if prepared.plan.sites[site].has_sinks else weighted
        layers.append(weighted.reshape(-1, *weighted.shape[-2:]))  # one input: its heads
    return Relevance(
        tokens=_rolled(layers),
        heads=prepared.selection.head_ids(),
        share=_shares(layers, prepared),
        output=float(number.detach()),
    )


def _differentiable_run(prepared: PreparedInputs, item: ModelInput) -> tuple[list[Tensor], Any]:
    """The attention of the chosen calls as parts of a graph of gradients, and the model's answer."""
    found: list[Tensor | None] = []
    names: list[str] = []

    def listen(call: AttentionCall) -> None:
        if call.probs is not None and not call.probs.requires_grad:
            call.probs.requires_grad_()  # frozen weights: the graph begins here
        found.append(call.probs)
        names.append(call.name)

    model = prepared.model
    args, kwargs = arguments(model, [item])
    with (
        prepared.view.ready(),
        implementation(model, "eager"),
        torch.enable_grad(),
        recording(model, listen, n_batch=1, registry=False),
    ):
        output = model(*args, **kwargs)
    wanted = [prepared.plan.sites[site].name for site in prepared.selection.sites]
    chosen = [probs for name, probs in zip(names, found, strict=True) if name in wanted]
    probs = [tensor for tensor in chosen if tensor is not None]
    if len(probs) != len(wanted) or len(chosen) != len(wanted):
        raise InvalidValueError(
            f"{type(model).__name__} attends in a way whose gradient is not seen: {len(probs)} of {len(wanted)} "
            "calls run softmax where it can be watched"
        )
    return probs, output


def _number(output: Any, target: Target, model: str) -> Tensor:
    """The number of the answer that is asked about."""
    if callable(target):
        number = target(output)
        if not isinstance(number, Tensor) or number.numel() != 1 or not number.requires_grad:
            raise InvalidTypeError(
                f"target must give a tensor of one number that depends on the model's weights, got {number!r}"
            )
        return number.reshape(())
    logits = output if isinstance(output, Tensor) else getattr(output, "logits", None)
    if logits is None:
        raise InvalidValueError(
            f"{model} has no logits; load it with its head, or say with target= which number of its answer is meant"
        )
    last = logits.reshape(-1, logits.shape[-1])[-1]
    if target is None:
        return torch.as_tensor(last.max())
    if isinstance(target, bool) or not isinstance(target, int | np.integer):
        raise InvalidTypeError(f"target must be a number of a logit or a function of the answer, got {target!r}")
    if not -len(last) <= target < len(last):
        raise InvalidValueError(f"target must be one of the {len(last)} logits, got {target}")
    return torch.as_tensor(last[int(target)])


def _rolled(layers: list[Tensor]) -> Float[np.ndarray, "query key"]:
    """R after all layers; of attention between two sequences, the last layer's alone."""
    n_queries, n_keys = layers[-1].shape[1:]
    if n_queries != n_keys:
        return np.asarray(layers[-1].mean(dim=0).numpy())
    rolled = torch.eye(n_keys, dtype=torch.float64)
    for layer in layers:
        rolled = rolled + layer.mean(dim=0) @ rolled
    return np.asarray(rolled.numpy())


def _shares(layers: list[Tensor], prepared: PreparedInputs) -> Float[np.ndarray, " head"]:
    sums = [
        float(layers[i][head].sum()) for i, heads in enumerate(prepared.selection.heads.values()) for head in heads
    ]
    total = sum(sums)
    return np.array(sums) / total if total > 0 else np.full(len(sums), np.nan)
