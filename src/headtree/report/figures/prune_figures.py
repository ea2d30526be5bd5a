"""Figures of pruning: loss or accuracy against the share of heads removed."""

from __future__ import annotations

from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from headtree.prune.curve import PruneCurve
from headtree.report.figures.style import CURVES, DASHES, GREY, MARKERS, new_figure, save, styled
from headtree.report.words.prune_section import CALLED

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Criteria that all have a band of standard errors, and are named among the curves; more would hide each other.
_MOST_BANDS = 4

#: The axis ends at so many times the increase of the best criterion at half of the heads, at least.
_HEADROOM = 6

#: Letters that fit on a line beside the vertical axis.
_LETTERS = 48


def draw_prune(found: PruneCurve, folder: Path) -> tuple[str, ...]:
    """Draw the curves into a folder; returns the names of the SVG files."""
    names = []
    for name, is_accuracy in (("prune_loss", False), ("prune_accuracy", True)):
        if is_accuracy and not found.correct:
            continue
        save(prune_curves(found, accuracy=is_accuracy), folder, name)
        names.append(f"{folder.name}/{name}.svg")
    return tuple(names)


@styled
def prune_curves(found: PruneCurve, *, accuracy: bool = False) -> Figure:
    """Increase of loss, or accuracy, against the share of heads removed; the best at half of the heads comes first.

    Bands are two standard errors; of many criteria only the best and a random order have one.

    Parameters
    ----------
    found : PruneCurve
        What ``ht.prune_curve`` returns.
    accuracy : bool
        Whether to draw the share of inputs whose class is right.
    """
    is_crowded = len(found.losses) > _MOST_BANDS
    figure = new_figure(7.6 if is_crowded else 6.4, 3.8)
    axes = figure.subplots()
    shares = 100 * found.counts / found.n_heads
    table = found.table()
    column, error = ("accuracy", "accuracy_error") if accuracy else ("increase", "increase_error")
    half = found.step_at(0.5)
    names = sorted(found.losses, key=lambda name: float(found.loss(name)[half]))
    banded = (names[0], "random") if is_crowded else names
    for name in names:
        rows = table[table["criterion"] == name]
        values, errors = rows[column].to_numpy(dtype=float), np.nan_to_num(rows[error].to_numpy(dtype=float))
        look = _look(name)
        if name in banded:
            low, high = values - 2 * errors, values + 2 * errors
            axes.fill_between(shares, low, high, color=look["color"], alpha=0.15, linewidth=0)
        axes.plot(shares, values, **look, markersize=3.5, linewidth=1.3, label=CALLED[name])
    axes.set_xlabel("heads removed (%)")
    axes.set_ylabel("accuracy" if accuracy else _loss_name(found))
    axes.set_xlim(0, 100)
    if not accuracy:
        low, high = _limits(found)
        axes.set_ylim(low, high)
    if is_crowded:
        figure.legend(frameon=False, fontsize=7, loc="outside right upper")
    else:
        axes.legend(frameon=False, fontsize=7, loc="lower left" if accuracy else "upper left")
    return figure


def _look(name: str) -> dict[str, Any]:
    """Colour, dashes and marker of a criterion: the same in every figure, and shared by no two."""
    i = list(CALLED).index(name)
    turn = i + i // len(CURVES)  # dashes and markers come again one place later, colours five
    color = GREY if name == "random" else CURVES[(i + 5 * (i // len(CURVES))) % len(CURVES)]
    return {"color": color, "linestyle": DASHES[turn % len(DASHES)], "marker": MARKERS[turn % len(MARKERS)]}


def _loss_name(found: PruneCurve) -> str:
    """The name of the vertical axis; a change of the output is no increase of anything."""
    starts_at_zero = not any(losses[:, 0].any() for losses in found.losses.values())
    name = found.objective if starts_at_zero else f"increase of the {found.objective}"
    lines = -(-len(name) // _LETTERS)
    return name if lines == 1 else fill(name, len(name) // lines + 8)


def _limits(found: PruneCurve) -> tuple[float, float]:
    """Limits that show where criteria differ, rather than the loss of a network without any heads."""
    half = found.step_at(0.5)
    rises = {name: found.increase(name)[0] for name in found.losses}
    at_half = [float(rise[half]) for rise in rises.values()]
    highest = max(float(rise.max()) for rise in rises.values())
    top = min(highest, max(_HEADROOM * min(at_half), 1.5 * max(at_half)))
    margin = 0.04 * top
    return min(0.0, *(float(rise.min()) for rise in rises.values())) - margin, top + margin
