"""Attention relevance: which tokens and heads an output depends on, by attention times its gradient."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from headtree.errors import InvalidTypeError, InvalidValueError
from headtree.models.graph.forward_graph import logits_of
from headtree.models.inputs import ModelInput
from headtree.models.watching.collect import PreparedInputs
from headtree.models.watching.probe import arguments
from headtree.models.watching.unchanged import unchanged
from headtree.models.watching.watch import AttentionCall, implementation, recording
from headtree.tensor.attention_tensor import HeadId

#: The output to explain: the index of a logit (a class or word), or a function of the model's output.
Target = int | Callable[[Any], Tensor] | None


@dataclass(frozen=True, eq=False)
class Relevance:
    """Which tokens and heads one output of a model depends on, for one input; see `attention_relevance`.

    Examples
    --------
    >>> import headtree as ht
    >>> network = ht.load_bundled("vit")
    >>> (found,) = ht.attention_relevance(network.model, inputs=network.inputs[0], layers=[10, 11])
    >>> strongest = found.share.argmax()
    >>> found.heads[strongest], round(float(found.share[strongest]), 2)
    (HeadId(layer=10, head=8), 0.09)
    """

    tokens: Float[np.ndarray, "query key"]  #: relevance of each token (key) to each position (query)
    heads: tuple[HeadId, ...]
    share: Float[np.ndarray, " head"]  #: share of the positive gradient-weighted attention of all heads
    output: float  #: value of the output that is explained


def relevance_of(prepared: PreparedInputs, item: ModelInput, target: Target = None) -> Relevance:
    """Relevance on one prepared input."""
    with prepared.view.ready():
        probs, output = _differentiable_run(prepared, item)
        number = _explained_scalar(output, target, type(prepared.model).__name__)
        gradients = torch.autograd.grad(number, probs, allow_unused=True)
    layers = []
    for site, attention, gradient in zip(prepared.selection.sites, probs, gradients, strict=True):
        slope = torch.zeros_like(attention) if gradient is None else gradient
        weighted = (slope * attention).clamp(min=0).detach().cpu().double()
        weighted = weighted[..., :-1] if prepared.plan.sites[site].has_sinks else weighted
        layers.append(weighted.reshape(-1, *weighted.shape[-2:]))  # one input: its heads
    return Relevance(
        tokens=_rolled_out(layers),
        heads=prepared.selection.head_ids(),
        share=_shares(layers, prepared),
        output=float(number.detach()),
    )


def _differentiable_run(prepared: PreparedInputs, item: ModelInput) -> tuple[list[Tensor], Any]:
    """Attention of the selected calls as tensors in an autograd graph, and the model's output."""
    found: list[Tensor | None] = []
    names: list[str] = []

    def listen(call: AttentionCall) -> None:
        if call.probs is not None and not call.probs.requires_grad:
            call.probs.requires_grad_()  # the weights are frozen, so the autograd graph starts here
        found.append(call.probs)
        names.append(call.name)

    model = prepared.model
    args, kwargs = arguments(model, [item])
    with (
        implementation(model, "eager"),
        torch.enable_grad(),
        recording(model, listen, n_batch=1, registry=False),
        unchanged(model),
    ):
        output = model(*args, **kwargs)
    wanted = [prepared.plan.sites[site].name for site in prepared.selection.sites]
    chosen = [probs for name, probs in zip(names, found, strict=True) if name in wanted]
    probs = [tensor for tensor in chosen if tensor is not None]
    if len(probs) != len(wanted) or len(chosen) != len(wanted):
        raise InvalidValueError(
            f"the attention of {type(model).__name__} has no gradient to watch: {len(probs)} of {len(wanted)} "
            "selected calls run a softmax that autograd can follow; use a model whose attention calls softmax "
            "itself"
        )
    return probs, output


def _explained_scalar(output: Any, target: Target, model: str) -> Tensor:
    """The scalar to explain."""
    if callable(target):
        try:
            number = target(output)
        except Exception as error:
            raise InvalidTypeError(
                f"target must be a function of the model's output, but it failed: {type(error).__name__}: {error}"
            ) from error
        if not isinstance(number, Tensor) or number.numel() != 1 or not number.requires_grad:
            raise InvalidTypeError(
                f"target must return a tensor with one element that depends on the model's weights, got {number!r}"
            )
        return number.reshape(())
    logits = logits_of(output)
    if logits is None:
        raise InvalidValueError(
            f"{model} has no logits; load it with its language-model or classification head, or pass a function of "
            "its output as target"
        )
    last = logits.reshape(-1, logits.shape[-1])[-1]
    if target is None:
        return torch.as_tensor(last.max())
    if isinstance(target, bool) or not isinstance(target, int | np.integer):
        raise InvalidTypeError(
            f"target must be the index of a logit or a function of the model's output, got {target!r}"
        )
    if not -len(last) <= target < len(last):
        raise InvalidValueError(f"target must be one of the {len(last)} logits, got {target}")
    return torch.as_tensor(last[int(target)])


def _rolled_out(layers: list[Tensor]) -> Float[np.ndarray, "query key"]:
    """R after all layers; for attention between two sequences, Ā of the last layer alone."""
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
