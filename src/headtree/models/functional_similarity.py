"""Which heads do alike: those that look at the same tokens and would write the same of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from headtree._threads import product_by_rows
from headtree.errors import InvalidValueError
from headtree.geometry.combined_affinity import centred_kernel
from headtree.models.graph.call_places import CallPlaces, find_places
from headtree.models.graph.forward_graph import Graph, trace
from headtree.models.inputs import ModelInput
from headtree.models.value_norms import values_only
from headtree.models.watching.collect import PreparedInputs
from headtree.progress import progress
from headtree.similarity.attention_distances import probability_cosines
from headtree.similarity.head_similarity import HeadSimilarity, checked_kind, equal_heads, from_kernels, named_heads
from headtree.tensor.attention_tensor import HeadId

#: Entries of a block of v·W_O of all heads: 64 MB in float64.
_ENTRIES = 2**23
#: Cosines that differ from 1 by less are 1.
_SAME = 1e-12


def check_is_function(kind: Any) -> None:
    """Refuse the similarities that need no model."""
    if checked_kind(kind) != "function":
        raise InvalidValueError(
            f"kind must be 'function' here, got {kind!r}, which compares attention alone; pass captured tensors: "
            f"ht.head_similarity(view.capture(…), kind={kind!r})"
        )


def functional_similarity(prepared: PreparedInputs) -> HeadSimilarity:
    """Compare the selected heads by attention and values on every prepared input; see `ModelView`."""
    with prepared.view.ready(), progress("comparing heads", len(prepared.items)) as step:
        places = checked_places(prepared)
        kernels = []
        for i, item in enumerate(prepared.items):
            kernels.append(kernels_of_input(prepared, item, places))
            step(f"input {i + 1} of {len(prepared.items)}")
    return similarity_of_kernels(prepared.selection.head_ids(), kernels)


def checked_places(prepared: PreparedInputs) -> dict[int, CallPlaces]:
    """Where the selected heads have their values, if what they write can be compared; the view must be ready."""
    places = find_places(prepared)
    _check_widths(places)
    return places


def kernels_of_input(
    prepared: PreparedInputs, item: ModelInput, places: Mapping[int, CallPlaces]
) -> Float[np.ndarray, "2 head head"]:
    """Cosines of the probabilities of all heads on an input, and of their values; the view must be ready."""
    (att,) = replace(prepared, items=(item,), batch_size=1).run()
    return np.stack([probability_cosines(att), _value_cosines(prepared, item, places)])


def similarity_of_kernels(
    heads: tuple[HeadId, ...], kernels: Sequence[Float[np.ndarray, "2 head head"]]
) -> HeadSimilarity:
    """The similarity of heads by the kernels of all inputs."""
    both = np.stack(kernels, axis=1)
    means = [np.diag(centred_kernel(kernel)) == 0 for kernel in both.mean(axis=1)]
    notes = tuple(
        f"the {what} of {named_heads([heads[i] for i in np.flatnonzero(is_mean)])} equal their mean over all "
        "heads, so they are not compared"
        for what, is_mean in zip(("probabilities", "values"), means, strict=True)
        if is_mean.any()
    )
    are_equal = equal_heads(heads, np.minimum(*both) >= 1 - _SAME, "look and write alike, but for a factor,")
    return from_kernels("function", heads, both, (*notes, *are_equal))


def _check_widths(places: Mapping[int, CallPlaces]) -> None:
    widths = sorted({call.matrix.shape[-1] for call in places.values()})
    if len(widths) > 1:
        raise InvalidValueError(
            f"heads of these layers write into streams of {' and '.join(map(str, widths))} features, so what they "
            "write cannot be compared; select layers of one width with layers=…"
        )


def _value_cosines(
    prepared: PreparedInputs, item: ModelInput, places: Mapping[int, CallPlaces]
) -> Float[np.ndarray, "head head"]:
    """Cosines of v·W_O, keys × width, of all selected heads; read in blocks of keys."""
    graph = trace(prepared.model, item, kept=values_only(places)).graph
    n_reported = prepared.n_reported_keys(item)
    n_keys = next(iter(places.values())).captured_values(graph, n_reported).shape[1]
    n_heads = sum(map(len, prepared.selection.heads.values()))
    width = next(iter(places.values())).matrix.shape[-1]
    step = max(1, _ENTRIES // (n_heads * width))
    products = np.zeros((n_heads, n_heads))
    for start in range(0, n_keys, step):
        written = _written(prepared, graph, places, n_reported, slice(start, start + step))
        on_cpu = written.device.type == "cpu"
        found = product_by_rows(written, written) if on_cpu else written @ written.mT
        products += found.cpu().numpy()
    norms = np.sqrt(np.diag(products))
    scale = np.divide(1, norms, out=np.zeros_like(norms), where=norms > 0)
    return np.asarray(products * scale[:, None] * scale)


def _written(
    prepared: PreparedInputs, graph: Graph, places: Mapping[int, CallPlaces], n_keys: int | None, keys: slice
) -> Float[torch.Tensor, "head entry"]:
    """v·W_O of some keys of all selected heads."""
    found = []
    for i, heads in prepared.selection.heads.items():
        index = list(heads)
        values = places[i].captured_values(graph, n_keys)[index][:, keys].double()
        matrix = places[i].matrix[index].detach().to(values.device).double()
        found.append((values @ matrix).flatten(1))
    return torch.cat(found)
