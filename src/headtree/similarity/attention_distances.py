"""Distances between the heads of one input by where they look: the mean over queries of a distance of rows.

All are of probabilities, so a constant that is added to a row of scores changes nothing. Each tensor is read in
blocks of queries, with all heads. Only queries that both heads have count. What a row lacks to one, the mass of an
attention sink, counts as one more key, except for the cosine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numba
import numpy as np
import torch
from jaxtyping import Bool, Float

from headtree._checks import is_shared
from headtree._threads import for_each_task
from headtree.errors import InvalidValueError
from headtree.geometry.kernels_cpu import add_pairwise_l1
from headtree.similarity.head_similarity import AttentionKind
from headtree.tensor.attention_tensor import AttentionTensor
from headtree.tensor.probabilities import by_queries, head_block

#: Distances (before a root is taken) below this are rounding errors; equal heads have exactly 0.
_ROUNDING = 1e-12

Square = Float[np.ndarray, "head head"]


class _Rows:
    """The rows of some queries of all heads, in float64, with the mass of a sink as one more key."""

    def __init__(self, att: AttentionTensor, queries: slice) -> None:
        block = head_block(att, slice(None), queries)
        probs = block.probs.double()
        n_heads = len(probs)
        present = block.present.expand(n_heads, -1)
        rest = (1 - probs.sum(dim=2)).clamp(min=0) * present
        self.probs: Float[np.ndarray, "head query key"] = probs.numpy()
        self.with_sink: Float[np.ndarray, "head query key_1"] = torch.cat([probs, rest[..., None]], dim=2).numpy()
        self.present: Bool[np.ndarray, "head query"] = present.numpy()


def attention_distance(att: AttentionTensor, kind: AttentionKind) -> Square:
    """Distances of all heads on one input; symmetric, 0 on the diagonal."""
    found = _DISTANCES[kind](att)
    distance = np.asarray((found + found.T) / 2)
    np.fill_diagonal(distance, 0)
    return distance


def distance_across(a: AttentionTensor, b: AttentionTensor) -> Float[np.ndarray, "head_a head_b"]:
    """Hellinger distances of the heads of one tensor from those of another, which has the same queries and keys."""
    if a.shape[1:] != b.shape[1:]:
        raise InvalidValueError(
            f"both tensors must have the same queries and keys, got {a.shape[1:]} and {b.shape[1:]}; compare heads "
            "on the same input"
        )
    total, common = np.zeros((a.shape[0], b.shape[0])), np.zeros((a.shape[0], b.shape[0]))
    larger = a if a.shape[0] >= b.shape[0] else b
    for queries in by_queries(larger, slice(None)):
        of_a, of_b = _Rows(a, queries), _Rows(b, queries)
        total += _roots(of_a) @ _roots(of_b).T
        common += of_a.present.astype(np.float64) @ of_b.present.T
    if common.min() == 0:
        i, j = np.argwhere(common == 0)[0]
        raise InvalidValueError(
            f"heads {a.heads[i]} and {b.heads[j]} have no query in common on an input, so they cannot be compared"
        )
    return np.asarray(np.sqrt(_without_rounding(1 - total / common)))


def _roots(rows: _Rows) -> Float[np.ndarray, "head entry"]:
    return np.asarray(np.sqrt(rows.with_sink)).reshape(len(rows.with_sink), -1)


def probability_cosines(att: AttentionTensor) -> Square:
    """Cosines of the heads' probabilities over the queries that both have."""
    n = att.shape[0]
    products, squares, common = np.zeros((n, n)), np.zeros((n, n)), np.zeros((n, n))
    for rows in _blocks(att):
        flat = rows.probs.reshape(n, -1)
        products += flat @ flat.T
        squares += (rows.probs**2).sum(axis=2) @ rows.present.T
        common += rows.present.astype(np.float64) @ rows.present.T
    _check_common(att, common)
    norms = np.sqrt(squares * squares.T)
    return np.divide(products, norms, out=np.zeros_like(products), where=norms > 0)


def _blocks(att: AttentionTensor) -> Iterator[_Rows]:
    for queries in by_queries(att, slice(None)):
        yield _Rows(att, queries)


