"""How a model's attention can be seen, found out by one short run before the real ones."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from headtree.errors import HeadtreeWarning, InvalidValueError
from headtree.models import facts
from headtree.models.inputs import ModelInput, join
from headtree.models.module_stack import ModuleCall, ModuleStack, tensors_of
from headtree.models.watching.attention_sites import AttentionSite
from headtree.models.watching.logits import Block
from headtree.models.watching.watch import (
    AttentionCall,
    Listener,
    NoEagerFunctionError,
    implementation,
    recording,
    reproduces,
)

#: Tokens of the short run: enough for masks and groups to show, too few to cost anything.
_N_PROBE = 8

#: Ways that leave no doubt about what is attention: nothing a model returns need confirm them. (WavLM returns means
#: over heads.)
_CERTAIN = ("multihead", "registered", "sdpa")

_OUTPUT_FIELDS = {"attentions": "", "encoder_attentions": "encoder", "decoder_attentions": "decoder"}

#: These never build the scores; attention runs with sdpa in their place.
_FUSED = ("flash", "flex", "paged", "kernels", "sage")


@dataclass(frozen=True, eq=False)
class AttentionPlan:
    """The attention calls of a forward pass, in order, and how to see them again."""

    sites: tuple[AttentionSite, ...]
    probe: ModelInput  #: the input they were seen on
    registry: bool = False  #: a function in transformers' registry sees them
    trace: bool = False  #: calls of softmax and its kin are watched
    eager: bool = False  #: the model must attend eagerly for that
    from_outputs: bool = False  #: only what the model itself returns is known: probs without scores
    keep: tuple[int, ...] | None = None  #: which watched calls are attention, if not all
    output_bytes: int = 0  #: size of the largest output of any module in the short run

    @property
    def way(self) -> str:
        """How the attention calls were detected, for example "registry" or "sdpa and softmax"."""
        if self.from_outputs:
            return "the model's outputs"
        ways = sorted({site.way for site in self.sites})
        return " and ".join(ways) + (", attending eagerly" if self.eager else "")


def probe_of(item: ModelInput) -> ModelInput:
    """The first tokens of an input of text, on which a model is probed; any other input whole."""
    return item.first_tokens(_N_PROBE) or item


def make_plan(model: nn.Module, item: ModelInput) -> AttentionPlan:
    """Run the model on the first tokens of an input and see how it attends."""
    short = probe_of(item)
    if short is not item:
        try:
            return _plan_on(model, short)
        except (RuntimeError, ValueError, IndexError):
            pass  # some models need more tokens than these
    try:
        return _plan_on(model, item)
    except InvalidValueError:
        raise
    except Exception as error:
        raise InvalidValueError(
            f"the model cannot run on the first input: {type(error).__name__}: {error}; check that the inputs "
            f"are what {type(model).__name__}.forward takes"
        ) from error


def _plan_on(model: nn.Module, probe: ModelInput) -> AttentionPlan:
    plain, n_bytes = _largest_output(model, probe)
    is_registered = facts.config_of(model) is not None and _uses_registry(model)
    if is_registered:
        plan = _registry_plan(model, probe, plain)
        if plan is not None:
            return replace(plan, output_bytes=n_bytes)
    plan = _traced_plan(model, probe)
    if plan is None:
        raise InvalidValueError(
            f"no attention was seen in {type(model).__name__}: no call of transformers' attention registry, of "
            "torch.nn.MultiheadAttention, of scaled_dot_product_attention, or of softmax in a module named "
            "like attention, and no attentions among its outputs; if it attends in another way, tell headtree "
            "how with register_attention"
        )
    return replace(plan, output_bytes=n_bytes)


def _uses_registry(model: nn.Module) -> bool:
    return any(
        hasattr(getattr(module, "config", None), "_attn_implementation_internal") for module in model.modules()
    )


def _registry_plan(model: nn.Module, probe: ModelInput, plain: Any) -> AttentionPlan | None:
    """The calls seen through transformers' registry; None if it does not tell everything about this model.

    Nor if the model calls other functions of torch when its implementation has another name: GPT-2 has a branch of
    its own for "eager", which may agree to the last bit on a short input and not on a long one.
    """
    own, seen = _Functions(), _Functions()
    with own:
        again = run(model, [probe])
    calls: list[tuple[AttentionSite, bool]] = []

    def listen(call: AttentionCall) -> None:
        calls.append((call.site(), reproduces(call)))

    try:
        with recording(model, listen, n_batch=1), seen:
            watched = run(model, [probe])
    except (NoEagerFunctionError, KeyError):
        return None
    if not own.called <= seen.called:
        return None
    sites = tuple(site for site, _ in calls)
    is_complete = any(site.way == "registry" for site in sites) and all(agrees for _, agrees in calls)
    only_registry = all(site.way == "registry" for site in sites)
    if not is_complete or (only_registry and not _same(plain, watched) and _same(plain, again)):
        return None
    return AttentionPlan(sites, probe, registry=True, trace=not only_registry)


def _traced_plan(model: nn.Module, probe: ModelInput) -> AttentionPlan | None:
    """The calls seen by watching the model as it is, held against the attentions it returns itself."""
    seen = _watched_probs(model, probe)
    if not facts.accepts(model, "output_attentions"):
        return AttentionPlan(tuple(site for site, _ in seen), probe, trace=True) if seen else None
    with implementation(model, "eager"):
        returned = returned_attentions(model, run(model, [probe], output_attentions=True))
        eager = _watched_probs(model, probe, output_attentions=True)
    if not returned:
        return AttentionPlan(tuple(site for site, _ in seen), probe, trace=True) if seen else None
    places = _matches([probs for _, probs in eager], [weights[0] for _, weights in returned])
    if places is None and seen and all(site.way in _CERTAIN for site, _ in seen):
        return AttentionPlan(tuple(site for site, _ in seen), probe, trace=True)
    if places is None:
        return AttentionPlan(tuple(site for site, _ in returned), probe, eager=True, from_outputs=True)
    if [site.name for site, _ in eager] != [site.name for site, _ in seen]:
        return AttentionPlan(tuple(eager[i][0] for i in places), probe, trace=True, eager=True, keep=tuple(places))
    if any(not _close_where_allowed(seen[i][1], eager[i][1]) for i in places):
        warnings.warn(
            f"{type(model).__name__} as it was loaded attends otherwise than with attn_implementation='eager', "
            "which is a fault of the model's code; captured is what it does as it was loaded",
            HeadtreeWarning,
            stacklevel=2,
        )
    return AttentionPlan(tuple(seen[i][0] for i in places), probe, trace=True, keep=tuple(places))


def _watched_probs(model: nn.Module, probe: ModelInput, **options: Any) -> list[tuple[AttentionSite, Tensor]]:
    """The calls seen by watching, each with the attention of the first input."""
    calls: list[tuple[AttentionSite, Tensor]] = []

    def listen(call: AttentionCall) -> None:
        block = Block(0)
        missing = call.logits.missing(block)
        calls.append((call.site(), call.logits.probs(call.logits.scores(block), missing, slice(None))))

    with recording(model, listen, n_batch=1, registry=False):
        run(model, [probe], **options)
    return calls


def _matches(probs: list[Tensor], returned: list[Tensor]) -> list[int] | None:
    """Which watched calls the returned attentions are, in call order; None if some are none of them."""
    free = dict(enumerate(probs))
    for weights in returned:
        for i, ours in free.items():
            if ours.shape == weights.shape and _close_where_allowed(ours, weights):
                del free[i]
                break
        else:
            return None
    return [i for i in range(len(probs)) if i not in free]


def _close_where_allowed(ours: Tensor, theirs: Tensor) -> bool:
    seen = ours.sum(dim=-1) > 0  # rows without keys are missing here, and uniform in many models
    return torch.allclose(
        ours[seen].double(), theirs[seen].double(), atol=1e-5 if theirs.dtype.itemsize > 2 else 1e-2
    )


def returned_attentions(model: nn.Module, output: Any) -> list[tuple[AttentionSite, Tensor]]:
    """The attention weights among a model's outputs, as if they were calls."""
    found = []
    for field, part in {**_OUTPUT_FIELDS, "cross_attentions": "decoder"}.items():
        weights = output.get(field) if isinstance(output, Mapping) else getattr(output, field, None)
        for i, layer in enumerate(weights if isinstance(weights, list | tuple) else ()):
            if isinstance(layer, Tensor) and layer.ndim == 4 and _are_probs(layer):
                is_cross = field == "cross_attentions"
                name = f"{part}.{i}" if part else str(i)
                n_batch, n_heads, n_queries, n_keys = layer.shape
                shape = (n_batch, n_heads, n_queries, n_keys)
                found.append((AttentionSite(name, model, is_cross, shape, "outputs"), layer))
    return found


