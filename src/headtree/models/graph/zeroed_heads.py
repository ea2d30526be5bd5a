"""The output projection of heads whose products with values are not seen: by what changes without each head.

Bands (Longformer) and hash buckets (Reformer) are multiplied by values in chunks, so no product shows the heads
side by side. But without a head's share of the attention, just those features change that the head hands to the
output projection. Where attention is known only from what a model returns, that comes from a value that the model
also uses.
"""

from __future__ import annotations

import torch
from jaxtyping import Int
from torch import Tensor

from headtree.models.graph.forward_graph import Graph, Ref, Trace
from headtree.models.graph.projections import OutputProjection, ProjectionFinder, entering_projection


def projection_without(graph: Graph, probs: Ref, n_heads: int) -> OutputProjection | None:
    """The projection that heads with some attention enter, each by features of its own; None if there is none."""
    found = ProjectionFinder(graph, []).projection_after(probs.node)
    if found is None:
        return None
    node, matrix = found
    entering, axis = entering_projection(graph, node)
    for head_axis, size in enumerate(graph.value(probs).shape):
        if size == n_heads:
            rows = _rows_of_heads(graph, probs, head_axis, entering, axis)
            if rows is not None:
                return OutputProjection(node, matrix, rows)
    return None


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
    graph: Graph, probs: Ref, head_axis: int, entering: Ref, axis: int
) -> Int[Tensor, "head feature"] | None:
    """The features that change without each head's attention; None if they are not a block of its own for each."""
    whole, before = graph.value(probs), graph.value(entering)
    rows = []
    for head in range(whole.shape[head_axis]):
        without = whole.clone()
        without.select(head_axis, head).zero_()
        change = graph.replay({probs: without}, entering) != before
        rows.append(change.movedim(axis, -1).flatten(0, -2).any(dim=0).nonzero()[:, 0].cpu())
    sizes = {len(features) for features in rows}
    together = torch.cat(rows)
    if len(sizes) != 1 or not len(together) or together.unique().numel() != len(together):
        return None
    return torch.stack(rows)
