"""Watch a model attend: report every attention call of a forward pass, in call order, without changing its results.

There are three ways to see the input of softmax. For models that use transformers' attention registry, a recording
function is put into the registry; it calls the model's own function and looks at its arguments. In other models,
calls of softmax, `scaled_dot_product_attention` and `torch.nn.MultiheadAttention` are watched. Modules that a user
described with `register_attention` are described after each call.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from headtree.models import register
from headtree.models.module_stack import ModuleCall, ModuleStack, tensors_of
from headtree.models.watching import attention_sites
from headtree.models.watching.logits import Block, Logits, from_product, from_queries

_SOFTMAX = frozenset({F.softmax, torch.softmax, Tensor.softmax, torch.special.softmax})
_MULTIHEAD_SIGNATURE = inspect.signature(F.multi_head_attention_forward)
_numbers = itertools.count()


@dataclass(frozen=True, eq=False)
class AttentionCall:
    """One attention call while it happens."""

    name: str
    module: nn.Module
    is_cross: bool
    logits: Logits
    seen_by: str  #: as in `AttentionSite`
    value: Tensor | None = None  #: the values, where they are seen
    output: Tensor | None = None  #: the module's output, softmax(scores) V, as (batch, query, head, feature)
    probs: Tensor | None = None  #: the result of a watched softmax, the very tensor that the model uses
    made_by: ModuleCall | None = None  #: the running call of its module
    depth: int | None = None  #: as in `AttentionSite`
    place: tuple[str, int] | None = None  #: as in `AttentionSite`

    @property
    def entering(self) -> Tensor | None:
        """Hidden states that enter the module: its first argument with three axes, on the CPU."""
        if self.made_by is None:
            return None
        given = tensors_of([*self.made_by.args, self.made_by.kwargs])
        states = next((x for x in given if x.is_floating_point() and x.ndim == 3), None)
        return None if states is None else states.detach().cpu()

    def site(self) -> attention_sites.AttentionSite:
        """The description of the call without its tensors."""
        logits = self.logits
        return attention_sites.AttentionSite(
            self.name,
            self.module,
            self.is_cross,
            logits.shape,
            self.seen_by,
            has_sinks=logits.sinks is not None,
            depth=self.depth,
            place=self.place,
        )


Listener = Callable[[AttentionCall], None]


@contextmanager
def recording(
    model: nn.Module, listener: Listener, *, n_batch: int, registry: bool = True, functions: bool = True
) -> Iterator[list[str]]:
    """Call `listener` with every attention call of `model`, in call order, while the block runs.

    Yields a list that names each softmax of an attention module with more than four axes, which is not reported.

    Parameters
    ----------
    model : module
        If `registry`, its configuration names another attention function while the block runs, and is then
        restored.
    listener : function
        Receives each AttentionCall. The tensors are the model's own and must not be changed.
    n_batch : int
        Number of inputs in the batch, to separate heads and inputs where a model folds them into one axis.
    registry, functions : bool
        Whether to watch through transformers' registry, and whether to watch torch functions.
    """
    watch = _Watch(model, listener, n_batch)
    with ExitStack() as stack:
        stack.enter_context(watch.stack.watching())
        if registry:
            stack.enter_context(_registry(model, watch))
        if functions:
            stack.enter_context(_FunctionWatch(watch))
        yield watch.missed


class _Watch:
    """Reports attention calls to a listener, each with the module that made it."""

    def __init__(self, model: nn.Module, listener: Listener, n_batch: int) -> None:
        self.model, self.listener, self.n_batch = model, listener, n_batch
        self.stack = ModuleStack(model, self._entered, self._left)
        self.suppressed = 0  # > 0 while a call is already being recorded
        self.missed: list[str] = []
        self.latest: tuple[ModuleCall | None, Logits] | None = None

    def _entered(self, call: ModuleCall) -> None:
        if register.description_of(call.module) is not None:
            self.suppressed += 1

    def _left(self, call: ModuleCall, output: Any) -> None:
        describe = register.description_of(call.module)
        if describe is None:
            return
        self.suppressed -= 1
        if self.suppressed == 0 and output is not None:
            logits = register.described_logits(call.module, describe, call.args, call.kwargs, output)
            self.report(call.module, call.kwargs, logits, "described", made_by=call)

    def report(
        self,
        module: nn.Module,
        arguments: Mapping[str, Any],
        logits: Logits,
        seen_by: str,
        value: Tensor | None = None,
        output: Tensor | None = None,
        is_cross: bool | None = None,
        probs: Tensor | None = None,
        made_by: ModuleCall | None = None,
    ) -> None:
        """Report a call to the listener, unless its module has just made it with other values.

        Differential attention attends twice with the same queries and keys, which are one layer.
        """
        made_by = made_by or self.running_call(module)
        if self.latest is not None and self.latest[0] is made_by and logits.repeats(self.latest[1]):
            return
        self.latest = made_by, logits
        name = self.stack.name_of(module)
        if is_cross is None:
            is_cross = attention_sites.is_cross_attention(name, arguments)
        depth, innermost = self._depth(made_by), self.stack.running[-1] if self.stack.running else None
        place = None if innermost is None else (innermost.name, innermost.index)
        self.suppressed += 1  # the listener's own softmax is not attention
        try:
            self.listener(
                AttentionCall(name, module, is_cross, logits, seen_by, value, output, probs, made_by, depth, place)
            )
        finally:
            self.suppressed -= 1

    def _depth(self, made_by: ModuleCall | None) -> int | None:
        """Number of the outermost running module that has one, which is its layer even if layers share modules."""
        calls = self.stack.running if made_by is None else [*self.stack.running, made_by]
        numbers = (call.name.rpartition(".")[2] for call in calls)
        return next((int(number) for number in numbers if number.isdigit()), None)

    def attention_module(self) -> tuple[nn.Module, Mapping[str, Any]] | None:
        """The innermost running module that looks like attention, and its arguments; None if there is none."""
        for call in reversed(self.stack.running):
            if attention_sites.is_attention_like(call.module, call.name.rpartition(".")[2]):
                return call.module, call.kwargs
        return None

    def innermost(self) -> tuple[nn.Module, Mapping[str, Any]]:
        """The innermost running module and its arguments."""
        if not self.stack.running:
            return self.model, {}
        call = self.stack.running[-1]
        return call.module, call.kwargs

    def running_call(self, module: nn.Module) -> ModuleCall | None:
        """The innermost running call of a module."""
        return next((call for call in reversed(self.stack.running) if call.module is module), None)


@contextmanager
def _registry(model: nn.Module, watch: _Watch) -> Iterator[None]:
    """Point the model's configurations to attention functions that record; restore them afterwards."""
    from transformers import AttentionInterface, AttentionMaskInterface

    configs = _configs(model)
    before = [(config, config._attn_implementation_internal) for config in configs]
    keys: dict[str, str] = {}
    try:
        for config, implementation in before:
            previous = implementation or "eager"
            if previous not in keys:
                key = keys[previous] = f"headtree_{previous.replace('|', '_')}_{next(_numbers)}"
                AttentionInterface.register(key, _recording_function(previous, watch))
                masks: dict[str, Any] = AttentionMaskInterface._global_mapping
                if previous in masks:  # without this, causal and padding masks vanish
                    AttentionMaskInterface.register(key, masks[previous])
            config._attn_implementation_internal = keys[previous]
        yield
    finally:
        for config, implementation in before:
            config._attn_implementation_internal = implementation
        for key in keys.values():
            AttentionInterface._global_mapping.pop(key, None)
            AttentionMaskInterface._global_mapping.pop(key, None)


