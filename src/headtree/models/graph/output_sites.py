"""Where each head hands its output over.

A head's output z = probs @ values enters the output projection W_O, which writes it into the residual stream. In
nearly every model the projection is a module, and z is an argument of that module: a hook reads or replaces it, and
autograd sees what it does. Elsewhere (`torch.nn.MultiheadAttention`, einsums with a parameter, no projection) the
operation that computes z is intercepted below autograd. Heads hand over several outputs if they attend in several
forms (ProphetNet's n-grams) or multiply the same attention by several values (LiLT).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from headtree.errors import InvalidValueError
from headtree.models.graph.attention_calls import TracedCalls, is_call, traced_calls
from headtree.models.graph.chunked_heads import projection_after_chunks
from headtree.models.graph.forward_graph import SOFTMAX, Kept, Position, Ref, Trace, trace
from headtree.models.graph.projections import OutputProjection, ProjectionFinder, entering_projection
from headtree.models.graph.residual_stream import same_numbers
from headtree.models.graph.several_values import SeveralValues, find_several_values
from headtree.models.graph.zeroed_heads import pieces_of_attention, projection_without, reported_probs
from headtree.models.inputs import ModelInput, join
from headtree.models.watching.probe import AttentionPlan

#: Receives z (batch, token, head, feature) and its number among the outputs of the heads, and returns what replaces
#: z, in the same shape; None: nothing does. The tokens of an input that is attended to in windows are those of its
#: first window, then of the second, and so on.
Edit = Callable[[Tensor, int], Tensor | None]


@dataclass(frozen=True, eq=False)
class OutputSite:
    """Where the heads of one attention call hand over their outputs."""

    name: str  #: path of the attention module
    products: tuple[ProductPoint, ...]  #: probs @ values; several if the same probs multiply several values
    n_windows: int  #: in which the heads attend within one input
    n_heads: int
    n_features: int  #: of a head's output
    n_queries: int  #: in the trace
    hooks: tuple[HookPoint, ...]  #: none: only the products themselves can be intercepted
    projection: OutputProjection | None  #: None: heads write side by side, without a projection
    several: SeveralValues | None = None  #: if heads have several values, by which projections they write them
    mixed: str = ""  #: why no rows of a projection belong to single heads, if so
    n_padding: int = 0  #: tokens that the model itself appended to those of the trace

    @property
    def mix(self) -> Position:
        """The first product probs @ values."""
        return self.products[0].position

    def check_rows(self) -> None:
        """Raise an error unless what each head writes follows from its own rows of the output projection."""
        if self.mixed:
            raise InvalidValueError(self.mixed)

    @property
    def is_sequence(self) -> bool:
        """Whether the tokens of an output are a single sequence, so that a shorter input has the first of them."""
        return self.n_windows == 1 and not any(hook.has_token_axes for hook in self.hooks)

    def by_input(self, edit: Edit) -> Edit:
        """An edit of outputs in which each window is an input of its own."""
        has_inputs = any(hook.has_token_axes for hook in self.hooks)

        def edited(z: Tensor, number: int) -> Tensor | None:
            if self.n_windows == 1 or has_inputs or z.shape[0] % self.n_windows:
                return edit(z, number)
            after = edit(z.reshape(z.shape[0] // self.n_windows, -1, *z.shape[2:]), number)
            return None if after is None else after.reshape(z.shape)

        return edited

    @cached_property
    def matrix(self) -> Float[Tensor, "head feature width"] | None:
        """W_O of every head; None without a projection."""
        self.check_rows()
        if self.several is not None:
            return self.several.matrix
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
    has_token_axes: bool  #: whether there are several axes of tokens after the first, which counts inputs

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
            return moved.reshape(len(moved) if self.has_token_axes else 1, -1, moved.shape[-1])
        return moved.transpose(0, 1) if self.token_axis == 0 else moved

    def _is_plain(self, n_features: int) -> bool:
        return n_features == self.features.numel() and self._in_order

    @cached_property
    def _in_order(self) -> bool:
        return torch.equal(self.features.flatten(), torch.arange(self.features.numel()))


def find_output_sites(
    traced: Trace, plan: AttentionPlan, model: nn.Module, chosen: Iterable[int]
) -> dict[int, OutputSite]:
    """Where the heads of some attention calls of a plan hand over their outputs, by the numbers of the calls."""
    calls, chosen = traced_calls(traced, plan, type(model).__name__), list(chosen)
    unmatched = [i for i in chosen if i not in calls.sites]
    sites = {i: calls.product(i) for i in chosen if i not in unmatched}
    described = next((site for site in sites.values() if site.softmax is None), None)
    if described is not None:
        raise InvalidValueError(
            f"the attention of {described.module or 'the model'} was described with register_attention, so what "
            "its single heads write is unknown; this works only where a softmax is multiplied by values"
        )
    finder = ProjectionFinder(traced.graph, calls.all())
    found = {i: _output_site(traced, finder, calls, i) for i in sites}
    if any(not site.hooks for site in found.values()):
        found = _with_batches(found, traced, model, plan.probe)
    if unmatched and plan.from_outputs:
        traced = trace(model, plan.probe, reporting=True)
    return found | {i: _unmatched_site(traced, plan, calls, i) for i in unmatched}


def _output_site(traced: Trace, finder: ProjectionFinder, calls: TracedCalls, i: int) -> OutputSite:
    graph, known, site = traced.graph, calls.known[i], calls.product(i)
    n_windows, n_heads, n_queries, _ = known.shape
    projection, mixed = None, ""
    several = find_several_values(graph, finder, site) if site.again else None
    try:
        projection = None if several is not None else finder.output_projection(calls[i], n_windows)
        n_projections = len(finder.projections_after(site.mix))
        if projection is not None and n_projections > 1:
            mixed = (
                f"the heads of {known.name} write by {n_projections} projections, as with an adapter, so they have "
                "no single W_O; merge adapters into the weights first"
            )
    except InvalidValueError as error:
        mixed = str(error)
    hooks = () if projection is None else _hooks_of(traced, finder, calls, i, projection)
    mixes = [graph.nodes[index] for index in site.mixes]
    if not hooks and any(mix.values[0].shape[0] != n_windows * n_heads for mix in mixes):
        raise InvalidValueError(
            f"the heads of {known.name} cannot be told apart where their probs are multiplied by values: there are "
            f"{len(mixes[0].values[0])} products for {n_windows * n_heads} heads; select other layers, or describe "
            "the module with register_attention"
        )
    points = tuple(
        ProductPoint(mix.position, n_windows, n_heads, None) for mix in mixes if mix.position is not None
    )
    n_features = graph.value(Ref(site.mix)).shape[-1]
    return OutputSite(
        known.name, points, n_windows, n_heads, n_features, n_queries, hooks, projection, several, mixed
    )


def _hooks_of(
    traced: Trace, finder: ProjectionFinder, calls: TracedCalls, i: int, projection: OutputProjection
) -> tuple[HookPoint, ...]:
    """Where the heads enter their projection; several times if they also attend in a form that is not captured."""
    again = {}
    for other in calls.beside(i):
        after = finder.projection_after(other.mix)
        if after is not None and after[0] is not projection.node and _same_memory(after[1], projection.matrix):
            again[after[0].index] = replace(projection, node=after[0])
    projections = [projection, *(again[index] for index in sorted(again))]
    hooks = [_hook_point(traced, each, calls.known[i].shape[2]) for each in projections]
    if None in hooks and again:
        raise InvalidValueError(
            f"the heads of {calls.known[i].name} also attend in a form that is not captured, and write that by "
            "another product with the same weights, which no module computes, so they cannot be taken out as a "
            "whole; select other layers, or another part"
        )
    return tuple(hook for hook in hooks if hook is not None)


def _unmatched_site(traced: Trace, plan: AttentionPlan, calls: TracedCalls, i: int) -> OutputSite:
    """The site of attention that no product in the trace is seen to multiply by values."""
    graph, (n_windows, n_heads, n_queries, _) = traced.graph, plan.sites[i].shape
    if plan.from_outputs:
        probs = reported_probs(traced, i)
    else:
        nodes = [node for node in graph.nodes if node.op in SOFTMAX and is_call(node, plan.sites[i])]
        probs = Ref(nodes[0].index) if len(nodes) == 1 and n_windows == 1 else None
    projection = None if probs is None else projection_without(graph, [probs], n_heads)
    if projection is None and plan.from_outputs:
        projection = projection_after_chunks(graph, plan.returned[i]) or _after_pieces(traced, plan, i)
    hook = None if projection is None else _hook_point(traced, projection, n_queries)
    if projection is None or hook is None:
        calls.product(i)  # says why it is not matched
        raise RuntimeError("a call without a product")
    entering, _ = entering_projection(graph, projection.node)
    n_tokens = graph.value(entering).numel() // len(projection.matrix)
    return OutputSite(
        name=hook.module,
        products=(),
        n_windows=1,
        n_heads=n_heads,
        n_features=projection.rows.shape[1],
        n_queries=n_queries,
        hooks=(hook,),
        projection=projection,
        n_padding=max(0, n_tokens - n_queries) if plan.from_outputs else 0,
    )


def _after_pieces(traced: Trace, plan: AttentionPlan, i: int) -> OutputProjection | None:
    """The projection after a call whose attention is returned in one piece, but computed in several."""
    calls = traced_calls(traced, plan, "")
    unmatched = [site for site in range(len(plan.sites)) if site not in calls.sites]
    groups = pieces_of_attention(traced.graph, [site.softmax for site in calls.sites.values()])
    if len(groups) != len(unmatched):
        return None
    return projection_without(traced.graph, groups[unmatched.index(i)], plan.sites[i].shape[1])


def _same_memory(ours: Tensor, theirs: Tensor) -> bool:
    return ours.data_ptr() == theirs.data_ptr() and ours.shape == theirs.shape


def _with_batches(
    sites: Mapping[int, OutputSite], traced: Trace, model: nn.Module, probe: ModelInput
) -> dict[int, OutputSite]:
    """The sites, with the order of inputs and heads in their products, seen on a batch of twice the same input."""
    wanted = {point.position for site in sites.values() if not site.hooks for point in site.products}
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
    has_token_axes = len(rest) > 2 and rest[0] == 1  # the trace has one input
    return HookPoint(module, call, n_calls, argument, projection.rows, feature_axis, token_axis, has_token_axes)


def _contains(module: str, path: str) -> bool:
    return module == path or (module != "" and path.startswith(f"{module}."))


def _feature_axis(value: Tensor, n_features: int, axis: int) -> int:
    return axis if value.shape[axis] == n_features else -1
