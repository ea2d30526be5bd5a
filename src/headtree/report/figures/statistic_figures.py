"""Pictures for the claims of [OA] and for sensitivity: distributions, relations, intervals. Arrays in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from headtree.errors import InvalidTypeError, InvalidValueError
from headtree.report.figures.head_figures import Heads, checked_leaves, one_per_head
from headtree.report.figures.matrix_figures import draw_matrix, finish_bar
from headtree.report.figures.style import (
    BLACK,
    BLUE,
    COLUMN,
    CURVES,
    GREY,
    MARKERS,
    PAGE,
    SMALL,
    VERMILION,
    layer_bar,
    name_missing,
    new_figure,
    plain,
    signed_colors,
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
        Such as Hölder exponents "given", "organized", "random"; nan is left out and counted.
    label : str
        What the numbers are.
    reference : float, optional
        A value to hold against, drawn as a line.
    """
    if not isinstance(groups, Mapping) or not groups:
        raise InvalidTypeError("groups must map names to numbers, and hold at least one")
    rows = {str(name): _numbers(values, f"groups[{name!r}]") for name, values in groups.items()}
    figure = new_figure(COLUMN, 0.8 + 0.42 * len(rows))
    axes = figure.subplots()
    for place, (name, values) in enumerate(rows.items()):
        present = values[np.isfinite(values)]
        spread = 0.28 * _zigzag(len(present))
        axes.plot(
            np.sort(present), place + spread, linestyle="", marker="o", markersize=2, markeredgewidth=0,
            color=CURVES[place % 7], alpha=0.45,
        )  # fmt: skip
        if present.size:
            low, middle, high = np.quantile(present, (0.25, 0.5, 0.75))
            axes.plot((low, high), (place, place), color=BLACK, linewidth=2.6, solid_capstyle="butt")
            axes.plot(middle, place, marker="D", color="white", markeredgecolor=BLACK, markersize=4)
        rows[name] = present
    if reference is not None:
        axes.axvline(reference, color=GREY, linewidth=0.8, linestyle=(0, (3, 2)))
    names = [
        plain(name, 22) + (f" ({len(present)})" if len({len(row) for row in rows.values()}) > 1 else "")
        for name, present in rows.items()
    ]
    axes.set_yticks(range(len(rows)), names)
    axes.set(ylim=(len(rows) - 0.5, -0.5), xlabel=plain(label, 48), title=plain(title, 40))
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x")
    return figure


