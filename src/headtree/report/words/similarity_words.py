"""What each similarity of heads is called and what it means, where people read it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from headtree.similarity.head_similarity import KIND_WORDS

#: Who the heads of a family are: "heads that …".
_HEADS_THAT = {
    "attention": "look alike",
    "cosine": "look alike (cosine)",
    "jensen-shannon": "look alike (Jensen-Shannon)",
    "l1": "look alike (total variation)",
    "function": "do alike",
    "questionnaire": "the questionnaire groups",
}

_MEANINGS: Mapping[str, str] = MappingProxyType(
    {
        "attention": "Heads are close if their queries attend to the same keys (Hellinger distance).",
        "cosine": "Heads are close if their queries attend to the same keys (cosine of probabilities).",
        "jensen-shannon": "Heads are close if their queries attend to the same keys (Jensen-Shannon divergence).",
        "l1": "Heads are close if their queries attend to the same keys (total variation distance).",
        "function": "Heads are close if they attend to the same keys and write the same things from there: "
        "attention and values together.",
    }
)


def similarity_title(kind: str, values: str) -> str:
    """The name of a similarity; the questionnaire's says of what: "questionnaire of raw scores".

    Parameters
    ----------
    kind : str
        Of the similarity, as in `headtree.head_similarity`.
    values : str
        What the run organized: `Run.values_words`.

    Examples
    --------
    >>> similarity_title("attention", "raw scores"), similarity_title("questionnaire", "raw scores")
    ('looks alike', 'questionnaire of raw scores')
    """
    words = KIND_WORDS.get(kind, kind)
    return f"{words} of {values}" if kind == "questionnaire" else words


def similarity_meaning(kind: str, values: str) -> str:
    """What it means for two heads to be close, in a sentence."""
    if kind == "questionnaire":
        return (
            f"Heads are close if their {values} agree on the trees of queries and keys: the paper's similarity, "
            "from the coupled loop."
        )
    return _MEANINGS.get(kind, f"Heads are close by their similarity of kind {kind}.")


def heads_that(kind: str, values: str) -> str:
    """The heads of a family: "heads that look alike"."""
    of = f" (of {values})" if kind == "questionnaire" else ""
    return f"heads that {_HEADS_THAT.get(kind, 'are alike')}{of}"
