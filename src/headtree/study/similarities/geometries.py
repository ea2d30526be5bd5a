"""Every similarity of heads as matrices of the inputs, which `consensus` takes, with its cost."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from headtree.geometry.combined_affinity import InputMatrices
from headtree.measures.similarity import from_organizations, head_similarity
from headtree.models.view import ModelView
from headtree.questionnaire.organize import organize
from headtree.similarity.head_similarity import AttentionKind
from headtree.study.similarities.candidate_kernels import candidate_kernels
from headtree.study.similarities.evidence_networks import EvidenceNetwork
from headtree.study.similarities.variants import VARIANTS, of_variant
from headtree.tensor.attention_tensor import AttentionTensor

#: Kinds of `headtree.head_similarity` that compare attention, without a questionnaire.
PLAIN: tuple[AttentionKind, ...] = ("attention", "jensen-shannon", "l1", "cosine")

#: The questionnaire on what it is fed.
QUESTIONNAIRES = (
    "questionnaire of raw scores",
    "questionnaire of centred scores",
    "questionnaire of probabilities",
)

FUNCTION = "function"

#: The tree distances of attention and of values, one of the candidates for the best of all.
TREES = "T+U"

#: What each similarity is, in a few words.
WORDS = {
    "attention": "attention (Hellinger)",
    "jensen-shannon": "Jensen-Shannon",
    "l1": "L1 (total variation)",
    "cosine": "cosine of probabilities",
    "function": "function (attention + values)",
    "T+U": "trees (attention + values)",
}


@dataclass(frozen=True, eq=False)
class Geometry:
    """One similarity of the heads of a network."""

    inputs: InputMatrices
    milliseconds: float  #: of processor time per input


def geometry(name: str, network: EvidenceNetwork) -> Geometry:
    """Compute a similarity on the inputs of a network; the capture of its attention is not counted as its cost."""
    raw, centred, _ = QUESTIONNAIRES
    given = [dict(item) for item in network.inputs]
    atts = network.view.capture(inputs=given, kind="scores" if name in (raw, centred) else "probs")
    _computed(name, network.view, given[:2], atts[:2])  # compiles what is not compiled yet
    start = time.process_time()
    inputs = _computed(name, network.view, given, atts)
    return Geometry(inputs, 1000 * (time.process_time() - start) / len(given))


def _computed(
    name: str, view: ModelView, given: Sequence[dict[str, Tensor]], atts: Sequence[AttentionTensor]
) -> InputMatrices:
    if name == QUESTIONNAIRES[0]:  # of what it is given, while head_similarity centres scores
        return from_organizations([organize(att) for att in atts], atts[0].heads).inputs
    if name in QUESTIONNAIRES:
        return head_similarity(atts, kind="questionnaire").inputs
    if name == FUNCTION:
        return view.head_similarity(inputs=list(given)).inputs
    if name in VARIANTS:
        kernels = candidate_kernels(VARIANTS[name].weights.keys(), view, given, atts)
        return of_variant(VARIANTS[name], kernels, head_similarity(atts, kind="attention").affinity)
    plain = {str(kind): kind for kind in PLAIN}
    return head_similarity(atts, kind=plain[name]).inputs
