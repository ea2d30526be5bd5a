"""The effects of heads in words, as a section of a run's page."""

from __future__ import annotations

from typing import Any

import numpy as np

from headtree.measures.comparisons import rank_correlation
from headtree.measures.heads.effects import HeadEffects
from headtree.report.words.numbers import number_words
from headtree.section import Section, Table

_SHOWN = 10

#: Columns of heads.csv that people rank heads by, and what they are called.
_RANKINGS = {
    "confidence": "confidence",
    "shannon_entropy": "Shannon entropy",
    "structure": "structure score",
    "norm": "the norm of the head",
    "relevance": "relevance",
}


def effects_section(found: HeadEffects, table: Any) -> Section:
    """Which heads matter, how reliable that is, and what other rankings say about it.

    Parameters
    ----------
    found : HeadEffects
        The effects of the heads of a run.
    table : DataFrame
        The table of heads of the run.
    """
    rows = [
        [f"L{row.layer}H{row.head}", row.effect, row.error, row.raw]
        for row in found.table().head(_SHOWN).itertuples()
    ]
    columns = ["head", "effect", "standard error", "on ablated inputs alone"]
    return Section(
        "What happens without each head",
        [_measured(found), _reliable(found), _compared(found, table)],
        [Table("Heads whose absence changes the loss most", columns, rows)],
    )


def _measured(found: HeadEffects) -> str:
    clear = int(np.sum(np.abs(found.effect) > 2 * found.error)) if np.isfinite(found.error).all() else None
    many = "" if clear is None else f" {clear} of {len(found.heads)} effects are beyond two standard errors."
    if found.loss == 0:
        return f"Effect of a head: {found.objective}, if the head is ablated ({found.how}).{many}"
    return (
        f"Effect of a head: change of the {found.objective} per prediction if the head is ablated ({found.how}); "
        f"positive if the head helps. With all heads the loss is {number_words(found.loss)}.{many}"
    )


def _reliable(found: HeadEffects) -> str:
    if not np.isfinite(found.reliability):
        return f"Measured on {found.n_ablated} input: how reliable the effects are needs at least two."
    level = (
        "reliable"
        if found.reliability >= 0.7
        else "partly reliable"
        if found.reliability >= 0.4
        else "not reliable"
    )
    control = ""
    if found.n_inputs > found.n_ablated and np.isfinite(found.first_order).all():
        control = f" ({found.raw_reliability:.2f} without the first-order terms of {found.n_inputs} inputs)"
    return (
        f"The order of heads by effect is {level}: two halves of the inputs order them with a rank correlation of "
        f"{found.reliability:.2f}{control}."
    )


def _compared(found: HeadEffects, table: Any) -> str:
    known = {
        words: rank_correlation(found.effect, table[name].to_numpy(dtype=float))
        for name, words in _RANKINGS.items()
        if name in table
    }
    listed = [f"{words} {value:.2f}" for words, value in known.items() if np.isfinite(value)]
    if not listed:
        return "No other ranking of these heads can be compared with their effects."
    return f"Rank correlation of other columns with the effects: {', '.join(listed)}."
