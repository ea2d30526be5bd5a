"""Where queries, keys, values and outputs of heads are in a forward pass, and what they are on any input.

The places are found once, on the probe. A trace of another input keeps the values at these places and no others, so
it needs little memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headtree.errors import InvalidValueError
from headtree.models.graph.attention_calls import TracedSite, traced_calls
from headtree.models.graph.forward_graph import PRODUCTS, Graph, Kept, Node, Position, Ref, Trace, aten, trace
from headtree.models.graph.head_weights import entering_projection
from headtree.models.graph.output_sites import OutputSite
from headtree.models.graph.residual_stream import same_numbers
from headtree.models.inputs import ModelInput
from headtree.models.watching.collect import PreparedInputs


class Operand(NamedTuple):
    """A tensor that an operation reads; the same place on any input."""

    position: Position
    argument: int  #: which of its arguments

    def ref(self, graph: Graph) -> Ref:
        """The value in the graph of any input."""
        found: Ref = node_at(graph, self.position).args[self.argument]
        return found

    def value(self, graph: Graph) -> Tensor:
        """The tensor in a graph that keeps it."""
        return graph.value(self.ref(graph))


def node_at(graph: Graph, position: Position) -> Node:
    """The operation at a position that was found on the probe."""
    found = graph.by_position.get(position)
    if found is None:
        raise InvalidValueError(
            f"the model runs different code on this input than on the probe: {position.module or 'it'} has no "
            f"operation {position.op} number {position.nth}; pass inputs that it processes in the same way"
        )
    return found


@dataclass(frozen=True, eq=False)
class CallPlaces:
    """Where the queries, keys, values and outputs of one attention call are.

    Torch's own attention multiplies queries and keys by the square root of the scale; this is undone, so they are
    the model's own.
    """

    site: OutputSite
    query: Operand  #: (head, token, feature)
    key: Operand  #: (head, feature, token)
    value: Operand  #: (head, token, feature)
    output: Operand | None  #: what enters the output projection; None without a projection
    output_axis: int  #: the axis of its features
    scale: float  #: a constant that multiplies both queries and keys before their product

    @property
    def kept(self) -> Kept:
        """What a trace must keep."""
        operands = [place.position for place in (self.query, self.key, self.value, self.output) if place]
        return Kept(operands, [] if self.output else [self.site.mix])

    def queries(self, graph: Graph) -> Float[Tensor, "head query feature"]:
        """The queries on the input of a graph."""
        return _by_head(self.query.value(graph)) / self.scale

    def keys(self, graph: Graph) -> Float[Tensor, "head key feature"]:
        """The keys on the input of a graph, once per head."""
        return _by_head(self.key.value(graph)).mT / self.scale

    def values(self, graph: Graph) -> Float[Tensor, "head key feature"]:
        """The values on the input of a graph, once per head."""
        return _by_head(self.value.value(graph))

    def outputs(self, graph: Graph) -> Float[Tensor, "head query feature"]:
        """What the heads hand to the output projection on the input of a graph."""
        projection = self.site.projection
        if self.output is None or projection is None:
            return _by_head(graph.value(Ref(node_at(graph, self.site.mix).index)))
        entering = self.output.value(graph).movedim(self.output_axis, -1)
        rows = entering.reshape(-1, entering.shape[-1])
        return rows[:, projection.rows.to(rows.device)].movedim(0, 1)

    def written_shape(self, graph: Graph) -> tuple[tuple[int, ...], int]:
        """Shape of the projection's result with the features last, and the axis where it has them."""
        if self.output is None:
            raise RuntimeError("a call without an output projection")
        entering = self.output.value(graph).movedim(self.output_axis, -1)
        return (*entering.shape[:-1], self.matrix.shape[-1]), self.output_axis

    @property
    def matrix(self) -> Float[Tensor, "head feature width"]:
        """W_O of every head; without a projection heads write side by side."""
        if self.site.matrix is not None:
            return self.site.matrix
        n_heads, n_features = self.site.n_heads, self.site.n_features
        return torch.eye(n_heads * n_features).reshape(n_heads, n_features, -1)


def _by_head(value: Tensor) -> Float[Tensor, "head row column"]:
    return value if value.ndim == 3 else value[None]  # a product without a head axis


def find_places(prepared: PreparedInputs) -> dict[int, CallPlaces]:
    """The places of every selected attention call, by the number of its site; the view must be ready."""
    outputs = prepared.view.output_sites(prepared.plan, prepared.selection.sites)
    for i in prepared.selection.sites:
        outputs[i].check_rows()
    traced = prepared.view.traced(prepared.plan)
    calls = traced_calls(traced, prepared.plan, type(prepared.model).__name__)
    return {i: _places(traced.graph, calls[i], outputs[i]) for i in prepared.selection.sites}


def _places(graph: Graph, site: TracedSite, output: OutputSite) -> CallPlaces:
    product = _product(graph, site)
    left, right = PRODUCTS[product.op]
    mix = graph.nodes[site.mix]
    entering, axis = None, -1
    if output.projection is not None:
        node = output.projection.node
        ref, axis = entering_projection(graph, node)
        entering = Operand(_position(node), node.args.index(ref))
    return CallPlaces(
        site=output,
        query=Operand(_position(product), left),
        key=Operand(_position(product), right),
        value=Operand(_position(mix), PRODUCTS[mix.op][1]),
        output=entering,
        output_axis=axis,
        scale=_common_scale(graph, site),
    )


def _position(node: Node) -> Position:
    if node.position is None:
        raise RuntimeError("an operation has a position")
    return node.position


def _product(graph: Graph, site: TracedSite) -> Node:
    """The product of queries and keys."""
    before = graph.nodes[: site.softmax]
    return next(node for node in reversed(before) if graph.factors(node) == (site.query, site.key))


def _common_scale(graph: Graph, site: TracedSite) -> float:
    """The constant that both queries and keys were multiplied by last; 1 if there is none."""
    scales = [_last_factor(graph, ref) for ref in (site.query, site.key)]
    return scales[0] if scales[0] == scales[1] and scales[0] else 1.0


def _last_factor(graph: Graph, ref: Ref) -> float:
    node = graph.node(same_numbers(graph, ref))
    if node.op not in (aten.mul.Tensor, aten.mul.Scalar):
        return 1.0
    factor = node.args[1]
    if isinstance(factor, Ref):
        is_constant = not graph.node(factor).is_activation and graph.value(factor).numel() == 1
        return float(graph.value(factor)) if is_constant else 1.0
    return float(factor)


def read_places(model: nn.Module, item: ModelInput, places: Sequence[CallPlaces], also: Kept) -> Trace:
    """A trace of one input that keeps the values at some places, and others that are wanted."""
    kept = also
    for each in places:
        kept |= each.kept
    return trace(model, item, kept=kept)
