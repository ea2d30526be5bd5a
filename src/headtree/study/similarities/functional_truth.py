"""Functional similarity by ablation: what any similarity of heads is held against.

f_ab is the correlation of what two heads change when each is ablated alone: the loss at every token, or every entry
of the output. It is measured on inputs on which no similarity is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from headtree.measures.comparisons import rank_correlation
from headtree.models.view import ModelView
from headtree.progress import progress
from headtree.tensor.attention_tensor import HeadId


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
    batches: Sequence[dict[str, Tensor]],
    features: Callable[[list[Any]], Float[Tensor, " feature"]],
    heads: Sequence[HeadId],
) -> Float[np.ndarray, "head feature"]:
    """What ablating each head alone changes in the features of the outputs of all batches."""
    model = view.model
    device = next(model.parameters()).device

    def run() -> Tensor:
        return features([model(**{k: v.to(device) for k, v in batch.items()}) for batch in batches])

    found = []
    with torch.no_grad(), progress("ablating heads", len(heads)) as step:
        whole = run()
        for head in heads:
            with view.ablated([(head.layer, head.head)]):
                found.append((run() - whole).double().cpu().numpy())
            step(f"without L{head.layer}H{head.head}")
    return np.stack(found)
