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
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from headtree.errors import InvalidValueError
from headtree.models.graph.attention_calls import TracedCalls, traced_calls
from headtree.models.graph.forward_graph import (
    Kept,
    Position,
    Positions,
    Ref,
    Trace,
    math_attention,
    trace,
)
from headtree.models.graph.head_weights import OutputProjection, ProjectionFinder, entering_projection
from headtree.models.graph.residual_stream import same_numbers
from headtree.models.inputs import ModelInput, join
from headtree.models.module_stack import ModuleStack
from headtree.models.watching.probe import AttentionPlan

#: Receives z (batch, token, head, feature) and returns what replaces it, in the same shape; None: nothing does. The
#: tokens of an input that is attended to in windows are those of its first window, then of the second, and so on.
Edit = Callable[[Tensor], Tensor | None]


@dataclass(frozen=True, eq=False)
class OutputSite:
    """Where the heads of one attention call hand over their outputs."""

    name: str  #: path of the attention module
    products: tuple[ProductPoint, ...]  #: probs @ values; several if the same probs multiply several values
    n_windows: int  #: in which the heads attend within one input
    n_heads: int
    n_features: int  #: of a head's output
    n_queries: int  #: in the trace
    hook: HookPoint | None  #: None: only the product itself can be intercepted
    projection: OutputProjection | None  #: None: heads write side by side, without a projection
    mixed: str = ""  #: why no rows of a projection belong to single heads, if so

    @property
    def mix(self) -> Position:
        """The first product probs @ values."""
        return self.products[0].position

    def check_rows(self) -> None:
        """Raise an error unless what each head writes follows from its own rows of the output projection."""
        if self.mixed:
            raise InvalidValueError(self.mixed)

    def by_input(self, edit: Edit) -> Edit:
        """An edit of outputs in which each window is an input of its own."""

        def edited(z: Tensor) -> Tensor | None:
            if self.n_windows == 1 or z.shape[0] % self.n_windows:
                return edit(z)
            after = edit(z.reshape(z.shape[0] // self.n_windows, -1, *z.shape[2:]))
            return None if after is None else after.reshape(z.shape)

        return edited

    @cached_property
    def matrix(self) -> Float[Tensor, "head feature width"] | None:
        """W_O of every head; None without a projection."""
        self.check_rows()
        return None if self.projection is None else self.projection.matrix[self.projection.rows]


@dataclass(frozen=True)
class ProductPoint:
    """A product probs @ values, whose first axis has the heads of all inputs of a batch."""

    position: Position
    n_windows: int
    n_heads: int
    heads_first: bool | None  #: whether inputs follow each other within each head, or heads within each input

    def read(self, product: Tensor, name: str) -> Float[Tensor, "batch token head feature"]:
        """The outputs of the heads in the product; windows are inputs of their own."""
        n_inputs, rest = divmod(product.shape[0], self.n_windows * self.n_heads)
        if rest or (n_inputs != 1 and self.heads_first is None):
            raise InvalidValueError(
                f"the heads of {name} can be told apart only in a single input, got a batch of "
                f"{n_inputs}; pass one input at a time"
            )
        if self.heads_first:
            return product.reshape(self.n_heads, -1, *product.shape[1:]).permute(1, 2, 0, 3)
        return product.reshape(-1, self.n_heads, *product.shape[1:]).transpose(1, 2)

    def written(self, z: Float[Tensor, "batch token head feature"]) -> Tensor:
        """The product with other outputs of the heads."""
        rows = z.permute(2, 0, 1, 3) if self.heads_first else z.transpose(1, 2)
        return rows.flatten(0, 1).contiguous()


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
    calls, chosen = traced_calls(traced, plan, type(model).__name__), list(chosen)
    sites = {i: calls.product(i) for i in chosen}
    described = next((site for site in sites.values() if site.softmax is None), None)
    if described is not None:
        raise InvalidValueError(
            f"the attention of {described.module or 'the model'} was described with register_attention, so what "
            "its single heads write is unknown; this works only where a softmax is multiplied by values"
        )
    finder = ProjectionFinder(traced.graph, calls.all())
    found = {i: _output_site(traced, finder, calls, i) for i in chosen}
    if any(site.hook is None for site in found.values()):
        found = _with_batches(found, traced, model, plan.probe)
    return found


def _output_site(traced: Trace, finder: ProjectionFinder, calls: TracedCalls, i: int) -> OutputSite:
    graph, known, site = traced.graph, calls.known[i], calls.product(i)
    n_windows, n_heads, n_queries, _ = known.shape
    projection, mixed = None, ""
    try:
        projection = finder.output_projection(calls[i], n_windows)
    except InvalidValueError as error:
        mixed = str(error)
    if projection is not None:
        _check_whole(finder, calls, i, projection)
    hook = None if projection is None else _hook_point(traced, projection, n_queries)
    mixes = [graph.nodes[index] for index in site.mixes]
    if hook is None and any(mix.values[0].shape[0] != n_windows * n_heads for mix in mixes):
        raise InvalidValueError(
            f"the heads of {known.name} cannot be told apart where their probs are multiplied by values: there are "
            f"{len(mixes[0].values[0])} products for {n_windows * n_heads} heads; select other layers, or describe "
            "the module with register_attention"
        )
    points = tuple(
        ProductPoint(mix.position, n_windows, n_heads, None) for mix in mixes if mix.position is not None
    )
    n_features = graph.value(Ref(site.mix)).shape[-1]
    return OutputSite(known.name, points, n_windows, n_heads, n_features, n_queries, hook, projection, mixed)


def _check_whole(finder: ProjectionFinder, calls: TracedCalls, i: int, projection: OutputProjection) -> None:
    """Refuse heads that also attend in a form that is not captured, and write that by another product with W_O."""
    for other in calls.beside(i):
        after = finder.projection_after(other)
        if after is not None and after[0] is not projection.node and _same_memory(after[1], projection.matrix):
            raise InvalidValueError(
                f"the heads of {calls.known[i].name} also attend in a form that is not captured, and "
                "write through the same output projection, so they cannot be taken out as a whole; select "
                "other layers, or another part"
            )


def _same_memory(ours: Tensor, theirs: Tensor) -> bool:
    return ours.data_ptr() == theirs.data_ptr() and ours.shape == theirs.shape


def _with_batches(
    sites: Mapping[int, OutputSite], traced: Trace, model: nn.Module, probe: ModelInput
) -> dict[int, OutputSite]:
    """The sites, with the order of inputs and heads in their products, seen on a batch of twice the same input."""
    wanted = {point.position for site in sites.values() if site.hook is None for point in site.products}
    try:
        twice = trace(model, ModelInput(*join([probe, probe])), kept=Kept(results=wanted)).graph.by_position
    except (RuntimeError, ValueError, TypeError, IndexError):  # a model that reads one input at a time
        return dict(sites)

    def seen(point: ProductPoint) -> ProductPoint:
        once, both = traced.graph.by_position[point.position].values[0], twice.get(point.position)
        if point.position not in wanted or both is None or both.values[0].shape[1:] != once.shape[1:]:
            return point
        if _close(both.values[0], once.repeat(2, 1, 1)):
            return replace(point, heads_first=False)
        is_heads_first = point.n_windows == 1 and _close(both.values[0], once.repeat_interleave(2, dim=0))
        return replace(point, heads_first=True) if is_heads_first else point

    return {i: replace(site, products=tuple(map(seen, site.products))) for i, site in sites.items()}


def _close(ours: Tensor, theirs: Tensor) -> bool:
    limit = 1e-4 if ours.dtype.itemsize > 2 else 3e-2
    return ours.shape == theirs.shape and bool((ours - theirs).abs().max() <= limit * theirs.abs().max())


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
    noted = {i: sites[i].by_input(_noting(edit, i, seen)) for i, edit in edits.items()}
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
            points = {point.position: (site, point, edit) for site, edit in others for point in site.products}
            stack.enter_context(_MixEditor(Positions(watched), points))
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


_ProductEdit = tuple[OutputSite, ProductPoint, Edit]


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
        site, point, edit = found
        z = edit(point.read(result, site.name))
        return result if z is None else point.written(z).to(result.dtype)


def head_writes(site: OutputSite, z: Float[Tensor, "... head feature"]) -> Float[Tensor, "... head width"]:
    """What each head writes: its output times its rows of W_O."""
    if site.matrix is None:
        flat = torch.eye(z.shape[-1] * z.shape[-2], dtype=z.dtype, device=z.device)
        return torch.einsum("...hf,hfw->...hw", z, flat.reshape(*z.shape[-2:], -1))
    return torch.einsum("...hf,hfw->...hw", z, site.matrix.to(z))