def _configs(model: nn.Module) -> list[Any]:
    """All distinct configurations that the model's modules read."""
    found: dict[int, Any] = {}
    queue = [getattr(module, "config", None) for module in model.modules()]
    while queue:
        config = queue.pop()
        if hasattr(config, "_attn_implementation_internal") and id(config) not in found:
            found[id(config)] = config
            queue += [getattr(config, name, None) for name in getattr(config, "sub_configs", {})]
    return list(found.values())


@contextmanager
def implementation(model: nn.Module, name: str, only: tuple[str, ...] = ()) -> Iterator[None]:
    """Switch the attention implementation while the block runs; with `only`, replace just those named there."""
    before = [(config, config._attn_implementation_internal) for config in _configs(model)]
    try:
        for config, current in before:
            if not only or (current or "").startswith(only):
                config._attn_implementation_internal = name
        yield
    finally:
        for config, current in before:
            config._attn_implementation_internal = current


def _recording_function(previous: str, watch: _Watch) -> Callable[..., Any]:
    """An attention function for the registry that calls the model's own function and records its arguments."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    def attend(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        function = (
            attention_sites.eager_function(module) if previous == "eager" else ALL_ATTENTION_FUNCTIONS[previous]
        )
        if function is None:
            raise NoEagerFunctionError(type(module).__name__)
        watch.suppressed += 1
        try:
            result = function(module, query, key, value, attention_mask, *args, **kwargs)
        finally:
            watch.suppressed -= 1
        if watch.suppressed == 0:
            causal = previous == "sdpa" and attention_mask is None and query.shape[2] > 1
            if causal:
                argument = kwargs.get("is_causal")
                causal = bool(getattr(module, "is_causal", True) if argument is None else argument)
            logits = from_queries(
                query,
                key,
                attention_mask,
                scaling=kwargs.get("scaling"),
                softcap=kwargs.get("softcap"),
                bias=kwargs.get("position_bias"),
                causal=causal,
                sinks=kwargs.get("s_aux"),
            )
            made_by = watch.running_call(module)
            watch.report(module, made_by.kwargs if made_by else {}, logits, "registry", value, result[0])
        return result

    return attend


class NoEagerFunctionError(RuntimeError):
    """The code of a module does not show its eager attention function; its softmax must be watched instead."""


class _FunctionWatch(TorchFunctionMode):
    """Reports calls of softmax, scaled_dot_product_attention and torch.nn.MultiheadAttention."""

    def __init__(self, watch: _Watch) -> None:
        super().__init__()
        self.watch = watch

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.watch.suppressed:
            return func(*args, **kwargs)
        if func is F.multi_head_attention_forward:
            return self._multihead(func, args, kwargs)
        if func is F.scaled_dot_product_attention:
            return self._scaled_dot_product(func, args, kwargs)
        result = func(*args, **kwargs)
        if func in _SOFTMAX:
            self._softmax(result, *args, **kwargs)
        return result

    def _softmax(self, probs: Tensor, scores: Tensor, dim: int | None = None, *args: Any, **kwargs: Any) -> None:
        owner = self.watch.attention_module()
        if owner is None or dim not in (-1, scores.ndim - 1):
            return
        if scores.ndim > 4:
            self.watch.missed.append(
                f"the softmax of {self.watch.stack.name_of(owner[0])} ({in_words(scores.shape)})"
            )
        if scores.ndim not in (3, 4):
            return
        if scores.ndim == 3 and scores.shape[0] % self.watch.n_batch:
            return
        self.watch.report(*owner, from_product(scores, self.watch.n_batch), "softmax", probs=probs)

    def _scaled_dot_product(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given: list[Any] = [*args, *[None] * 6]
        query, key, value, mask, _, causal = given[:6]
        mask, causal = kwargs.get("attn_mask", mask), kwargs.get("is_causal", causal)
        output = func(*args, **kwargs)
        if query.ndim == 4:
            logits = from_queries(query, key, mask, scaling=kwargs.get("scale"), causal=bool(causal))
            self.watch.report(*self.watch.innermost(), logits, "sdpa", value, output.transpose(1, 2))
        return output

    def _multihead(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run it a second time with need_weights=True, which calls a softmax whose input can be seen."""
        bound = _MULTIHEAD_SIGNATURE.bind(*args, **kwargs)
        bound.arguments.update(need_weights=True, average_attn_weights=False, is_causal=False)
        with _SoftmaxInputs() as seen:
            func(*bound.args, **bound.kwargs)
        query, key = bound.arguments["query"], bound.arguments["key"]
        logits = from_product(seen.inputs[0], 1 if query.ndim == 2 else query.shape[1])
        is_cross = query.data_ptr() != key.data_ptr()
        self.watch.report(*self.watch.innermost(), logits, "multihead", is_cross=is_cross)
        return func(*args, **kwargs)


