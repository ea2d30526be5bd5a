"""Pictures of depth: rank collapse, paths by length, tasks, the circle. Arrays and dictionaries in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from headtree.errors import InvalidTypeError, InvalidValueError
from headtree.report.style import (
    BLACK,
    BLUE,
    COLUMN,
    CURVES,
    DASHES,
    GREY,
    MARKERS,
    PAGE,
    PALE,
    SMALL,
    VERMILION,
    log_axis,
    new_figure,
    number_words,
    plain,
    styled,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@styled
def residual_curves(
    curves: Mapping[str, Any],
    *,
    bound: Any = None,
    published: Mapping[str, tuple[Sequence[float], Sequence[float]]] | None = None,
    fresh: Mapping[str, Any] | None = None,
    title: str = "",
) -> Figure:
    """Relative residual after every layer on a logarithmic axis, a curve for each variant of the model.

    Parameters
    ----------
    curves : mapping from name to array (layer + 1) or (input, layer + 1)
        Such as "as it is", "without skips", "without MLPs", "attention alone"; place 0 is the embedding. Of several
        inputs the mean is drawn, and their range as a band. Nan where a value is not known.
    bound : array (layer + 1), optional
        The theoretical bound, drawn as far as it is inside the picture.
    published : mapping from name to (layers, values), optional
        Curves to hold against, drawn as open marks.
    fresh : mapping like `curves`, optional
        The same variants of a freshly initialised model, in a second panel on the same axes.
    title : str
        Of the model.

    Notes
    -----
    What is 0, or below 10⁻¹² of the largest value, stands on the lower edge as a triangle that points down.
    """
    panels = {"trained" if fresh is not None else "": _checked_curves(curves, "curves")}
    if fresh is not None:
        panels["freshly initialised"] = _checked_curves(fresh, "fresh")
    everything = np.concatenate([table.ravel() for rows in panels.values() for table in rows.values()])
    most = float(np.nanmax(everything)) if np.isfinite(everything).any() else 1.0
    positive = everything[everything > max(1e-12 * most, 0)]
    floor = 0.5 * float(positive.min()) if positive.size else 1e-12
    figure = new_figure(PAGE if fresh is not None else COLUMN * 1.3, 2.9)
    grid = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (words, rows) in zip(grid, panels.items(), strict=True):
        for place, (name, table) in enumerate(rows.items()):
            _draw_curve(axes, plain(name, 30), table, place, floor)
        axes.set(xlabel="layer", title=words, ylim=(0.8 * floor, 2 * max(most, floor)))
        log_axis(axes.yaxis)
        axes.grid(axis="y")
        axes.locator_params(axis="x", integer=True)
    if bound is not None:
        values = _one_row(bound, "bound")
        inside = np.where(np.isfinite(values) & (values > 0), np.minimum(values, 1e300), np.nan)
        grid[0].plot(inside, color=BLACK, linestyle=DASHES[2], linewidth=1, label=_bound_words(inside, 2 * most))
    for place, (name, (layers, held)) in enumerate((published or {}).items()):
        grid[0].plot(
            layers, np.maximum(held, floor), linestyle="", marker=MARKERS[place % 7], markerfacecolor="none",
            color=GREY, markersize=4, label=f"{plain(name, 30)}, published",
        )  # fmt: skip
    grid[0].set_ylabel("relative residual")
    if title:
        figure.suptitle(plain(title, 60), fontsize=SMALL + 1)
    handles, labels = grid[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2 if fresh is None else 3)
    return figure


def _bound_words(values: Float[np.ndarray, " layer"], top: float) -> str:
    if not np.isfinite(values).any() or np.nanmin(values) > top:
        smallest = number_words(float(np.nanmin(values))) if np.isfinite(values).any() else "not finite"
        return f"bound (above the picture: {smallest} or more)"
    return "bound for attention alone"


def _draw_curve(axes: Any, name: str, table: Float[np.ndarray, "input layer"], place: int, floor: float) -> None:
    from matplotlib.ticker import MaxNLocator

    with np.errstate(all="ignore"):
        shown = np.ma.masked_invalid(table)
        mean, low, high = shown.mean(axis=0), shown.min(axis=0), shown.max(axis=0)
    layers = np.arange(table.shape[1])
    look = {"color": CURVES[place % 7], "linestyle": DASHES[place % 7]}
    if len(table) > 1:
        axes.fill_between(
            layers,
            np.ma.maximum(low, floor),
            np.ma.maximum(high, floor),
            color=look["color"],
            alpha=0.2,
            linewidth=0,
        )
    axes.plot(layers, np.ma.maximum(mean, floor), marker=MARKERS[place % 7], label=name, **look)
    gone = np.flatnonzero(np.ma.filled(mean < floor, False))
    axes.plot(gone, np.full(len(gone), floor), linestyle="", marker="v", color=look["color"], markersize=5)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


@styled
def path_length_bars(
    shares: Any, counts: Any, residuals: Any = None, *, spread: Any = None, title: str = ""
) -> Figure:
    """What all paths of each length contribute, how many there are, and how near to rank one their sum is.

    Parameters
    ----------
    shares : array (length + 1)
        Norm of the sum of all paths of each length over the norm of the attention-only output, from length 0.
    counts : array (length + 1)
        Number of paths of each length.
    residuals : array (length + 1), optional
        Relative residual of each length's sum.
    spread : array (2, length + 1), optional
        Lower and upper end of each share over inputs.
    """
    values = _one_row(shares, "shares")
    numbers = _one_row(counts, "counts", len(values))
    lengths = np.arange(len(values))
    rows = [("share of the\noutput's norm, %", 100 * values), ("number\nof paths", numbers)]
    if residuals is not None:
        rows.append(("relative\nresidual", _one_row(residuals, "residuals", len(values))))
    figure = new_figure(COLUMN, 1.1 + 0.95 * len(rows))
    panels = figure.subplots(len(rows), 1, sharex=True, squeeze=False)[:, 0]
    panels[0].bar(lengths, rows[0][1], color=BLUE, width=0.75)
    if spread is not None:
        low, high = (
            100 * _one_row(spread[0], "spread", len(values)),
            100 * _one_row(spread[1], "spread", len(values)),
        )
        ends = np.clip([rows[0][1] - low, high - rows[0][1]], 0, None)
        panels[0].errorbar(lengths, rows[0][1], ends, fmt="none", ecolor=BLACK, elinewidth=0.8, capsize=2)
    panels[1].plot(lengths, np.where(numbers > 0, numbers, np.nan), color=GREY, marker="s")
    panels[1].set_ylim(0.5, 4 * max(1.0, float(np.nanmax(numbers))))
    log_axis(panels[1].yaxis, 4)
    if residuals is not None:
        panels[2].plot(lengths, rows[2][1], color=VERMILION, marker="o")
        panels[2].set_ylim(bottom=0)
    for axes, (label, _) in zip(panels, rows, strict=True):
        axes.set_ylabel(label)
        axes.grid(axis="y")
        axes.set_axisbelow(True)
    panels[-1].set_xlabel("length of path, attention layers passed")
    panels[-1].locator_params(axis="x", integer=True)
    panels[0].set_title(plain(title, 40))
    return figure


@styled
def task_accuracies(tasks: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Accuracy of the paths of each length on each task, with intervals over seeds.

    Parameters
    ----------
    tasks : mapping from task to a mapping with
        ``length``: path lengths; ``mean``, ``low``, ``high``: accuracy from 0 to 1 and its interval, one for each
        length; optionally ``full``: accuracy of the whole network, and ``chance``: of guessing.
    """
    if not isinstance(tasks, Mapping) or not tasks:
        raise InvalidTypeError("tasks must map each task's name to its columns, and hold at least one")
    figure = new_figure(PAGE if len(tasks) > 1 else COLUMN, 2.5)
    panels = figure.subplots(1, len(tasks), sharey=True, squeeze=False)[0]
    for axes, (name, columns) in zip(panels, tasks.items(), strict=True):
        missing = [key for key in ("length", "mean", "low", "high") if key not in columns]
        if missing:
            raise InvalidValueError(f"tasks[{name!r}] must have the columns length, mean, low, high; no {missing}")
        lengths = _one_row(columns["length"], "length")
        mean, low, high = (100 * _one_row(columns[key], key, len(lengths)) for key in ("mean", "low", "high"))
        axes.fill_between(lengths, low, high, color=BLUE, alpha=0.25, linewidth=0)
        axes.plot(lengths, mean, color=BLUE, marker="o", label="paths of one length")
        if columns.get("full") is not None:
            axes.axhline(100 * float(columns["full"]), color=BLACK, linewidth=1, label="whole network")
        if columns.get("chance") is not None:
            axes.axhline(100 * float(columns["chance"]), color=GREY, linestyle=DASHES[2], label="chance")
        axes.set(title=plain(name, 24), xlabel="length of path", ylim=(0, 103))
        axes.locator_params(axis="x", integer=True)
        axes.grid(axis="y")
    panels[0].set_ylabel("accuracy, %")
    handles = {
        label: handle for axes in panels for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=3)
    return figure


