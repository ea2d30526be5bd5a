"""The figures of depth: residual curves, path lengths, tasks, the circle."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from headtree._extras import require
from headtree.depth.paths import PathLengths
from headtree.depth.residual import PUBLISHED_BERT, VARIANTS, RankResidual
from headtree.study.collapse.circle import CircleRuns
from headtree.study.collapse.path_tasks import TaskPaths

#: Okabe and Ito's colours, told apart with every common kind of colour blindness; each with its dashes and marker.
_LOOKS: dict[str, tuple[str, Any, str]] = {
    "as is": ("#0072B2", "-", "o"),
    "without skips": ("#D55E00", (0, (5, 1.5)), "s"),
    "without MLPs": ("#009E73", (0, (1.5, 1)), "^"),
    "attention alone": ("#000000", (0, (5, 1, 1, 1)), "D"),
}
_STYLE: dict[str, Any] = {
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.linewidth": 0.6,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 8,
    "grid.color": "#d4d4d4",
    "grid.linewidth": 0.5,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "lines.linewidth": 1.2,
    "lines.markersize": 3.5,
    "svg.fonttype": "none",
    "svg.hashsalt": "headtree",
    "text.parse_math": False,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
}

#: Below this a residual is rounding error of single precision.
_FLOOR = 1e-7


@contextmanager
def _new_figure(width: float, height: float) -> Iterator[Any]:
    require("report", "drawing figures", "matplotlib")
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(_STYLE):
        yield Figure(figsize=(width, height), layout="constrained")


def save_figure(figure: Any, folder: str | os.PathLike[str], name: str) -> Path:
    """Write ``NAME.svg`` and ``NAME.png`` into a folder; the path of the first."""
    import matplotlib as mpl

    with mpl.rc_context(_STYLE):
        figure.savefig(Path(folder, f"{name}.png"), dpi=200, metadata={"Software": "headtree"})
        figure.savefig(Path(folder, f"{name}.svg"), metadata={"Date": None, "Creator": "headtree"})
    return Path(folder, f"{name}.svg")


def residual_figure(curves: RankResidual) -> Any:
    """Relative residual against depth, all variants, of the trained and of the fresh network; log axis."""
    panels = [("trained", curves.trained)]
    if curves.fresh is not None:
        panels.append(("freshly initialised", curves.fresh))
    lowest = min(float(np.nanmin(values, initial=1.0)) for _, values in panels)
    floor = max(_FLOOR, min(10.0 ** np.floor(np.log10(max(lowest, _FLOOR))), 0.1))
    with _new_figure(3.5 * len(panels), 3.2) as figure:
        all_axes = np.atleast_1d(figure.subplots(1, len(panels), sharey=True))
        for axes, (title, values) in zip(all_axes, panels, strict=True):
            depth = np.arange(values.shape[-1])
            for name, curve in zip(VARIANTS, values, strict=True):
                color, dashes, marker = _LOOKS[name]
                mean = np.maximum(curve.mean(axis=0), floor)
                low, high = (np.maximum(np.quantile(curve, q, axis=0), floor) for q in (0, 1))
                axes.fill_between(depth, low, high, color=color, alpha=0.15, linewidth=0)
                axes.plot(depth, mean, color=color, linestyle=dashes, marker=marker, label=name)
            axes.set(title=title, xlabel="depth (layers)", ylim=(floor, 2))
            _log_axis(axes)
            axes.xaxis.get_major_locator().set_params(integer=True)
        _draw_published(all_axes[0], curves.trained.shape[-1] - 1)
        _draw_bound(all_axes[0], curves)
        all_axes[0].set_ylabel("relative residual ‖res(X)‖ / ‖X‖")
        figure.legend(*all_axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def _log_axis(axes: Any) -> None:
    """A logarithmic axis with plain text at the powers of ten."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    def words(value: float, _: Any) -> str:
        exponent = round(np.log10(value))
        return f"{10.0**exponent:g}" if exponent >= -3 else "10" + str(exponent).translate(_RAISED)

    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(FuncFormatter(words))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _draw_published(axes: Any, n_layers: int) -> None:
    """BERT's values in [RC] as open marks, as deep as this network goes; what is printed as 0 is left out."""
    for name, values in PUBLISHED_BERT.items():
        points = [(depth, value) for depth, value in values.items() if depth <= n_layers and value > 0]
        color, _, marker = _LOOKS[name]
        axes.plot(
            *np.array(points).T, color=color, marker=marker, markersize=5.5, markerfacecolor="none", linestyle=""
        )
    axes.plot([], [], color="#6b6b6b", marker="o", markersize=5.5, markerfacecolor="none", linestyle="",
              label="open: BERT in [RC]")  # fmt: skip


