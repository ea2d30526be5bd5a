"""Queries, keys and values of heads that attend in chunks: found by what they compute.

Bands (Longformer), blocks (BigBird) and hash buckets (Reformer) are multiplied by values in chunks, so no product
has all keys of a head. The values are the projection that, times the attention that the model returns, is what the
heads hand to their output projection. Queries and keys are the projections whose products, times a constant, have
that attention as their softmax.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headtree.errors import InvalidValueError
from headtree.models.graph.forward_graph import SAME_NUMBERS, Graph, Node, Ref, aten
from headtree.models.graph.operands import HeadFeatures, node_at
from headtree.models.graph.projections import (
    OutputProjection,
    ProjectionFinder,
    entering_projection,
    projection_matrix,
)

_FACTORS = {
    **dict.fromkeys((aten.mul.Tensor, aten.mul.Scalar, aten.mul_.Tensor, aten.mul_.Scalar), 1),
    **dict.fromkeys((aten.div.Tensor, aten.div.Scalar, aten.div_.Tensor, aten.div_.Scalar), -1),
}
_SUMS = (aten.add.Tensor, aten.add_.Tensor)


@dataclass(frozen=True, eq=False)
class Projected:
    """What a projection makes of the tokens, head by head."""

    place: HeadFeatures
    matrix: Float[Tensor, "head width feature"]


@dataclass(frozen=True, eq=False)
class ChunkedHeads:
    """The projections that make the values, queries and keys of one attention call."""

    value: Projected
    query: Projected | None  #: None: the attention is the softmax of no product of two projections
    key: Projected | None


def find_chunked_heads(
    graph: Graph, projection: OutputProjection, attention: Float[Tensor, "head query key"]
) -> ChunkedHeads | None:
    """What heads with some attention on the probe read; None if no projection makes their values."""
    node = node_at(graph, projection.node.place)
    made = _made_before(graph, node, projection.rows)
    values = [each for each in made if _mixes(graph, node, each, attention)]
    if len(values) != 1:
        return None
    others = [(each, each.place.value(graph)) for each in made if each is not values[0]]
    scored = [(query, key) for query, q in others for key, k in others if _compares(attention.to(q), q, k)]
    query, key = scored[0] if len(scored) == 1 else (None, None)
    return ChunkedHeads(values[0], query, key)


def unknown_values(model: str, layer: str) -> InvalidValueError:
    """The error for heads whose values no projection is found to make, but whose outputs are known."""
    return InvalidValueError(
        f"the attention of layer {layer} that {model} returns, times what a projection makes of the tokens, is not "
        "what its heads hand to their output projection, so their values are unknown; view.ablated, head_effects "
        "and view.residual work without them"
    )


def projection_after_chunks(graph: Graph, attention: Float[Tensor, "head query key"]) -> OutputProjection | None:
    """The only projection that heads enter with some attention times values; None if there is none."""
    found = []
    for node in graph.nodes:
        projection = projection_matrix(graph, node)
        if projection is None or len(projection[0]) % len(attention) or node.position is None:
            continue
        rows = torch.arange(len(projection[0])).reshape(len(attention), -1)
        if any(_mixes(graph, node, each, attention) for each in _made_before(graph, node, rows)):
            found.append(OutputProjection(node, projection[0], rows))
    return found[0] if len(found) == 1 else None


def _made_before(graph: Graph, projection: Node, rows: Int[Tensor, "head feature"]) -> list[Projected]:
    """What projections make of the tokens that is then used before an output projection with these rows."""
    entering, _ = entering_projection(graph, projection)
    try:
        before = ProjectionFinder(graph, []).projections_before(entering)
    except InvalidValueError:  # a product with several matrices
        return []
    return [
        _projected(graph, node, matrix, rows)
        for node, matrix, axis in before
        if axis == -1 and matrix.shape[1] == rows.numel()
    ]


def _mixes(graph: Graph, projection: Node, made: Projected, attention: Float[Tensor, "head query key"]) -> bool:
    """Whether attention times values is what heads hand to a projection."""
    entering, axis = entering_projection(graph, projection)
    v, z = made.place.value(graph), replace(made.place, scale=1.0).of(graph.value(entering).movedim(axis, -1))
    _, n_queries, n_keys = attention.shape
    if v.shape[1] < n_keys or z.shape[1] < n_queries:
        return False
    return _close(attention.to(v) @ v[:, :n_keys], z[:, :n_queries])


def _compares(probs: Tensor, q: Tensor, k: Tensor) -> bool:
    """Whether attention is the softmax of a constant times the products of queries with the keys that it allows."""
    _, n_queries, n_keys = probs.shape
    if q.shape[1] < n_queries or k.shape[1] < n_keys:
        return False
    allowed = probs > 0
    products = _centred(q[:, :n_queries] @ k[:, :n_keys].mT, allowed)
    scores = _centred(probs.log().masked_fill(~allowed, 0), allowed)
    scale = (products * scores).sum() / products.square().sum()
    rows = allowed.any(dim=-1)
    found = (scale * products).masked_fill(~allowed, -torch.inf)[rows].softmax(dim=-1)
    return bool(scale > 0) and _close(found, probs[rows])


def _centred(x: Tensor, allowed: Tensor) -> Tensor:
    """Each row less its mean over allowed entries; zero elsewhere."""
    mean = (x * allowed).sum(dim=-1, keepdim=True) / allowed.sum(dim=-1, keepdim=True).clamp(min=1)
    return (x - mean) * allowed


def _close(ours: Tensor, theirs: Tensor) -> bool:
    limit = 1e-4 if ours.dtype.itemsize > 2 else 3e-2
    return bool((ours - theirs).abs().max() <= limit * theirs.abs().max().clamp(min=1e-6))


def _projected(graph: Graph, node: Node, matrix: Float[Tensor, "width row"], rows: Tensor) -> Projected:
    """The result of a projection with its bias, and the constants that multiply it before it is used."""
    users, place, scale = graph.users(), node.place, 1.0
    while (following := _following(graph, node, users)) is not None:
        node = following
        if graph.value(Ref(node.index)).shape[-1] == matrix.shape[1]:
            place, scale = node.place, 1.0
        else:
            scale *= _factor(graph, node) or 1.0
    return Projected(HeadFeatures(place, rows, scale), matrix[:, rows.to(matrix.device)].movedim(1, 0))


def _following(graph: Graph, node: Node, users: list[list[int]]) -> Node | None:
    """The only operation that uses a value, if it adds a bias, multiplies by a constant or changes no number."""
    if len(users[node.index]) != 1:
        return None
    after = graph.nodes[users[node.index][0]]
    if after.op in SAME_NUMBERS or _factor(graph, after) is not None:
        return after
    adds_bias = after.op in _SUMS and not all(graph.node(ref).is_activation for ref in after.inputs)
    is_whole = graph.value(Ref(after.index)).shape[-1] == graph.value(Ref(node.index)).shape[-1]
    return after if adds_bias and is_whole else None


def _factor(graph: Graph, node: Node) -> float | None:
    """The constant that an operation multiplies by; None if it does something else."""
    if node.op not in _FACTORS:
        return None
    factor = node.args[1]
    if isinstance(factor, Ref):
        if graph.node(factor).is_activation or graph.value(factor).numel() != 1:
            return None
        factor = float(graph.value(factor))
    return float(factor) ** _FACTORS[node.op]
