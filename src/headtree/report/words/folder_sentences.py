"""What the heads of a folder have in common, in sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from headtree.report.words.folder_words import folder_words
from headtree.report.words.numbers import number_words
from headtree.tensor.attention_tensor import HeadId

#: Columns that locate a head, or that are described in other words.
_OWN_WORDS = (
    "layer",
    "head",
    "family",
    "family_support",
    "structure",
    "structure_rank",
    "place_in_tree",
    "top_count",
    "bottom_count",
)

#: A measure characterizes a folder if the folder's mean is at least this many standard deviations of all heads from
#: the mean of all heads, and the folder's standard deviation is at most this share of theirs.
_FAR, _NARROW = 0.8, 0.6

#: Measures that are named, at most.
_N_MEASURES = 2


def folder_sentences(table: Any, folders: Sequence[Int[np.ndarray, " head_of_folder"]]) -> list[str]:
    """One or two sentences on the heads of each folder.

    Parameters
    ----------
    table : DataFrame
        A row per head of the network, with at least ``layer`` and ``head``; ``role``, ``structure_rank`` and
        numeric measures are used if present.
    folders : sequence of integers
        Rows of each folder.
    """
    heads = [HeadId(int(a), int(b)) for a, b in zip(table["layer"], table["head"], strict=True)]
    roles = None
    if "role" in table:
        roles = [_short(role) if isinstance(role, str) else "" for role in table["role"]]  # a head of none has NaN
    ranks = (
        table["structure_rank"].to_numpy(dtype=float) if "structure_rank" in table else np.full(len(heads), np.nan)
    )
    measures = _measures(table)
    return [
        " ".join(
            part
            for part in (f"{folder_words(own, heads, roles)}.", _structure(ranks, own), *_unusual(measures, own))
            if part
        )
        for own in folders
    ]


def _structure(ranks: Float[np.ndarray, " head"], heads: Int[np.ndarray, " head_of_folder"]) -> str:
    own = ranks[heads]
    if not np.isfinite(own).all() or len(heads) == len(ranks):
        return ""
    n, middle = len(ranks), float(np.median(own))
    if own.max() <= n / 3:
        word = "high"
    elif own.min() > 2 * n / 3:
        word = "low"
    elif middle <= n / 3:
        word = "mostly high"
    elif middle > 2 * n / 3:
        word = "mostly low"
    else:
        word = "mixed" if np.ptp(own) > n / 2 else "middling"
    rank = f"rank {own[0]:.0f}" if len(own) == 1 else f"ranks {own.min():.0f} to {own.max():.0f}"
    return f"Structure score {word} ({rank} of {n})."


@dataclass(frozen=True, eq=False)
class _Measures:
    """Measures of all heads, with their means and standard deviations."""

    titles: list[str]
    values: Float[np.ndarray, "head measure"]
    mean: Float[np.ndarray, " measure"]
    spread: Float[np.ndarray, " measure"]


def _measures(table: Any) -> _Measures:
    """The numeric columns that vary."""
    titles, values, means, spreads = [], [], [], []
    for name in table.columns:
        column = table[name]
        if (
            name in _OWN_WORDS
            or name.startswith(("coordinate_", "structure_", "haar_entropy"))
            or column.dtype.kind not in "fiu"
        ):
            continue
        numbers = column.to_numpy(dtype=float)
        finite = numbers[np.isfinite(numbers)]
        if len(finite) and finite.std() > 0:
            titles.append(_title(name))
            values.append(numbers)
            means.append(finite.mean())
            spreads.append(finite.std())
    shape = (len(table), len(values))
    return _Measures(titles, np.reshape(np.transpose(values), shape), np.array(means), np.array(spreads))


def _unusual(measures: _Measures, heads: Int[np.ndarray, " head_of_folder"]) -> list[str]:
    """The measures by which the folder differs most from all heads."""
    if len(heads) < 2 or len(heads) == len(measures.values):
        return []
    own = measures.values[heads]
    with np.errstate(invalid="ignore"):  # infinite values make NaN, which is neither far nor narrow
        mean = own.mean(axis=0)
        away = (mean - measures.mean) / measures.spread
        is_unusual = (np.abs(away) >= _FAR) & (own.std(axis=0) <= _NARROW * measures.spread)
    found = np.flatnonzero(is_unusual)
    most = found[np.argsort(-np.abs(away[found]), kind="stable")][:_N_MEASURES]
    return [
        f"{measures.titles[i]} {'high' if away[i] > 0 else 'low'} (mean {number_words(mean[i])}; all heads "
        f"{number_words(measures.mean[i])})."
        for i in most
    ]


def _title(column: str) -> str:
    words = _short(column.replace("_", " ").replace("shannon", "Shannon"))
    return words[:1].upper() + words[1:]


def _short(text: str) -> str:
    return text if len(text) <= 60 else text[:59] + "…"
