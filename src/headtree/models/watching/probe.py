"""Verify what is captured: the softmax of the captured scores times V must equal the module's output.

A short run on the first tokens shows which attention calls a model makes, in which order, and which way of watching
reproduces them. The order of the calls identifies them in later runs.
"""

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
from headtree.models.stateful import for_one_pass
from headtree.models.watching.attention_sites import AttentionSite
from headtree.models.watching.logits import Block
from headtree.models.watching.unchanged import unchanged
from headtree.models.watching.watch import (
    AttentionCall,
    Listener,
    NoEagerFunctionError,
    implementation,
    recording,
    reproduces,
)

#: Tokens of the probing run: enough for masks and grouped heads to show, few enough to cost nothing.
_N_PROBE = 8

#: Calls seen this way are certainly attention, even if the attentions that the model returns do not confirm them
#: (WavLM returns means over heads).
_CERTAIN = ("multihead", "described", "sdpa")

_OUTPUT_FIELDS = {"attentions": "", "encoder_attentions": "encoder", "decoder_attentions": "decoder"}

#: Implementations that never compute the scores; sdpa replaces them.
_FUSED = ("flash", "flex", "paged", "kernels", "sage")


@dataclass(frozen=True, eq=False)
class AttentionPlan:
    """The attention calls of a forward pass, in call order, and how to capture them again."""

    sites: tuple[AttentionSite, ...]
    probe: ModelInput  #: the input of the probing run
    registry: bool = False  #: whether to capture through transformers' attention registry
    functions: bool = False  #: whether to watch calls of softmax, sdpa and multi-head attention
    eager: bool = False  #: whether the model must run with eager attention
    from_outputs: bool = False  #: only the attentions that the model returns are known: probs without scores
    call_order: tuple[int, ...] | None = None  #: for each site, the index of its watched call; None: the same
    n_calls: int = 0  #: number of watched calls in the probing run
    output_bytes: int = 0  #: size of the largest module output in the probing run

    @property
    def seen_by(self) -> str:
        """How the attention calls were detected, for example "registry" or "sdpa and softmax"."""
        if self.from_outputs:
            return "the model's outputs"
        ways = sorted({site.seen_by for site in self.sites})
        return " and ".join(ways) + (", attending eagerly" if self.eager else "")


def probe_of(item: ModelInput) -> ModelInput:
    """The input to probe the model with: the first tokens of a text, any other input as a whole."""
    return item.first_tokens(_N_PROBE) or item


def make_plan(model: nn.Module, item: ModelInput) -> AttentionPlan:
    """Run the model on the first tokens of an input and find its attention calls.

    The whole input is run if the model fails on the first tokens, or if they change it: BigBird replaces its
    block-sparse attention by full attention when an input is short.
    """
    short = probe_of(item)
    if short is not item:
        try:
            first = _FirstRun(model, short)
            if not first.changes:
                return _plan_on(model, first)
        except (RuntimeError, ValueError, IndexError):
            pass  # some models need more tokens
    try:
        return _plan_on(model, _FirstRun(model, item))
    except InvalidValueError:
        raise
    except Exception as error:
        raise InvalidValueError(
            f"the model fails on the first input: {type(error).__name__}: {error}; check that the inputs are "
            f"valid arguments of {type(model).__name__}.forward"
        ) from error


def _plan_on(model: nn.Module, first: _FirstRun) -> AttentionPlan:
    if facts.config_of(model) is not None and _uses_registry(model):
        plan = _registry_plan(model, first.probe, first.output)
        if plan is not None:
            return replace(plan, output_bytes=first.largest)
    plan = _functions_plan(model, first.probe)
    if plan is None:
        raise InvalidValueError(
            f"no attention was found in {type(model).__name__}: no call of transformers' attention registry, of "
            "torch.nn.MultiheadAttention, of scaled_dot_product_attention, or of softmax in a module named "
            "like attention, and no attentions among its outputs; if it attends in another way, describe that "
            "with register_attention"
        )
    return replace(plan, output_bytes=first.largest)


def _uses_registry(model: nn.Module) -> bool:
    return any(
        hasattr(getattr(module, "config", None), "_attn_implementation_internal") for module in model.modules()
    )


def _registry_plan(model: nn.Module, probe: ModelInput, unwatched: Any) -> AttentionPlan | None:
    """The calls seen through transformers' registry; None if it does not show all attention of this model.

    Also None if the model calls other torch functions when its attention implementation has another name: GPT-2 has
    a separate branch for "eager", which may agree to the last bit on a short input but not on a long one.
    """
    without, within = _CalledFunctions(), _CalledFunctions()  # without and within recording
    with without:
        again = run(model, [probe])
    calls: list[tuple[AttentionSite, bool]] = []

    def listen(call: AttentionCall) -> None:
        calls.append((call.site(), reproduces(call)))

    try:
        with recording(model, listen, n_batch=1), within:
            watched = run(model, [probe])
    except (NoEagerFunctionError, KeyError):
        return None
    if not without.called <= within.called:
        return None
    sites = tuple(site for site, _ in calls)
    is_complete = any(site.seen_by == "registry" for site in sites) and all(agrees for _, agrees in calls)
    only_registry = all(site.seen_by == "registry" for site in sites)
    if not is_complete or (only_registry and not _same(unwatched, watched) and _same(unwatched, again)):
        return None
    return AttentionPlan(sites, probe, registry=True, functions=not only_registry, n_calls=len(sites))


