"""Attention that is not multiplied out: queries and keys of each layer, and blocks of their products on demand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headtree._lazy_array import AxisIndex, LazyArray, picked

#: Entries of a block that are computed at a time where rows are summed, on the CPU and on a GPU.
_ENTRIES_AT_A_TIME = 1 << 24
_ENTRIES_ON_GPU = 1 << 27


@dataclass(frozen=True, eq=False)
class LayerFactors:
    """What the scores of a layer's heads are made of: ``cap(scaling · query · keyᵀ) + biases``.

    Heads in groups share keys: head i has the keys of group ``groups[i]``. Layers that differ in queries and keys
    only can be held as one (`joined`).
    """

    query: Float[Tensor, "head query feature"]
    key: Float[Tensor, "group key feature"]
    groups: Int[Tensor, " head"]
    scaling: float = 1.0
    softcap: float | None = None
    biases: tuple[Float[Tensor, "#head #query #key"], ...] = ()

    def scores(
        self, heads: AxisIndex, queries: AxisIndex, keys: AxisIndex, device: torch.device | str
    ) -> Float[Tensor, "some query key"]:
        """The scores of some heads for some queries and keys."""
        query = _taken(self.query, heads, queries).to(device)
        key = _taken(self.key, self.groups.numpy()[heads], keys).to(device)
        scores = _products(query, key.expand(len(query), -1, -1)).mul_(self.scaling)
        if self.softcap is not None:
            scores.div_(self.softcap).tanh_().mul_(self.softcap)
        for bias in self.biases:
            scores += picked(_taken(bias, heads, queries), 2, keys).to(device)
        return scores

    @property
    def n_bytes(self) -> int:
        """Memory that the factors take."""
        return sum(x.numel() * x.itemsize for x in (self.query, self.key, *self.biases))

    def to(self, dtype: torch.dtype) -> LayerFactors:
        """The same factors in another type of number."""
        biases = tuple(bias.to(dtype) for bias in self.biases)
        return replace(self, query=self.query.to(dtype), key=self.key.to(dtype), biases=biases)


@dataclass(frozen=True, eq=False)
class FactoredArray(LazyArray):
    """Scores or probabilities (head, query, key) as queries and keys of layers.

    With `log_sums`, the logarithm of each row's sum of exponentials, entries are probabilities
    ``exp(score - log_sum)``, and 0 where `mask` is True. With `means`, entries are scores minus the mean of their
    row.
    """

    layers: tuple[LayerFactors, ...]
    log_sums: Float[Tensor, "head query"] | None = None
    means: Float[Tensor, "head query"] | None = None
    mask: Bool[Tensor, "#head query key"] | None = None

    held = "as factors"

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the entries: double precision if the factors have it, otherwise single."""
        is_double = any(torch.float64 in (layer.query.dtype, layer.key.dtype) for layer in self.layers)
        return np.dtype(np.float64 if is_double else np.float32)

    @property
    def shape(self) -> tuple[int, int, int]:  # type: ignore[override]
        """Number of heads, queries and keys."""
        first = self.layers[0]
        return sum(len(layer.query) for layer in self.layers), first.query.shape[1], first.key.shape[1]

    @property
    def n_bytes(self) -> int:
        """Memory that the factors take."""
        return sum(layer.n_bytes for layer in self.layers)

    @property
    def device(self) -> torch.device:
        """Where the factors are."""
        return self.layers[0].query.device

    def read(
        self, index: tuple[AxisIndex, ...], device: torch.device | str = "cpu"
    ) -> Float[Tensor, "head query key"]:
        """The entries at all combinations of the indices along each axis, in new memory."""
        heads, queries, keys = index
        scores = self._scores(heads, queries, keys, device).to(getattr(torch, self.dtype.name))
        for shift in (self.log_sums, self.means):
            if shift is not None:
                scores -= _taken(shift, heads, queries)[:, :, None].to(scores)
        if self.log_sums is None:
            return scores
        probs = scores.exp_()
        if self.mask is None:
            return probs
        hidden = picked(_taken(self.mask, heads, queries), 2, keys)
        return probs.masked_fill_(hidden.to(device), 0)

    def centred(self, mask: Bool[Tensor, "head query key"] | None) -> FactoredArray:
        """Scores minus the mean of their row over the entries that are not masked."""
        means, mask = [], _shared(mask, self.device)
        for heads, block in self._blocks_of_heads():
            n_present: int | Tensor = block.shape[2]
            if mask is not None:
                hidden = picked(mask, 0, heads)
                block.masked_fill_(hidden, 0)
                n_present = (~hidden).sum(dim=2).clamp(min=1)
            means.append((block.sum(dim=2, dtype=torch.float64) / n_present).to(block.dtype))
        return replace(self, means=torch.cat(means))

    def probabilities(
        self, mask: Bool[Tensor, "head query key"] | None, sinks: Float[Tensor, " head"] | None
    ) -> FactoredArray:
        """Softmax of the scores over keys that are not masked, and a sink if there is one."""
        sums, mask = [], _shared(mask, self.device)
        for heads, block in self._blocks_of_heads():
            scores = block
            if mask is not None:
                scores.masked_fill_(picked(mask, 0, heads), -torch.inf)
            if sinks is not None:
                sink = sinks[heads, None, None].expand(-1, block.shape[1], 1)
                scores = torch.cat([scores, sink.to(scores)], dim=2)
            # a query that attends to nothing has probabilities of zero
            sums.append(scores.logsumexp(dim=2).nan_to_num(neginf=torch.inf))
        return replace(self, log_sums=torch.cat(sums), mask=mask)

    def _blocks_of_heads(self) -> Iterator[tuple[slice, Float[Tensor, "head query key"]]]:
        n_heads, n_queries, n_keys = self.shape
        entries = _ENTRIES_ON_GPU if self.device.type == "cuda" else _ENTRIES_AT_A_TIME
        step = max(1, entries // (n_queries * n_keys))
        for start in range(0, n_heads, step):
            heads = slice(start, min(start + step, n_heads))
            yield heads, self.read((heads, slice(None), slice(None)), self.device)

    def _scores(
        self, heads: AxisIndex, queries: AxisIndex, keys: AxisIndex, device: torch.device | str
    ) -> Float[Tensor, "head query key"]:
        if len(self.layers) == 1:
            return self.layers[0].scores(heads, queries, keys, device)
        starts = np.cumsum([0, *(len(layer.query) for layer in self.layers)])
        chosen = np.arange(starts[-1])[heads]
        layer_of = np.searchsorted(starts, chosen, side="right") - 1
        where = np.argsort(layer_of, kind="stable")
        parts = [
            self.layers[i].scores(chosen[layer_of == i] - starts[i], queries, keys, device)
            for i in np.unique(layer_of)
        ]
        scores = torch.cat(parts)
        if np.array_equal(where, np.arange(len(where))):
            return scores
        return scores[torch.from_numpy(np.argsort(where)).to(scores.device)]


def joined(layers: Sequence[LayerFactors]) -> tuple[LayerFactors, ...]:
    """The same heads in fewer parts: all in one, if layers differ in nothing but queries and keys."""

    def settings(layer: LayerFactors) -> tuple[Any, ...]:
        query, key = layer.query, layer.key
        return layer.scaling, layer.softcap, query.shape[1:], key.shape[1:], query.dtype, key.dtype, query.device

    if any(layer.biases or settings(layer) != settings(layers[0]) for layer in layers):
        return tuple(layers)
    first_group = np.cumsum([0, *(len(layer.key) for layer in layers)]).tolist()
    groups = [layer.groups + start for layer, start in zip(layers, first_group, strict=False)]
    query, key = (torch.cat(each) for each in ([x.query for x in layers], [x.key for x in layers]))
    return (replace(layers[0], query=query, key=key, groups=torch.cat(groups)),)


def _products(
    query: Float[Tensor, "head query feature"], key: Float[Tensor, "head key feature"]
) -> Float[Tensor, "head query key"]:
    """``query · keyᵀ``, of half-precision numbers in float32."""
    is_half = query.dtype == key.dtype and query.dtype in (torch.float16, torch.bfloat16)
    if query.is_cuda and is_half and torch.__version__ >= "2.8":
        # float32 has every product of two half-precision numbers: nothing is lost
        return torch.bmm(query, key.transpose(1, 2), out_dtype=torch.float32)
    dtype = torch.promote_types(torch.promote_types(query.dtype, key.dtype), torch.float32)
    return torch.matmul(query.to(dtype), key.to(dtype).transpose(1, 2))


def _shared(
    mask: Bool[Tensor, "head query key"] | None, device: torch.device
) -> Bool[Tensor, "#head query key"] | None:
    """A mask on a device, as a single slice if all heads have the same."""
    if mask is None:
        return None
    return (mask[:1] if mask.stride(0) == 0 else mask).to(device)


def _taken(x: Tensor, rows: AxisIndex, tokens: AxisIndex) -> Tensor:
    """Some indices along the first two axes, or all along one that has a single index for all."""
    is_tokens_first = isinstance(tokens, slice)
    if not isinstance(tokens, slice) and not isinstance(rows, slice):  # the smaller part first: less to copy
        is_tokens_first = len(tokens) * x.shape[0] < len(rows) * x.shape[1]
    if is_tokens_first:
        return picked(picked(x, 1, tokens), 0, rows)
    return picked(picked(x, 0, rows), 1, tokens)
