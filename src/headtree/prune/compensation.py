r"""Which heads can be replaced by the others of their layer: an order of removal that knows of refitting.

If the heads R of a layer are removed and its output projection is fitted again, what is lost at a token is the
residual r of their writes after regression on what the remaining heads hand over. To first order the loss changes
there by g·r, where g is its gradient at the output of the layer. Heads are removed one by one, each time the one
for which the mean of (Σ g·r)², the sum over all layers, grows least. So heads of one layer interact exactly,
through the regression, and layers through the sum. This is the empirical Fisher matrix of optimal brain surgeon
(Hassibi and Stork 1993), for whole heads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from headtree.errors import InvalidValueError
from headtree.models.objective import Objective, main_output
from headtree.models.watching.collect import PreparedInputs
from headtree.models.watching.probe import arguments
from headtree.progress import progress
from headtree.prune.refit import OutputLayers

#: Strength of the ridge by which other heads fill the gap, relative to the mean variance of what they hand over.
RIDGE = 1e-3


@dataclass(frozen=True, eq=False)
class LayerSignals:
    """What the heads of one layer hand to their output projection, and how the loss depends on its result."""

    z: Float[Tensor, "token row"]  #: centred
    slope: Float[Tensor, "token width"]
    matrix: Float[Tensor, "row width"]
    rows: Tensor  #: (head, feature)

    def lost(self, removed: Sequence[int]) -> Float[Tensor, " token"]:
        """g·r at every token without some heads, once the others are fitted again."""
        if not removed:
            return torch.zeros(len(self.z), dtype=self.z.dtype, device=self.z.device)
        gone = self.rows[list(removed)].flatten()
        remaining = [head for head in range(len(self.rows)) if head not in set(removed)]
        written = self.z[:, gone] @ self.matrix[gone]
        if remaining:
            rows = self.rows[remaining].flatten()
            covariance = self.covariance[rows][:, rows]
            strength = RIDGE * self.covariance.diagonal().mean().clamp(min=1e-30)
            system = covariance + strength * torch.eye(len(rows), dtype=self.z.dtype, device=self.z.device)
            fill = torch.linalg.solve(system, self.covariance[rows][:, gone] @ self.matrix[gone])
            written = written - self.z[:, rows] @ fill
        return (written * self.slope).sum(dim=1)

    @cached_property
    def covariance(self) -> Float[Tensor, "row row"]:
        """Covariance of what the heads hand over."""
        return self.z.T @ self.z / len(self.z)


def layer_signals(
    model: nn.Module, prepared: PreparedInputs, objective: Objective, layers: OutputLayers, *, rng: int = 0
) -> dict[int, LayerSignals]:
    """Signals of all layers on the prepared inputs, in `model`: the prepared one, or a copy with other weights.

    For an objective that is a distance from the whole network's output, whose gradient is zero there, the output is
    projected on a random direction for each input, which has the distance as its mean square.
    """
    generator = torch.Generator().manual_seed(rng)
    entering: dict[int, list[Tensor]] = {i: [] for i in layers.weights}
    slopes: dict[int, list[Tensor]] = {i: [] for i in layers.weights}
    chosen = range(len(objective.items))
    with progress("gradients", len(chosen)) as step, torch.enable_grad():
        for k in chosen:
            with _watched(model, layers, entering) as written:
                args, kwargs = arguments(model, [objective.items[k]])
                output = model(*args, **kwargs)
            if objective.is_distance:
                value = main_output(output).float()
                direction = torch.randn(value.shape, generator=generator).to(value)
                total = (value * direction).sum() / value.detach().norm()
            else:
                total = objective.losses(output, [k], output)[0].sum()
            if not total.requires_grad:
                raise InvalidValueError("the loss has no gradient; pass a loss that torch computes from the output")
            found = torch.autograd.grad(total, [written[i] for i in layers.weights])
            for i, slope in zip(layers.weights, found, strict=True):
                slopes[i].append(slope.detach().reshape(-1, slope.shape[-1]))
            step(f"input {k + 1} of {len(chosen)}")
    signals = {}
    for i, weight in layers.weights.items():
        linear: Any = model.get_submodule(weight.module)
        matrix = linear.weight.detach() if weight.axis == 0 else linear.weight.detach().T
        z = torch.cat(entering[i])
        signals[i] = LayerSignals(z - z.mean(dim=0), torch.cat(slopes[i]), matrix, weight.rows)
    return signals


@contextmanager
def _watched(
    model: nn.Module, layers: OutputLayers, entering: Mapping[int, list[Tensor]]
) -> Iterator[dict[int, Tensor]]:
    """Collect what enters the output projections while the block runs, and give what leaves them."""
    written: dict[int, Tensor] = {}

    def hook(i: int) -> Any:
        def leave(_: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
            entering[i].append(args[0].detach().reshape(-1, args[0].shape[-1]))
            written[i] = output if output.requires_grad else output.requires_grad_()
            return written[i]

        return leave

    with ExitStack() as stack:
        for i, weight in layers.weights.items():
            stack.callback(model.get_submodule(weight.module).register_forward_hook(hook(i)).remove)
        yield written


def removal_order(
    signals: Mapping[int, LayerSignals], removed: Sequence[tuple[int, int]] = (), n: int | None = None
) -> tuple[list[tuple[int, int]], np.ndarray]:
    """(call, head) in the order of removal, after those removed already, and the cost after each removal.

    Parameters
    ----------
    signals : mapping
        By the number of the attention call.
    removed : list of (call, head)
        Heads that are removed already, in a model that was fitted without them: nothing is lost by them any more.
    n : int, optional
        How many to remove; by default all.
    """
    gone: dict[int, list[int]] = {i: [head for site, head in removed if site == i] for i in signals}
    base = {i: signal.lost(gone[i]) for i, signal in signals.items()}
    lost = {i: torch.zeros_like(value) for i, value in base.items()}
    total = sum(lost.values(), torch.zeros_like(next(iter(lost.values()))))
    candidates: dict[tuple[int, int], Tensor] = {}

    def consider(i: int) -> None:
        for head in range(len(signals[i].rows)):
            candidates.pop((i, head), None)
            if head not in gone[i]:
                candidates[i, head] = signals[i].lost([*gone[i], head]) - base[i]

    for i in signals:
        consider(i)
    n = len(candidates) if n is None else n
    order: list[tuple[int, int]] = []
    costs: list[float] = []
    while len(order) < n:
        squares = {key: float((total - lost[key[0]] + value).square().mean()) for key, value in candidates.items()}
        best = min(squares, key=lambda key: squares[key])
        total = total - lost[best[0]] + candidates[best]
        lost[best[0]] = candidates[best]
        gone[best[0]].append(best[1])
        order.append(best)
        costs.append(squares[best])
        consider(best[0])
    return order, np.array(costs)