def _functions_plan(model: nn.Module, probe: ModelInput) -> AttentionPlan | None:
    """The calls seen by watching torch functions, compared with the attentions that the model returns."""
    seen = _watched_probs(model, probe)
    as_seen = AttentionPlan(tuple(site for site, _ in seen), probe, functions=True, n_calls=len(seen))
    if not facts.accepts(model, "output_attentions"):
        return as_seen if seen else None
    with implementation(model, "eager"):
        returned = returned_attentions(model, run(model, [probe], output_attentions=True))
        eager = _watched_probs(model, probe, output_attentions=True)
    if not returned:
        return as_seen if seen else None
    calls = _matches([probs for _, probs in eager], [weights[0] for _, weights in returned])
    if calls is None and seen and all(site.seen_by in _CERTAIN for site, _ in seen):
        return as_seen
    if calls is None:
        return AttentionPlan(tuple(site for site, _ in returned), probe, eager=True, from_outputs=True)
    if [site.name for site, _ in eager] != [site.name for site, _ in seen]:
        sites = tuple(eager[i][0] for i in calls)
        return replace(as_seen, sites=sites, eager=True, call_order=tuple(calls), n_calls=len(eager))
    if any(not _close_where_allowed(seen[i][1], eager[i][1]) for i in calls):
        warnings.warn(
            f"{type(model).__name__} as loaded computes different attention than with attn_implementation='eager', "
            "which is a bug in the model's code; the attention of the model as loaded is captured",
            HeadtreeWarning,
            stacklevel=2,
        )
    return replace(as_seen, sites=tuple(seen[i][0] for i in calls), call_order=tuple(calls))


def _watched_probs(model: nn.Module, probe: ModelInput, **options: Any) -> list[tuple[AttentionSite, Tensor]]:
    """The calls seen by watching torch functions, in call order, each with the attention of the first input."""
    calls: list[tuple[AttentionSite, Tensor]] = []

    def listen(call: AttentionCall) -> None:
        block = Block(0)
        missing = call.logits.missing(block)
        calls.append((call.site(), call.logits.probs(call.logits.scores(block), missing, slice(None))))

    with recording(model, listen, n_batch=1, registry=False):
        run(model, [probe], **options)
    return calls


def _matches(probs: list[Tensor], returned: list[Tensor]) -> list[int] | None:
    """Indices of the watched calls that the returned attentions match, in call order; None if one matches none."""
    unmatched = dict(enumerate(probs))
    for weights in returned:
        for i, ours in unmatched.items():
            if ours.shape == weights.shape and _close_where_allowed(ours, weights):
                del unmatched[i]
                break
        else:
            return None
    return [i for i in range(len(probs)) if i not in unmatched]


def _close_where_allowed(ours: Tensor, theirs: Tensor) -> bool:
    allowed = ours.sum(dim=-1) > 0  # rows with all keys masked are missing here, but uniform in many models
    return torch.allclose(
        ours[allowed].double(), theirs[allowed].double(), atol=1e-5 if theirs.dtype.itemsize > 2 else 1e-2
    )


def returned_attentions(model: nn.Module, output: Any) -> list[tuple[AttentionSite, Tensor]]:
    """The attention weights among a model's outputs, each with a site as if it were a call."""
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
    """Whether rows sum to at most one: SqueezeBERT returns scores under the name "attentions"."""
    sums = weights.sum(dim=-1)
    return not bool((weights < 0).any() or (sums > 1 + 1e-2).any())  # NaN is reported later


def run(model: nn.Module, items: list[ModelInput], **options: Any) -> Any:
    """One forward pass without gradients, which leaves the model as it was."""
    args, kwargs = arguments(model, items)
    with torch.no_grad(), unchanged(model):
        return model(*args, **kwargs, **options)


def arguments(model: nn.Module, items: list[ModelInput]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments of one forward pass on a batch of inputs, on the model's device.

    Those with state are copies: a key-value cache grows with every pass.
    """
    args, kwargs = join(items)
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    return (
        tuple(for_one_pass(value, str(i), device) for i, value in enumerate(args)),
        {name: for_one_pass(value, name, device) for name, value in kwargs.items()},
    )


@contextmanager
def watching(model: nn.Module, plan: AttentionPlan, listener: Listener, n_batch: int) -> Iterator[None]:
    """Report the plan's attention calls to the listener, in call order, while the block runs."""
    with ExitStack() as stack:
        if plan.eager:
            stack.enter_context(implementation(model, "eager"))
        if plan.registry or plan.functions:
            stack.enter_context(
                recording(model, listener, n_batch=n_batch, registry=plan.registry, functions=plan.functions)
            )
        yield


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put the model in evaluation mode and without fused kernels; restore it afterwards."""
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
    """Move the model to a device while the block runs."""
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


class _CalledFunctions(TorchFunctionMode):
    """Records which torch functions a model calls."""

    def __init__(self) -> None:
        super().__init__()
        self.called: set[Any] = set()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.called.add(func)
        return func(*args, **(kwargs or {}))


class _FirstRun:
    """A plain forward pass: its output, the bytes of its largest module output, and what it changed in the model.

    A pass needs a few times the memory of its largest module output.
    """

    def __init__(self, model: nn.Module, probe: ModelInput) -> None:
        self.probe, self.largest = probe, 0
        with ModuleStack(model, left=self._left).watching(), unchanged(model) as self.changes:
            args, kwargs = arguments(model, [probe])
            with torch.no_grad():
                self.output = model(*args, **kwargs)

    def _left(self, call: ModuleCall, output: Any) -> None:
        n_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors_of(output))
        self.largest = max(self.largest, n_bytes)
