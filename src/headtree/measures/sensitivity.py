"""How much the settings of the method matter: one is changed at a time, everything else stays fixed."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

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

#: How much changing a setting moves the result, compared with swapping the input.
Matters = Literal["more", "about as much", "less", "not at all"]
DEGREES: tuple[Matters, ...] = get_args(Matters)

#: Rankings with at least this correlation count as unchanged.
_ROUNDING = 0.999


@dataclass(frozen=True)
class Change:
    """The effect of changing one setting on trees, affinities and the ranking of heads."""

    setting: str  #: such as "alpha"
    value: str  #: the new value
    head_tree: Estimate  #: tree distance between the head trees
    query_tree: Estimate
    key_tree: Estimate
    affinity: Estimate  #: correlation of the off-diagonal head affinities
    ranking: Estimate  #: Spearman's correlation of head entropies


@dataclass(frozen=True)
class Sensitivity:
    """The effect of each change of a setting, and of a change of input for comparison."""

    settings: Questionnaire
    changes: tuple[Change, ...]
    other_input: Change  #: two inputs with the same settings

    def matters(self, change: Change) -> Matters:
        """How much a change moves the ranking of heads, compared with swapping the input.

        The rule compares the interval of its correlation with the mean correlation between two inputs.
        """
        low, high = change.ranking.interval
        between = self.other_input.ranking.number
        if change.ranking.number >= _ROUNDING:
            return "not at all"
        if low > between:
            return "less"
        return "more" if high < between else "about as much"

    def matters_for_tree(self, change: Change) -> Matters:
        """How much a change moves the head tree, by the interval of its tree distance."""
        low, high = change.head_tree.interval
        between = self.other_input.head_tree.number
        if change.head_tree.number <= 1 - _ROUNDING:
            return "not at all"
        if high < between:
            return "less"
        return "more" if low > between else "about as much"


def variants(settings: Questionnaire) -> list[tuple[str, str, Questionnaire]]:
    """List every change of one setting: its name, the new value, and the resulting questionnaire."""
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
    """Organize some inputs repeatedly, changing one setting at a time.

    Besides the settings of the questionnaire, this compares float32 with float64 (the tensors in the other
    precision), and resampled inputs (trees and affinities averaged over inputs drawn with replacement) with all
    inputs.

    Parameters
    ----------
    atts : sequence of AttentionTensor
        The same network on several inputs; intervals need three or more.
    settings : Questionnaire, optional
        The settings to start from.
    n_resampled : int
        Number of resampled sets of inputs.
    """
    atts = _checks.as_list(atts, "atts", "AttentionTensor objects")
    if len(atts) < 2:
        raise InvalidValueError(f"atts must contain two or more inputs of one network, got {len(atts)}")
    settings = Questionnaire() if settings is None else settings
    changed = variants(settings)
    with progress("sensitivity", len(changed) + 2) as step:
        base = [_organized(att, settings) for att in atts]
        step("unchanged")
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
        warnings.simplefilter("ignore", HeadtreeWarning)  # a setting may make all slices equal; the numbers show it
        org = organize(att, settings)
    org.check_all_compared(0)
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
    """Compare heads only: queries and keys of different inputs are different tokens."""
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
    """Compare averages over resampled inputs with those over all: how much the head tree depends on the inputs."""
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
