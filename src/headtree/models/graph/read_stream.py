"""Read the residual stream of a model, optionally with skip connections or MLPs removed.

The model's own code runs unchanged. Where it adds a term that is to be removed, the addition returns only its other
side, which cancels the term.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from jaxtyping import Float
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from headtree.errors import InvalidValueError
from headtree.models.graph.attention_calls import TracedCalls, TracedSite, traced_calls
from headtree.models.graph.forward_graph import (
    Graph,
    Position,
    Positions,
    Trace,
    empty_product,
    one_side,
    unfused,
)
from headtree.models.graph.operands import node_at
from headtree.models.graph.projections import ProjectionFinder, entering_projection
from headtree.models.graph.residual_stream import (
    ResidualStream,
    find_stream,
    leads_to,
    same_numbers,
    unneeded_products,
)
from headtree.models.inputs import ModelInput
from headtree.models.module_stack import ModuleStack
from headtree.models.watching.collect import PreparedInputs
from headtree.models.watching.probe import arguments
from headtree.models.watching.unchanged import unchanged


@dataclass(frozen=True, eq=False)
class LocatedStream:
    """The residual stream of a model, found on the probe; its positions hold for any other input."""

    prepared: PreparedInputs
    trace: Trace
    stream: ResidualStream
    sites: tuple[TracedSite, ...]  #: the self-attention call of each layer

    @property
    def graph(self) -> Graph:
        """The graph of the probe."""
        return self.trace.graph

    def n_tokens(self, item: ModelInput) -> int | None:
        """Number of an input's own tokens, if heads attend in chunks, to which the model appends padding."""
        is_chunked = self.prepared.plan.from_outputs and any(site.softmax is None for site in self.sites)
        return self.prepared.call_size(item)[0] if is_chunked and item.lengths() is not None else None


def locate_stream(prepared: PreparedInputs, *, chunked: bool = False) -> LocatedStream:
    """Find the residual stream of the selected part of a model, through all its layers; the view must be ready.

    Only with `chunked` may heads attend in chunks, whose products of attention and values are not seen as such.
    """
    plan = prepared.plan
    if prepared.selection.part == "cross":
        raise InvalidValueError(
            "part must be a stack of layers with its own residual stream, got 'cross'; pass 'encoder' or 'decoder'"
        )
    if all(plan.sites[i].shape[2] < 2 for i in prepared.selection.sites):
        raise InvalidValueError(
            "input 0 must have at least 2 tokens, or there is nothing to compare; pass longer inputs"
        )
    traced = prepared.view.traced(plan)
    calls = traced_calls(traced, plan, type(prepared.model).__name__)
    if chunked and plan.from_outputs:
        calls.sites |= _chunked_sites(prepared, traced.graph, calls)
    of_part = tuple(_of_one_stream(prepared, calls, i) for i in prepared.selection.layers)
    stream = find_stream(traced, of_part, calls.all())
    if chunked and plan.from_outputs:
        _check_one_stream(traced.graph, stream)
    return LocatedStream(prepared, traced, stream, of_part)


def _of_one_stream(prepared: PreparedInputs, calls: TracedCalls, i: int) -> TracedSite:
    """A call, if all that its heads write goes into one stream."""
    if calls.product(i).again:
        several = prepared.view.output_sites(prepared.plan, [i])[i].several
        if several is not None and len(several.projections) == 1:
            return calls.product(i)
    return calls[i]


def _chunked_sites(prepared: PreparedInputs, graph: Graph, calls: TracedCalls) -> dict[int, TracedSite]:
    """Calls of which only what enters the output projection is seen; it takes the place of probs @ values."""
    found = {}
    for i in prepared.selection.layers:
        if i not in calls.sites:
            site = prepared.view.output_sites(prepared.plan, [i])[i]
            if site.projection is not None:
                entering, _ = entering_projection(graph, node_at(graph, site.projection.node.place))
                found[i] = TracedSite(None, entering.node, entering, entering, entering, site.name)
    return found


