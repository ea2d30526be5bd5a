"""One row of the sweep: a family's captured attention beside the attention that the model itself returns."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

import headtree as ht
from headtree.models.inputs import ready_inputs
from headtree.models.watching.attention_sites import parts_of
from tools.sweep import families
from tools.sweep.readings import readings

#: Captured and returned attention agree if no entry differs by more.
TOLERANCE = 1e-5

#: A model that is larger is not tiny: a size of its configuration has a name that the sweep does not know.
_MOST_PARAMETERS = 30_000_000

_FIELDS = {"": "attentions", **{part: f"{part}_attentions" for part in ("encoder", "decoder", "cross")}}

Row = dict[str, Any]


class CannotBeBuiltError(Exception):
    """The sweep has no tiny model of this family that runs here."""


def measured(name: str) -> Row:
    """The row of one family."""
    warnings.simplefilter("ignore")
    row: Row = {"family": name}
    try:
        case = families.case(name)
        row["class"] = case.model
        eager, inputs = runnable(case)
        model = built(case)
    except Exception as error:
        return {**row, "outcome": "cannot be built here", "why": in_short(error)}
    row["reads"] = words_for(inputs)
    return {**row, **judged(model, inputs, OwnAttention(eager, inputs))}


def judged(model: nn.Module, inputs: Mapping[str, Any], own: OwnAttention) -> Row:
    """What headtree says about a model, compared with what the model says."""
    view = ht.ModelView(model)
    before = State(model, inputs)
    try:
        with view.ready():
            plan = view.plan(ready_inputs(model, dict(inputs), None)[0])
        parts = list(parts_of(plan.sites))
    except ht.HeadtreeError as error:
        none = "no attention was found" in str(error) and not own.returned
        return {"outcome": "no attention" if none else "refused", "why": in_short(error)}
    row: Row = {"parts": ", ".join(part or "all" for part in parts), "seen by": plan.seen_by}
    found = [compared(view, inputs, part, own) for part in parts]
    row |= {key: "; ".join(dict.fromkeys(part[key] for part in found if part.get(key))) for key in ("shape", "own")}
    for key in ("probs", "scores"):
        differences = [part[key] for part in found if isinstance(part.get(key), float)]
        row[key] = max(differences) if differences else next((part[key] for part in found if part.get(key)), "")
    row |= verdict(found)
    row |= {title: works(use, view, inputs, parts) for title, use in USES.items()}
    return {**row, "unchanged": before.unchanged()}


def compared(view: ht.ModelView, inputs: Mapping[str, Any], part: str, own: OwnAttention) -> Row:
    """Shape and largest differences of one part of a model's attention."""
    try:
        probs = view.capture(inputs=dict(inputs), kind="probs", part=part or None)
    except ht.HeadtreeError as error:
        return {"refused": in_short(error)}
    row: Row = {"shape": "×".join(map(str, probs[0].shape))}
    expected, row["own"] = own.of(part, [att.values for att in probs])
    if expected is not None:
        row["probs"] = largest_difference([att.values for att in probs], expected)
    try:
        scores = view.capture(inputs=dict(inputs), kind="scores", part=part or None)
    except ht.HeadtreeError:
        return {**row, "scores": "refused"}
    if expected is not None:
        row["scores"] = largest_difference([softmax_of(att) for att in scores], expected)
    return row


def verdict(found: list[Row]) -> Row:
    """The outcome in words for all parts of a model."""
    refused = [part["refused"] for part in found if "refused" in part]
    differences = [part[key] for part in found for key in ("probs", "scores") if isinstance(part.get(key), float)]
    if any(not difference <= TOLERANCE for difference in differences):
        return {"outcome": "differs", "why": ""}
    if any(part.get("own") == "other shapes" for part in found):
        return {"outcome": "differs", "why": "the model returns attention of other shapes"}
    if refused:
        whole = len(refused) == len(found)
        return {"outcome": "refused" if whole else "refused in part", "why": refused[0]}
    if len(differences) == 0:
        return {"outcome": "none returned", "why": ""}
    return {"outcome": "agrees", "why": ""}


# -- what builds on capture: one column each ----------------------------------------------------------------------

USES: dict[str, Callable[[ht.ModelView, dict[str, Any], str | None], Any]] = {
    "weights": lambda view, inputs, part: view.weights(inputs=inputs, part=part),
    "residual": lambda view, inputs, part: view.residual(inputs=inputs, part=part),
}


def works(use: Callable[..., Any], view: ht.ModelView, inputs: Mapping[str, Any], parts: list[str]) -> str:
    """Whether something that builds on capture works on every part of a model."""
    done = []
    for part in parts:
        try:
            use(view, dict(inputs), part or None)
        except ht.HeadtreeError:
            continue
        done.append(part)
    if len(done) == len(parts):
        return "yes"
    return f"{', '.join(done)} only" if done else "refused"


# -- models and what they say -------------------------------------------------------------------------------------


def built(case: Any, implementation: str | None = None) -> nn.Module:
    """The tiny model of a case, if it is tiny."""
    import transformers

    config = getattr(transformers, case.config)(**case.settings)
    with torch.device("meta"):
        hollow = getattr(transformers, case.model)._from_config(config)
    n = sum(parameter.numel() for parameter in hollow.parameters())
    if n > _MOST_PARAMETERS:
        raise CannotBeBuiltError(f"{n / 1e6:.0f} million parameters")
    return case.build(implementation)


def runnable(case: Any) -> tuple[nn.Module, dict[str, Any]]:
    """A model with eager attention that never meets headtree, and inputs that it can read."""
    model = built(case, "eager")
    error: Exception | None = None
    for inputs in [case.read()] if case.read() else readings(model):
        try:
            outputs(model, inputs)
        except Exception as failure:
            error = error or failure
            continue
        return model, inputs
    raise error or CannotBeBuiltError("the sweep knows no inputs for it")


