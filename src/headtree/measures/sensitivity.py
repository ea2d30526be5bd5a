"""How much the method's settings matter: one changed at a time, everything else as it was."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from jaxtyping import Float, Int

from headtree import _checks
from headtree.errors import HeadtreeWarning, InvalidValueError
from headtree.geometry.linkage import linkage_tree
from headtree.measures.comparisons import rank_correlation
from headtree.measures.entropy import head_entropy
from headtree.measures.jackknife import Estimate, jackknife, mean_of, mean_over_pairs
from headtree.progress import progress
from headtree.questionnaire.organization import Organization
from headtree.questionnaire.organize import organize
from headtree.questionnaire.settings import Questionnaire
from headtree.tensor.attention_tensor import AttentionTensor
from headtree.trees.compare import tree_distance
from headtree.trees.tree import PartitionTree

Matters = Literal["no more than rounding", "less than another input", "as much as another input", "more than it"]

#: Rankings that agree to this have not moved.
_ROUNDING = 0.999


@dataclass(frozen=True)
class Change:
    """What one changed setting does to trees, affinities and the ranking of heads."""

    setting: str  #: such as "alpha"
    value: str  #: what it was set to
    head_tree: Estimate  #: tree distance of the heads' trees
    query_tree: Estimate
    key_tree: Estimate
    affinity: Estimate  #: correlation of the heads' affinities, off the diagonal
    ranking: Estimate  #: Spearman's correlation of head entropies


@dataclass(frozen=True)
class Sensitivity:
    """The changes, and what a change of input does, which they are held against."""

    settings: Questionnaire
    changes: tuple[Change, ...]
    other_input: Change  #: two inputs with the same settings

    def matters(self, change: Change) -> Matters:
        """How much a change moves the ranking of heads, beside another input.

        By rule: compare the interval of its correlation with the mean correlation between two inputs.
        """
        low, high = change.ranking.interval
        between = self.other_input.ranking.number
        if change.ranking.number >= _ROUNDING:
            return "no more than rounding"
        if low > between:
            return "less than another input"
        return "more than it" if high < between else "as much as another input"

    def matters_for_tree(self, change: Change) -> Matters:
        """The same for the tree of heads, by the interval of its distance."""
        low, high = change.head_tree.interval
        between = self.other_input.head_tree.number
        if change.head_tree.number <= 1 - _ROUNDING:
            return "no more than rounding"
        if high < between:
            return "less than another input"
        return "more than it" if low > between else "as much as another input"


def variants(settings: Questionnaire) -> list[tuple[str, str, Questionnaire]]:
    """Setting, value and questionnaire of every change of one setting."""
    values: dict[str, tuple[object, ...]] = {
        "initial": ("cosine", "correlation", "gaussian"),
        "alpha": (-1.0, 0.0, 0.5, 1.0),
        "beta": (0.0, 0.5, 1.0, 2.0),
        "tree_constant": (0.5, 1.0, 2.0),
        "n_iter": (1, 2, 3, 5, 10),
        "head_from": ("latest", "initial"),
        "tree": ("flexible", "binary"),
        "weights": ("levels", "distinct"),
    }
    return [
        (name, str(value), replace(settings, **{name: value}))  # type: ignore[arg-type]
        for name, several in values.items()
        for value in several
        if value != getattr(settings, name)
    ]


def sensitivity(
    atts: Sequence[AttentionTensor], settings: Questionnaire | None = None, *, n_resampled: int = 10, rng: int = 0
) -> Sensitivity:
    """Organize some inputs again and again, changing one setting at a time.

    Beside the settings of the questionnaire: float32 against float64 (the tensors in the other precision), and
    resampled inputs (trees and affinities averaged over inputs drawn with replacement, against all of them).

    Parameters
    ----------
    atts : sequence of AttentionTensor
        The same network on several inputs; intervals need three or more.
    settings : Questionnaire, optional
        What is departed from.
    n_resampled : int
        Number of resampled sets of inputs.
    """
    atts = _checks.as_list(atts, "atts", "AttentionTensor objects")
    if len(atts) < 2:
        raise InvalidValueError(f"atts must be two or more inputs of one network, got {len(atts)}")
    settings = Questionnaire() if settings is None else settings
    changed = variants(settings)
    with progress("sensitivity", len(changed) + 2) as step:
        base = [_organized(att, settings) for att in atts]
        step("as it is")
        changes = []
        for name, value, other in changed:
            changes.append(_change(name, value, base, [_organized(att, other) for att in atts]))
            step(f"{name} {value}")
        precise = [_organized(_in_other_precision(att), settings) for att in atts]
        kinds = "float32" if atts[0].load().values.dtype.itemsize == 8 else "float64"
        changes.append(_change("precision", kinds, base, precise))
        step("precision")
    changes.append(_resampled(base, n_resampled, np.random.default_rng(rng)))
    return Sensitivity(settings, tuple(changes), _between_inputs(base))


@dataclass(frozen=True, eq=False)
class _Organized:
    org: Organization
    entropy: Float[np.ndarray, " head"]

    @property
    def affinity(self) -> Float[np.ndarray, " pair"]:
        matrix = self.org.affinities[0]
        return np.asarray(matrix[np.triu_indices(len(matrix), 1)])


def _organized(att: AttentionTensor, settings: Questionnaire) -> _Organized:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HeadtreeWarning)  # a setting may find all slices equal; its numbers say so
        org = organize(att, settings)
    return _Organized(org, head_entropy(att, org).raw)


def _in_other_precision(att: AttentionTensor) -> AttentionTensor:
    loaded = att.load()
    values = np.asarray(loaded.values)
    return replace(loaded, values=values.astype(np.float32 if values.dtype == np.float64 else np.float64))


def _change(setting: str, value: str, base: Sequence[_Organized], other: Sequence[_Organized]) -> Change:
    pairs = list(zip(base, other, strict=True))

    def measured(numbers: list[float]) -> Estimate:
        return jackknife(mean_of(numbers), len(numbers))

    head, query, key = (
        measured([tree_distance(a.org.trees[axis], b.org.trees[axis]) for a, b in pairs]) for axis in range(3)
    )
    return Change(
        setting,
        value,
        head_tree=head,
        query_tree=query,
        key_tree=key,
        affinity=measured([_correlation(a.affinity, b.affinity) for a, b in pairs]),
        ranking=measured([rank_correlation(a.entropy, b.entropy) for a, b in pairs]),
    )


def _between_inputs(base: Sequence[_Organized]) -> Change:
    """Queries and keys of different inputs are different tokens: their trees are not compared."""
    n = len(base)

    def measured(compare: Callable[[_Organized, _Organized], float]) -> Estimate:
        table = np.array([[compare(a, b) for b in base] for a in base])
        return jackknife(mean_over_pairs(table), n)

    nothing = Estimate(float("nan"), (float("nan"), float("nan")), (n,))
    return Change(
        "input",
        "another",
        measured(lambda a, b: tree_distance(a.org.trees[0], b.org.trees[0])),
        nothing,
        nothing,
        affinity=measured(lambda a, b: _correlation(a.affinity, b.affinity)),
        ranking=measured(lambda a, b: rank_correlation(a.entropy, b.entropy)),
    )


def _resampled(base: Sequence[_Organized], n_resampled: int, rng: np.random.Generator) -> Change:
    """Averages over resampled inputs against averages over all: how far a network's tree hangs on its inputs."""
    affinities = np.stack([item.org.affinities[0] for item in base])
    entropies = np.stack([item.entropy for item in base])
    everything = _averages(affinities, entropies, np.arange(len(base)))
    rows = []
    for _ in range(n_resampled):
        tree, affinity, entropy = _averages(affinities, entropies, rng.integers(len(base), size=len(base)))
        rows.append(
            (
                tree_distance(everything[0], tree),
                _correlation(everything[1], affinity),
                rank_correlation(everything[2], entropy),
            )
        )
    columns = np.array(rows).T
    trees, correlation, ranking = (
        Estimate(float(column.mean()), _range_of(column), (len(base),)) for column in columns
    )
    nothing = Estimate(float("nan"), (float("nan"), float("nan")), (len(base),))
    return Change("inputs", "resampled", trees, nothing, nothing, affinity=correlation, ranking=ranking)


def _averages(
    affinities: Float[np.ndarray, "input head head"],
    entropies: Float[np.ndarray, "input head"],
    chosen: Int[np.ndarray, " draw"],
) -> tuple[PartitionTree, Float[np.ndarray, " pair"], Float[np.ndarray, " head"]]:
    mean = affinities[chosen].mean(axis=0)
    return linkage_tree(mean), mean[np.triu_indices(len(mean), 1)], entropies[chosen].mean(axis=0)


def _range_of(draws: Float[np.ndarray, " draw"]) -> tuple[float, float]:
    low, high = np.quantile(draws, [0.025, 0.975])
    return float(low), float(high)


def _correlation(a: Float[np.ndarray, " n"], b: Float[np.ndarray, " n"]) -> float:
    if len(a) < 3 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return float("nan")
    return float(np.corrcoef(a, b)[0, 1])