def _draw_bound(axes: Any, curves: RankResidual) -> None:
    """The bounds of [RC], as far as they are on the page."""
    pairs = (("bound", curves.log_bound, ":"), ("bound with MLPs", curves.log_bound_with_mlps, "--"))
    for name, values, dashes in pairs:
        if values is None:
            continue
        mean = values.mean(axis=0)
        with np.errstate(over="ignore"):
            shown = np.where(mean < np.log(2), np.exp(np.minimum(mean, 1.0)), np.nan)
        is_off = bool(np.isnan(shown[1:]).all())
        label = f"{name} of [RC]" + (": above the picture" if is_off else "")
        axes.plot(np.arange(len(mean)), shown, color="#6b6b6b", linestyle=dashes, label=label)


def path_figure(paths: PathLengths) -> Any:
    """Share of each length in the output, relative size and residual of its sum, and heads of the short paths."""
    length = np.arange(len(paths.n_paths))
    with _new_figure(7.0, 2.6) as figure:
        shares, residuals, heads = figure.subplots(1, 3, width_ratios=(1, 1, 1.2))
        shares.bar(
            [*length, len(length)],
            100 * np.append(paths.share.mean(axis=0), paths.bias_share.mean()),
            yerr=100 * np.append(paths.share.std(axis=0), paths.bias_share.std()),
            color=["#0072B2"] * len(length) + ["#d4d4d4"],
            edgecolor="#3a3a3a",
            linewidth=0.5,
            error_kw={"linewidth": 0.8},
        )
        shown = [at for at in length[:: -(-len(length) // 6)] if at < len(length) - 1]  # room for "biases"
        shares.set_xticks([*shown, len(length)], [*map(str, shown), "biases"])
        shares.get_xticklabels()[-1].set_rotation(90)
        shares.axhline(0, color="#3a3a3a", linewidth=0.6)
        shares.set(title="share of the output, %", xlabel="path length")
        for values, color, marker, label in (
            (paths.size, "#D55E00", "s", "norm / that of the output"),
            (paths.residual, "#0072B2", "o", "relative residual"),
        ):
            mean, spread = values.mean(axis=0), values.std(axis=0)
            residuals.errorbar(length, mean, spread, color=color, marker=marker, label=label)
        residuals.set(title="all paths of one length together", xlabel="path length")
        _log_axis(residuals)
        low, high = residuals.get_ylim()
        residuals.set_ylim(low, high * (high / low) ** 0.35)  # room for the legend
        residuals.legend(loc="upper right")
        residuals.xaxis.get_major_locator().set_params(integer=True)
        _draw_heads(figure, heads, 100 * paths.head_share.mean(axis=0))
    return figure


def _draw_heads(figure: Any, axes: Any, share: np.ndarray) -> None:
    most = float(np.nanmax(np.abs(share))) or 1.0
    picture = axes.imshow(share, cmap="RdBu_r", vmin=-most, vmax=most, aspect="auto", interpolation="nearest")
    axes.set(title="paths of length 1, share by head, %", xlabel="head", ylabel="layer")
    axes.grid(visible=False)
    for axis in (axes.xaxis, axes.yaxis):
        axis.get_major_locator().set_params(integer=True)
    figure.colorbar(picture, ax=axes)


def task_figure(tasks: Sequence[TaskPaths]) -> Any:
    """Accuracy of the paths of each length, with 95 % intervals over seeds, beside the network and chance."""
    with _new_figure(7.0, 2.7) as figure:
        all_axes = np.atleast_1d(figure.subplots(1, len(tasks), sharey=True))
        for axes, task in zip(all_axes, tasks, strict=True):
            mean, half = task.interval()
            length = np.arange(len(mean))
            axes.axhline(100 * task.network.mean(), color="#009E73", label="whole network")
            axes.axhline(100 * task.chance, color="#6b6b6b", linestyle=":", label="chance")
            axes.errorbar(length, 100 * mean, 100 * half, color="#0072B2", marker="o", label="paths of this length")
            axes.set(title=f"{task.task} ({len(task.accuracy)} seeds)", xlabel="path length", ylim=(0, 105))
            axes.set_xticks(length)
        all_axes[0].set_ylabel("labels right, %")
        figure.legend(*all_axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def circle_figure(circle: CircleRuns) -> Any:
    """Where two points run when one layer is applied again and again, by variant; the first seed."""
    with _new_figure(7.0, 2.2) as figure:
        all_axes = figure.subplots(1, len(circle.runs), sharex=True, sharey=True)
        for axes, (name, runs) in zip(all_axes, circle.runs.items(), strict=True):
            for point, (color, marker) in enumerate((("#0072B2", "o"), ("#D55E00", "s"))):
                truth, run = circle.truth[:, point], runs[0, :, point]
                axes.plot(*truth.T, color="#b0b0b0", linewidth=3, zorder=1)
                axes.plot(*run.T, color=color, linewidth=1.2, zorder=2)
                axes.plot(*run[-1], color=color, marker=marker, zorder=3)
            ends = [f"{n} {end}" for end, n in circle.ends(name).items() if n]
            axes.set_title(f"{name}\n{', '.join(ends)}", fontsize=6.5)
            axes.set_aspect("equal")
            axes.set(xlim=(-0.45, 0.45), ylim=(-0.45, 0.45))
    return figure
