"""The output projection of heads whose products with values are not seen: by what changes without each head.

Bands (Longformer), blocks (BigBird) and hash buckets (Reformer) are multiplied by values in chunks, so no product
shows the heads side by side. But without a head's share of the attention, just those features change that the head
hands to the output projection. Where attention is known only from what a model returns, that comes from a value
which the model also uses, or is put together from several softmaxes of a module.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from headtree.models.graph.forward_graph import SOFTMAX, Graph, Ref, Trace
from headtree.models.graph.projections import OutputProjection, ProjectionFinder, entering_projection


def projection_without(graph: Graph, pieces: Sequence[Ref], n_heads: int) -> OutputProjection | None:
    """The projection that heads enter, each by features of its own, given all pieces of their attention.

    None if there is none.
    """
    projections = [ProjectionFinder(graph, []).projection_after(probs.node) for probs in pieces]
    found = projections[0] if projections else None
    if found is None or any(each is None or each[0] is not found[0] for each in projections):
        return None
    node, matrix = found
    entering, axis = entering_projection(graph, node)
    for head_axis in range(min(graph.value(probs).ndim for probs in pieces)):
        if all(graph.value(probs).shape[head_axis] == n_heads for probs in pieces):
            rows = _rows_of_heads(graph, pieces, head_axis, entering, axis)
            if rows is not None:
                return OutputProjection(node, matrix, rows)
    return None


def pieces_of_attention(graph: Graph, known: Collection[int | None]) -> list[list[Ref]]:
    """The softmaxes of each call of a module, in call order; without calls that have one of the known softmaxes."""
    groups: dict[tuple[str, int], list[int]] = {}
    for node in graph.nodes:
        if node.op in SOFTMAX and node.is_activation and node.position is not None:
            groups.setdefault((node.position.module, node.position.call), []).append(node.index)
    return [[Ref(index) for index in group] for group in groups.values() if not set(group) & set(known)]


def reported_probs(traced: Trace, i: int) -> Ref | None:
    """The attention that a reported layer was only sliced or moved from, and that the model uses itself."""
    graph, ref = traced.graph, traced.reported[i]
    if ref is None:
        return None
    users, seen = graph.users(), {ref.node}
    while set(users[ref.node]) <= seen:
        sources = [source for source in graph.node(ref).inputs if graph.node(source).is_activation]
        if not sources:
            return None
        ref = sources[0]
        seen.add(ref.node)
    return ref


def _rows_of_heads(
    graph: Graph, pieces: Sequence[Ref], head_axis: int, entering: Ref, axis: int
) -> Int[Tensor, "head feature"] | None:
    """The features that change without each head's attention; None if they are not a block of its own for each."""
    before = graph.value(entering)
    rows = []
    for head in range(graph.value(pieces[0]).shape[head_axis]):
        without = {probs: graph.value(probs).clone() for probs in pieces}
        for values in without.values():
            values.select(head_axis, head).zero_()
        change = graph.replay(without, entering) != before
        rows.append(change.movedim(axis, -1).flatten(0, -2).any(dim=0).nonzero()[:, 0].cpu())
    sizes = {len(features) for features in rows}
    together = torch.cat(rows)
    if len(sizes) != 1 or not len(together) or together.unique().numel() != len(together):
        return None
    return torch.stack(rows)
