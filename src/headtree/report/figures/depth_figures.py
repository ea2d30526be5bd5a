"""Figures of depth: residual curves and path lengths."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from headtree.depth.model_depth import ModelDepth
from headtree.depth.paths import PathLengths
from headtree.depth.residual import PUBLISHED_BERT, VARIANTS, RankResidual
from headtree.report.figures.matrix_figures import finish_bar
from headtree.report.figures.style import (
    BLACK,
    BLUE,
    DASHES,
    GREEN,
    GREY,
    MARKERS,
    PAGE,
    PALE,
    VERMILION,
    log_axis,
    new_figure,
    save,
    signed_colors,
    styled,
)
from headtree.report.words.numbers import number_words

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Colour, dashes and marker of each variant.
_LOOKS = dict(zip(VARIANTS, zip((BLUE, VERMILION, GREEN, BLACK), DASHES, MARKERS, strict=False), strict=True))

#: Published values are open marks of this size.
_OPEN = {"markersize": 5.5, "markerfacecolor": "none", "linestyle": ""}

#: Below this a residual is rounding error of single precision.
_FLOOR = 1e-7


def draw_depth(found: ModelDepth, folder: Path) -> None:
    """Draw the figures of the section on depth, ``depth_residual`` and ``depth_paths``, into a folder."""
    save(depth_residual(found.residual), folder, "depth_residual")
    if found.paths is not None:
        save(depth_paths(found.paths), folder, "depth_paths")


@styled
def depth_residual(curves: RankResidual) -> Figure:
    """Relative residual against depth, every variant, for the trained and the fresh network.

    Parameters
    ----------
    curves : RankResidual
        What ``ht.rank_residual`` returns.

    Examples
    --------
    >>> import numpy as np
    >>> from headtree import RankResidual
    >>> falling = np.broadcast_to(0.5 ** np.arange(5.0), (4, 2, 5))  # variants × inputs × depths
    >>> curves = RankResidual(falling, None, None, None, None, layers=("0", "1", "2", "3"))
    >>> figure = depth_residual(curves)
    >>> figure.axes[0].get_xlabel()
    'depth (layers)'
    """
    panels = [("trained", curves.trained)]
    if curves.fresh is not None:
        panels.append(("freshly initialised", curves.fresh))
    lowest = min(float(np.nanmin(values, initial=1.0)) for _, values in panels)
    floor = max(_FLOOR, min(10.0 ** np.floor(np.log10(max(lowest, _FLOOR))), 0.1))
    figure = new_figure(PAGE / 2 * len(panels), 3.2)
    all_axes = np.atleast_1d(figure.subplots(1, len(panels), sharey=True))
    for axes, (title, values) in zip(all_axes, panels, strict=True):
        _draw_curves(axes, values, floor)
        axes.set(title=title, xlabel="depth (layers)", ylim=(floor, 2))
        log_axis(axes.yaxis, 9)
        axes.locator_params(axis="x", integer=True)
        axes.grid()
    _draw_published(all_axes[0], curves.trained.shape[-1] - 1)
    _draw_bound(all_axes[0], curves)
    all_axes[0].set_ylabel("relative residual ‖res(X)‖ / ‖X‖")
    figure.legend(*all_axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(panels) + 1)
    return figure


def _draw_curves(axes: Any, values: Float[np.ndarray, "variant input depth"], floor: float) -> None:
    """Mean over inputs of every variant, and the range over inputs as a band."""
    depth = np.arange(values.shape[-1])
    for name, curve in zip(VARIANTS, values, strict=True):
        color, dashes, marker = _LOOKS[name]
        mean = np.maximum(curve.mean(axis=0), floor)
        low, high = (np.maximum(np.quantile(curve, q, axis=0), floor) for q in (0, 1))
        axes.fill_between(depth, low, high, color=color, alpha=0.15, linewidth=0)
        axes.plot(depth, mean, color=color, linestyle=dashes, marker=marker, label=name)


def _draw_published(axes: Any, n_layers: int) -> None:
    """BERT's values in [RC] as open marks, as deep as this network goes; values printed as 0 are left out."""
    for name, values in PUBLISHED_BERT.items():
        points = [(depth, value) for depth, value in values.items() if depth <= n_layers and value > 0]
        color, _, marker = _LOOKS[name]
        axes.plot(*np.array(points).T, color=color, marker=marker, **_OPEN)
    axes.plot([], [], color=GREY, marker="o", label="open: BERT in [RC]", **_OPEN)


