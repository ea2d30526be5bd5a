"""Norms of values times W_O, which weight attention by what each key contributes (Kobayashi et al. 2020)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from headtree.models.graph.call_places import CallPlaces, find_places
from headtree.models.graph.forward_graph import Kept, trace
from headtree.models.inputs import ModelInput
from headtree.models.watching.collect import PreparedInputs


def value_norms(prepared: PreparedInputs, item: ModelInput) -> Float[Tensor, "head key"]:
    """‖v·W_O‖ of every selected head and every key on one input; the view must be ready."""
    places = find_places(prepared)
    graph = trace(prepared.model, item, kept=values_only(places)).graph
    n_keys = prepared.n_reported_keys(item)
    norms = [
        _norms(places[i].captured_values(graph, n_keys)[list(heads)], places[i].matrix[list(heads)])
        for i, heads in prepared.selection.heads.items()
    ]
    return torch.cat(norms).cpu()


def values_only(places: Mapping[int, CallPlaces]) -> Kept:
    """What a trace must keep for the values alone."""
    kept = Kept()
    for call in places.values():
        kept |= call.value.kept
    return kept


def _norms(
    v: Float[Tensor, "head key feature"], matrix: Float[Tensor, "head feature width"]
) -> Float[Tensor, "head key"]:
    """With W_Oᵀ = QR, ‖v·W_O‖ = ‖v·Rᵀ‖: as accurate, without an array of all heads, keys and the whole width."""
    triangle = torch.linalg.qr(matrix.detach().double().mT, mode="r").R
    norms: Tensor = torch.linalg.vector_norm(v.double() @ triangle.to(v.device).mT, dim=-1)
    return norms
