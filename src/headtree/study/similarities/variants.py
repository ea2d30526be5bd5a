"""The candidates for one similarity that is best in everything: sums of kernels, alone or mixed with Hellinger.

A fixed budget of forty, listed before any of them was measured here. Kernels of each input: P, cosines of
probabilities; S, their roots (the kernel of the Hellinger distance); V, cosines of v·W_O.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from headtree.geometry.combined_affinity import InputMatrices


@dataclass(frozen=True)
class Variant:
    """A weighted sum of kernels, and how it is combined over inputs."""

    weights: Mapping[str, int]  #: of the kernels; each is centred and standardized first
    hellinger: float = 0.0  #: share of the Hellinger affinity in the affinity of each input
    per_input: bool = False  #: whether kernels become an affinity on every input, not after their mean over inputs


_SUMS = """
P S V P+V 2P+V 3P+V P+2V P+3V S+V 2S+V 3S+V 4S+V S+2V S+3V
P+S P+S+V P+S+2V P+S+3V P+2S+V P+2S+2V 2P+S+V 2P+S+2V
"""


def _sums() -> dict[str, Variant]:
    found = {}
    for text in _SUMS.split():
        terms = [(int(term[:-1] or 1), term[-1]) for term in text.split("+")]
        found[text] = Variant({name: weight for weight, name in terms})
    return found


def _mixed() -> dict[str, Variant]:
    sums = _sums()
    return {
        f"{share:g} Hellinger + {1 - share:g} ({text})": Variant(sums[text].weights, share, True)
        for text in ("P+V", "S+V", "P+S+V", "V")
        for share in (0.25, 0.5, 0.75, 0.9)
    }


#: 22 sums, 16 mixtures with Hellinger, and two sums per input.
VARIANTS: Mapping[str, Variant] = {
    **_sums(),
    **_mixed(),
    "P+V per input": Variant({"P": 1, "V": 1}, 0.0, True),
    "S+V per input": Variant({"S": 1, "V": 1}, 0.0, True),
}


def of_variant(
    variant: Variant,
    kernels: Mapping[str, Float[np.ndarray, "input head head"]],
    hellinger: Float[np.ndarray, "input head head"],
) -> InputMatrices:
    """The matrices of a variant from the kernels and the Hellinger affinities of every input."""
    parts = np.stack([kernels[name] for name, weight in variant.weights.items() for _ in range(weight)])
    together = InputMatrices(np.ascontiguousarray(parts), True)
    if not variant.per_input:
        return together
    own = np.stack([together.of_inputs([i]).combined() for i in range(together.n_inputs)])
    mixed = variant.hellinger * hellinger + (1 - variant.hellinger) * own
    return InputMatrices(np.ascontiguousarray(mixed[None]), False)
