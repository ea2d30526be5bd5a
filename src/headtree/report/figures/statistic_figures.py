"""Figures of numbers per head and of intervals: distributions, relations, sensitivity to settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from headtree.errors import InvalidTypeError, InvalidValueError
from headtree.measures.jackknife import Estimate
from headtree.measures.sensitivity import Change
from headtree.report.figures.head_figures import Heads, checked_leaves, one_per_head
from headtree.report.figures.style import (
    BLACK,
    BLUE,
    COLUMN,
    CURVES,
    GREY,
    MARKERS,
    PAGE,
    layer_bar,
    new_figure,
    plain,
    styled,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@styled
def distributions(
    groups: Mapping[str, Any], label: str, *, reference: float | None = None, title: str = ""
) -> Figure:
    """One number per head (or input) in several groups: every value as a dot, quartiles and median as a box.

    Parameters
    ----------
    groups : mapping from name to numbers
        Such as Hölder exponents "given", "organized", "random"; nan is left out and not counted.
    label : str
        What the numbers are.
    reference : float, optional
        A value to compare with, drawn as a line.
    title : str
        Title of the figure.

    Examples
    --------
    >>> figure = distributions({"original": [0.1, 0.2, 0.4], "organized": [0.3, 0.5, 0.6]}, "exponent")
    >>> [label.get_text() for label in figure.axes[0].get_yticklabels()]
    ['original', 'organized']
    """
    if not isinstance(groups, Mapping) or not groups:
        raise InvalidTypeError("groups must map names to numbers, and hold at least one")
    rows = {str(name): _numbers(values, f"groups[{name!r}]") for name, values in groups.items()}
    figure = new_figure(COLUMN, 0.8 + 0.42 * len(rows))
    axes = figure.subplots()
    for row, (name, values) in enumerate(rows.items()):
        present = values[np.isfinite(values)]
        spread = 0.28 * _zigzag(len(present))
        axes.plot(
            np.sort(present), row + spread, linestyle="", marker="o", markersize=2, markeredgewidth=0,
            color=CURVES[row % 7], alpha=0.45,
        )  # fmt: skip
        if present.size:
            low, middle, high = np.quantile(present, (0.25, 0.5, 0.75))
            axes.plot((low, high), (row, row), color=BLACK, linewidth=2.6, solid_capstyle="butt")
            axes.plot(middle, row, marker="D", color="white", markeredgecolor=BLACK, markersize=4)
        rows[name] = present
    if reference is not None:
        axes.axvline(reference, color=GREY, linewidth=0.8, linestyle=(0, (3, 2)))
    names = [
        plain(name, 22) + (f" ({len(present)})" if len({len(group) for group in rows.values()}) > 1 else "")
        for name, present in rows.items()
    ]
    axes.set_yticks(range(len(rows)), names)
    axes.set(ylim=(len(rows) - 0.5, -0.5), xlabel=plain(label, 48), title=plain(title, 40))
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x")
    return figure


def _zigzag(n: int) -> Float[np.ndarray, " value"]:
    """Offsets from -1 to 1 that separate sorted neighbours, the same on every run."""
    golden = (np.sqrt(5) - 1) / 2
    return np.asarray(2 * np.mod(np.arange(n) * golden, 1) - 1)


@styled
def relation(
    x: Any,
    y: Any,
    x_label: str,
    y_label: str,
    heads: Heads | None = None,
    *,
    note: str = "",
    diagonal: bool = False,
) -> Figure:
    """One number per head against another, such as Haar entropy against total variation; colour is the layer.

    Parameters
    ----------
    x, y : numbers (head)
        Heads with a nan in either are left out.
    x_label, y_label : str
        What they are.
    heads : sequence of (layer, head), optional
        The heads, whose layers give the colours.
    note : str
        Text above the figure, such as "Spearman 0.71 [0.60, 0.79]".
    diagonal : bool
        Whether to draw the line x = y, for two numbers of one kind; both axes then have the same limits.

    Examples
    --------
    >>> figure = relation([1.0, 2.0, 3.0], [1.5, 1.0, 4.0], "variation", "Haar entropy", note="Spearman 0.50")
    >>> figure.axes[0].get_title()
    'Spearman 0.50'
    """
    n = len(x) if hasattr(x, "__len__") else 0
    across, up = one_per_head(x, "x", n), one_per_head(y, "y", n)
    here = np.isfinite(across) & np.isfinite(up)
    leaves = None if heads is None else checked_leaves(heads, n)
    colors = BLUE if leaves is None else np.asarray(leaves.colors())[here]
    figure = new_figure(COLUMN, 2.9)
    axes = figure.subplots()
    size = float(np.clip(2400 / max(1, n), 4, 18))
    axes.scatter(across[here], up[here], c=colors, s=size, linewidths=0.25, edgecolors="white")
    if diagonal and here.any():
        low, high = (float(reduce(np.concatenate([across[here], up[here]]))) for reduce in (np.min, np.max))
        room = 0.05 * (high - low or 1.0)
        axes.plot((low - room, high + room), (low - room, high + room), color=GREY, linewidth=0.8, zorder=0)
        axes.set(xlim=(low - room, high + room), ylim=(low - room, high + room))
    axes.set(xlabel=plain(x_label, 40), ylabel=plain(y_label, 36), title=plain(note, 44))
    axes.locator_params(nbins=6)
    axes.grid()
    axes.set_axisbelow(True)
    if leaves is not None and leaves.layers is not None:
        layer_bar(figure, axes, leaves.layers)
    return figure


#: What is drawn of every change: field, name of the axis, and the value where nothing has changed.
_PANELS = (
    ("head_tree", "tree distance", 0.0),
    ("affinity", "correlation of\naffinities", 1.0),
    ("ranking", "rank correlation\nof Haar entropies", 1.0),
)


@styled
def sensitivity_intervals(changes: Sequence[Change]) -> Figure:
    """How much the result changes when one setting is changed at a time.

    Parameters
    ----------
    changes : sequence of Change
        ``sensitivity(...).changes``, with ``sensitivity(...).other_input`` for comparison. Numbers that are not
        finite are left out.

    Notes
    -----
    Rows are in the given order, values of one setting in one colour. At the dashed line nothing has changed.

    Examples
    --------
    >>> from headtree.measures.jackknife import Estimate
    >>> from headtree.measures.sensitivity import Change
    >>> moved = Estimate(0.8, (0.7, 0.9), (3,))
    >>> figure = sensitivity_intervals([Change("alpha", "0.5", moved, moved, moved, moved, moved)])
    >>> [label.get_text() for label in figure.axes[0].get_yticklabels()]
    ['alpha = 0.5']
    """
    if not isinstance(changes, Sequence) or not changes or not all(isinstance(item, Change) for item in changes):
        raise InvalidTypeError("changes must be a sequence of Change; pass sensitivity(...).changes")
    settings = list(dict.fromkeys(change.setting for change in changes))
    figure = new_figure(PAGE, 1.0 + 0.175 * len(changes))
    grid = figure.subplots(1, 3, sharey=True)
    for axes, (field, label, unmoved) in zip(grid, _PANELS, strict=True):
        axes.axvline(unmoved, color=GREY, linewidth=0.8, linestyle=(0, (3, 2)))
        for row, change in enumerate(changes):
            color = settings.index(change.setting) % 7
            _draw_interval(axes, row, getattr(change, field), CURVES[color], MARKERS[color])
        axes.set_xlabel(label)
        axes.grid(axis="x")
        axes.margins(x=0.08)
    names = [f"{plain(change.setting, 18)} = {plain(change.value, 14)}" for change in changes]
    grid[0].set_yticks(range(len(changes)), names)
    grid[0].set_ylim(len(changes) - 0.5, -0.5)
    for axes in grid:
        axes.tick_params(axis="y", length=0)
        axes.locator_params(axis="x", nbins=4)
    return figure


def _draw_interval(axes: Any, row: int, estimate: Estimate, color: str, marker: str) -> None:
    if np.isfinite(estimate.interval).all():
        axes.plot(estimate.interval, (row, row), color=color, linewidth=1)
    axes.plot(estimate.number, row, marker=marker, color=color, markersize=4)


def _numbers(values: Any, name: str) -> Float[np.ndarray, " value"]:
    try:
        row = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidTypeError(f"{name} must be numbers") from None
    if row.ndim != 1:
        raise InvalidValueError(f"{name} must be a row of numbers, got shape {row.shape}")
    return row
