"""Where a residual stream and what is added to it are in a forward pass, and what they are on any input."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from headtree.models.graph.call_places import CallPlaces
from headtree.models.graph.forward_graph import Graph, Kept, Position, Ref
from headtree.models.graph.linearize import LinearMap
from headtree.models.graph.operands import Operand, node_at
from headtree.models.graph.read_stream import LocatedStream, batch_first
from headtree.models.graph.residual_stream import ResidualStream, Term


@dataclass(frozen=True, eq=False)
class StreamPlaces:
    """Where the residual stream of one stack of layers is, and every term that is added to it."""

    located: LocatedStream

    @property
    def stream(self) -> ResidualStream:
        """The stream in the graph of the probe."""
        return self.located.stream

    @cached_property
    def depths(self) -> tuple[Operand, ...]:
        """The stream before each layer."""
        return tuple(operand(sums[0].skip) for sums in self.stream.layers)

    @cached_property
    def end(self) -> tuple[Position, int]:
        """The operation whose result is the stream after the last layer, and which of its results."""
        return self.located.graph.node(self.stream.end).place, self.stream.end.output

    def terms(self, role: str) -> tuple[tuple[Term, ...], ...]:
        """The terms of a role in each layer."""
        return tuple(
            tuple(term for each in sums for term in each.terms if term.role == role) for sums in self.stream.layers
        )

    @property
    def roles(self) -> list[str]:
        """The roles of the terms that are added to the stream: "attention", "cross", "mlp"."""
        found = {term.role for sums in self.stream.layers for each in sums for term in each.terms}
        return sorted(found - {"skip"})

    @property
    def kept(self) -> Kept:
        """What a trace must keep."""
        additions = {term.position for sums in self.stream.layers for each in sums for term in each.terms}
        return Kept(additions, {self.end[0]})

    def end_ref(self, graph: Graph) -> Ref:
        """The stream after the last layer in the graph of any input."""
        position, output = self.end
        return Ref(node_at(graph, position).index, output)

    def residual(self, graph: Graph) -> list[Tensor]:
        """The stream before the first layer and after each, on the input of a graph, with the axes it has there."""
        return [*[place.value(graph) for place in self.depths], graph.value(self.end_ref(graph))]

    def added(self, graph: Graph, role: str) -> list[Float[Tensor, "token width"]]:
        """What the terms of a role add to the stream in each layer; zeros in a layer without one."""
        like = self.tokens_first(self.depths[0].value(graph))
        found = []
        for terms in self.terms(role):
            values = [self.tokens_first(operand(term).value(graph)) for term in terms]
            found.append(sum(values, torch.zeros_like(like)))
        return found

    def tokens_first(self, value: Tensor) -> Float[Tensor, "token width"]:
        """A value of the stream of one input as (token, width)."""
        return batch_first(value, self.stream, 1)[0]

    def attention_terms(self, call: CallPlaces) -> list[Term]:
        """The terms that an attention call adds to the stream; none if the call belongs to another stream.

        There are several only if heads write by several projections.
        """
        found = [
            term
            for role in ("attention", "cross")
            for terms in self.terms(role)
            for term in terms
            if term.site is not None and call.is_of(term.site, self.located.graph)
        ]
        return found if call.site.mixed else found[:1]

    def after_projection(self, call: CallPlaces, graph: Graph | None = None) -> LinearMap | None:
        """The map from what `CallPlaces.written` finds to what is added to the stream, with norms frozen.

        Its results are terms of a sum. None if that is the same up to biases, or if it is not linear.

        Parameters
        ----------
        call : CallPlaces
            An attention call.
        graph : Graph, optional
            Of the input on which norms are frozen, by default the probe; it must keep what the map needs.
        """
        if graph is not None and self.after_projection(call) is None:
            return None
        found = self._to_stream(call, self.located.graph if graph is None else graph)
        return None if found is None or found.only_adds or not all(found.reaches) else found

    def is_changed_by_mlps(self, call: CallPlaces) -> bool:
        """Whether what an attention call adds to the stream goes through activation functions after W_O."""
        found = self._to_stream(call, self.located.graph)
        return found is not None and found.adds_nonlinear

    def _to_stream(self, call: CallPlaces, graph: Graph) -> LinearMap | None:
        """The map from what the heads of a call write to its terms; None if the call adds nothing to the stream."""
        terms = self.attention_terms(call)
        start = call.written(graph)
        if not terms or start is None:
            return None
        return LinearMap(graph, start, [operand(term).ref(graph) for term in terms])


def operand(term: Term) -> Operand:
    """Where the value of a term is."""
    return Operand(term.position, term.operand)
