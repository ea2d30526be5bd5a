"""What a run of a plain array found, in sentences: the terminal's summary and the top of the page say the same."""

from __future__ import annotations

import numpy as np
from jaxtyping import Int

from headtree.report.words.answers import Answer, Phrase, gain_words
from headtree.runs.run import Run
from headtree.trees.tree import PartitionTree

#: Trees say something if they need less than this share of what trees of noise need. Of 54 arrays of noise (three
#: kinds, six shapes, three draws), each held against its own entries in random places, none was below 0.908.
_BELOW_NOISE = 0.9

_SHOWN = 6

#: A share that would be printed as none.
_SMALL = 0.01


def array_answers(run: Run) -> list[Answer]:
    """What the run of an array found; the heads of a phrase are numbers of slices of the axis it is about.

    Groups and orders of an array that is like noise mean nothing and are not told.
    """
    if beyond_noise(run) is False:
        return [_verdict(run)]
    org = run.organization[0]
    return [
        _verdict(run),
        *(_axis(name, org.trees[name]) for name in org.names),
        Answer("order", (Phrase(gain_words(run.measures.sparsity.gain, "array")),)),
    ]


def beyond_noise(run: Run) -> bool | None:
    """Whether the trees fit the array better than trees of noise fit noise; None if it was not measured."""
    found = run.measures.get("effort")
    return None if found is None or found.noise is None else bool(found.found < _BELOW_NOISE * found.noise)


def _verdict(run: Run) -> Answer:
    is_more = beyond_noise(run)
    if is_more is None:
        text = "Whether this is more than noise was not measured: trees are found in any array, also in noise."
        return Answer("found", (Phrase(text),))
    lead = "Slices group" if is_more else "Nothing was found beyond what noise shows"
    own, noise = (_percent(share) for share in (run.measures.effort.found, run.measures.effort.noise))
    text = (
        f"{lead}: for 90 % of the variation the trees that were found need {own} of the Haar coefficients that the "
        f"same trees with shuffled leaves need. Noise made of the same entries, organized too, needs {noise}."
    )
    return Answer("found", (Phrase(text),))


def _percent(share: float) -> str:
    return "less than 1 %" if share < _SMALL else f"{100 * share:.0f} %"


def _axis(name: str, tree: PartitionTree) -> Answer:
    """The largest groups of an axis: the folders of the first level that has several."""
    n = tree.n_leaves
    labels = next((own for own in tree.labels if 1 < len(np.unique(own)) < n), None)
    if labels is None:
        return Answer(name, (Phrase(f"{name}: {n} slices, in no groups."),))
    groups = sorted((np.flatnonzero(labels == label) for label in np.unique(labels)), key=lambda own: -len(own))
    several = [own for own in groups if len(own) > 1]
    phrases = [
        Phrase(f"{name}: {n} slices in {len(several)} group{'s' * (len(several) != 1)} at the coarsest level, of ")
    ]
    shown = several[:_SHOWN]
    for i, own in enumerate(shown):
        is_last = i == len(shown) - 1 and len(several) == len(shown)
        phrases += [Phrase(" and " if is_last else ", ")] * bool(i) + [_group(own)]
    more = len(several) - _SHOWN
    single = len(groups) - len(several)
    phrases.append(
        Phrase(
            (f" and {more} smaller ones" if more > 0 else "") + (f", and {single} alone" if single else "") + "."
        )
    )
    return Answer(name, tuple(phrases))


def _group(slices: Int[np.ndarray, " slice"]) -> Phrase:
    return Phrase(str(len(slices)), tuple(str(i) for i in slices))
