"""What heads read and write on one input: queries, keys, values, outputs, and the residual stream around them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor

from headtree.errors import InvalidValueError
from headtree.models.block_array import BlockArray, lazy
from headtree.models.graph.call_places import CallPlaces, find_places, read_places
from headtree.models.graph.forward_graph import Graph, Kept
from headtree.models.graph.linearize import LinearMap
from headtree.models.graph.read_stream import locate_stream
from headtree.models.graph.stream_places import StreamPlaces
from headtree.models.inputs import ModelInput
from headtree.models.watching.collect import PreparedInputs, token_labels
from headtree.progress import progress
from headtree.tensor.attention_tensor import HeadId

#: The arrays of a cache: their axes and what they are.
_OF_HEADS = {
    "q": ("query", "queries"),
    "k": ("key", "keys, once per head where heads share them"),
    "v": ("key", "values, once per head where heads share them"),
    "z": ("query", "outputs of heads, attention times values, as they enter the output projection"),
    "ov": ("key", "values times the output projection of the head, v·W_O"),
    "writes": ("query", "what heads write into the residual stream, biases apart"),
}
_OF_STREAM = {
    "residual": ("depth", "the residual stream before the first layer and after each"),
    "attention_out": ("layer", "what the attention of each layer adds to the residual stream"),
    "cross_out": ("layer", "what the cross-attention of each layer adds to the residual stream"),
    "mlp_out": ("layer", "what the MLP of each layer adds to the residual stream"),
}
_NO_PRODUCT = "layer {layer} does not attend by the softmax of products of two projections of the tokens"
_WHY_UNKNOWN = {
    "q": _NO_PRODUCT,
    "k": _NO_PRODUCT,
    "writes": "what the heads of layer {layer} write was not found on its way to the residual stream",
}
_ROLES = {"attention_out": "attention", "cross_out": "cross", "mlp_out": "mlp"}


@dataclass(frozen=True, eq=False)
class CallValues:
    """What the selected heads of one attention call compute on one input."""

    q: Float[Tensor, "head query feature"] | None  #: None: the scores are no product of queries and keys
    k: Float[Tensor, "head key feature"] | None
    v: Float[Tensor, "head key value_feature"]
    z: Float[Tensor, "head query value_feature"]
    matrix: Float[Tensor, "head value_feature width"] | None  #: W_O; None: no rows of it are a head's own
    mixed: str  #: why, if so
    heads: tuple[int, ...]  #: indices of the heads
    n_heads: int  #: of the layer
    added: Callable[[Tensor], Tensor] | None  #: from a result of W_O, or else the z of all heads, to the stream
    through_mlps: bool  #: what is added to the stream went through MLPs as well

    def of_head(self, name: str, i: int) -> Float[Tensor, "_token _feature"] | None:
        """An array of a cache for one of the heads; None if it is unknown."""
        if name == "ov":
            return None if self.matrix is None else self.v[i] @ self.matrix[i]
        if name == "writes":
            return self._writes(i)
        whole: Tensor | None = getattr(self, name)
        return None if whole is None else whole[i]

    def _writes(self, i: int) -> Float[Tensor, "query width"] | None:
        """What a head writes into the residual stream."""
        if self.matrix is not None:
            written = self.z[i] @ self.matrix[i]
            return written if self.added is None else self.added(written)
        if self.added is None:
            return None
        alone = self.z.new_zeros(self.n_heads, *self.z.shape[1:])
        alone[self.heads[i]] = self.z[i]
        return self.added(alone)


@dataclass(frozen=True, eq=False, repr=False)
class ActivationCache:
    """What one forward pass computes, as labelled arrays; `ModelView.cache` makes one per input.

    ``cache["q"]`` is an `xarray.DataArray`. The names are

    - ``q``, ``k``, ``v``: queries, keys and values as they enter their products, after position embeddings, with
      axes (head, query, feature) or (head, key, feature). Heads that share keys and values have equal ones. There
      are no ``q`` and ``k`` where attention is not the softmax of their products, as in Reformer's hashed layers.
    - ``z``: the outputs of heads (head, query, feature), which enter the output projection W_O.
    - ``ov``: v·W_O of each head (head, key, feature). There is none where each token has its own W_O, as in JetMoE.
      Heads that share rows of W_O, as in differential attention, have them times their own factor.
    - ``writes``: what each head writes into the residual stream (head, query, feature). The heads of a layer sum to
      its ``attention_out``, biases apart. A norm between W_O and the stream keeps its scale. Where MLPs lie between
      them too, as in MobileBERT, ``writes`` is the part that goes around them; its attribute ``note`` says so.
    - ``residual``: the residual stream before the first layer and after each (depth, token, feature).
    - ``attention_out``, ``mlp_out`` and, in a decoder, ``cross_out``: what is added to the stream in each layer
      (layer, token, feature).

    The axis ``head`` has the coordinates ``layer`` and ``index``. ``ov`` and ``writes`` are computed for the heads
    that are read, when they are read; everything else was read in one forward pass. The arrays of the stream have
    all layers, whatever heads are selected. Attention itself is what `ModelView.capture` returns.

    Examples
    --------
    >>> import headtree as ht
    >>> network = ht.load_bundled("vit")
    >>> (cache,) = ht.ModelView(network.model).cache(inputs=network.inputs[0])
    >>> cache
    ActivationCache(144 heads: q, k, v, z, ov, writes, residual, attention_out, mlp_out)
    >>> cache["q"].dims, cache["q"].shape
    (('head', 'query', 'feature'), (144, 197, 16))
    >>> cache["writes"].sel(head="L3H5").shape  # computes this head only
    (197, 192)
    >>> norms = abs(cache["mlp_out"]).mean(["token", "feature"])
    >>> norms.sizes
    Frozen({'layer': 12})
    """

    heads: tuple[HeadId, ...]
    queries: tuple[str, ...]
    keys: tuple[str, ...]
    calls: tuple[CallValues, ...]  #: one per layer with selected heads
    stream: Mapping[str, Float[Tensor, "_depth token width"]]  #: the arrays of the residual stream
    why_no_stream: str | None  #: what keeps the stream from being found

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the arrays that can be read."""
        return (*(name for name, size in self._sizes.items() if isinstance(size, int)), *self.stream)

    @cached_property
    def _sizes(self) -> Mapping[str, int | str]:
        """Number of features of each array of heads, or why there is no such array of these layers."""
        return {name: self._size(name) for name in _OF_HEADS}

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __getitem__(self, name: str) -> xr.DataArray:
        size = self._sizes.get(name)
        if isinstance(size, str):
            raise InvalidValueError(f"this cache has no {name!r}: {size}")
        if size is not None:
            return self._of_heads(name, size)
        if name in self.stream:
            return self._of_stream(name)
        if name in _OF_STREAM:
            raise InvalidValueError(
                f"this cache has no {name!r}: {self.why_no_stream or 'no layer adds such a term to its stream'}"
            )
        raise InvalidValueError(f"name must be one of {', '.join(map(repr, self.names))}, got {name!r}")

    def __repr__(self) -> str:
        return f"ActivationCache({len(self.heads)} heads: {', '.join(self.names)})"

    def _size(self, name: str) -> int | str:
        n_tokens = len(self._labels(name))
        layers = dict.fromkeys(head.layer for head in self.heads)
        found = {layer: call.of_head(name, 0) for layer, call in zip(layers, self.calls, strict=True)}
        unknown = [layer for layer, first in found.items() if first is None]
        if unknown:
            if name == "ov":
                return next(call.mixed for call in self.calls if call.mixed)
            why = _WHY_UNKNOWN[name].format(layer=unknown[0])
            return f"{why}; read another array, or select other layers with layers=…"
        shapes = {tuple(first[:n_tokens].shape) for first in found.values() if first is not None}
        rows, sizes = (sorted({shape[axis] for shape in shapes}) for axis in (0, 1))
        if rows != [n_tokens]:
            return (
                f"it has {' and '.join(map(str, rows))} rows for {n_tokens} tokens, because layers join or drop "
                "tokens after they attend; select layers that keep all of them with layers=…"
            )
        if len(sizes) > 1:
            return (
                f"it has {' and '.join(map(str, sizes))} features in different layers, so it is no single array; "
                "select layers of one size with layers=…"
            )
        return sizes[0]

    def _labels(self, name: str) -> list[str]:
        return list(self.queries if _OF_HEADS[name][0] == "query" else self.keys)

    def _of_heads(self, name: str, size: int) -> xr.DataArray:
        axis, what = _OF_HEADS[name]
        labels = self._labels(name)
        coords = {**head_coordinates(self.heads), axis: labels}
        dims, attrs = ("head", axis, "feature"), {"description": what, **self._note(name)}
        places = [(call, i) for call in self.calls for i in range(len(call.z))]

        def compute(head: int) -> np.ndarray[Any, Any]:
            call, i = places[head]
            found = call.of_head(name, i)
            if found is None:
                raise RuntimeError("an array that can be read")
            return np.asarray(found[: len(labels)].numpy())

        if name not in ("ov", "writes"):
            return xr.DataArray(np.stack([compute(head) for head in range(len(places))]), coords, dims, attrs=attrs)
        shape = (len(places), len(labels), size)
        return lazy(BlockArray(shape, self.calls[0].z.numpy().dtype, compute), dims, coords, attrs)

    def _of_stream(self, name: str) -> xr.DataArray:
        axis, what = _OF_STREAM[name]
        values = self.stream[name][:, : len(self.queries)]
        coords = {axis: range(len(values)), "token": list(self.queries)}
        attrs = {"description": what, **self._note(name)}
        return xr.DataArray(values.numpy(), dims=(axis, "token", "feature"), coords=coords, attrs=attrs)

    def _note(self, name: str) -> dict[str, str]:
        """What a reader of an array must know of this model."""
        if name not in ("writes", "attention_out", "cross_out") or not any(c.through_mlps for c in self.calls):
            return {}
        return {
            "note": "between W_O and the residual stream lie MLPs: writes are the part of the heads that goes "
            "around them, and attention_out has what they made of it as well, so the heads do not sum to it"
        }


