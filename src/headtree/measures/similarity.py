"""How alike the heads of a network look."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headtree.errors import InvalidTypeError, InvalidValueError
from headtree.geometry.combined_affinity import InputMatrices
from headtree.progress import progress
from headtree.questionnaire.organization import Organization
from headtree.questionnaire.organize import organize
from headtree.questionnaire.settings import Questionnaire
from headtree.similarity.attention_distances import attention_distance, check_heads_present
from headtree.similarity.head_similarity import (
    HeadSimilarity,
    SimilarityKind,
    checked_kind,
    equal_heads,
    from_distances,
)
from headtree.tensor.attention_tensor import AttentionTensor, HeadId
from headtree.tensor.hidden_mask import check_future_keys
from headtree.tensor.probabilities import checked_tensors


def head_similarity(
    atts: AttentionTensor | Sequence[AttentionTensor],
    kind: SimilarityKind = "attention",
    *,
    settings: Questionnaire | None = None,
) -> HeadSimilarity:
    r"""Compare all heads of a network on each of several inputs.

    Every kind is blind to constants that are added to rows of scores, which softmax cannot see.

    ``"attention"``
        *Looks alike*: the Hellinger distance

        .. math:: d_{ab} = \sqrt{1 - \operatorname{mean}_q \sum_k \sqrt{p_a[q, k]\, p_b[q, k]}}

        over the queries q that both heads have. The mass of an attention sink counts as one more key.
    ``"jensen-shannon"``, ``"l1"``, ``"cosine"``
        The square root of the mean Jensen-Shannon divergence of rows, their mean total variation distance, and one
        minus the cosine of all probabilities.
    ``"questionnaire"``
        The tree distance of the coupled loop (`headtree.organize`), of centred scores or of probabilities.

    *Does alike*, ``kind="function"``, also needs the values of the heads: `ModelView.head_similarity`.

    Parameters
    ----------
    atts : AttentionTensor or sequence of them
        The same heads on every input; any kind, in memory or on disk, with any masks.
    kind : str
        One of the above.
    settings : Questionnaire, optional
        For kind "questionnaire" only.

    Returns
    -------
    HeadSimilarity
        Distances and affinities of every input; `headtree.consensus` makes families of it.

    Examples
    --------
    Heads 0 and 2 look alike, whatever is added to their rows:

    >>> import headtree as ht
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> scores = rng.normal(size=(3, 8, 8))
    >>> scores[2] = scores[0] + rng.normal(size=(8, 1))
    >>> found = ht.head_similarity(ht.AttentionTensor.from_array(scores))
    >>> found.distance[0].round(2)
    array([[0.  , 0.41, 0.  ],
           [0.41, 0.  , 0.41],
           [0.  , 0.41, 0.  ]])
    """
    checked_kind(kind)
    if kind == "function":
        raise InvalidValueError(
            "kind='function' compares what heads write, but attention tensors hold no values; pass the model: "
            "ht.ModelView(model).head_similarity(texts=[…], kind='function')"
        )
    tensors = checked_tensors(atts)
    if kind == "questionnaire":
        return from_organizations(_organized(tensors, settings), tensors[0].heads)
    if settings is not None:
        raise InvalidTypeError(f"settings are for kind='questionnaire' only, got kind={kind!r}; leave them out")
    distances = []
    with progress("comparing heads", len(tensors)) as step:
        for i, att in enumerate(tensors):
            check_future_keys(att)
            distances.append(attention_distance(att, kind))
            step(f"input {i + 1} of {len(tensors)}")
    return from_distances(kind, tensors[0].heads, distances)


def from_organizations(organizations: Sequence[Organization], heads: tuple[HeadId, ...]) -> HeadSimilarity:
    """The similarity of heads that the questionnaire found on each input."""
    for org in organizations:
        org.check_all_compared(0)
    affinity = np.stack([np.asarray(org.affinities[0]) for org in organizations])
    distance = np.stack([np.asarray(org.distances[0]) for org in organizations])
    inputs, notes = InputMatrices(affinity[None], False), equal_heads(heads, distance == 0)
    return HeadSimilarity("questionnaire", heads, distance, affinity, inputs, notes)


def _organized(tensors: Sequence[AttentionTensor], settings: Questionnaire | None) -> list[Organization]:
    found = []
    with progress("organizing", len(tensors)) as step:
        for i, att in enumerate(tensors):
            check_future_keys(att)
            check_heads_present(att)
            found.append(organize(att.centred() if att.kind == "scores" else att.load(), settings))
            step(f"input {i + 1} of {len(tensors)}")
    return found
