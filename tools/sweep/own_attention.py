"""The attention that a model itself reports, and how captured attention compares with it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from headtree.models.module_stack import tensors_of

#: Captured and reported attention agree if no entry differs by more.
TOLERANCE = 1e-5

_FIELDS = {"": "attentions", **{part: f"{part}_attentions" for part in ("encoder", "decoder", "cross")}}


def outputs(model: nn.Module, inputs: Mapping[str, Any], seed: int = 0, **options: Any) -> Any:
    """A model's outputs, without a cache of keys and values."""
    if hasattr(model.config, "use_cache") and "use_cache" in inspect.signature(model.forward).parameters:
        options["use_cache"] = False
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(seed)
        return model(**inputs, **options)


def outputs_with_attentions(model: nn.Module, inputs: Mapping[str, Any]) -> Any:
    """A model's outputs with its attentions, if it returns any."""
    try:
        return outputs(model, inputs, output_attentions=True)
    except (TypeError, ValueError):  # a model that does not take the argument
        return outputs(model, inputs)


def draws_random_numbers(model: nn.Module, inputs: Mapping[str, Any]) -> bool:
    """Whether two runs of a model differ, so that captured and reported attention are not of one run."""
    return not same_tensors(outputs(model, inputs, seed=0), outputs(model, inputs, seed=1))


def same_tensors(ours: Any, theirs: Any) -> bool:
    """Whether two outputs hold the same tensors, bit for bit."""
    pairs = list(tensors_of(ours)), list(tensors_of(theirs))
    return len(pairs[0]) == len(pairs[1]) and all(
        a.shape == b.shape and torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(*pairs, strict=True)
    )


class OwnAttention:
    """The attention that a model reports with ``output_attentions=True``.

    It is among its outputs; for towers whose attention is not, it is what their modules return.
    """

    def __init__(self, model: nn.Module, inputs: Mapping[str, Any]) -> None:
        self.by_modules: list[tuple[str, Tensor]] = []
        handles = [module.register_forward_hook(self._keeping(name)) for name, module in model.named_modules()]
        output = outputs_with_attentions(model, inputs)
        for handle in handles:
            handle.remove()
        self.returned = dict(_attentions(output))

    def _keeping(self, name: str) -> Callable[..., None]:
        def keep(module: nn.Module, args: Any, output: Any) -> None:
            for value in output[1:] if isinstance(output, tuple) else ():
                if isinstance(value, Tensor) and value.ndim == 4 and _are_probs(value):
                    self.by_modules.append((name, value))

        return keep

    def of(self, part: str, captured: list[Tensor]) -> tuple[list[Tensor] | None, str]:
        """What the model reports of a part, one tensor per input, and where; None if it reports nothing."""
        named = self.returned.get(_FIELDS[part]) if part in _FIELDS else None
        stacks = [named] if named is not None else list(self.returned.values())
        fitting = [stack for stack in map(_by_input, stacks) if _same_shapes(stack, captured)]
        if fitting:
            return min(fitting, key=lambda stack: largest_difference(captured, stack)), "outputs"
        aligned = [stack for stack in (_aligned(_by_input(stack), captured) for stack in stacks) if stack]
        if aligned:
            return min(aligned, key=lambda stack: largest_difference(captured, stack)), "outputs, as bands"
        modules = _by_input([weights for name, weights in self.by_modules if not part or part in name.split(".")])
        if _same_shapes(modules, captured):
            return modules, "modules"
        return None, "other shapes" if named is not None else "none returned"


def _attentions(output: Any, path: str = "") -> Iterator[tuple[str, list[Tensor]]]:
    for name, value in output.items() if isinstance(output, Mapping) else ():
        if isinstance(value, Mapping):
            yield from _attentions(value, f"{path}{name}.")
        elif "attention" in name and isinstance(value, list | tuple):
            layers = [layer for layer in value if isinstance(layer, Tensor) and layer.ndim == 4]
            if layers and all(map(_are_probs, layers)):
                yield path + name, layers


def _are_probs(weights: Tensor) -> bool:
    return bool((weights >= 0).all() and (weights.sum(dim=-1) <= 1 + 1e-3).all())


