"""Functional similarity by ablation: what any similarity of heads is held against.

f_ab is the correlation of what two heads change when each is ablated alone: the loss at every token, or every entry
of the output. It is measured on inputs on which no similarity is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from headtree.measures.comparisons import rank_correlation
from headtree.measures.heads.loss_changes import measuring
from headtree.models.objective import Objective
from headtree.models.view import ModelView
from headtree.progress import progress


@dataclass(frozen=True, eq=False)
class FunctionalTruth:
    """Functional similarity of all heads, and of two disjoint halves of the inputs."""

    similarity: Float[np.ndarray, "head head"]
    halves: Float[np.ndarray, "2 head head"]
    what: str  #: what was measured, and on what, in words

    @property
    def reliability(self) -> float:
        """Rank correlation over pairs of heads of the similarities of the two halves."""
        pairs = np.triu_indices(len(self.similarity), 1)
        return rank_correlation(self.halves[0][pairs], self.halves[1][pairs])

    @property
    def ceiling(self) -> float:
        """The largest correlation that this reliability allows: √(2r / (1 + r)) (Spearman and Brown)."""
        r = max(0.0, self.reliability)
        return float(np.sqrt(2 * r / (1 + r)))


def truth_of(
    changes: Float[np.ndarray, "head change"], in_half: Bool[np.ndarray, "2 change"], what: str
) -> FunctionalTruth:
    """Functional similarity from the changes without each head; `in_half` says which belong to each half."""
    halves = np.stack([_correlations(changes[:, columns]) for columns in in_half])
    return FunctionalTruth(_correlations(changes), halves, what)


def _correlations(changes: Float[np.ndarray, "head change"]) -> Float[np.ndarray, "head head"]:
    """Correlation of every two rows; 0 for a head that changes nothing."""
    centred = changes - changes.mean(axis=1, keepdims=True)
    norms = np.linalg.norm(centred, axis=1, keepdims=True)
    scaled = np.divide(centred, norms, out=np.zeros_like(centred), where=norms > 0)
    return np.asarray(scaled @ scaled.T)


def output_changes(
    view: ModelView,
    inputs: Sequence[Mapping[str, Tensor]],
    read: Callable[[Any], Float[Tensor, "input number"]],
    batch_size: int | None = None,
) -> tuple[Float[np.ndarray, "input number"], Float[np.ndarray, "head input number"]]:
    """Numbers read from the output for every input, and how zeroing each head alone changes them.

    A pass without a head computes only the blocks from that head's on.
    """
    prepared = view.prepare(inputs=[dict(item) for item in inputs], kind="probs", batch_size=batch_size)

    def numbers(output: Any, _: Sequence[int], __: Any) -> list[Tensor]:
        return list(read(output))

    def objective() -> Objective:
        return Objective("numbers read from the output", prepared.items, numbers)

    with torch.no_grad(), measuring(prepared, objective, "zero", None, 0) as measured:
        batches = measured.batches(range(len(inputs)))
        whole: list[Any] = [None] * len(inputs)
        changes: list[Any] = [None] * len(inputs)
        with progress("ablating heads", len(batches) * len(measured.heads)) as step:
            for batch in batches:
                base = measured.base(batch)
                without = []
                for head in measured.heads:
                    without.append(measured.changes(base, [head]))
                    step(f"without L{head.layer}H{head.head}")
                for row, i in enumerate(batch):
                    whole[i], changes[i] = base.losses[row], np.stack([of_batch[row] for of_batch in without])
    return np.stack(whole), np.stack(changes, axis=1)