def _zigzag(n: int) -> Float[np.ndarray, " value"]:
    """Offsets from -1 to 1 that keep sorted neighbours apart, the same on every run."""
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
    """One number per head against another, such as entropy against total variation; colour is the layer.

    Parameters
    ----------
    x, y : numbers (head)
        Heads with a nan in either are left out.
    x_label, y_label : str
        What they are.
    heads : sequence of (layer, head), optional
        For the colours.
    note : str
        Such as "Spearman 0.71 [0.60, 0.79]", written above.
    diagonal : bool
        Whether to draw the line x = y, for two numbers of one kind: then both axes have the same limits.
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


@styled
def correlations(matrix: Any, names: Sequence[str], *, label: str = "Spearman's rank correlation") -> Figure:
    """A table of correlations between measures, signed, with the numbers written where they have room.

    Parameters
    ----------
    matrix : array (measure, measure)
        From -1 to 1; nan where it is not defined.
    names : sequence of str
        Of the measures.
    """
    table = np.asarray(matrix, dtype=np.float64)
    if table.ndim != 2 or table.shape != (len(names), len(names)) or np.nanmax(np.abs(table), initial=0) > 1 + 1e-9:
        raise InvalidValueError(f"matrix must be correlations of the {len(names)} names, got shape {table.shape}")
    n = len(names)
    side = float(np.clip(1.8 + 0.22 * n, 2.6, PAGE - 0.6))
    figure = new_figure(side + 0.6, side)
    axes = figure.subplots()
    image = draw_matrix(axes, table, cmap=signed_colors(), vmin=-1, vmax=1)
    shown = range(n) if n <= 28 else range(0, n, -(-n // 28))
    axes.set_yticks(list(shown), [plain(names[place], 22) for place in shown])
    axes.set_xticks(list(shown), [plain(names[place], 22) for place in shown], rotation=90)
    if n <= 12:
        for row, column in np.ndindex(n, n):
            if np.isfinite(table[row, column]):
                shade = "white" if abs(table[row, column]) > 0.6 else "black"
                words = f"{table[row, column]:.1f}".replace("-0.0", "0.0")
                axes.text(column, row, words, ha="center", va="center", color=shade, fontsize=SMALL)
    finish_bar(figure.colorbar(image, ax=axes, shrink=0.7), plain(label, 40))
    if np.isnan(table).any():
        name_missing(axes)
    return figure


@styled
def sensitivity(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """How much the result moves when one setting is changed at a time.

    Parameters
    ----------
    rows : sequence of mappings with
        ``setting``: what was changed ("initial"), ``value``: to what ("gaussian"), ``tree_distance``: of the trees
        of heads, 0 (the same) to 1; ``affinity_correlation``; ``rank_correlation`` of the heads by entropy; and
        optionally for each of the three ``…_low`` and ``…_high``, the ends of its interval. Nan where not known.

    Notes
    -----
    Rows stand in the order given, values of one setting in one colour. The dashed line is where nothing has moved.
    """
    given = list(rows) if not isinstance(rows, Mapping | str) else []
    if not given or not all(isinstance(row, Mapping) and {"setting", "value"} <= row.keys() for row in given):
        raise InvalidTypeError(
            "rows must be mappings with setting, value and the three measures; got none, or others"
        )
    panels = {
        "tree_distance": ("tree distance", 0.0),
        "affinity_correlation": ("correlation of\naffinities", 1.0),
        "rank_correlation": ("rank correlation\nof entropies", 1.0),
    }
    settings = list(dict.fromkeys(str(row["setting"]) for row in given))
    figure = new_figure(PAGE, 1.0 + 0.175 * len(given))
    grid = figure.subplots(1, 3, sharey=True)
    for axes, (key, (label, unmoved)) in zip(grid, panels.items(), strict=True):
        axes.axvline(unmoved, color=GREY, linewidth=0.8, linestyle=(0, (3, 2)))
        for place, row in enumerate(given):
            color = settings.index(str(row["setting"])) % 7
            _draw_interval(axes, place, row, key, CURVES[color], MARKERS[color])
        axes.set_xlabel(label)
        axes.grid(axis="x")
        axes.margins(x=0.08)
    names = [f"{plain(row['setting'], 18)} = {plain(row['value'], 14)}" for row in given]
    grid[0].set_yticks(range(len(given)), names)
    grid[0].set_ylim(len(given) - 0.5, -0.5)
    for axes in grid:
        axes.tick_params(axis="y", length=0)
        axes.locator_params(axis="x", nbins=4)
    return figure


def _draw_interval(axes: Any, place: int, row: Mapping[str, Any], key: str, color: str, marker: str) -> None:
    value = float(row.get(key, np.nan))
    low, high = (float(row.get(f"{key}_{end}", np.nan)) for end in ("low", "high"))
    if np.isfinite(low) and np.isfinite(high):
        axes.plot((low, high), (place, place), color=color, linewidth=1)
    axes.plot(value, place, marker=marker, color=color, markersize=4)


@styled
def estimates(rows: Sequence[Mapping[str, Any]], label: str, *, reference: float | None = None) -> Figure:
    """Numbers with their intervals, one under the other; ours and, where it is known, the published one.

    Parameters
    ----------
    rows : sequence of mappings with
        ``name`` and ``value``, optionally ``low`` and ``high`` (its interval) and ``published``.
    label : str
        What the numbers are.
    reference : float, optional
        The value that means "no effect", drawn as a line.
    """
    given = list(rows) if not isinstance(rows, Mapping | str) else []
    if not given or not all(isinstance(row, Mapping) and {"name", "value"} <= row.keys() for row in given):
        raise InvalidTypeError("rows must be mappings with name and value; got none, or others")
    figure = new_figure(COLUMN, 0.9 + 0.2 * len(given))
    axes = figure.subplots()
    if reference is not None:
        axes.axvline(reference, color=GREY, linewidth=0.8, linestyle=(0, (3, 2)))
    for place, row in enumerate(given):
        low, high = (float(row.get(end, np.nan)) for end in ("low", "high"))
        if np.isfinite(low) and np.isfinite(high):
            axes.plot((low, high), (place, place), color=BLUE, linewidth=1)
        axes.plot(float(row["value"]), place, marker="o", color=BLUE, label="measured" if place == 0 else None)
    published = [
        (float(row["published"]), place) for place, row in enumerate(given) if row.get("published") is not None
    ]
    if published:
        axes.plot(*zip(*published, strict=True), linestyle="", marker="x", color=VERMILION, label="published")
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    axes.set_yticks(range(len(given)), [plain(row["name"], 26) for row in given])
    axes.set(ylim=(len(given) - 0.5, -0.5), xlabel=plain(label, 44))
    axes.tick_params(axis="y", length=0)
    axes.locator_params(axis="x", nbins=5)
    axes.grid(axis="x")
    return figure


def _numbers(values: Any, name: str) -> Float[np.ndarray, " value"]:
    try:
        row = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidTypeError(f"{name} must be numbers") from None
    if row.ndim != 1:
        raise InvalidValueError(f"{name} must be a row of numbers, got shape {row.shape}")
    return row
