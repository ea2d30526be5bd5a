"""What a model costs: its parameters and the time of a forward pass, beside those of a smaller one."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from headtree._checks import at_least_one
from headtree.errors import InvalidTypeError
from headtree.models.view import ModelView
from headtree.models.watching.probe import arguments


@dataclass(frozen=True)
class ModelCost:
    """Parameters and latency of a model; see `model_cost`.

    Examples
    --------
    >>> import headtree as ht
    >>> network = ht.load_bundled("txl")
    >>> (cost,) = ht.model_cost(network.model, inputs=network.inputs[0], n_runs=1)
    >>> cost.n_parameters == sum(parameter.numel() for parameter in network.model.parameters())
    True
    """

    n_parameters: int
    seconds: float  #: median time of a forward pass


def model_cost(*models: nn.Module, inputs: Any, n_runs: int = 10) -> list[ModelCost]:
    """Measure parameters and latency of models side by side.

    Each model runs once to warm up. Then they take turns, so that whatever else the machine does affects all alike.

    Parameters
    ----------
    *models : torch.nn.Module
        Such as a model and what `prune_heads` made of it.
    inputs : mapping, or list of mappings
        Arguments of the models, as in `headtree.capture`; the first is used.
    n_runs : int
        Number of timed passes of each model.

    Examples
    --------
    >>> import headtree as ht
    >>> network = ht.load_bundled("vit")
    >>> pruned = ht.prune_heads(network.model, [(layer, head) for layer in range(12) for head in range(6)])
    >>> whole, half = ht.model_cost(network.model, pruned, inputs=network.inputs[0], n_runs=1)
    >>> whole.n_parameters - half.n_parameters
    888192
    """
    at_least_one(n_runs, "n_runs")
    if not models or not all(isinstance(model, nn.Module) for model in models):
        raise InvalidTypeError(f"models must be loaded modules, got {models!r}")
    items = [
        ModelView(model).prepare(inputs=inputs, kind="probs", of_one_shape=False).items[:1] for model in models
    ]
    times: list[list[float]] = [[] for _ in models]
    with torch.inference_mode():
        for run in range(n_runs + 1):
            for model, item, found in zip(models, items, times, strict=True):
                args, kwargs = arguments(model, list(item))
                start = time.perf_counter()
                model(*args, **kwargs)
                if run:
                    found.append(time.perf_counter() - start)
    return [
        ModelCost(sum(parameter.numel() for parameter in model.parameters()), float(np.median(found)))
        for model, found in zip(models, times, strict=True)
    ]
