"""Attention that is not multiplied out: queries and keys of each layer, and blocks of their products on demand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from headtree._lazy_array import AxisIndex, LazyArray

#: Entries of a block that are computed at a time where rows are summed.
_ENTRIES_AT_A_TIME = 1 << 24


@dataclass(frozen=True, eq=False)
class LayerFactors:
    """What the scores of a layer's heads are made of: ``cap(scaling · query · keyᵀ) + biases``.

    Heads in groups share keys: head i has the keys of group ``groups[i]``.
    """

    query: Float[Tensor, "head query feature"]
    key: Float[Tensor, "group key feature"]
    groups: Int[Tensor, " head"]
    scaling: float = 1.0
    softcap: float | None = None
    biases: tuple[Float[Tensor, "#head #query #key"], ...] = ()

    def scores(
        self, heads: Int[Tensor, " some"], queries: AxisIndex, keys: AxisIndex, device: torch.device | str
    ) -> Float[Tensor, "some query key"]:
        """The scores of some heads for some queries and keys."""
        query = _picked(self.query[heads], 1, queries).to(device).float()
        key = _picked(self.key, 1, keys).to(device).float()[self.groups[heads].to(device)]
        scores = torch.matmul(query, key.transpose(1, 2)).mul_(self.scaling)
        if self.softcap is not None:
            scores.div_(self.softcap).tanh_().mul_(self.softcap)
        for bias in self.biases:
            chosen = bias if len(bias) == 1 else bias[heads]
            scores += _picked(_picked(chosen, 1, queries), 2, keys).to(device)
        return scores

    @property
    def n_bytes(self) -> int:
        """Memory that the factors take."""
        return sum(x.numel() * x.itemsize for x in (self.query, self.key, *self.biases))


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

    dtype = np.dtype(np.float32)
    held = "as factors"

    @property
    def shape(self) -> tuple[int, int, int]:  # type: ignore[override]
        """Number of heads, queries and keys."""
        first = self.layers[0]
        return sum(len(layer.query) for layer in self.layers), first.query.shape[1], first.key.shape[1]

    @property
    def n_bytes(self) -> int:
        """Memory that the factors take."""
        return sum(layer.n_bytes for layer in self.layers)

    def read(
        self, index: tuple[AxisIndex, ...], device: torch.device | str = "cpu"
    ) -> Float[Tensor, "head query key"]:
        """The entries at all combinations of the indices along each axis, in float32."""
        heads, queries, keys = index
        chosen = np.arange(self.shape[0])[heads]
        scores = torch.cat(list(self._parts(chosen, queries, keys, device)))
        back = np.argsort(np.concatenate([where for where, _ in self._parts_of(chosen)]), kind="stable")
        if not np.array_equal(back, np.arange(len(back))):
            scores = scores[torch.from_numpy(back).to(scores.device)]
        for shift in (self.log_sums, self.means):
            if shift is not None:
                scores -= _picked(shift[torch.from_numpy(chosen)], 1, queries)[:, :, None].to(scores)
        if self.log_sums is None:
            return scores
        probs = scores.exp_()
        return probs if self.mask is None else probs.masked_fill_(self._hidden(chosen, queries, keys).to(device), 0)

    def __getitem__(self, index: Any) -> Float[np.ndarray, "..."]:
        """Any numpy index; of slices and integers, only the block that they select is computed."""
        items = list(index) if isinstance(index, tuple) else [index]
        if any(item is Ellipsis for item in items):
            dots = next(i for i, item in enumerate(items) if item is Ellipsis)
            items[dots : dots + 1] = [slice(None)] * (4 - len(items))
        items += [slice(None)] * (3 - len(items))
        block = tuple(_as_span(item, n) for item, n in zip(items, self.shape, strict=True))
        return np.asarray(self.read(block).numpy()[tuple(_within_span(item) for item in items)])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Float[np.ndarray, "head query key"]:
        values = self.read((slice(None),) * 3).numpy()
        return values if dtype is None else values.astype(dtype)

    def centred(self, mask: Bool[Tensor, "head query key"] | None) -> FactoredArray:
        """Scores minus the mean of their row over the entries that are not masked."""
        means = []
        for start, block in self._blocks_of_heads():
            hidden = None if mask is None else mask[start : start + len(block)].expand(block.shape)
            present = block.double() if hidden is None else block.double().masked_fill(hidden, 0)
            n_present = block.shape[2] if hidden is None else (~hidden).sum(dim=2).clamp(min=1)
            means.append((present.sum(dim=2) / n_present).float())
        return replace(self, means=torch.cat(means))

    def probabilities(
        self, mask: Bool[Tensor, "head query key"] | None, sinks: Float[Tensor, " head"] | None
    ) -> FactoredArray:
        """Softmax of the scores over keys that are not masked, and a sink if there is one."""
        sums = []
        for start, block in self._blocks_of_heads():
            scores = block
            if mask is not None:
                scores = scores.masked_fill(mask[start : start + len(block)].expand(block.shape), -torch.inf)
            if sinks is not None:
                sink = sinks[start : start + len(block), None, None].expand(-1, block.shape[1], 1)
                scores = torch.cat([scores, sink.to(scores)], dim=2)
            # a query that attends to nothing has probabilities of zero
            sums.append(scores.logsumexp(dim=2).nan_to_num(neginf=torch.inf))
        shared = None if mask is None else (mask[:1] if mask.stride(0) == 0 else mask)
        return replace(self, log_sums=torch.cat(sums), mask=shared)

    def _blocks_of_heads(self) -> Iterator[tuple[int, Float[Tensor, "head query key"]]]:
        n_heads, n_queries, n_keys = self.shape
        step = max(1, _ENTRIES_AT_A_TIME // (n_queries * n_keys))
        for start in range(0, n_heads, step):
            yield start, self.read((slice(start, min(start + step, n_heads)), slice(None), slice(None)))

    def _parts_of(self, chosen: Int[np.ndarray, " head"]) -> list[tuple[Int[np.ndarray, " some"], int]]:
        """Of each layer: which of the chosen heads are in it, and the number of its first head."""
        parts, start = [], 0
        for layer in self.layers:
            stop = start + len(layer.query)
            parts.append((np.flatnonzero((chosen >= start) & (chosen < stop)), start))
            start = stop
        return parts

    def _parts(
        self, chosen: Int[np.ndarray, " head"], queries: AxisIndex, keys: AxisIndex, device: torch.device | str
    ) -> Iterator[Float[Tensor, "some query key"]]:
        for layer, (where, start) in zip(self.layers, self._parts_of(chosen), strict=True):
            if len(where):
                yield layer.scores(torch.from_numpy(chosen[where] - start), queries, keys, device)

    def _hidden(
        self, chosen: Int[np.ndarray, " head"], queries: AxisIndex, keys: AxisIndex
    ) -> Bool[Tensor, "#head query key"]:
        if self.mask is None:
            return torch.zeros(1, 1, 1, dtype=torch.bool)
        mask = self.mask if len(self.mask) == 1 else self.mask[torch.from_numpy(chosen)]
        return _picked(_picked(mask, 1, queries), 2, keys)


def _picked(x: Tensor, axis: int, index: AxisIndex) -> Tensor:
    """Some indices along an axis, or all if there is just one that stands for all."""
    if x.shape[axis] == 1:
        return x
    if isinstance(index, slice):
        return x[(slice(None),) * axis + (index,)]
    return x.index_select(axis, torch.from_numpy(np.asarray(index, dtype=np.int64)).to(x.device))


def _as_span(item: Any, n: int) -> AxisIndex:
    if isinstance(item, slice):
        return np.arange(n)[item]
    if isinstance(item, int | np.integer):
        return np.arange(n)[[int(item)]]
    return np.arange(n)


def _within_span(item: Any) -> Any:
    if isinstance(item, slice):
        return slice(None)
    return 0 if isinstance(item, int | np.integer) else item