def _check_one_stream(graph: Graph, stream: ResidualStream) -> None:
    """Raise an error if heads in chunks read another stream than the one that they write into."""
    finder = ProjectionFinder(graph, [])
    for each in (each for layer in stream.layers for each in layer):
        for site in (term.site for term in each.terms if term.site is not None and term.site.softmax is None):
            read = [entering_projection(graph, node)[0] for node, _, _ in finder.projections_before(site.query)]
            if not all(leads_to(graph, same_numbers(graph, each.skip.ref), ref) for ref in read):
                raise InvalidValueError(
                    f"{site.module!r} reads another stream than the one that it writes into, as where layers are "
                    "reversible, so there is no single residual stream; view.cache has what its heads write"
                )


class _Look(NamedTuple):
    """What to read at a position: one side of an addition before it runs, or an output of an operation."""

    layer: int
    operand: int | None
    output: int = 0


class _StreamReader(TorchDispatchMode):
    """Cancels the terms to be removed and records the stream between layers."""

    def __init__(
        self,
        positions: Positions,
        surviving: Mapping[Position, int],
        unneeded: Collection[Position],
        looks: Mapping[Position, list[_Look]],
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.positions, self.looks = positions, looks
        self.surviving, self.unneeded = surviving, unneeded
        self.seen: dict[int, Tensor] = {}
        self.n_cancelled = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        position = self.positions.next(func)
        looks = self.looks.get(position, [])
        for look in looks:
            if look.operand is not None:
                self.seen[look.layer] = args[look.operand].clone()
        if position in self.surviving:
            self.n_cancelled += 1
            result = one_side(func, args, self.surviving[position])
        elif position in self.unneeded:
            result = empty_product(func, args)
        else:
            result = func(*args, **(kwargs or {}))
        for look in looks:
            if look.operand is None:
                value = result[look.output] if isinstance(result, tuple | list) else result
                self.seen[look.layer] = value.clone()
        return result


def read_stream(
    located: LocatedStream, items: list[ModelInput], without: Collection[str] = ()
) -> list[Float[Tensor, "input token width"]]:
    """The stream before the first layer and after each, for inputs of equal shape.

    Parameters
    ----------
    located : LocatedStream
        The result of `locate_stream`.
    items : list of ModelInput
        Run as one batch.
    without : collection of {"skip", "mlp", "cross"}
        Terms to cancel.
    """
    stream, model = located.stream, located.prepared.model
    surviving = stream.without(without)
    args, kwargs = arguments(model, items)
    stack = ModuleStack(model)
    unneeded = unneeded_products(located.graph, surviving)
    reader = _StreamReader(Positions(stack), surviving, unneeded, _looks(located))
    with unfused(), stack.watching(), unchanged(model), reader:
        model(*args, **kwargs)
    if len(reader.seen) != len(stream.layers) + 1 or reader.n_cancelled != len(surviving):
        raise InvalidValueError(
            f"{type(model).__name__} runs different code on this input than on the probe on which its residual "
            "stream was found; pass inputs that it processes in the same way"
        )
    n_tokens = located.n_tokens(items[0])
    return [batch_first(reader.seen[layer], stream, len(items))[:, :n_tokens] for layer in sorted(reader.seen)]


def _looks(located: LocatedStream) -> dict[Position, list[_Look]]:
    looks: dict[Position, list[_Look]] = {}
    stream = located.stream
    for layer, sums in enumerate(stream.layers):
        skip = sums[0].skip
        looks.setdefault(skip.position, []).append(_Look(layer, skip.operand))
    end = located.graph.node(stream.end).place
    looks.setdefault(end, []).append(_Look(len(stream.layers), None, stream.end.output))
    return looks


def batch_first(value: Tensor, stream: ResidualStream, n_items: int) -> Float[Tensor, "input token width"]:
    """A value of the stream with its batch axis first."""
    if value.ndim == 2:  # tokens of all inputs in one axis, throughout or for a while, as in the MLPs of OPT
        value = value.unflatten(0, (-1, n_items) if stream.batch_axis == 1 else (n_items, -1))
    return value.movedim(stream.batch_axis or 0, 0)
