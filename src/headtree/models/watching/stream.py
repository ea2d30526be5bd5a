"""The residual stream after each layer, as the model computes it on its way."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headtree.errors import InvalidValueError
from headtree.models.inputs import ModelInput
from headtree.models.watching.collect import CaptureJob, on_device
from headtree.models.watching.probe import run, settled, tensors_of, watching
from headtree.models.watching.watch import AttentionCall


@dataclass(frozen=True, eq=False)
class LayerStates:
    """What enters the attention of one layer and what leaves the layer, on one input."""

    entering: Float[Tensor, "token width"]  #: the attention module's first argument, after any norm before it
    leaving: Float[Tensor, "token width"]  #: the residual stream after the layer


def layer_states(job: CaptureJob, item: ModelInput) -> list[LayerStates]:
    """Run the model on one input of a capture and keep the states around its chosen attention calls.

    A layer is the outermost module that holds one of these calls and no other, and that stands in a list of
    modules; what it returns first is the residual stream.
    """
    watch = _Calls(job.model)
    places = job.selection.places(job.plan)
    count = 0

    def listen(call: AttentionCall) -> None:
        nonlocal count
        if count in places:
            watch.attention(call.module)
        count += 1

    if job.plan.from_outputs:
        raise InvalidValueError("its attention is known from its outputs alone, not from the modules that make it")
    with (
        on_device(job.model, job.device),
        settled(job.model),
        watch.watching(),
        watching(job.model, job.plan, listen, 1),
    ):
        run(job.model, [item])
    return [_states(inner, outer) for inner, outer in watch.found]


@dataclass(eq=False)
class _Call:
    """A module while it runs."""

    module: nn.Module
    in_list: bool
    entering: Tensor | None
    n_attended: int = 0
    leaving: Tensor | None = None


@dataclass(eq=False)
class _Calls:
    """Which modules are running around each attention call."""

    model: nn.Module
    running: list[_Call] = field(default_factory=list)
    around: list[tuple[_Call, list[_Call]]] = field(default_factory=list)

    @contextmanager
    def watching(self) -> Iterator[None]:
        handles = []
        for name, module in self.model.named_modules():
            in_list = name.rpartition(".")[2].isdigit()
            enter = _Enter(self, in_list)
            handles.append(module.register_forward_pre_hook(enter, with_kwargs=True, prepend=True))
            handles.append(module.register_forward_hook(self._leave))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        call = self.running.pop()
        call.leaving = next((t for t in tensors_of(output) if t.is_floating_point()), None)

    def attention(self, module: nn.Module) -> None:
        """One of the chosen calls happens now, inside everything that is running."""
        for call in self.running:
            call.n_attended += 1
        inner = next((call for call in reversed(self.running) if call.module is module), self.running[-1])
        self.around.append((inner, list(self.running)))

    @property
    def found(self) -> list[tuple[_Call, _Call]]:
        """Each attention module's call with that of its layer."""
        result = []
        for inner, calls in self.around:
            alone = [call for call in calls[1:] if call.n_attended == 1]
            layer = next((call for call in alone if call.in_list), alone[0] if alone else None)
            if layer is None:
                raise InvalidValueError("its attention calls are not each inside a module of their own")
            result.append((inner, layer))
        return result


@dataclass(frozen=True, eq=False)
class _Enter:
    calls: _Calls
    in_list: bool

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        entering = next((t for t in tensors_of([*args, kwargs]) if t.is_floating_point() and t.ndim == 3), None)
        self.calls.running.append(_Call(module, self.in_list, entering))


def _states(inner: _Call, layer: _Call) -> LayerStates:
    return LayerStates(_of_one_input(inner.entering), _of_one_input(layer.leaving))


def _of_one_input(states: Tensor | None) -> Float[Tensor, "token width"]:
    """Without the axis of the batch, which is one input, wherever it stands."""
    if states is None or states.ndim not in (2, 3) or (states.ndim == 3 and 1 not in states.shape[:2]):
        got = None if states is None else tuple(states.shape)
        raise InvalidValueError(f"its layers do not pass on states (input, token, width), but {got}")
    if states.ndim == 3:
        states = states[0] if states.shape[0] == 1 else states[:, 0]
    return torch.as_tensor(states.detach()).cpu()
