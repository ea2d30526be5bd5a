"""What rankings of heads are good for: their rank correlation with the measured effects of heads."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

#: How the numbers below were made: columns from runs on 20 samples, effects by `headtree.head_effects`.
#: MiniLM has no loss here: its effects are changes of its output on the passages of the data package.
ORIGIN = {
    "txl": "change of loss on WikiText-2's validation text, 850 inputs of 256 words, of which 200 ablated",
    "MiniLM": "change of output on 20 inputs of 64 tokens",
    "vit": "change of loss on 3,000 of CIFAR-10's test pictures",
}

#: How well two halves of the inputs agree on the order of heads by effect (rank correlation).
RELIABILITY: Mapping[str, float] = MappingProxyType({"txl": 0.93, "MiniLM": 0.95, "vit": 0.45})

#: Spearman's correlation over heads of a column with the effect of a head when it is ablated, by network.
EFFECT_CORRELATIONS: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {
        "confidence": {"txl": 0.46, "MiniLM": -0.17, "vit": 0.20},
        "shannon_entropy": {"txl": -0.47, "MiniLM": 0.24, "vit": -0.26},
        "structure": {"txl": 0.47, "MiniLM": -0.30, "vit": 0.22},
        "haar_entropy": {"txl": 0.47, "MiniLM": -0.29},
        "haar_entropy_relative": {"txl": 0.15, "MiniLM": -0.29},
        "norm": {"txl": 0.45, "MiniLM": -0.22, "vit": 0.22},
        "exponent": {"txl": 0.14, "MiniLM": -0.34, "vit": 0.06},
    }
)

#: Columns that depend on what was organized: centred scores in the numbers above, of vit probabilities.
OF_ORGANIZED = frozenset({"haar_entropy", "haar_entropy_relative", "norm", "exponent", "structure"})

#: Ranks, 1 for the largest, and the columns of which they are.
_RANK_OF = {"structure_rank": "structure"}


def good_for(column: str, values: str = "centred scores") -> str:
    """How far a column ranks heads by their effect, in a sentence; "" for columns that were not compared.

    `values` says what was organized: of raw scores, columns that depend on it were not compared.
    """
    if column == "effect":
        numbers = ", ".join(f"{network} {value:.2f}" for network, value in RELIABILITY.items())
        return f"Rank correlation between two halves of the inputs: {numbers}."
    known = EFFECT_CORRELATIONS.get(_RANK_OF.get(column, column))
    if known is None:
        return ""
    if values == "raw scores" and _RANK_OF.get(column, column) in OF_ORGANIZED:
        return "Here it is made of raw scores, or on trees of them; how well it then ranks heads was not measured."
    sign = -1 if column in _RANK_OF else 1
    numbers = ", ".join(
        f"{network} {sign * value:.2f} (reliability of effects {RELIABILITY[network]:.2f})"
        for network, value in known.items()
    )
    return f"Rank correlation with the effects of heads: {numbers}."
