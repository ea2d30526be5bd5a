"""What the heads of a folder have in common, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int

#: Columns that say where a head is, or that are said in another way.
_OWN_WORDS = ("layer", "head", "family", "entropy", "entropy_rank", "place_in_tree", "top_count", "bottom_count")

#: A measure marks a folder when its heads are this many standard deviations of all heads from the mean of all,
#: and spread at most this share of what all heads spread.
_FAR, _NARROW = 0.8, 0.6

#: Share of a folder's heads that must have a word in common for it to be said.
_MOST = 0.5


def folder_words(table: Any, heads: Int[np.ndarray, " head_of_folder"]) -> str:
    """One or two sentences on the heads of a folder.

    Parameters
    ----------
    table : DataFrame
        A row per head of the network, with at least ``layer``; ``entropy_rank``, numeric measures and columns of
        words (roles) are used if they are there.
    heads : integers
        Rows of the folder.
    """
    parts = [
        _layers(table["layer"].to_numpy()[heads]),
        _entropy(table, heads),
        *_roles(table, heads),
        *_measures(table, heads),
    ]
    return " ".join(part for part in parts if part)


def _layers(layers: Int[np.ndarray, " head_of_folder"]) -> str:
    counts = Counter(layers.tolist())
    n = len(layers)
    if len(counts) == 1:
        return f"{_heads(n)} of layer {layers[0]}."
    common, most = counts.most_common(1)[0]
    emphasis = f", {most} of them in layer {common}" if most > n / 2 else ""
    return f"{_heads(n)} of layers {_ranges(sorted(counts))}{emphasis}."


def _heads(n: int) -> str:
    return "1 head" if n == 1 else f"{n} heads"


def _ranges(numbers: Sequence[int]) -> str:
    """1, 2, 3, 7 as "1–3, 7"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs)


def _entropy(table: Any, heads: Int[np.ndarray, " head_of_folder"]) -> str:
    if "entropy_rank" not in table:
        return ""
    ranks = table["entropy_rank"].to_numpy(dtype=float)
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
    place = f"rank {own[0]:.0f}" if len(own) == 1 else f"ranks {own.min():.0f} to {own.max():.0f}"
    return f"Entropy {word} ({place} of {n})."


def _roles(table: Any, heads: Int[np.ndarray, " head_of_folder"]) -> list[str]:
    said = []
    for column in table.columns:
        if column == "name" or table[column].dtype.kind in "fiub":
            continue
        words = [str(word) for word in table[column].to_numpy()[heads]]
        common, most = Counter(words).most_common(1)[0]
        if common and common.lower() not in ("nan", "none") and most >= _MOST * len(words):
            said.append(f"{_title(column)}: {_short(common)} ({most} of {len(words)}).")
    return said


def _measures(table: Any, heads: Int[np.ndarray, " head_of_folder"], at_most: int = 2) -> list[str]:
    """The measures by which the folder differs most from all heads."""
    if len(heads) < 2 or len(heads) == len(table):
        return []
    found: list[tuple[float, str]] = []
    for column in table.columns:
        if column in _OWN_WORDS or column.startswith(("coordinate_", "entropy_")):
            continue
        if table[column].dtype.kind not in "fiu":
            continue
        values = table[column].to_numpy(dtype=float)
        away = _standing(values, heads)
        if away:
            words = f"{_title(column)} {'high' if away > 0 else 'low'}"
            own, overall = np.mean(values[heads]), np.nanmean(values)
            found.append((abs(away), f"{words} (mean {own:.3g}; all heads {overall:.3g})."))
    return [words for _, words in sorted(found, key=lambda pair: -pair[0])[:at_most]]


def _standing(values: Float[np.ndarray, " head"], heads: Int[np.ndarray, " head_of_folder"]) -> float:
    """How many standard deviations the folder is from the mean of all heads; 0 if it does not stand out."""
    own = values[heads]
    spread = np.nanstd(values) if np.isfinite(values).any() else 0.0
    if not np.isfinite(own).all() or not spread > 0:
        return 0.0
    away = float((own.mean() - np.nanmean(values)) / spread)
    return away if abs(away) >= _FAR and own.std() <= _NARROW * spread else 0.0


def _title(column: str) -> str:
    words = _short(column.replace("_", " "))
    return words[:1].upper() + words[1:]


def _short(text: str) -> str:
    return text if len(text) <= 60 else text[:59] + "…"