def _by_input(layers: list[Tensor]) -> list[Tensor]:
    """Heads of all layers, one tensor per input; nothing if the layers have unequal shapes."""
    if len({(layer.shape[0], *layer.shape[2:]) for layer in layers}) != 1:
        return []
    return list(torch.cat(layers, dim=1))


def _same_shapes(ours: list[Tensor], theirs: list[Tensor]) -> bool:
    return [tensor.shape for tensor in ours] == [tensor.shape for tensor in theirs]


def _aligned(bands: list[Tensor], captured: list[Tensor]) -> list[Tensor]:
    """Attention reported by the distance of keys, as attention to keys; nothing if it is not of that form."""
    found = []
    for band, ours in zip(bands, captured, strict=False):
        if band.shape[:2] != ours.shape[:2] or band.shape[2] % 2 == 0:
            return []
        whole, reach = torch.zeros_like(ours), band.shape[2] // 2
        for query in range(ours.shape[1]):
            for key in range(max(0, query - reach), min(ours.shape[2], query + reach + 1)):
                whole[:, query, key] = band[:, query, key - query + reach]
        found.append(whole)
    return found


def largest_difference(ours: list[Tensor], theirs: list[Tensor]) -> float:
    """The largest difference of two entries."""
    return max(float((a - b).abs().max()) for a, b in zip(ours, theirs, strict=True))


def are_uniform(reported: list[Tensor]) -> bool:
    """Whether attention is so uniform that agreement says nothing, judged by the last query."""
    return all(bool(probs[:, -1].max() <= 1.5 / probs.shape[-1]) for probs in reported)


def as_reported(captured: list[Tensor], att: Any, reported: list[Tensor]) -> tuple[list[Tensor], str]:
    """Captured probs in the form in which the model reports them, and the name of that form.

    Some models report attention without the share of the sinks that enters their output; some report the mean over
    the heads of a layer in place of each head.
    """
    if att.sinks is not None:
        alone = [probs / probs.sum(dim=-1, keepdim=True) for probs in captured]
        if largest_difference(alone, reported) <= TOLERANCE < largest_difference(captured, reported):
            return alone, ", without sinks"
    layers = torch.tensor([head.layer for head in att.heads])
    means = [_means(probs, layers) for probs in reported]
    if largest_difference(means, reported) == 0 and largest_difference(captured, reported) > TOLERANCE:
        return [_means(probs, layers) for probs in captured], ", means over heads"
    return captured, ""


def _means(probs: Tensor, layers: Tensor) -> Tensor:
    means = probs.clone()
    for layer in layers.unique():
        means[layers == layer] = probs[layers == layer].mean(dim=0, keepdim=True)
    return means


def softmax_of(att: Any) -> Tensor:
    """Softmax of captured scores, with their mask and sinks."""
    scores = att.values if att.mask is None else att.values.masked_fill(att.mask, -torch.inf)
    if att.sinks is None:
        return torch.softmax(scores, dim=-1)
    sinks = att.sinks[:, None, None].to(scores.dtype).expand(-1, scores.shape[1], 1)
    return torch.softmax(torch.cat([scores, sinks], dim=-1), dim=-1)[..., :-1]


class ModelState:
    """A model before headtree looks into it: its outputs, modules, hooks, weights and settings."""

    def __init__(self, model: nn.Module, inputs: Mapping[str, Any]) -> None:
        self.model, self.inputs = model, inputs
        outputs_with_attentions(model, inputs)  # the first time, transformers adds hooks of its own, for good
        self.outputs = outputs(model, inputs)
        self.weights = {name: value.clone() for name, value in model.state_dict().items()}
        self.modules = _modules(model)

    def unchanged(self) -> str:
        """Whether the model is as before, or else what changed."""
        if _modules(self.model) != self.modules:
            return "no: modules"
        now = self.model.state_dict()
        if list(now) != list(self.weights) or not same_tensors(list(self.weights.values()), list(now.values())):
            return "no: weights"
        return "yes" if same_tensors(self.outputs, outputs(self.model, self.inputs)) else "no: outputs"


def _modules(model: nn.Module) -> list[Any]:
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return [
        (
            name,
            id(module),
            type(module),
            module.training,
            sorted(module.__dict__),
            [len(getattr(module, kind)) for kind in hooks],
            getattr(getattr(module, "config", None), "_attn_implementation_internal", None),
        )
        for name, module in model.named_modules()
    ]
