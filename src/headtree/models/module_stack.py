"""Track which modules of a model are running, with forward hooks that are always removed again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

#: Models whose modules are watched now, once for each watch.
_watched: list[nn.Module] = []


def is_watched(model: nn.Module) -> bool:
    """Whether a `ModuleStack` watches the modules of this model now."""
    return any(other is model for other in _watched)


@dataclass(eq=False)
class ModuleCall:
    """One call of a module while it is running."""

    name: str  #: path of the module in the model; its class name if the model does not list it
    module: nn.Module
    index: int  #: number of earlier calls of this module in the same pass of the model
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    counts: dict[str, int] = field(default_factory=dict)  #: for users of the stack to count what happens inside


class ModuleStack:
    """The running calls of a model's modules, outermost first.

    Parameters
    ----------
    model : module
        Every module in it is watched.
    entered : function, optional
        Called with each call when it starts.
    left : function, optional
        Called with each call and its output when it ends; the output is None if an exception ended it.
    """

    def __init__(
        self,
        model: nn.Module,
        entered: Callable[[ModuleCall], None] | None = None,
        left: Callable[[ModuleCall, Any], None] | None = None,
    ) -> None:
        self.model, self._entered, self._left = model, entered, left
        self._names = {id(module): name for name, module in model.named_modules()}
        self._n_calls: dict[str, int] = {}
        self.running: list[ModuleCall] = []

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Hook every module while the block runs."""
        handles = []
        _watched.append(self.model)
        try:
            for module in self.model.modules():
                handles.append(module.register_forward_pre_hook(self._enter, with_kwargs=True, prepend=True))
                handles.append(module.register_forward_hook(self._leave, always_call=True))
            yield
        finally:
            _watched.remove(self.model)
            for handle in handles:
                handle.remove()

    def name_of(self, module: nn.Module) -> str:
        """Path of a module in the model; its class name if the model does not list it."""
        name: str = self._names.get(id(module), type(module).__name__)
        return name

    def assume_running(self) -> None:
        """Treat the model itself as running, if watching begins inside its forward method."""
        self.running.append(ModuleCall(self.name_of(self.model), self.model, 0, (), {}))

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if module is self.model and not self.running:
            self._n_calls.clear()
        name = self.name_of(module)
        index = self._n_calls[name] = self._n_calls.get(name, -1) + 1
        call = ModuleCall(name, module, index, args, kwargs)
        self.running.append(call)
        if self._entered is not None:
            self._entered(call)

    def _leave(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if not any(call.module is module for call in self.running):
            return
        # after an exception, inner modules may not have reported their end
        while (call := self.running.pop()).module is not module:
            pass
        if self._left is not None:
            self._left(call, output)


def tensors_of(output: Any) -> Iterator[Tensor]:
    """All tensors in a model's output, in order."""
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, Mapping):
        for value in output.values():
            yield from tensors_of(value)
    elif isinstance(output, list | tuple):
        for value in output:
            yield from tensors_of(value)
