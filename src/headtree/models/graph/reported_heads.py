"""The output projection of heads whose attention is known only from what the model returns.

Bands (Longformer) and hash buckets (Reformer) are multiplied by values in chunks, so no product shows the heads
side by side. But the attention that the model returns comes from a value that it also uses. Without a head's share
of that value, just the features change that the head hands to the output projection.
"""

from __future__ import annotations

import torch
from jaxtyping import Int
from torch import Tensor

from headtree.models.graph.forward_graph import Graph, Ref, Trace
from headtree.models.graph.head_weights import OutputProjection, ProjectionFinder, entering_projection


def projection_of_reported(traced: Trace, i: int, n_heads: int) -> OutputProjection | None:
    """The projection that heads of a reported layer enter, each by features of its own; None if there is none."""
    graph, reported = traced.graph, traced.reported[i]
    finder = ProjectionFinder(graph, [])
    probs = None if reported is None else _used_value(graph, finder.users, reported)
    projection = None if probs is None else finder.projection_after(probs.node)
    if probs is None or projection is None:
        return None
    node, matrix = projection
    entering, axis = entering_projection(graph, node)
    for head_axis, size in enumerate(graph.value(probs).shape):
        if size == n_heads:
            rows = _rows_of_heads(graph, probs, head_axis, entering, axis)
            if rows is not None:
                return OutputProjection(node, matrix, rows)
    return None


def _used_value(graph: Graph, users: list[list[int]], reported: Ref) -> Ref | None:
    """The value that a reported layer was only sliced or moved from, and that the model uses itself."""
    ref, seen = reported, {reported.node}
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
