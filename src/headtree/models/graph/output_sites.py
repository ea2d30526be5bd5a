"""Where each head hands its output over: read it, or replace it, while the model runs its own code.

A head's output z = probs @ values enters the output projection W_O, which writes it into the residual stream. In
nearly every model the projection is a module, and z is an argument of that module: a hook reads or replaces it, and
autograd sees what it does. Elsewhere (`torch.nn.MultiheadAttention`, einsums with a parameter, no projection) the
operation that computes z is intercepted below autograd.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from headtree.errors import InvalidValueError
from headtree.models.graph.attention_calls import TracedSite, matched_sites
from headtree.models.graph.forward_graph import Position, Positions, Ref, Trace, math_attention
from headtree.models.graph.head_weights import OutputProjection, ProjectionFinder, entering_projection
from headtree.models.graph.residual_stream import same_numbers
from headtree.models.module_stack import ModuleStack
from headtree.models.watching.probe import AttentionPlan

#: Receives z (batch, token, head, feature) and returns what replaces it, in the same shape; None: nothing does.
Edit = Callable[[Tensor], Tensor | None]


@dataclass(frozen=True, eq=False)
class OutputSite:
    """Where the heads of one attention call hand over their outputs."""

    name: str  #: path of the attention module
    mix: Position  #: the product probs @ values
    n_heads: int
    n_features: int  #: of a head's output
    n_queries: int  #: in the trace
    hook: HookPoint | None  #: None: only the product itself can be intercepted
    projection: OutputProjection | None  #: None: heads write side by side, without a projection

    @cached_property
    def matrix(self) -> Float[Tensor, "head feature width"] | None:
        """W_O of every head; None without a projection."""
        return None if self.projection is None else self.projection.matrix[self.projection.rows]


@dataclass(frozen=True, eq=False)
class HookPoint:
    """An argument of a module that holds the outputs of all heads."""

    module: str  #: path
    call: int  #: index among the calls of the module in one forward pass
    n_calls: int  #: number of these calls
    argument: int | str  #: position or keyword
    features: Int[Tensor, "head feature"]  #: index of each feature of each head along the feature axis
    feature_axis: int
    token_axis: int  #: once the features are the last axis

    def read(self, x: Tensor) -> Float[Tensor, "batch token head feature"]:
        """The outputs of the heads in the argument."""
        rows = self._rows(x)
        n_heads, n_features = self.features.shape
        if not self._is_plain(rows.shape[-1]):
            rows = rows.index_select(-1, self.features.flatten().to(x.device))
        return rows.reshape(*rows.shape[:-1], n_heads, n_features)

    def written(self, x: Tensor, z: Float[Tensor, "batch token head feature"]) -> Tensor:
        """The argument with other outputs of the heads."""
        rows, flat = self._rows(x), z.to(x.dtype).flatten(-2)
        if not self._is_plain(rows.shape[-1]):
            flat = rows.index_copy(-1, self.features.flatten().to(x.device), flat)
        moved = x.movedim(self.feature_axis, -1)
        if moved.ndim != 3:
            return flat.reshape(moved.shape).movedim(-1, self.feature_axis)
        return (flat.transpose(0, 1) if self.token_axis == 0 else flat).movedim(-1, self.feature_axis)

    def _rows(self, x: Tensor) -> Float[Tensor, "batch token feature"]:
        """The argument with batch, token and feature axes; if it has no batch axis, as one batch of all rows."""
        moved = x.movedim(self.feature_axis, -1)
        if moved.ndim != 3:
            return moved.reshape(1, -1, moved.shape[-1])
        return moved.transpose(0, 1) if self.token_axis == 0 else moved

    def _is_plain(self, n_features: int) -> bool:
        return n_features == self.features.numel() and self._in_order

    @cached_property
    def _in_order(self) -> bool:
        return torch.equal(self.features.flatten(), torch.arange(self.features.numel()))


def replaced(
    z: Float[Tensor, "batch token head feature"], heads: Sequence[int], values: Float[Tensor, "..."]
) -> Float[Tensor, "batch token head feature"]:
    """The outputs of all heads with those of some replaced by values that broadcast to them."""
    index = torch.tensor(heads, device=z.device)
    return z.index_copy(2, index, values.to(z).expand(*z.shape[:2], len(heads), z.shape[3]))


def find_output_sites(
    traced: Trace, plan: AttentionPlan, model: nn.Module, chosen: Iterable[int]
) -> dict[int, OutputSite]:
    """Where the heads of some attention calls of a plan hand over their outputs, by the numbers of the calls."""
    if plan.from_outputs:
        raise InvalidValueError(
            f"the attention of {type(model).__name__} is known only from its outputs, not from the modules that "
            "compute it, so what its heads write cannot be told apart; describe these modules with "
            "register_attention"
        )
    sites = matched_sites(traced, plan.sites, type(model).__name__)
    chosen = list(chosen)
    described = next((sites[i] for i in chosen if sites[i].softmax is None), None)
    if described is not None:
        raise InvalidValueError(
            f"the attention of {described.module or 'the model'} was described with register_attention, so what "
            "its single heads write is unknown; this works only where a softmax is multiplied by values"
        )
    finder = ProjectionFinder(traced.graph, sites)
    return {i: _output_site(traced, finder, plan.sites[i].name, sites[i], plan.sites[i].shape) for i in chosen}


def _output_site(
    traced: Trace, finder: ProjectionFinder, name: str, site: TracedSite, shape: tuple[int, int, int, int]
) -> OutputSite:
    graph = traced.graph
    position = graph.nodes[site.mix].position
    if position is None:
        raise RuntimeError("a product inside a forward pass has a position")
    projection = finder.output_projection(site)
    hook = None if projection is None else _hook_point(traced, projection, shape[2])
    n_features = graph.value(Ref(site.mix)).shape[-1]
    return OutputSite(name, position, shape[1], n_features, shape[2], hook, projection)


def _hook_point(traced: Trace, projection: OutputProjection, n_queries: int) -> HookPoint | None:
    """The outermost module around the projection that takes its input as an argument; None if there is none."""
    graph = traced.graph
    entering, axis = entering_projection(graph, projection.node)
    source = same_numbers(graph, entering)
    position = projection.node.position
    path = "" if position is None else position.module
    candidates = [
        (module, call, argument, ref)
        for (module, call), given in traced.arguments.items()
        for argument, ref in given.items()
        if _contains(module, path)
        and same_numbers(graph, ref) == source
        and graph.depends(projection.node.index, ref)
        and ref.node < projection.node.index
    ]
    if not candidates:
        return None
    module, call, argument, ref = min(candidates, key=lambda found: len(found[0]))
    value = graph.value(ref)
    feature_axis = 1 if axis == 1 else _feature_axis(value, len(projection.matrix), axis)
    rest = [size for i, size in enumerate(value.shape) if i != feature_axis % value.ndim]
    token_axis = 0 if rest[:1] == [n_queries] and rest[1:] == [1] and n_queries > 1 else 1
    n_calls = sum(path == module for path, _ in traced.arguments)
    return HookPoint(module, call, n_calls, argument, projection.rows, feature_axis, token_axis)


def _contains(module: str, path: str) -> bool:
    return module == path or (module != "" and path.startswith(f"{module}."))


def _feature_axis(value: Tensor, n_features: int, axis: int) -> int:
    return axis if value.shape[axis] == n_features else -1


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
    noted = {i: _noting(edit, i, seen) for i, edit in edits.items()}
    hooked = [(sites[i], edit) for i, edit in noted.items() if sites[i].hook is not None]
    others = [(sites[i], edit) for i, edit in noted.items() if sites[i].hook is None]
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
            stack.enter_context(_MixEditor(Positions(watched), {site.mix: (site, edit) for site, edit in others}))
        yield


def _noting(edit: Edit, i: int, seen: set[int]) -> Edit:
    def noted(z: Tensor) -> Tensor | None:
        seen.add(i)
        return edit(z)

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
    by_module: dict[str, dict[int, tuple[HookPoint, Edit]]] = {}
    for site, edit in hooked:
        if site.hook is not None:
            by_module.setdefault(site.hook.module, {})[site.hook.call] = (site.hook, edit)
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
            point, edit = found
            x = args[point.argument] if isinstance(point.argument, int) else kwargs[point.argument]
            z = edit(point.read(x))
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


class _MixEditor(TorchDispatchMode):
    """Passes the results of some products probs @ values through functions."""

    def __init__(self, positions: Positions, edits: Mapping[Position, tuple[OutputSite, Edit]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.positions, self.edits = positions, edits

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        found = self.edits.get(self.positions.next(func))
        result = func(*args, **(kwargs or {}))
        if found is None or _unedited.get():
            return result
        site, edit = found
        if len(result) != site.n_heads:
            raise InvalidValueError(
                f"the heads of {site.name} can be told apart only in a single input, got a batch of "
                f"{len(result) // site.n_heads}; pass one input at a time"
            )
        z = edit(result.transpose(0, 1)[None])
        return result if z is None else z[0].transpose(0, 1).to(result.dtype).contiguous()


def head_writes(site: OutputSite, z: Float[Tensor, "... head feature"]) -> Float[Tensor, "... head width"]:
    """What each head writes: its output times its rows of W_O."""
    if site.matrix is None:
        flat = torch.eye(z.shape[-1] * z.shape[-2], dtype=z.dtype, device=z.device)
        return torch.einsum("...hf,hfw->...hw", z, flat.reshape(*z.shape[-2:], -1))
    return torch.einsum("...hf,hfw->...hw", z, site.matrix.to(z))
