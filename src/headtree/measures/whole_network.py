"""Measures of all heads of an input together: from memory, or with all coefficients in a file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int
from torch import Tensor

from headtree.bases.stored_coefficients import StoredCoefficients
from headtree.bases.tensor_haar import TensorHaarBasis
from headtree.measures.entropy import Entropy, entropy_of_coefficients, network_entropy
from headtree.measures.orders import orders
from headtree.measures.sparsity import (
    CompressionCurve,
    Sparsity,
    compression_curve,
    curve_counts,
    curve_of,
    sparsity,
)
from headtree.questionnaire.organization import Organization
from headtree.tensor.attention_tensor import AttentionTensor
from headtree.tensor.filling import FilledBlocks

#: Share of the functions, the coarsest ones, that do not count as fine.
_COARSE_SHARE = 0.01

#: Memory that a block takes for each of its entries: as read, centred in float64, filled and transformed.
_BYTES_PER_ENTRY = 32


@dataclass(frozen=True)
class Scratch:
    """A folder for files that are as large as a tensor, and the bytes of memory that blocks of it may take."""

    folder: Path
    memory: int


@dataclass(frozen=True, eq=False)
class MeasuredNetwork:
    """What is measured on all heads of an input together."""

    kind: str
    entropy: Entropy
    sparsity: Sparsity
    fine_share: float  #: see `MeasuredInput`


def measure_network(att: AttentionTensor, org: Organization, n_functions: int, rng: int) -> MeasuredNetwork:
    """Measure an input in memory."""
    entropy = network_entropy(att, org, top=n_functions)
    found = sparsity(att, org, counts=_counts(att.shape), rng=rng)
    return network_of(att.kind, att.shape, entropy, found.by_order)


def curve_in_order(att: AttentionTensor, org: Organization, order: str, rng: int) -> CompressionCurve:
    """One of the curves of `measure_network`."""
    return compression_curve(att.filled().values, orders(list(org.trees), rng)[order], _counts(att.shape))


def measure_on_disk(
    att: AttentionTensor,
    org: Organization,
    scratch: Scratch,
    norm: Float[np.ndarray, " head"],
    n_functions: int,
    rng: int,
) -> MeasuredNetwork:
    """`measure_network` of a tensor that does not fit into memory; `norm` are the norms of its heads."""
    filled = FilledBlocks(att)
    rows = max(1, scratch.memory // (_BYTES_PER_ENTRY * att.shape[0] * att.shape[2]))

    def blocks() -> Iterator[tuple[int, Float[Tensor, "head some key"]]]:
        for start in range(0, att.shape[1], rows):
            yield start, filled.queries(slice(start, min(start + rows, att.shape[1])))

    file, curves, entropy = scratch.folder / "coefficients", {}, None
    for order, trees in orders(list(org.trees), rng).items():
        stored = StoredCoefficients.of(file, TensorHaarBasis(tuple(trees)), filled.dtype, blocks)
        if order == "organized":
            entropy = entropy_of_coefficients(stored, norm, n_functions, att.heads)
        curves[order] = curve_of(stored.energies, stored.basis, _counts(att.shape))
        file.unlink()
    assert entropy is not None
    return network_of(att.kind, att.shape, entropy, curves)


def _counts(shape: tuple[int, int, int]) -> Int[np.ndarray, " point"]:
    """The usual counts of a curve, and the number of the coarsest functions."""
    return np.union1d(curve_counts(int(np.prod(shape))), _n_coarsest(shape))


def _n_coarsest(shape: tuple[int, int, int]) -> int:
    return max(1, int(_COARSE_SHARE * int(np.prod(shape))))


def network_of(
    kind: str, shape: tuple[int, int, int], entropy: Entropy, found: Mapping[str, CompressionCurve]
) -> MeasuredNetwork:
    """The curves at their usual counts, and the energy outside the coarsest functions, a count of its own."""
    counts, usual = _counts(shape), curve_counts(int(np.prod(shape)))
    error = found["organized"].coarsest[np.searchsorted(counts, _n_coarsest(shape))]
    chosen = np.searchsorted(counts, usual)
    curves = {
        order: replace(curve, counts=usual, largest=curve.largest[chosen], coarsest=curve.coarsest[chosen])
        for order, curve in found.items()
    }
    return MeasuredNetwork(kind, entropy, Sparsity(curves, 0), float(error**2))
