"""The page's data on single heads apart from matrices: Haar coefficients by support and the terms of softmax."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from headtree.bases.paraproduct import decomposed
from headtree.bases.tensor_haar import TensorHaarBasis
from headtree.measures.orders import softmax_input
from headtree.progress import progress
from headtree.questionnaire.organization import Organization
from headtree.report.page.tiles import AxisBlocks, block_means, folder_blocks
from headtree.tensor.attention_tensor import AttentionTensor

#: Functions of largest support whose coefficients are shown one by one; the structure score sums as many.
N_COEFFICIENTS = 400

#: Folders on each side of a paraproduct term.
N_TERM_BLOCKS = 32

#: Terms in the order of the arrays; softmax is the sum of the others.
TERMS = ("softmax", "boundary", "first", "second", "residual")

#: Coefficients below this share of a head's largest are shown at this share.
_SMALLEST_SHARE = 1e-6

_HEADS_AT_A_TIME = 8


@dataclass(frozen=True, eq=False)
class Details:
    """Coefficients and paraproduct terms of some heads on one input."""

    heads: Int[np.ndarray, " shown"]
    support: Int[np.ndarray, " function"]  #: of the coarsest functions, which are the same for all heads
    moduli: UInt8[np.ndarray, "shown function"]  #: log10 |coefficient|, 0 to 254 from 10^-6 of the largest to it
    largest: Float[np.ndarray, " shown"]
    octaves: Int[np.ndarray, " octave"]  #: smallest support of each octave
    energy: Float[np.ndarray, "shown octave"]  #: share of the sum of squares, all coefficients
    terms: UInt8[np.ndarray, "shown term row column"]  #: folder averages: 127 ± 127 · √(|value| / term_scale)
    term_scale: Float[np.ndarray, " shown"]
    shares: Float[np.ndarray, "shown term"]  #: norm of each term over that of softmax
    rows: AxisBlocks
    columns: AxisBlocks
    n_filled: int


def details(att: AttentionTensor, org: Organization, heads: Sequence[int]) -> Details:
    """Coefficients and terms of these heads; only they are read from disk.

    Terms need what enters softmax: of probabilities or weights, `AttentionTensor.log_probs`.
    """
    _, row_tree, column_tree = org.trees
    basis = TensorHaarBasis((row_tree, column_tree))
    coarsest = basis.top(min(N_COEFFICIENTS, len(basis)))
    octave_of = _octaves(basis)
    rows = folder_blocks(row_tree, org.order(1), N_TERM_BLOCKS)
    columns = folder_blocks(column_tree, org.order(2), N_TERM_BLOCKS)
    parts: list[dict[str, Any]] = []
    n_filled = 0
    starts = range(0, len(heads), _HEADS_AT_A_TIME)
    with progress("coefficients and terms", len(starts)) as step:
        for start in starts:
            part = att.take(heads[start : start + _HEADS_AT_A_TIME])
            full = part.filled()
            n_filled += full.n_filled
            parts.append(
                {
                    **_coefficients(full.values, basis, coarsest, octave_of),
                    **_terms(softmax_input(part, full), org, rows, columns),
                }
            )
            step("")
    return Details(
        heads=np.asarray(heads, dtype=np.int64),
        support=basis.support(coarsest),
        octaves=2 ** np.arange(octave_of.max() + 1),
        rows=rows,
        columns=columns,
        n_filled=n_filled,
        **{name: np.concatenate([part[name] for part in parts]) for name in parts[0]},
    )


def _octaves(basis: TensorHaarBasis) -> Int[np.ndarray, "row column"]:
    """Which octave the support of every function is in."""
    return np.asarray(np.log2(np.multiply.outer(*basis.supports)), dtype=np.int64)


def _coefficients(
    values: Float[Tensor, "head query key"],
    basis: TensorHaarBasis,
    coarsest: Int[np.ndarray, "function axis"],
    octave_of: Int[np.ndarray, "row column"],
) -> dict[str, np.ndarray]:
    coefficients = basis.analyze(values).double().numpy()
    chosen = np.abs(coefficients[:, coarsest[:, 0], coarsest[:, 1]])
    largest = chosen.max(axis=1)
    shares = chosen / np.where(largest > 0, largest, 1)[:, None]
    decades = np.log10(np.maximum(shares, _SMALLEST_SHARE)) / -np.log10(_SMALLEST_SHARE)
    squares = np.square(coefficients / np.where(largest > 0, largest, 1)[:, None, None])
    energy = np.stack([np.bincount(octave_of.ravel(), weights=head.ravel()) for head in squares])
    totals = energy.sum(axis=1, keepdims=True)
    return {
        "moduli": np.rint(254 * (1 + decades)).astype(np.uint8),
        "largest": largest.astype(np.float32),
        "energy": (energy / np.where(totals > 0, totals, 1)).astype(np.float32),
    }


def _terms(
    logits: Float[Tensor, "head query key"], org: Organization, rows: AxisBlocks, columns: AxisBlocks
) -> dict[str, np.ndarray]:
    _, row_tree, column_tree = org.trees
    result = decomposed(logits, row_tree, column_tree, "softmax")
    parts = (result.value, result.boundary, result.first, result.second, result.residual)
    shown = np.stack([block_means(part.numpy(), rows, columns) for part in parts], axis=1)
    scale = np.abs(shown).max(axis=(1, 2, 3))
    relative = shown / np.where(scale > 0, scale, 1)[:, None, None, None]
    codes = np.rint(127 + 127 * np.sign(relative) * np.sqrt(np.abs(relative)))
    shares = result.shares
    return {
        "terms": codes.astype(np.uint8),
        "term_scale": scale.astype(np.float32),
        "shares": np.stack(
            [np.ones(len(shown)), *(shares[name] for name in ("boundary", "first", "second", "residual"))], axis=1
        ).astype(np.float32),
    }