def _mean_over_queries(att: AttentionTensor, add: Callable[[_Rows, Square], None]) -> Square:
    """Add up what `add` finds in every block, and divide by the number of queries that both heads have."""
    n = att.shape[0]
    total, common = np.zeros((n, n)), np.zeros((n, n))
    for rows in _blocks(att):
        add(rows, total)
        common += rows.present.astype(np.float64) @ rows.present.T
    _check_common(att, common)
    return np.asarray(total / common)


def _check_common(att: AttentionTensor, common: Square) -> None:
    """Refuse heads that have no query in common with another."""
    if common.min() > 0:
        return
    _check_any(att, np.diag(common))
    a, b = np.argwhere(common == 0)[0]
    raise InvalidValueError(
        f"heads {att.heads[a]} and {att.heads[b]} have no query in common on an input, so they cannot be compared; "
        "leave one of them out with att.take"
    )


def check_heads_present(att: AttentionTensor) -> None:
    """Refuse a head that is masked on every query."""
    if att.mask is None:
        return
    is_same = isinstance(att.mask, torch.Tensor) and is_shared(att.mask, 0)
    n_heads = 1 if is_same else att.shape[0]
    n_queries = np.zeros(n_heads)
    for queries in by_queries(att, slice(0, n_heads)):
        hidden = torch.as_tensor(att.mask[:n_heads, queries])
        n_queries += (~hidden).any(dim=2).sum(dim=1).numpy()
    _check_any(att, n_queries)


def _check_any(att: AttentionTensor, n_queries: Float[np.ndarray, " head"]) -> None:
    alone = np.flatnonzero(n_queries == 0)
    if len(alone):
        raise InvalidValueError(
            f"head {att.heads[alone[0]]} is masked on every query of an input, so it cannot be compared; leave it "
            "out with att.take"
        )


def _without_rounding(distance: Square) -> Square:
    return np.asarray(np.where(distance > _ROUNDING, distance, 0))


def _hellinger(att: AttentionTensor) -> Square:
    """√(1 - mean over queries of Σ √(p_a p_b))."""

    def add(rows: _Rows, total: Square) -> None:
        roots = _roots(rows)
        total += roots @ roots.T

    return np.asarray(np.sqrt(_without_rounding(1 - _mean_over_queries(att, add))))


def _cosine(att: AttentionTensor) -> Square:
    """1 - cosine of all probabilities."""
    return _without_rounding(1 - probability_cosines(att))


def _total_variation(att: AttentionTensor) -> Square:
    """Half the mean over queries of Σ |p_a - p_b|."""

    def add(rows: _Rows, total: Square) -> None:
        sums = np.zeros_like(total)
        add_pairwise_l1(np.ascontiguousarray(rows.with_sink.reshape(len(total), -1)), sums)
        sums += sums.T
        alone = rows.with_sink.sum(axis=2) @ (~rows.present).T.astype(np.float64)  # rows that only one head has
        total += sums - alone - alone.T

    return _without_rounding(_mean_over_queries(att, add) / 2)


def _jensen_shannon(att: AttentionTensor) -> Square:
    """√ of the mean over queries of the Jensen-Shannon divergence in nats."""

    def add(rows: _Rows, total: Square) -> None:
        for_each_task(_add_jensen_shannon, len(total), rows.with_sink, rows.present, total)

    return np.asarray(np.sqrt(_without_rounding(_mean_over_queries(att, add))))


@numba.njit(cache=True, error_model="numpy", nogil=True)
def _add_jensen_shannon(a, probs, present, total):  # type: ignore[no-untyped-def]
    """Add the divergences of head a from all heads before it, to both halves of the matrix."""
    _, n_queries, n_keys = probs.shape
    for b in range(a):
        added = 0.0
        for query in range(n_queries):
            if present[a, query] and present[b, query]:
                for key in range(n_keys):
                    p, q = probs[a, query, key], probs[b, query, key]
                    middle = (p + q) / 2
                    if p > 0:
                        added += p * np.log(p / middle)
                    if q > 0:
                        added += q * np.log(q / middle)
        total[a, b] += added / 2
        total[b, a] += added / 2


_DISTANCES: Mapping[str, Callable[[AttentionTensor], Square]] = {
    "attention": _hellinger,
    "cosine": _cosine,
    "l1": _total_variation,
    "jensen-shannon": _jensen_shannon,
}
