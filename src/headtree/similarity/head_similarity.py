"""The result of comparing all heads of a network with each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Float

from headtree import _checks
from headtree.errors import InvalidValueError
from headtree.geometry.combined_affinity import InputMatrices
from headtree.tensor.attention_tensor import HeadId

AttentionKind = Literal["attention", "cosine", "jensen-shannon", "l1"]
SimilarityKind = Literal["attention", "cosine", "jensen-shannon", "l1", "questionnaire", "function"]

#: What each kind is called where people read it.
KIND_WORDS = {
    "attention": "looks alike",
    "cosine": "looks alike (cosine)",
    "jensen-shannon": "looks alike (Jensen-Shannon)",
    "l1": "looks alike (total variation)",
    "function": "does alike",
    "questionnaire": "questionnaire",
}


#: Heads that a note names; of more the first three.
_NAMED = 8


@dataclass(frozen=True, eq=False, repr=False)
class HeadSimilarity:
    """How alike heads are; made by `headtree.head_similarity` and `ModelView.head_similarity`.

    Examples
    --------
    >>> import headtree as ht
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> scores = rng.normal(size=(3, 6, 8, 8))
    >>> found = ht.head_similarity([ht.AttentionTensor.from_array(x) for x in scores])
    >>> found
    HeadSimilarity('attention', 6 heads, 3 inputs)
    >>> found.distance.shape, found.combine().shape
    ((3, 6, 6), (6, 6))
    """

    kind: SimilarityKind
    heads: tuple[HeadId, ...]
    distance: Float[np.ndarray, "input head head"]  #: of each input; for "function" one, of all inputs together
    affinity: Float[np.ndarray, "input head head"]  #: exp(-distance / median)
    inputs: InputMatrices  #: what is averaged over inputs
    notes: tuple[str, ...] = ()  #: what to know before reading it

    @property
    def n_inputs(self) -> int:
        """Number of inputs."""
        return self.inputs.n_inputs

    def combine(self, weights: Sequence[float] | None = None) -> Float[np.ndarray, "head head"]:
        """One affinity from weighted inputs.

        Affinities of inputs are averaged. For "function" it is the kernels that are averaged; everything after
        that is done again.

        Parameters
        ----------
        weights : sequence of float, optional
            One for each input, not negative; they are scaled to sum to one. By default all are equal.

        Examples
        --------
        >>> import headtree as ht
        >>> import numpy as np
        >>> scores = np.random.default_rng(0).normal(size=(2, 6, 8, 8))
        >>> found = ht.head_similarity([ht.AttentionTensor.from_array(x) for x in scores])
        >>> np.allclose(found.combine([1, 0]), found.affinity[0])
        True
        """
        return self.inputs.combined(None if weights is None else self._checked(weights))

    def _checked(self, weights: Any) -> Float[np.ndarray, " input"]:
        try:
            given = np.asarray(weights, dtype=np.float64)
        except (TypeError, ValueError):
            given = np.empty(0)
        if given.shape != (self.n_inputs,) or not np.isfinite(given).all() or given.min() < 0 or given.max() <= 0:
            raise InvalidValueError(
                f"weights must be {self.n_inputs} numbers, one for each input, finite, not negative and not all 0, "
                f"got {weights!r}"
            )
        given = given / given.max()  # the sum of huge weights would overflow
        return np.asarray(given / given.sum())

    def __repr__(self) -> str:
        words = f"{len(self.heads)} heads, {self.n_inputs} input{'s' * (self.n_inputs != 1)}"
        return f"HeadSimilarity({self.kind!r}, {words})"


def from_distances(
    kind: SimilarityKind, heads: tuple[HeadId, ...], distances: Sequence[Float[np.ndarray, "head head"]]
) -> HeadSimilarity:
    """A similarity of one distance matrix per input."""
    distance = np.stack(distances)
    affinity = np.stack([affinity_of(each) for each in distance])
    return HeadSimilarity(
        kind, heads, distance, affinity, InputMatrices(affinity[None], False), equal_heads(heads, distance == 0)
    )


def equal_heads(
    heads: tuple[HeadId, ...], is_equal: Bool[np.ndarray, "input head head"], words: str = "are equal"
) -> tuple[str, ...]:
    """A note on heads that are equal, or what `words` say, on every input, if there are any."""
    always = np.logical_and.reduce(is_equal, axis=0)
    groups = [np.flatnonzero(row) for i, row in enumerate(always) if row.sum() > 1 and row.argmax() == i]
    if not groups:
        return ()
    if len(groups[0]) == len(heads):
        return (f"all {len(heads)} heads {words} on every input, so there is nothing to tell them apart by",)
    named = "; ".join(named_heads([heads[i] for i in group]) for group in groups)
    return (f"some heads {words} on every input: {named}",)


def named_heads(heads: Sequence[HeadId]) -> str:
    """The names of some heads; of many the first ones, and how many there are."""
    if len(heads) <= _NAMED:
        return ", ".join(map(str, heads))
    return f"{', '.join(map(str, heads[:3]))}, … ({len(heads)} in all)"


def from_kernels(
    kind: SimilarityKind,
    heads: tuple[HeadId, ...],
    kernels: Float[np.ndarray, "part input head head"],
    notes: tuple[str, ...] = (),
) -> HeadSimilarity:
    """A similarity of kernels that are averaged over inputs before they are combined."""
    inputs = InputMatrices(np.ascontiguousarray(kernels), True)
    similarity = inputs.similarity()
    pairs = ~np.eye(len(heads), dtype=bool)
    distance = np.where(pairs, (similarity[pairs].max() if pairs.any() else 0.0) - similarity, 0.0)
    return HeadSimilarity(kind, heads, distance[None], inputs.combined()[None], inputs, notes)


def affinity_of(distance: Float[np.ndarray, "head head"]) -> Float[np.ndarray, "head head"]:
    """exp(-d / median), the median off the diagonal; of the positive distances if it is 0, and 1 if all are 0."""
    off_diagonal = distance[~np.eye(len(distance), dtype=bool)]
    width = float(np.median(off_diagonal)) if len(off_diagonal) else 0.0
    if width <= 0:
        positive = off_diagonal[off_diagonal > 0]
        width = float(np.median(positive)) if len(positive) else 1.0
    return np.exp(-distance / width)


def checked_kind(kind: Any, known: Any = SimilarityKind, argument: str = "kind") -> Any:
    """The kind, if it is one of those known; errors name the argument."""
    return _checks.one_of(kind, argument, known)
