"""Fit the output projections of a pruned network again, such that its residual stream is that of the whole one.

Removing heads leaves a gap in what a layer writes. The remaining heads can fill some of it, since heads of a layer
are correlated: W_O and its bias are fitted again by ridge regression, layer after layer, each on what the layers
before it, fitted already, hand to it. The solution has a closed form; nothing is trained.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headtree.errors import InvalidValueError
from headtree.models.cuts import Cuts, apply_cuts
from headtree.models.graph.call_places import find_places
from headtree.models.graph.read_stream import locate_stream
from headtree.models.graph.stream_places import StreamPlaces
from headtree.models.shared_prefix import block_paths
from headtree.models.watching.collect import PreparedInputs
from headtree.models.watching.probe import arguments
from headtree.prune.find_cuts import CutFinder, OutputWeight

#: Strengths of the ridge, relative to the mean variance of what the heads hand over. Each layer takes the one that
#: is best when one half of the calibration text is fitted and the other half is predicted.
RIDGES = (1e-3, 1e-2, 1e-1, 1.0)


class _Reached(Exception):
    """The last output projection has run; the rest of the pass is not needed."""


@dataclass(frozen=True, eq=False)
class OutputLayers:
    """The output projections of a model, in the order in which they run, and the blocks they are in."""

    weights: Mapping[int, OutputWeight]  #: by the number of the attention call
    blocks: Mapping[int, str]  #: paths of the blocks whose input is the stream that the call's output is added to

    @classmethod
    def find(cls, prepared: PreparedInputs) -> OutputLayers:
        """The output projections around the selected heads; the view must be ready."""
        finder = CutFinder(prepared)
        sites = prepared.selection.sites
        paths = block_paths([prepared.plan.sites[i].name for i in sites]) if len(sites) > 1 else None
        blocks = {} if paths is None else dict(zip(sites, paths, strict=True))
        added = _directly_added(prepared) if blocks else set()
        return cls(
            {i: finder.output_weight(i) for i in sites}, {i: path for i, path in blocks.items() if i in added}
        )


def _directly_added(prepared: PreparedInputs) -> set[int]:
    """Calls whose output projection is added to the residual stream as it is, without a norm or scale between."""
    try:
        stream = StreamPlaces(locate_stream(prepared))
        places = find_places(prepared)
    except InvalidValueError:
        return set()
    return {
        i
        for i, place in places.items()
        if not prepared.plan.sites[i].is_cross
        and stream.attention_terms(place)
        and stream.after_projection(place) is None
    }


def refitted(
    prepared: PreparedInputs,
    pairs: Sequence[tuple[int, int]],
    *,
    ridges: Sequence[float] = RIDGES,
    layers: OutputLayers | None = None,
) -> nn.Module:
    """A copy of the prepared model in which some heads write nothing, and the others are fitted to fill the gap.

    The copy has the size of the model. The prepared inputs are the calibration text; all must have one shape.
    """
    model = prepared.model
    check_one_size(prepared)
    with prepared.view.ready():
        layers = layers or OutputLayers.find(prepared)
        changed = copy.deepcopy(model)
        paths = [weight.module for weight in layers.weights.values()]
        apply_cuts(changed, Cuts((), biased=tuple(path for path in paths if _has_no_bias(changed, path))))
        site_of = {layer: i for i, layer in prepared.selection.layers.items()}
        removed: dict[int, list[int]] = {i: [] for i in layers.weights}
        for layer, head in pairs:
            removed[site_of[layer]].append(head)
        whole = _Streams()
        _pass(model, prepared, layers, whole.keep)
        fit = _Fit(changed, layers, removed, whole, ridges)
        _pass(changed, prepared, layers, fit)
    return changed


def check_one_size(prepared: PreparedInputs) -> None:
    """Raise an error unless calibration inputs can run as one batch."""
    if len({item.shapes() for item in prepared.items}) > 1 or not all(item.can_join() for item in prepared.items):
        raise InvalidValueError(
            "refit must be inputs that all have the same size, to run as one batch; cut texts with tokens=…, or "
            "leave shorter ones out"
        )


def _has_no_bias(model: nn.Module, path: str) -> bool:
    linear: Any = model.get_submodule(path)
    return linear.bias is None


#: Called at each output projection: call, what enters it, what leaves it, and the stream before it, or None;
#: returns what replaces the result.
_AtOutput = Callable[[int, Tensor, Tensor, Tensor | None], Tensor | None]


def _pass(model: nn.Module, prepared: PreparedInputs, layers: OutputLayers, at_output: _AtOutput) -> None:
    """Run a model on all prepared inputs as one batch, up to the last output projection."""
    entering: dict[int, Tensor] = {}
    last = list(layers.weights)[-1]

    def block_hook(i: int) -> Callable[..., None]:
        def enter(_: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
            values = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
            entering[i] = values[0]

        return enter

    def output_hook(i: int) -> Callable[..., Any]:
        def leave(_: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor | None:
            result = at_output(i, args[0], output, entering.pop(i, None))
            if i == last:
                raise _Reached
            return result

        return leave

    args, kwargs = arguments(model, list(prepared.items))
    with ExitStack() as stack, torch.no_grad():
        for i, path in layers.blocks.items():
            handle = model.get_submodule(path).register_forward_pre_hook(block_hook(i), with_kwargs=True)
            stack.callback(handle.remove)
        for i, weight in layers.weights.items():
            stack.callback(model.get_submodule(weight.module).register_forward_hook(output_hook(i)).remove)
        with suppress(_Reached):
            model(*args, **kwargs)


class _Streams:
    """What the whole network's output projections write, and the stream before them."""

    def __init__(self) -> None:
        self.written: dict[int, Tensor] = {}
        self.before: dict[int, Tensor | None] = {}

    def keep(self, i: int, _: Tensor, output: Tensor, before: Tensor | None) -> None:
        self.written[i] = output.detach().clone()
        self.before[i] = None if before is None or before.shape != output.shape else before.detach().clone()


