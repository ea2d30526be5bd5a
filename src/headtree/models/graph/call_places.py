"""Where queries, keys, values and outputs of heads are in a forward pass, and what they are on any input.

The places are found once, on the probe. A trace of another input keeps the values at these places and no others, so
it needs little memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headtree.models.graph.attention_calls import TracedCalls, TracedSite, traced_calls
from headtree.models.graph.chunked_heads import find_chunked_heads, unknown_values
from headtree.models.graph.forward_graph import PRODUCTS, Graph, Kept, Node, Ref, Trace, aten, trace
from headtree.models.graph.operands import HeadFeatures, Operand, node_at
from headtree.models.graph.output_sites import OutputSite
from headtree.models.graph.projections import entering_projection
from headtree.models.graph.residual_stream import same_numbers
from headtree.models.graph.several_values import SeveralValues
from headtree.models.inputs import ModelInput
from headtree.models.watching.collect import PreparedInputs


@dataclass(frozen=True, eq=False)
class CallPlaces:
    """Where the queries, keys, values and outputs of one attention call are.

    Torch's own attention multiplies queries and keys by the square root of the scale; this is undone, so they are
    the model's own.
    """

    site: OutputSite
    query: Operand | HeadFeatures | None  #: (head, token, feature); None if the scores are no product with keys
    key: Operand | HeadFeatures | None  #: (head, feature, token)
    value: Operand | HeadFeatures | SeveralValues  #: (head, token, feature)
    output: Operand | None  #: what enters the output projection; None without one that is common to all heads
    output_axis: int  #: the axis of its features
    scale: float  #: a constant that multiplies both queries and keys before their product

    @property
    def is_chunked(self) -> bool:
        """Whether heads attend in chunks, to which the model appends padding."""
        return isinstance(self.value, HeadFeatures)

    def is_of(self, site: TracedSite, graph: Graph) -> bool:
        """Whether these are the places of a call in the graph of the probe."""
        if self.is_chunked:
            return self.output is not None and self.output.ref(graph).node == site.mix
        return graph.nodes[site.mix].position == self.site.mix

    @property
    def kept(self) -> Kept:
        """What a trace must keep."""
        kept = Kept() if self.output else Kept(results=[self.site.mix])
        for place in (self.query, self.key, self.value, self.output):
            kept |= Kept() if place is None else place.kept
        return kept

    def queries(self, graph: Graph) -> Float[Tensor, "head query feature"] | None:
        """The queries on the input of a graph; None if the scores are no product of them with keys."""
        return None if self.query is None else _by_head(self.query.value(graph)) / self.scale

    def keys(self, graph: Graph) -> Float[Tensor, "head key feature"] | None:
        """The keys on the input of a graph, once per head; None where there are no queries."""
        if self.key is None or isinstance(self.key, HeadFeatures):
            return None if self.key is None else self.key.value(graph)
        return _by_head(self.key.value(graph)).mT / self.scale

    def values(self, graph: Graph) -> Float[Tensor, "head key feature"]:
        """The values on the input of a graph, once per head."""
        return _by_head(self.value.value(graph))

    def captured_values(self, graph: Graph, n_keys: int | None) -> Float[Tensor, "head key feature"]:
        """The values of the keys of a captured tensor: not of tokens that the model itself puts before or after."""
        values = self.values(graph)
        if n_keys is None or values.shape[1] <= n_keys:
            return values
        return values[:, :n_keys] if self.is_chunked else values[:, -n_keys:]

    def outputs(self, graph: Graph) -> Float[Tensor, "head query feature"]:
        """What the heads hand to the output projection on the input of a graph."""
        if isinstance(self.value, SeveralValues):
            return self.value.output(graph)
        projection = self.site.projection
        if self.output is None or projection is None:
            return _by_head(graph.value(Ref(node_at(graph, self.site.mix).index)))
        entering = self.output.value(graph).movedim(self.output_axis, -1)
        rows = entering.reshape(-1, entering.shape[-1])
        return rows[:, projection.rows.to(rows.device)].movedim(0, 1)

    def written(self, graph: Graph) -> Ref | None:
        """The result of the output projection; without rows of a head's own what enters it; None without any."""
        if self.site.mixed:
            return Ref(node_at(graph, self.site.mix).index)
        return None if self.output is None else Ref(node_at(graph, self.output.position).index)

    def written_shape(self, graph: Graph) -> tuple[tuple[int, ...], int]:
        """Shape of what `written` finds with the features last, and the axis where it has them."""
        if self.output is None:
            return tuple(graph.value(Ref(node_at(graph, self.site.mix).index)).shape), -1
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


def find_places(prepared: PreparedInputs, *, mixed: bool = False) -> dict[int, CallPlaces]:
    """The places of every selected attention call, by the number of its site; the view must be ready.

    Only with `mixed` may heads have no rows of an output projection to themselves.
    """
    outputs = prepared.view.output_sites(prepared.plan, prepared.selection.sites)
    for i in () if mixed else prepared.selection.sites:
        outputs[i].check_rows()
    traced = prepared.view.traced(prepared.plan)
    calls = traced_calls(traced, prepared.plan, type(prepared.model).__name__)
    found = {}
    for i in prepared.selection.sites:
        is_chunked = i not in calls.sites and prepared.plan.from_outputs
        found[i] = (
            _chunked_places(traced.graph, outputs[i], calls, prepared.plan.returned[i])
            if is_chunked
            else _places(traced.graph, calls, i, outputs[i])
        )
    return found


def _chunked_places(
    graph: Graph, output: OutputSite, calls: TracedCalls, attention: Float[Tensor, "head query key"]
) -> CallPlaces:
    heads = None if output.projection is None else find_chunked_heads(graph, output.projection, attention)
    if heads is None or output.projection is None:
        raise unknown_values(calls.model, output.name)
    query, key = (None if each is None else each.place for each in (heads.query, heads.key))
    node = node_at(graph, output.projection.node.place)
    entering, axis = _entering(graph, node)
    return CallPlaces(output, query, key, heads.value.place, entering, axis, scale=1.0)


def _entering(graph: Graph, projection: Node) -> tuple[Operand, int]:
    """What enters an output projection, and the axis of its features."""
    ref, axis = entering_projection(graph, projection)
    return Operand(projection.place, projection.args.index(ref)), axis


def _places(graph: Graph, calls: TracedCalls, i: int, output: OutputSite) -> CallPlaces:
    several = output.several
    site = calls[i] if several is None else calls.product(i)
    product = _product(graph, site)
    left, right = PRODUCTS[product.op]
    mix = graph.nodes[site.mix]
    projections = [] if output.projection is None or output.mixed else [output.projection.node.place]
    projections = projections if several is None else several.projections
    entering, axis = None, -1
    if len(projections) == 1:
        entering, axis = _entering(graph, node_at(graph, projections[0]))
    return CallPlaces(
        site=output,
        query=None if site.adds_scores else Operand(product.place, left),
        key=None if site.adds_scores else Operand(product.place, right),
        value=several or Operand(mix.place, PRODUCTS[mix.op][1]),
        output=entering,
        output_axis=axis,
        scale=_common_scale(graph, site),
    )


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