def outputs(model: nn.Module, inputs: Mapping[str, Any], **options: Any) -> Any:
    """A model's outputs; models that draw random numbers draw the same ones each time."""
    if hasattr(model.config, "use_cache") and "use_cache" in inspect.signature(model.forward).parameters:
        options["use_cache"] = False
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(0)
        return model(**inputs, **options)


class OwnAttention:
    """The attention that a model itself reports when it runs with eager attention.

    It is among the outputs with ``output_attentions=True``, or else what its attention modules return.
    """

    def __init__(self, model: nn.Module, inputs: Mapping[str, Any]) -> None:
        self.by_modules: list[tuple[str, Tensor]] = []
        handles = [
            module.register_forward_hook(self._keep_as(name)) for name, module in model.named_modules() if name
        ]
        try:
            output = outputs(model, inputs, output_attentions=True)
        except TypeError:
            self.by_modules.clear()
            output = outputs(model, inputs)
        for handle in handles:
            handle.remove()
        self.returned = dict(_attentions(output))

    def _keep_as(self, name: str) -> Callable[..., None]:
        def keep(module: nn.Module, args: Any, output: Any) -> None:
            for value in output[1:] if isinstance(output, tuple) else ():
                if isinstance(value, Tensor) and value.ndim == 4 and _are_probs(value):
                    self.by_modules.append((name, value))

        return keep

    def of(self, part: str, captured: list[Tensor]) -> tuple[list[Tensor] | None, str]:
        """What the model says of a part, one tensor per input, and where it says so."""
        named = self.returned.get(_FIELDS.get(part, ""))
        stacks = [named] if named is not None and part in _FIELDS else list(self.returned.values())
        fitting = [stack for stack in map(_by_input, stacks) if _same_shapes(stack, captured)]
        if fitting:
            return min(fitting, key=lambda stack: largest_difference(captured, stack)), "outputs"
        within = [weights for name, weights in self.by_modules if not part or part in name.split(".")]
        modules = _by_input(within)
        if _same_shapes(modules, captured):
            return modules, "modules"
        return None, "other shapes" if named is not None and part in _FIELDS else "none returned"


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
    if len({(layer.shape[0], *layer.shape[2:]) for layer in layers}) != 1:
        return []
    return list(torch.cat(layers, dim=1))


def _same_shapes(ours: list[Tensor], theirs: list[Tensor]) -> bool:
    return [tensor.shape for tensor in ours] == [tensor.shape for tensor in theirs]


def largest_difference(ours: list[Tensor], theirs: list[Tensor]) -> float:
    """The largest difference of two entries."""
    return max(float((a - b).abs().max()) for a, b in zip(ours, theirs, strict=True))


def softmax_of(att: Any) -> Tensor:
    """Softmax of captured scores, with their mask and sinks."""
    scores = att.values if att.mask is None else att.values.masked_fill(att.mask, -torch.inf)
    if att.sinks is None:
        return torch.softmax(scores, dim=-1)
    sinks = att.sinks[:, None, None].expand(-1, scores.shape[1], 1)
    return torch.softmax(torch.cat([scores, sinks], dim=-1), dim=-1)[..., :-1]


class State:
    """A model before headtree looks into it: its outputs, modules, hooks, weights and settings."""

    def __init__(self, model: nn.Module, inputs: Mapping[str, Any]) -> None:
        self.model, self.inputs = model, inputs
        self.outputs = list(_tensors(outputs(model, inputs)))
        again = list(_tensors(outputs(model, inputs)))
        self.repeats = _equal(self.outputs, again)
        self.weights = {name: value.clone() for name, value in model.state_dict().items()}
        self.modules = _modules(model)

    def unchanged(self) -> str:
        """Whether the model is as before, or else what changed."""
        now = self.model.state_dict()
        if _modules(self.model) != self.modules:
            return "no: modules"
        if now.keys() != self.weights.keys() or not _equal(list(self.weights.values()), list(now.values())):
            return "no: weights"
        if not self.repeats:
            return "its outputs vary"
        same = _equal(self.outputs, list(_tensors(outputs(self.model, self.inputs))))
        return "yes" if same else "no: outputs"


def _modules(model: nn.Module) -> list[Any]:
    return [
        (
            name,
            id(module),
            type(module),
            module.training,
            sorted(module.__dict__),
            [len(getattr(module, hooks)) for hooks in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks")],
            getattr(getattr(module, "config", None), "_attn_implementation_internal", None),
        )
        for name, module in model.named_modules()
    ]


def _tensors(output: Any) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, Mapping | list | tuple):
        for value in output.values() if isinstance(output, Mapping) else output:
            yield from _tensors(value)


def _equal(ours: list[Tensor], theirs: list[Tensor]) -> bool:
    return len(ours) == len(theirs) and all(
        a.shape == b.shape and torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(ours, theirs, strict=True)
    )


def words_for(inputs: Mapping[str, Any]) -> str:
    """What a model read, in words."""
    kinds = {
        "text": ("input_ids",),
        "image": ("pixel_values", "hidden_states"),
        "video": ("pixel_values_videos",),
        "sound": ("input_features", "input_values"),
        "series": ("past_values",),
    }
    return " and ".join(kind for kind, names in kinds.items() if set(names) & set(inputs))


def in_short(error: Exception) -> str:
    """The first 100 characters of a message."""
    text = " ".join(str(error).split()) or type(error).__name__
    text = text if isinstance(error, ht.HeadtreeError) else f"{type(error).__name__}: {text}"
    return text if len(text) <= 100 else text[:99] + "…"