def head_coordinates(heads: Sequence[HeadId]) -> dict[str, Any]:
    """Coordinates of an axis of heads: names, layers and indices."""
    return {
        "head": [str(head) for head in heads],
        "layer": ("head", [head.layer for head in heads]),
        "index": ("head", [head.head for head in heads]),
    }


def caches_of(prepared: PreparedInputs) -> list[ActivationCache]:
    """What the selected heads compute on every prepared input."""
    with prepared.view.ready(), progress("reading", len(prepared.items)) as step:
        places = find_places(prepared, mixed=True)
        stream, why = _stream(prepared)
        also = Kept() if stream is None else _kept(stream, places)
        found = []
        for i, item in enumerate(prepared.items):
            graph = read_places(prepared.model, item, list(places.values()), also).graph
            found.append(_cache(prepared, item, graph, places, stream, why))
            step(f"input {i + 1} of {len(prepared.items)}")
    return found


def _stream(prepared: PreparedInputs) -> tuple[StreamPlaces | None, str | None]:
    """Where the residual stream is, or else why it is unknown."""
    try:
        return StreamPlaces(locate_stream(prepared, chunked=True)), None
    except InvalidValueError as error:
        return None, str(error)


def _kept(stream: StreamPlaces, places: Mapping[int, CallPlaces]) -> Kept:
    kept = stream.kept
    for call in places.values():
        after = stream.after_projection(call)
        kept = kept if after is None else kept | after.kept
    return kept


