"""The candidates for one similarity that is best in everything: sums of kernels, alone or mixed with Hellinger.

Forty of attention and values, then 25 with outputs and tree distances; both lists were made before any candidate of
them was measured here. `candidate_kernels` says what the letters are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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

_OTHER_SUMS = "O J T U O+V J+V P+O P+J S+J P+O+V S+O+V P+J+O T+U P+U S+U 2S+U T+V"


def _sums(listed: str) -> dict[str, Variant]:
    found = {}
    for text in listed.split():
        terms = [(int(term[:-1] or 1), term[-1]) for term in text.split("+")]
        found[text] = Variant({name: weight for weight, name in terms})
    return found


def _mixed(listed: str, shares: Sequence[float]) -> dict[str, Variant]:
    return {
        f"{share:g} Hellinger + {1 - share:g} ({text})": Variant(variant.weights, share, True)
        for text, variant in _sums(listed).items()
        for share in shares
    }


#: 22 sums, 16 mixtures with Hellinger and two sums per input, of attention and values; 17 sums and 8 mixtures with
#: outputs and tree distances.
VARIANTS: Mapping[str, Variant] = {
    **_sums(_SUMS),
    **_mixed("P+V S+V P+S+V V", (0.25, 0.5, 0.75, 0.9)),
    "P+V per input": Variant({"P": 1, "V": 1}, 0.0, True),
    "S+V per input": Variant({"S": 1, "V": 1}, 0.0, True),
    **_sums(_OTHER_SUMS),
    **_mixed("O U P+O+V T+U", (0.5, 0.75)),
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