def _draw_bound(axes: Any, curves: RankResidual) -> None:
    """The bounds of [RC], where they are below the top of the figure."""
    pairs = (("bound", curves.log_bound, ":"), ("bound with MLPs", curves.log_bound_with_mlps, "--"))
    for name, values, dashes in pairs:
        if values is None:
            continue
        mean = values.mean(axis=0)
        with np.errstate(over="ignore"):
            shown = np.where(mean < np.log(2), np.exp(np.minimum(mean, 1.0)), np.nan)
        is_off = bool(np.isnan(shown[1:]).all())
        label = f"{name} of [RC]" + (": above the figure" if is_off else "")
        axes.plot(np.arange(len(mean)), shown, color=GREY, linestyle=dashes, label=label)


@styled
def depth_paths(paths: PathLengths) -> Figure:
    """Share of each path length in the output, size and residual of its sum, and heads of the short paths.

    Parameters
    ----------
    paths : PathLengths
        What ``ht.path_lengths`` returns.

    Examples
    --------
    >>> import numpy as np
    >>> from headtree import PathLengths
    >>> half = np.full((1, 3), 0.5)  # inputs × lengths
    >>> paths = PathLengths(
    ...     n_paths=(1, 4, 4), share=half, bias_share=np.zeros(1), size=half, residual=half,
    ...     head_share=np.full((1, 2, 2), 0.1), difference=np.zeros(1), layers=("0", "1"),
    ... )
    >>> figure = depth_paths(paths)
    >>> [axes.get_title() for axes in figure.axes[:2]]
    ['share of the output, %', 'sum of all paths of a length']
    """
    figure = new_figure(PAGE, 2.6)
    shares, sums, heads = figure.subplots(1, 3, width_ratios=(1, 1, 1.2))
    _draw_shares(shares, paths)
    length = np.arange(len(paths.n_paths))
    for values, color, marker, label in (
        (paths.size, VERMILION, "s", "relative norm"),
        (paths.residual, BLUE, "o", "relative residual"),
    ):
        mean, spread = values.mean(axis=0), values.std(axis=0)
        sums.errorbar(length, mean, spread, color=color, marker=marker, label=label)
    sums.set(title="sum of all paths of a length", xlabel="path length", yscale="log")
    low, high = sums.get_ylim()
    sums.set_ylim(low, high * (high / low) ** 0.35)  # room for the legend
    log_axis(sums.yaxis, 9)
    sums.legend(loc="upper right")
    sums.locator_params(axis="x", integer=True)
    sums.grid()
    _draw_heads(figure, heads, 100 * paths.head_share.mean(axis=0))
    return figure


def _draw_shares(axes: Any, paths: PathLengths) -> None:
    """A bar for every length and one for the biases, with standard deviations over inputs."""
    length = np.arange(len(paths.n_paths))
    axes.bar(
        [*length, len(length)],
        100 * np.append(paths.share.mean(axis=0), paths.bias_share.mean()),
        yerr=100 * np.append(paths.share.std(axis=0), paths.bias_share.std()),
        color=[BLUE] * len(length) + [PALE],
        edgecolor=BLACK,
        linewidth=0.5,
        error_kw={"linewidth": 0.8},
    )
    shown = [at for at in length[:: -(-len(length) // 6)] if at < len(length) - 1]  # room for "biases"
    axes.set_xticks([*shown, len(length)], [*map(str, shown), "biases"])
    axes.get_xticklabels()[-1].set_rotation(90)
    axes.axhline(0, color=BLACK, linewidth=0.6)
    axes.yaxis.set_major_formatter(number_words)
    axes.set(title="share of the output, %", xlabel="path length")
    axes.grid(axis="y")
    axes.set_axisbelow(True)


def _draw_heads(figure: Figure, axes: Any, share: Float[np.ndarray, "layer head"]) -> None:
    most = float(np.nanmax(np.abs(share))) or 1.0
    image = axes.imshow(share, cmap=signed_colors(), vmin=-most, vmax=most, aspect="auto", interpolation="none")
    axes.set(title="paths of length 1, by head", xlabel="head", ylabel="layer")
    axes.locator_params(integer=True)
    finish_bar(figure.colorbar(image, ax=axes, format=number_words), "share of the output, %")