class _Fit:
    """Fits each output projection when the pass reaches it, and lets the pass go on with it."""

    def __init__(
        self,
        model: nn.Module,
        layers: OutputLayers,
        removed: Mapping[int, list[int]],
        whole: _Streams,
        ridges: Sequence[float],
    ) -> None:
        self.model, self.layers, self.removed, self.whole, self.ridges = model, layers, removed, whole, ridges

    def __call__(self, i: int, entering: Tensor, _: Tensor, before: Tensor | None) -> Tensor:
        weight = self.layers.weights[i]
        linear: Any = self.model.get_submodule(weight.module)
        target, whole = self.whole.written.pop(i), self.whole.before.pop(i)
        if whole is not None and before is not None:
            target = target + (whole - before)  # also what earlier layers still lack
        remaining = [head for head in range(len(weight.rows)) if head not in self.removed[i]]
        matrix = linear.weight.detach() if weight.axis == 0 else linear.weight.detach().T
        after = torch.zeros_like(matrix)
        rows = weight.rows[remaining].flatten().to(matrix.device)
        z = entering.reshape(-1, entering.shape[-1])[:, rows].double()
        y = target.reshape(-1, target.shape[-1]).double()
        fitted, bias = ridge_fit(z, y, matrix[rows].double(), self.ridges)
        after[rows] = fitted.to(after)
        linear.weight.data.copy_(after if weight.axis == 0 else after.T)
        linear.bias.data.copy_(bias)
        result: Tensor = entering @ after + linear.bias
        return result


def ridge_fit(
    z: Float[Tensor, "token feature"],
    y: Float[Tensor, "token width"],
    before: Float[Tensor, "feature width"],
    ridges: Sequence[float] = RIDGES,
) -> tuple[Float[Tensor, "feature width"], Float[Tensor, " width"]]:
    r"""Weights and bias that minimize ‖zW + b - y‖² / n + λ‖W - W₀‖², where λ = ridge × mean variance of z.

    Of several ridges it is the one that predicts each half of the tokens best when the other half is fitted. With
    few tokens, a weak ridge fits these and spoils others.
    """
    half = len(z) // 2
    if len(ridges) > 1 and half > 0:
        first, second = _Moments.of(z[:half], y[:half]), _Moments.of(z[half:], y[half:])
        errors = [second.error(*first.fit(before, r)) + first.error(*second.fit(before, r)) for r in ridges]
        ridges = [ridges[min(range(len(errors)), key=errors.__getitem__)]]
    return _Moments.of(z, y).fit(before, ridges[0])


@dataclass(frozen=True, eq=False)
class _Moments:
    """All of some tokens that a regression of y on z needs."""

    mean: Float[Tensor, " feature"]
    level: Float[Tensor, " width"]
    covariance: Float[Tensor, "feature feature"]
    cross: Float[Tensor, "feature width"]

    @classmethod
    def of(cls, z: Float[Tensor, "token feature"], y: Float[Tensor, "token width"]) -> _Moments:
        mean, level = z.mean(dim=0), y.mean(dim=0)
        centred = (z - mean).T
        return cls(mean, level, centred @ centred.T / len(z), centred @ (y - level) / len(z))

    def fit(
        self, before: Float[Tensor, "feature width"], ridge: float
    ) -> tuple[Float[Tensor, "feature width"], Float[Tensor, " width"]]:
        """Weights and bias."""
        if len(self.mean) == 0:
            return before, self.level
        strength = ridge * self.covariance.diagonal().mean().clamp(min=1e-30)
        system = self.covariance + strength * torch.eye(len(self.mean)).to(self.covariance)
        fitted = torch.linalg.solve(system, self.cross + strength * before)
        return fitted, self.level - self.mean @ fitted

    def error(self, fitted: Float[Tensor, "feature width"], bias: Float[Tensor, " width"]) -> float:
        """Mean squared error of these weights on these tokens, less the variance of y."""
        offset = self.mean @ fitted + bias - self.level
        return float((fitted * (self.covariance @ fitted - 2 * self.cross)).sum() + offset @ offset)
