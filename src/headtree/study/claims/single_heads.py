"""Figure 1 of [OA] in numbers: every head organized on its own, as a matrix, with binary trees."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from headtree.errors import HeadtreeWarning
from headtree.measures.jackknife import jackknife
from headtree.measures.regularity import holder_exponent
from headtree.progress import progress
from headtree.questionnaire.organize import organize_array
from headtree.questionnaire.settings import Questionnaire
from headtree.study.claims.verdict import Claim, Finding
from headtree.tensor.attention_tensor import AttentionTensor, HeadId
from headtree.trees.tree import PartitionTree

#: [OA]'s settings for a single head.
SETTINGS = Questionnaire(alpha=1.0, beta=0.0, n_iter=10, tree="binary")

_AFTER, _SHUFFLED = (
    Claim(
        f"matrix-regularity-{order}",
        "fig. 1",
        f"A head organized by itself, with binary trees, is more regular than {words}.",
        "no number; two heads shown",
        f"mean over heads, on one input, of (exponent on the head's own trees − exponent on {other}); interval "
        "over heads",
        0.0,
    )
    for order, words, other in (
        ("given", "in the original order", "dyadic trees over the original order"),
        ("random", "in a random order", "the same trees with shuffled leaves"),
    )
)


@dataclass(frozen=True, eq=False)
class MatrixRegularity:
    """Mixed Hölder exponents and constants of heads in original order, organized one by one, and shuffled."""

    heads: tuple[HeadId, ...]
    exponent: dict[str, Float[np.ndarray, " head"]]  #: "given", "organized", "shuffled"
    constant: dict[str, Float[np.ndarray, " head"]]

    def findings(self, network: str) -> list[Finding]:
        """The claims of figure 1; the interval is over heads, not inputs."""
        result = []
        for claim, order in ((_AFTER, "given"), (_SHUFFLED, "shuffled")):
            gain = self.exponent["organized"] - self.exponent[order]
            gain = gain[np.isfinite(gain)]
            measured = jackknife(lambda chosen, gain=gain: float(gain[chosen].mean()), len(gain))
            result.append(Finding(claim, network, measured))
        return result


def matrix_regularity(
    att: AttentionTensor, questionnaire: Questionnaire = SETTINGS, *, rng: int = 0
) -> MatrixRegularity:
    """Organize every head of an input on its own and measure how regular it becomes, without cropping.

    Masked entries are missing for the questionnaire; exponents are computed from the filled matrix.
    """
    values = att.filled().values
    generator = np.random.default_rng(rng)
    given = [PartitionTree.halving(n) for n in values.shape[1:]]
    rows: dict[str, list[tuple[float, float]]] = {"given": [], "organized": [], "shuffled": []}
    with progress("heads by themselves", len(att.heads)) as step:
        for i, head in enumerate(values):
            mask = att.take(i).mask
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", HeadtreeWarning)  # raised for a head whose rows are all equal
                trees = list(organize_array(head, questionnaire, mask=None if mask is None else mask[0]).trees)
            shuffled = [tree.take(generator.permutation(tree.n_leaves)) for tree in trees]
            for order, chosen in (("given", given), ("organized", trees), ("shuffled", shuffled)):
                fit = holder_exponent(head, *chosen)
                rows[order].append((float(fit.exponent), float(fit.constant)))
            step("")
    return MatrixRegularity(
        att.heads,
        exponent={order: np.array(fits)[:, 0] for order, fits in rows.items()},
        constant={order: np.array(fits)[:, 1] for order, fits in rows.items()},
    )
