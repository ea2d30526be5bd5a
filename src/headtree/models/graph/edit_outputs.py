"""Read or replace what heads hand over, while the model runs its own code."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from headtree.errors import InvalidValueError
from headtree.models.graph.forward_graph import Position, Positions, math_attention
from headtree.models.graph.output_sites import Edit, HookPoint, OutputSite
from headtree.models.module_stack import ModuleStack


def replaced(
    z: Float[Tensor, "batch token head feature"], heads: Sequence[int], values: Float[Tensor, "..."]
) -> Float[Tensor, "batch token head feature"]:
    """The outputs of all heads with those of some replaced by values that broadcast to them."""
    index = torch.tensor(heads, device=z.device)
    return z.index_copy(2, index, values.to(z).expand(*z.shape[:2], len(heads), z.shape[3]))


@contextmanager
def intercepting(
    model: nn.Module, sites: Mapping[int, OutputSite], edits: Mapping[int, Edit], *, is_running: bool = False
) -> Iterator[None]:
    """Pass the outputs of heads through functions while the block runs.

    Parameters
    ----------
    model : module
        The model of the sites.
    sites : mapping
        Output sites by number.
    edits : mapping
        For some of these numbers, the function that reads or replaces the outputs of the heads.
    is_running : bool
        Whether the block begins inside the model's forward method.
    """
    seen: set[int] = set()
    noted = {i: sites[i].by_input(_noting(edit, i, seen)) for i, edit in edits.items()}
    hooked = [(sites[i], edit) for i, edit in noted.items() if sites[i].hooks]
    others = [(sites[i], edit) for i, edit in noted.items() if not sites[i].hooks]
    with ExitStack() as stack:
        stack.enter_context(_all_seen(model, {i: sites[i].name for i in edits}, seen))
        if hooked:
            stack.enter_context(_hooks(model, hooked))
        if others:
            watched = ModuleStack(model)
            stack.enter_context(math_attention())
            stack.enter_context(watched.watching())
            if is_running:
                watched.assume_running()
            points = {
                point.position: (site, number, edit)
                for site, edit in others
                for number, point in enumerate(site.products)
            }
            stack.enter_context(_MixEditor(Positions(watched), points))
        yield


def _noting(edit: Edit, i: int, seen: set[int]) -> Edit:
    def noted(z: Tensor, number: int) -> Tensor | None:
        seen.add(i)
        return edit(z, number)

    return noted


#: Whether edits are passed over: the structure of a model is found as if nothing were replaced.
_unedited: ContextVar[bool] = ContextVar("_unedited", default=False)


@contextmanager
def unedited() -> Iterator[None]:
    """Let the model run without the edits of surrounding `intercepting` blocks."""
    token = _unedited.set(True)
    try:
        yield
    finally:
        _unedited.reset(token)


#: Whether some blocks are skipped because their outputs are known.
_resumed: ContextVar[bool] = ContextVar("_resumed", default=False)


@contextmanager
def resumed() -> Iterator[None]:
    """Let passes of the model skip blocks in which surrounding `intercepting` blocks edit something."""
    token = _resumed.set(True)
    try:
        yield
    finally:
        _resumed.reset(token)


def is_unedited() -> bool:
    """Whether the model runs without edits, to find its structure."""
    return _unedited.get()


@contextmanager
def _all_seen(model: nn.Module, names: Mapping[int, str], seen: set[int]) -> Iterator[None]:
    """Raise an error after a pass of the model in which some of the outputs were not met."""

    def check(*_: Any) -> None:
        missed = [name for i, name in names.items() if i not in seen]
        seen.clear()
        if missed and not _unedited.get() and not _resumed.get():
            raise InvalidValueError(
                f"{type(model).__name__} runs different code on this input than on the one it was probed with: the "
                f"heads of {missed[0]} were not met; pass inputs that it processes alike, or make a new view"
            )

    handle = model.register_forward_hook(check)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def _hooks(model: nn.Module, hooked: Sequence[tuple[OutputSite, Edit]]) -> Iterator[None]:
    by_module: dict[str, dict[int, tuple[HookPoint, int, Edit]]] = {}
    for site, edit in hooked:
        for number, hook in enumerate(site.hooks):
            by_module.setdefault(hook.module, {})[hook.call] = (hook, number, edit)
    n_calls: dict[str, int] = {}

    def start(*_: Any) -> None:
        n_calls.clear()

    def hook_for(path: str) -> Callable[..., Any]:
        def enter(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            call = n_calls[path] = n_calls.get(path, -1) + 1
            n_per_pass = next(iter(by_module[path].values()))[0].n_calls
            found = by_module[path].get(call % n_per_pass)  # the model itself may not be what runs
            if found is None or _unedited.get():
                return None
            point, number, edit = found
            x = args[point.argument] if isinstance(point.argument, int) else kwargs[point.argument]
            z = edit(point.read(x), number)
            if z is None:
                return None
            x = point.written(x, z)
            if isinstance(point.argument, int):
                return (*args[: point.argument], x, *args[point.argument + 1 :]), kwargs
            return args, {**kwargs, point.argument: x}

        return enter

    handles = [model.register_forward_pre_hook(start, prepend=True)]
    try:
        for path in by_module:
            module = model.get_submodule(path)
            handles.append(module.register_forward_pre_hook(hook_for(path), with_kwargs=True))
        yield
    finally:
        for handle in handles:
            handle.remove()


_ProductEdit = tuple[OutputSite, int, Edit]


class _MixEditor(TorchDispatchMode):
    """Passes the results of some products probs @ values through functions."""

    def __init__(self, positions: Positions, edits: Mapping[Position, _ProductEdit]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.positions, self.edits = positions, edits

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        found = self.edits.get(self.positions.next(func))
        result = func(*args, **(kwargs or {}))
        if found is None or _unedited.get():
            return result
        site, number, edit = found
        point = site.products[number]
        z = edit(point.read(result, site.name), number)
        return result if z is None else point.written(z).to(result.dtype)