def _cache(
    prepared: PreparedInputs,
    item: ModelInput,
    graph: Graph,
    places: Mapping[int, CallPlaces],
    stream: StreamPlaces | None,
    why: str | None,
) -> ActivationCache:
    dtype = prepared.dtype
    calls = tuple(
        _call_values(places[i], graph, stream, heads, dtype) for i, heads in prepared.selection.heads.items()
    )
    arrays: dict[str, Tensor] = {}
    if stream is not None:
        depths = [stream.tokens_first(value) for value in stream.residual(graph)]
        arrays["residual"] = _stored(torch.stack(depths), dtype)
        for name, role in _ROLES.items():
            if role in stream.roles:
                arrays[name] = _stored(torch.stack(stream.added(graph, role)), dtype)
    sizes = _sizes(prepared, item, places[prepared.selection.sites[0]], calls[0])
    return ActivationCache(prepared.selection.head_ids(), *token_labels(prepared, item, sizes), calls, arrays, why)


def _sizes(prepared: PreparedInputs, item: ModelInput, call: CallPlaces, values: CallValues) -> tuple[int, int]:
    """Number of queries and keys; padding that a model with chunks appends is left out."""
    if call.is_chunked and item.lengths() is not None:
        return prepared.call_size(item)
    return values.z.shape[1], values.v.shape[1]


def _call_values(
    call: CallPlaces, graph: Graph, stream: StreamPlaces | None, heads: tuple[int, ...], dtype: torch.dtype
) -> CallValues:
    index = list(heads)
    after = None if stream is None else stream.after_projection(call, graph)
    q, k = (
        None if each is None else _stored(each[index], dtype) for each in (call.queries(graph), call.keys(graph))
    )
    v, z = (_stored(each[index], dtype) for each in (call.values(graph), call.outputs(graph)))
    matrix = None if call.site.mixed else _stored(call.matrix[index], dtype)
    added = None if stream is None or after is None else _AddedToStream(call.written_shape(graph), after, stream)
    through_mlps = stream is not None and stream.is_changed_by_mlps(call)
    return CallValues(q, k, v, z, matrix, call.site.mixed, heads, call.site.n_heads, added, through_mlps)


@dataclass(frozen=True, eq=False)
class _AddedToStream:
    """From what a head writes at the output projection to what reaches the stream, with norms frozen."""

    shape: tuple[tuple[int, ...], int]  #: of what is written, the features last; and where their axis is
    after: LinearMap
    stream: StreamPlaces

    def __call__(self, written: Float[Tensor, "... width"]) -> Float[Tensor, "query width"]:
        shape, axis = self.shape
        device = next((value.device for value in self.after.constants.values()), written.device)
        with torch.no_grad():
            terms = self.after(written.reshape(shape).movedim(-1, axis).to(device))
        return self.stream.tokens_first(torch.stack(terms).sum(dim=0)).to(written)


def _stored(value: Tensor, dtype: torch.dtype) -> Tensor:
    return value.detach().to("cpu", dtype).clone()
