"""The attentions among a model's outputs, and which watched calls they confirm."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from headtree.models.module_stack import tensors_of
from headtree.models.watching.attention_sites import AttentionSite

_FIELD_NAME = re.compile(r"attentions?$|attn", re.IGNORECASE)

#: Output fields with a layer (batch, head, query, key) each, and the part they belong to.
_KNOWN_FIELDS = {
    "attentions": "",
    "encoder_attentions": "encoder",
    "decoder_attentions": "decoder",
    "cross_attentions": "decoder",
}


def attention_fields(output: Any) -> dict[str, list[Tensor]]:
    """The layers in every output field that is named like attention."""
    named = output if isinstance(output, Mapping) else getattr(output, "__dict__", {})
    layers = {name: list(tensors_of(value)) for name, value in named.items() if _FIELD_NAME.search(str(name))}
    return {name: tensors for name, tensors in layers.items() if tensors}


def returned_attentions(model: nn.Module, output: Any) -> list[tuple[AttentionSite, Tensor]]:
    """The attention weights among a model's outputs, each with a site as if it were a call."""
    found = []
    for field, i, returned in _usable_layers(output):
        layer = returned if field == "cross_attentions" else _aligned(returned)
        name = f"{_KNOWN_FIELDS[field]}.{i}".lstrip(".")
        n_batch, n_heads, n_queries, n_keys = layer.shape
        shape = (n_batch, n_heads, n_queries, n_keys)
        found.append((AttentionSite(name, model, field == "cross_attentions", shape, "outputs"), layer))
    return found


def reported_layers(output: Any) -> list[Tensor]:
    """The layers behind `returned_attentions`, the very tensors that the model returned."""
    return [layer for _, _, layer in _usable_layers(output)]


def _usable_layers(output: Any) -> list[tuple[str, int, Tensor]]:
    """The field, number and tensor of each returned layer with probabilities of known queries and keys."""
    fields = attention_fields(output)
    layers = ((field, i, layer) for field in _KNOWN_FIELDS for i, layer in enumerate(fields.get(field, [])))
    return [(field, i, layer) for field, i, layer in layers if is_usable(field, layer)]


def is_usable(field: str, layer: Tensor) -> bool:
    """Whether a returned layer holds probabilities of known queries and keys."""
    if field not in _KNOWN_FIELDS or layer.ndim != 4 or not _are_probs(layer):
        return False
    return field == "cross_attentions" or layer.shape[-2] == layer.shape[-1] or _is_band(layer)


def _aligned(weights: Float[Tensor, "batch head query column"]) -> Float[Tensor, "batch head query key"]:
    """Weights of a band around each query (Longformer), each put where its key is; other weights unchanged."""
    if not _is_band(weights):
        return weights
    keys, inside = _band_keys(weights)
    rows, columns = inside.nonzero(as_tuple=True)
    full = weights.new_zeros((*weights.shape[:-1], weights.shape[-2]))
    full[..., rows, keys[rows, columns]] = weights[..., rows, columns]
    return full


def _is_band(weights: Float[Tensor, "batch head query column"]) -> bool:
    """Whether column j is the key ``query + j - half``: weight only where there is one, and on the query itself."""
    n_queries, width = weights.shape[-2:]
    if width % 2 == 0 or width < 3 or n_queries < 2:
        return False
    _, inside = _band_keys(weights)
    own = weights[..., width // 2]
    attends = (weights != 0).any(dim=-1)  # else the query is padding
    return not bool(weights[..., ~inside].any() or (attends & (own == 0)).any())


def _band_keys(weights: Tensor) -> tuple[Int[Tensor, "query column"], Bool[Tensor, "query column"]]:
    """The key of each column of a band, and whether there is such a key."""
    n_queries, width = weights.shape[-2:]
    rows, columns = (torch.arange(n, device=weights.device) for n in (n_queries, width))
    keys = rows[:, None] + columns - width // 2
    return keys, (keys >= 0) & (keys < n_queries)


def confirmed_calls(
    probs: Sequence[Tensor], fields: Mapping[str, Sequence[Tensor]]
) -> tuple[list[int], dict[str, Tensor]]:
    """Indices of the watched calls that returned layers match, in call order, and the fields that match none.

    A returned layer matches if it, or its softmax, is the attention of a call on the first input: SqueezeBERT and
    ProphetNet return scores under the name of attentions. For a field that does not match, its first such layer.
    """
    confirmed: set[int] = set()
    unmatched: dict[str, Tensor] = {}
    for field, layers in fields.items():
        found: set[int] = set()
        for layer in layers:
            call = _matching_call(probs, layer, confirmed | found)
            if call is None:
                unmatched[field] = layer
                break
            found.add(call)
        else:
            confirmed |= found
    return sorted(confirmed), unmatched


def unaccounted(shapes: Iterable[Sequence[int]], fields: Mapping[str, Sequence[Tensor]]) -> dict[str, Tensor]:
    """The first layer of each output field for which no watched call of its shape is left.

    A layer that is returned in two fields counts once. Hidden states (Qwen-VL) and states of linear attention
    (MiniMax) under the name of attention do not count: they are no probabilities.
    """
    left = Counter(map(tuple, shapes))
    known: set[int] = set()
    missing: dict[str, Tensor] = {}
    for field, layers in fields.items():
        for layer in layers:
            shape = tuple(layer.shape)
            is_attention = layer.ndim > 4 or (layer.ndim > 2 and _are_probs(layer))
            if layer.data_ptr() in known or not is_attention:
                continue
            known.add(layer.data_ptr())
            if left[shape] == 0:
                missing.setdefault(field, layer)
            left[shape] -= 1
    return missing


def unlike(probs: Sequence[Tensor], fields: Mapping[str, Sequence[Tensor]]) -> str | None:
    """An output field with a layer that has the shape of some watched calls, but the values of none; None if none.

    Differences that rounding explains do not count, which grows from layer to layer.
    """
    for field, layers in fields.items():
        for layer in layers:
            is_known = layer.ndim == 4 and _are_probs(layer) and bool(layer.isfinite().all())
            alike = [ours for ours in probs if is_known and ours.shape == layer.shape[1:]]
            limit = 1e-3 if layer.dtype.itemsize > 2 else 0.1
            if alike and not any(close_where_allowed(x, layer[0], limit) for x in alike):
                return field
    return None


def _matching_call(probs: Sequence[Tensor], layer: Tensor, taken: set[int]) -> int | None:
    """The first call with the attention of this layer, if possible one that is not taken."""
    theirs = layer[0] if _are_probs(layer) else layer[0].softmax(dim=-1)
    order = sorted(range(len(probs)), key=lambda i: i in taken)
    return next(
        (i for i in order if probs[i].shape == theirs.shape and close_where_allowed(probs[i], theirs)), None
    )


def close_where_allowed(ours: Tensor, theirs: Tensor, limit: float | None = None) -> bool:
    """Whether two attentions agree, except for queries whose keys are all masked."""
    allowed = ours.sum(dim=-1) > 0  # rows with all keys masked are missing here, but uniform in many models
    limit = limit or (1e-5 if theirs.dtype.itemsize > 2 else 1e-2)
    return torch.allclose(ours[allowed].double(), theirs[allowed].double(), atol=limit)


def _are_probs(weights: Tensor) -> bool:
    """Whether rows sum to at most one, and no entry is negative."""
    sums = weights.sum(dim=-1)
    return not bool((weights < 0).any() or (sums > 1 + 1e-2).any())  # NaN is reported later
