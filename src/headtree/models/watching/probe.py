"""Verify what is captured: the softmax of the captured scores times V must equal the module's output.

A short run on the first tokens shows which attention calls a model makes, in which order, and which way of watching
reproduces them. The order of the calls identifies them in later runs.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
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
from headtree.models.watching.returned import (
    attention_fields,
    close_where_allowed,
    confirmed_calls,
    is_usable,
    returned_attentions,
    unaccounted,
    unlike,
)
from headtree.models.watching.unchanged import unchanged
from headtree.models.watching.watch import (
    AttentionCall,
    Listener,
    NoEagerFunctionError,
    implementation,
    in_words,
    recording,
    reproduces,
)

#: Tokens of the probing run: enough for masks and grouped heads to show, few enough to cost nothing.
_N_PROBE = 8

#: Calls seen this way are certainly attention, even if the attentions that the model returns do not confirm them
#: (WavLM returns means over heads).
_CERTAIN = ("multihead", "described", "sdpa")

#: Entries of the probing run's attention that are compared with the attention that the model returns.
_MOST_ENTRIES = 1 << 24

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
    unseen: tuple[str, ...] = ()  #: attention that the model computes or returns, but that cannot be captured
    watched: tuple[AttentionSite, ...] = ()  #: all watched calls of the probing run, in call order
    returned: tuple[Tensor, ...] = ()  #: with `from_outputs`, the attention of each site on the first input
    output_bytes: int = 0  #: size of the largest module output in the probing run

    @property
    def n_calls(self) -> int:
        """Number of watched calls in the probing run."""
        return len(self.watched)

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
        except (RuntimeError, ValueError, IndexError, TypeError):
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
    probs: list[Tensor] = []

    def listen(call: AttentionCall) -> None:
        calls.append((call.site(), reproduces(call)))
        n_entries = sum(torch.Size(site.shape).numel() for site, _ in calls)
        if n_entries <= _MOST_ENTRIES:
            probs.append(_probs_of(call))

    try:
        with recording(model, listen, n_batch=1) as missed, within:
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
    other = _unseen_fields(model, probe, sites, probs)
    if not only_registry and any(is_usable(field, layer) for field, layer in other.items()):
        return None  # then a watched softmax may be a piece of that attention, as in block-sparse encoders
    unseen = (*missed, *_in_words(other))
    return AttentionPlan(sites, probe, registry=True, functions=not only_registry, watched=sites, unseen=unseen)


def _unseen_fields(
    model: nn.Module, probe: ModelInput, sites: Sequence[AttentionSite], probs: Sequence[Tensor]
) -> dict[str, Tensor]:
    """The output fields with attention that was not seen, each with a layer.

    Models return attention only when they attend eagerly, so this takes a pass of its own on the probe. A warning
    says so if that pass fails, or if a returned layer has the shape of a call, but the values of none.
    """
    if not facts.accepts(model, "output_attentions"):
        return {}
    try:
        with warnings.catch_warnings(), implementation(model, "eager"):
            warnings.simplefilter("ignore")
            output = run(model, [probe], output_attentions=True)
    except (RuntimeError, ValueError, TypeError, AttributeError, KeyError) as error:
        warnings.warn(
            f"{type(model).__name__} fails when it attends eagerly and returns its attention "
            f"({type(error).__name__}: {error}), so what is captured was not compared with that",
            HeadtreeWarning,
            stacklevel=2,
        )
        return {}
    fields = attention_fields(output)
    missing = unaccounted([site.shape for site in sites], fields)
    is_compared = len(probs) == len(sites) and not any(site.has_sinks for site in sites)
    other = unlike(probs, fields) if is_compared and not missing else None
    if other is not None:
        warnings.warn(
            f"a layer of {other} that {type(model).__name__} returns is the attention of no captured call: either "
            "the model attends otherwise when it is eager, or it has attention that is not captured",
            HeadtreeWarning,
            stacklevel=2,
        )
    return missing


def _in_words(fields: Mapping[str, Tensor]) -> tuple[str, ...]:
    return tuple(f"{field} ({in_words(layer.shape)})" for field, layer in fields.items())


def _functions_plan(model: nn.Module, probe: ModelInput) -> AttentionPlan | None:
    """The calls seen by watching torch functions, compared with the attentions that the model returns."""
    seen, missed = _watched_probs(model, probe)
    sites = tuple(site for site, _ in seen)
    as_seen = AttentionPlan(sites, probe, functions=True, watched=sites, unseen=missed)
    if not facts.accepts(model, "output_attentions"):
        return _checked(model, as_seen)
    with implementation(model, "eager"):
        output = run(model, [probe], output_attentions=True)
        eager, _ = _watched_probs(model, probe, output_attentions=True)
    fields, returned = attention_fields(output), returned_attentions(model, output)
    if not fields:
        return _checked(model, as_seen)
    calls, unmatched = confirmed_calls([probs for _, probs in eager], fields)
    is_certain = bool(seen) and all(site.seen_by in _CERTAIN for site in sites)
    if is_certain and not calls:  # these are attention, whatever the model returns in the usual shape
        unmatched = {field: layer for field, layer in unmatched.items() if layer.ndim > 4}
    unseen = _in_words(unmatched)
    if any(is_usable(field, layer) for field, layer in unmatched.items()):
        unseen = _in_words({field: layer for field, layer in unmatched.items() if not is_usable(field, layer)})
        only, layers = (tuple(each) for each in zip(*returned, strict=True))
        _warn_of_lost_shares(model, only, layers)
        first = tuple(layer[0] for layer in layers)
        return AttentionPlan(only, probe, eager=True, from_outputs=True, unseen=unseen, returned=first)
    if not calls:  # then a watched softmax is not what the model calls attention, unless it certainly is
        contradicted = not is_certain and any(layer.ndim >= 4 for layer in unmatched.values())
        return _checked(model, replace(as_seen, sites=() if contradicted else sites, unseen=unseen))
    if [site.name for site, _ in eager] != [site.name for site in sites]:
        watched = tuple(site for site, _ in eager)
        chosen = tuple(watched[i] for i in calls)
        return replace(as_seen, sites=chosen, eager=True, call_order=tuple(calls), watched=watched, unseen=unseen)
    if any(not close_where_allowed(seen[i][1], eager[i][1]) for i in calls):
        warnings.warn(
            f"{type(model).__name__} as loaded computes different attention than with attn_implementation='eager', "
            "which is a bug in the model's code; the attention of the model as loaded is captured",
            HeadtreeWarning,
            stacklevel=2,
        )
    return replace(as_seen, sites=tuple(sites[i] for i in calls), call_order=tuple(calls), unseen=unseen)


def _warn_of_lost_shares(model: nn.Module, sites: Sequence[AttentionSite], layers: Sequence[Tensor]) -> None:
    """Say so if the attention that a model returns is not all of its attention.

    BigBird in evaluation mode attends to its first block of keys twice, and returns one of the two; CPM-Ant returns
    no attention to its prompt, and HY-V4 none to its sinks.
    """
    for site, layer in zip(sites, layers, strict=True):
        sums = layer.float().sum(dim=-1)
        least = float(sums[sums > 0].min()) if bool((sums > 0).any()) else 1.0
        if least < 1 - 1e-2:
            warnings.warn(
                f"the attention that {type(model).__name__} returns, from which it is captured, is not all of its "
                f"attention: in layer {site.name} rows sum to {least:.2f} at least, not to 1; the rest goes to "
                "keys that it does not return, such as a prompt or a sink, or that it attends to several times and "
                "returns once",
                HeadtreeWarning,
                stacklevel=2,
            )
            return


def _checked(model: nn.Module, plan: AttentionPlan) -> AttentionPlan | None:
    """The plan, if it has calls; an error if the model attends, but only in ways that cannot be captured."""
    if plan.sites or not plan.unseen:
        return plan if plan.sites else None
    raise InvalidValueError(
        f"the attention of {type(model).__name__} cannot be captured: {' and '.join(plan.unseen[:3])}. This is not "
        "a matrix of queries and keys for each head, because the model attends within windows or blocks, or to "
        "some tokens globally; describe the matrix with register_attention, or pass inputs without global tokens"
    )


def _watched_probs(
    model: nn.Module, probe: ModelInput, **options: Any
) -> tuple[list[tuple[AttentionSite, Tensor]], tuple[str, ...]]:
    """The calls seen by watching torch functions, each with the attention of the first input; and those missed."""
    calls: list[tuple[AttentionSite, Tensor]] = []

    def listen(call: AttentionCall) -> None:
        calls.append((call.site(), _probs_of(call)))

    with recording(model, listen, n_batch=1, registry=False) as missed:
        run(model, [probe], **options)
    return calls, tuple(missed)


def _probs_of(call: AttentionCall) -> Tensor:
    """The attention of a call on the first input."""
    block = Block(0)
    return call.logits.probs(call.logits.scores(block), call.logits.missing(block), slice(None))


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