def in_words(shape: Sequence[int]) -> str:
    """A shape as it is read, with its number of axes if that is unusual."""
    size = " × ".join(map(str, shape))
    return size if len(shape) == 4 else f"{len(shape)} axes, {size}"


class _SoftmaxInputs(TorchDispatchMode):
    """Records the inputs of softmax."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.inputs: list[Tensor] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.ops.aten._softmax.default:
            self.inputs.append(args[0])
        return func(*args, **(kwargs or {}))


def reproduces(call: AttentionCall) -> bool:
    """Whether softmax(scores) V, from the captured scores, equals the output of the attention module."""
    if call.value is None or call.output is None:
        return True
    logits, value, output = call.logits, call.value, call.output
    for item in range(logits.shape[0]):
        block = Block(item)
        missing = logits.missing(block)
        probs = logits.probs(logits.scores(block), missing, slice(None))
        values = value[item].to(probs.dtype)
        if values.shape[0] != probs.shape[0]:
            values = values.repeat_interleave(probs.shape[0] // values.shape[0], dim=0)
        ours = (probs @ values).transpose(0, 1)
        if ours.numel() != output[item].numel():
            return False
        theirs = output[item].reshape(ours.shape).to(ours.dtype)
        if missing is not None:  # a query whose keys are all masked: some functions return the mean, some zero
            allowed = ~missing.all(dim=-1).any(dim=0).to(ours.device)
            ours, theirs = ours[allowed], theirs[allowed]
        tolerance = 1e-4 if output.dtype in (torch.float32, torch.float64) else 3e-2
        if ours.numel() and (ours - theirs).abs().max() > tolerance * theirs.abs().max().clamp(min=1e-6):
            return False
    return True