@styled
def circle(
    points: Mapping[str, Any], target: Any = None, *, title: str = "one layer, applied again and again"
) -> Figure:
    """The circle example: where the points of two arcs go when one layer is applied again and again.

    Parameters
    ----------
    points : mapping from variant to array (step, point, 2)
        Such as "attention alone", "with skip", "with MLP", "with both": positions after each application, the first
        row being the input.
    target : array (point, 2), optional
        Where the points should go.
    """
    if not isinstance(points, Mapping) or not points:
        raise InvalidTypeError("points must map each variant's name to its positions, and hold at least one")
    from matplotlib import colormaps

    tables = {name: _checked_orbits(table, name) for name, table in points.items()}
    n_columns = min(4, len(tables))
    n_rows = -(-len(tables) // n_columns)
    figure = new_figure(PAGE if n_columns > 1 else COLUMN, 0.55 + 1.85 * n_rows)
    grid = figure.subplots(n_rows, n_columns, sharex=True, sharey=True, squeeze=False)
    n_steps = max(len(table) for table in tables.values())
    colors = colormaps["viridis"].resampled(256)
    wanted = None if target is None else np.asarray(target, dtype=np.float64)
    ends = [table[np.isfinite(table).all(axis=(1, 2))] for table in tables.values()]
    reach = max(1.1 * float(np.abs(table[0]).max()) for table in ends if len(table))
    for axes, (name, table) in zip(grid.flat, tables.items(), strict=False):
        for step, row in enumerate(table):
            shade = colors(0.92 * step / max(1, n_steps - 1))
            axes.plot(*row.T, linestyle="", marker="o", markersize=2.2, color=shade, markeredgewidth=0)
        if wanted is not None:
            axes.plot(*wanted.T, linestyle="", marker="x", markersize=3, color=VERMILION, markeredgewidth=0.7)
        axes.set_title(plain(name, 24))
        axes.set(xlim=(-reach, reach), ylim=(-reach, reach))
        axes.set_box_aspect(1)
        axes.axhline(0, color=PALE, linewidth=0.4, zorder=0)
        axes.axvline(0, color=PALE, linewidth=0.4, zorder=0)
    for axes in grid.flat[max(0, len(tables) - n_columns) : len(tables)]:
        axes.set_xlabel("coordinate 1")
        axes.tick_params(labelbottom=True)
    for axes in grid[:, 0]:
        axes.set_ylabel("coordinate 2")
    for axes in grid.flat[len(tables) :]:
        axes.remove()
    _step_bar(figure, figure.axes, n_steps)
    figure.suptitle(plain(title, 60) + ("" if target is None else " (crosses: target)"), fontsize=SMALL + 1)
    return figure


def _step_bar(figure: Figure, panels: Any, n_steps: int) -> None:
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap, Normalize

    colors = ListedColormap(colormaps["viridis"](np.linspace(0, 0.92, 256)))
    bar = figure.colorbar(
        ScalarMappable(Normalize(0, max(1, n_steps - 1)), colors), ax=panels, pad=0.01, shrink=0.8
    )
    bar.set_label("times applied")
    bar.locator = _whole()
    bar.update_ticks()
    bar.outline.set_linewidth(0.5)


def _whole() -> Any:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(nbins=5, integer=True)


# -- checks ----------------------------------------------------------------------------------------------


def _checked_curves(curves: Any, name: str) -> dict[str, Float[np.ndarray, "input layer"]]:
    if not isinstance(curves, Mapping) or not curves:
        raise InvalidTypeError(f"{name} must map each variant's name to its residuals, and hold at least one")
    tables = {}
    for variant, values in curves.items():
        try:
            table = np.atleast_2d(np.asarray(values, dtype=np.float64))
        except (TypeError, ValueError):
            raise InvalidTypeError(f"{name}[{variant!r}] must be numbers of shape (input, layer)") from None
        if table.ndim != 2 or 0 in table.shape or (table < 0).any():
            raise InvalidValueError(
                f"{name}[{variant!r}] must be residuals of shape (input, layer), none negative, got shape "
                f"{table.shape}"
            )
        tables[str(variant)] = np.where(np.isfinite(table), table, np.nan)
    return tables


def _checked_orbits(table: Any, name: str) -> Float[np.ndarray, "step point 2"]:
    try:
        values = np.asarray(table, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidTypeError(f"points[{name!r}] must be numbers of shape (step, point, 2)") from None
    if values.ndim != 3 or values.shape[2] != 2 or 0 in values.shape:
        raise InvalidValueError(f"points[{name!r}] must have shape (step, point, 2), got {values.shape}")
    return values


def _one_row(values: Any, name: str, n: int | None = None) -> Float[np.ndarray, " place"]:
    try:
        row = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidTypeError(f"{name} must be a row of numbers") from None
    if row.ndim != 1 or len(row) == 0 or (n is not None and len(row) != n):
        wanted = "a row of numbers" if n is None else f"{n} numbers"
        raise InvalidValueError(f"{name} must be {wanted}, got shape {row.shape}")
    return row