def _are_probs(weights: Tensor) -> bool:
    """Whether rows are shares of one: SqueezeBERT returns scores under the name of attentions."""
    sums = weights.sum(dim=-1)
    return bool((weights >= 0).all() and (sums <= 1 + 1e-2).all())


def run(model: nn.Module, items: list[ModelInput], **options: Any) -> Any:
    """One forward pass, as anyone would run it."""
    args, kwargs = arguments(model, items)
    with torch.no_grad():
        return model(*args, **kwargs, **options)


def arguments(model: nn.Module, items: list[ModelInput]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and named arguments for several inputs at once, on the model's device."""
    args, kwargs = join(items)
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    return _moved(args, device), _moved(kwargs, device)


def _moved(values: Any, device: torch.device) -> Any:
    if isinstance(values, tuple):
        return tuple(value.to(device) if isinstance(value, Tensor) else value for value in values)
    return {name: value.to(device) if isinstance(value, Tensor) else value for name, value in values.items()}


@contextmanager
def watching(model: nn.Module, plan: AttentionPlan, listener: Listener, n_batch: int) -> Iterator[None]:
    """See the plan's calls while the block runs."""
    with ExitStack() as stack:
        if plan.eager:
            stack.enter_context(implementation(model, "eager"))
        if plan.registry or plan.trace:
            stack.enter_context(
                recording(model, listener, n_batch=n_batch, registry=plan.registry, trace=plan.trace)
            )
        yield


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode and without fused kernels, and as it was afterwards."""
    training = [module for module in model.modules() if module.training]
    try:
        for module in training:
            module.training = False
        with implementation(model, "sdpa", only=_FUSED):
            yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def on_device(model: nn.Module, device: Any) -> Iterator[None]:
    """The model on another device for a while."""
    home = next((parameter.device for parameter in model.parameters()), None)
    if device is None or home is None:
        yield
        return
    try:
        model.to(device)
        yield
    finally:
        model.to(home)


def _same(first: Any, second: Any) -> bool:
    """Whether two outputs hold the same tensors, bit for bit."""
    ours, theirs = list(tensors_of(first)), list(tensors_of(second))
    return len(ours) == len(theirs) and all(
        torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(ours, theirs, strict=True)
    )


class _Functions(TorchFunctionMode):
    """Which functions of torch a model calls."""

    def __init__(self) -> None:
        super().__init__()
        self.called: set[Any] = set()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.called.add(func)
        return func(*args, **(kwargs or {}))


def _largest_output(model: nn.Module, probe: ModelInput) -> tuple[Any, int]:
    """A plain forward pass, and the bytes of the largest output of any module: a pass needs a few times that."""
    largest = 0

    def left(call: ModuleCall, output: Any) -> None:
        nonlocal largest
        largest = max(largest, sum(tensor.numel() * tensor.element_size() for tensor in tensors_of(output)))

    with ModuleStack(model, left=left).watching():
        return run(model, [probe]), largest
