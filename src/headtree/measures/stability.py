"""Do the same heads stand out on every input? Table 1 of [OA], and the agreement between rankings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from headtree import _checks
from headtree.errors import InvalidValueError
from headtree.measures.comparisons import rank_correlations
from headtree.measures.entropy import Entropy
from headtree.tensor.attention_tensor import HeadId, head_ids


@dataclass(frozen=True, eq=False)
class Stability:
    """How often each head is among the largest and smallest, and how well two inputs agree on the ranking of heads.

    Examples
    --------
    >>> import headtree as ht
    >>> found = ht.stability([[3.0, 1.0, 2.0, 5.0], [4.0, 1.0, 2.0, 9.0], [3.0, 2.0, 1.0, 7.0]])
    >>> found.top_counts, found.bottom_counts
    (array([0, 0, 0, 3]), array([0, 2, 1, 0]))
    >>> round(found.mean_correlation, 3)
    0.867
    """

    heads: tuple[HeadId, ...]
    n_inputs: int
    n_selected: int  #: number of heads that count as top, and as bottom, on each input
    top_counts: Int[np.ndarray, " head"]  #: number of inputs on which each head is among the largest
    bottom_counts: Int[np.ndarray, " head"]  #: number of inputs on which each head is among the smallest
    correlations: Float[np.ndarray, "input input"]  #: Spearman's rank correlation between every two inputs
    mean_correlation: float  #: over all pairs of different inputs
    interval: tuple[float, float]  #: bootstrap interval of that mean over inputs; nan for fewer than three
    confidence: float

    def table(self, n: int = 3) -> list[dict[str, Any]]:
        """Table 1 of [OA]: the n heads that are most often at the top and at the bottom, with their counts.

        Heads with equal counts are in head order.

        Examples
        --------
        >>> import headtree as ht
        >>> found = ht.stability([[3.0, 1.0, 2.0, 5.0], [4.0, 1.0, 2.0, 9.0], [3.0, 2.0, 1.0, 7.0]])
        >>> [(row["rank"], str(row["top"]), row["top_count"]) for row in found.table(2)]
        [(1, 'L0H3', 3), (2, 'L0H0', 0)]
        """
        n = _checks.at_least_one(n, "n")
        rows = []
        pairs = zip(_most_frequent(self.top_counts, n), _most_frequent(self.bottom_counts, n), strict=True)
        for rank, (top, bottom) in enumerate(pairs, start=1):
            rows.append(
                {
                    "rank": rank,
                    "top": self.heads[top],
                    "top_count": int(self.top_counts[top]),
                    "bottom": self.heads[bottom],
                    "bottom_count": int(self.bottom_counts[bottom]),
                }
            )
        return rows

    def to_dict(self) -> dict[str, list[Any]]:
        """Return the counts as columns of a table, one row per head.

        Examples
        --------
        >>> import headtree as ht
        >>> ht.stability([[3.0, 1.0, 2.0], [4.0, 1.0, 2.0]]).to_dict()["top_count"]
        [2, 0, 0]
        """
        return {
            "layer": [head.layer for head in self.heads],
            "head": [head.head for head in self.heads],
            "top_count": self.top_counts.tolist(),
            "bottom_count": self.bottom_counts.tolist(),
        }


def stability(
    entropies: Any,
    *,
    heads: Sequence[tuple[int, int]] | None = None,
    share: float = 0.1,
    confidence: float = 0.95,
    n_bootstrap: int = 1000,
    rng: int | np.random.Generator = 0,
) -> Stability:
    """Compare the entropies of the same heads on several inputs.

    Parameters
    ----------
    entropies : array or table (input, head), or sequence of `Entropy`
        Any numbers that rank heads will do.
    heads : sequence of (layer, head), optional
        By default taken from the `Entropy` objects, which must agree; otherwise numbered within one layer.
    share : float
        Fraction of heads that count as top, and as bottom; at least one head each.
    confidence : float
        Confidence level of the interval, from resampling the inputs `n_bootstrap` times. An input that is drawn
        twice is not compared with itself.
    n_bootstrap : int
        Number of resamples.
    rng : int or numpy Generator
        Source of the resamples.

    Examples
    --------
    >>> import headtree as ht
    >>> import numpy as np
    >>> entropies = np.arange(20.0) + np.random.default_rng(0).normal(size=(5, 20))  # 5 inputs, 20 heads
    >>> found = ht.stability(entropies)
    >>> found.n_selected, found.mean_correlation > 0.9
    (2, True)
    """
    if hasattr(entropies, "to_numpy"):  # iterating over a pandas table would give its columns
        entropies = entropies.to_numpy()
    entropies = _checks.as_list(entropies, "entropies", "rows, one per input")
    table = _table(entropies)
    n_inputs, n_heads = table.shape
    if not 0 < _checks.finite_number(share, "share") <= 0.5:
        raise InvalidValueError(f"share must be greater than 0 and at most 0.5, got {share}")
    if not 0 < _checks.finite_number(confidence, "confidence") < 1:
        raise InvalidValueError(f"confidence must be between 0 and 1, got {confidence}")
    n_bootstrap = _checks.at_least_one(n_bootstrap, "n_bootstrap")
    n_selected = max(1, int(share * n_heads + 1e-9))
    increasing = np.argsort(table, axis=1, kind="stable")
    decreasing = np.argsort(-table, axis=1, kind="stable")
    correlations = _correlations(table)
    return Stability(
        heads=_heads(heads, entropies, n_heads),
        n_inputs=n_inputs,
        n_selected=n_selected,
        top_counts=np.bincount(decreasing[:, :n_selected].ravel(), minlength=n_heads),
        bottom_counts=np.bincount(increasing[:, :n_selected].ravel(), minlength=n_heads),
        correlations=correlations,
        mean_correlation=_mean_over_pairs(correlations, np.arange(n_inputs)),
        interval=_interval(correlations, confidence, n_bootstrap, _checks.generator(rng)),
        confidence=confidence,
    )


def _table(entropies: Any) -> Float[np.ndarray, "input head"]:
    rows = [_checks.full_tensor(row, f"entropies[{i}]").cpu().double().numpy() for i, row in enumerate(entropies)]
    try:
        table = np.array(rows)
    except ValueError as error:
        raise InvalidValueError(f"entropies must have the same number of heads in every row: {error}") from error
    if table.ndim != 2 or table.shape[0] < 2 or table.shape[1] < 2:
        raise InvalidValueError(
            f"entropies must have shape (inputs, heads) with at least two of each, got {table.shape}; "
            "stability compares inputs"
        )
    return table


def _heads(heads: Sequence[tuple[int, int]] | None, entropies: Any, n_heads: int) -> tuple[HeadId, ...]:
    if heads is None:
        known = {entropy.heads for entropy in entropies if isinstance(entropy, Entropy)}
        if len(known) > 1:
            raise InvalidValueError(
                "entropies must be for the same heads on every input, got different heads; pass heads to compare "
                "them anyway"
            )
        heads = known.pop() if known else [(0, i) for i in range(n_heads)]
    labels = head_ids(heads)
    if len(labels) != n_heads:
        raise InvalidValueError(f"heads must label the {n_heads} heads, got {len(labels)}")
    return labels


def _correlations(table: Float[np.ndarray, "input head"]) -> Float[np.ndarray, "input input"]:
    """Spearman's correlation of every two inputs; nan for an input on which all heads tie."""
    first, second = np.triu_indices(len(table))
    result = np.empty((len(table), len(table)))
    result[first, second] = result[second, first] = rank_correlations(table[first], table[second])
    return result


def _mean_over_pairs(correlations: Float[np.ndarray, "input input"], inputs: Int[np.ndarray, " draw"]) -> float:
    different = inputs[:, None] != inputs[None, :]
    values = correlations[np.ix_(inputs, inputs)][different]
    return float(values.mean()) if len(values) else float("nan")


def _interval(
    correlations: Float[np.ndarray, "input input"],
    confidence: float,
    n_bootstrap: int,
    rng: np.random.Generator,
) -> tuple[float, float]:
    n = len(correlations)
    if n < 3 or np.isnan(correlations).any():
        return float("nan"), float("nan")
    draws = rng.integers(n, size=(n_bootstrap, n))
    means = np.array([_mean_over_pairs(correlations, draw) for draw in draws])
    tail = (1 - confidence) / 2
    low, high = np.nanquantile(means, [tail, 1 - tail])  # a draw of a single input has no pairs
    return float(low), float(high)


def _most_frequent(counts: Int[np.ndarray, " head"], n: int) -> Int[np.ndarray, " rank"]:
    return np.argsort(-counts, kind="stable")[:n]
