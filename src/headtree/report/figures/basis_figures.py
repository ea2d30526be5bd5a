"""Figures of expansions on the trees: basis functions, coefficients, scores and compression."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Int

from headtree import _checks
from headtree.bases.haar import HaarBasis
from headtree.bases.tensor_haar import TensorHaarBasis
from headtree.errors import InvalidTypeError, InvalidValueError
from headtree.measures.orders import check_pair
from headtree.measures.sparsity import CompressionCurve, Sparsity
from headtree.questionnaire.organization import Organization
from headtree.report.figures.head_figures import Heads, Leaves, checked_leaves, checked_order
from headtree.report.figures.matrix_figures import draw_matrix, finish_bar
from headtree.report.figures.style import (
    BLACK,
    BLUE,
    CURVES,
    DASHES,
    GREY,
    MARKERS,
    ORANGE,
    PAGE,
    SMALL,
    VERMILION,
    head_colors,
    layer_bar,
    layer_scale,
    log_axis,
    new_figure,
    plain,
    rising_colors,
    styled,
    thin,
)
from headtree.report.words.numbers import number_words
from headtree.tensor.attention_tensor import AttentionTensor, head_indices
from headtree.trees.tree import PartitionTree

if TYPE_CHECKING:
    from matplotlib.figure import Figure


#: Colours of a comparison: of heads that are added, subtracted, and not compared.
_PLUS, _MINUS, _NOWHERE = "#c8473f", "#3a78b5", "#f0f0f0"

#: What stands for the sign of the constant function.
_OF_ALL = 2

#: Coefficients below this share of the largest are rounding errors of float32.
_ROUNDING = 1e-6


@styled
def haar_basis(tree: PartitionTree, heads: Heads, order: Any = None, *, n_functions: int = 16) -> Figure:
    """Haar basis of the heads: which heads each function compares with which.

    Parameters
    ----------
    tree : PartitionTree
        Tree of the heads.
    heads : sequence of (layer, head)
        One for each leaf.
    order : integers (head), optional
        A depth-first order of the tree; by default siblings are ordered by their smallest head.
    n_functions : int
        Functions to draw, at most: the constant one, and those whose smaller side has most heads.

    Notes
    -----
    A row is one function. Its coefficient is the mean over the red heads minus the mean over the blue ones, times a
    constant; other heads do not enter. The first row is the constant function, the mean of all heads.

    Examples
    --------
    >>> import headtree as ht
    >>> tree = ht.PartitionTree.halving(4)
    >>> figure = haar_basis(tree, [(0, 0), (0, 1), (1, 0), (1, 1)])
    >>> [label.get_text() for label in figure.axes[0].get_yticklabels()]
    ['all 4', '2 vs 2', '1 vs 1', '1 vs 1']
    """
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    n = tree.n_leaves if isinstance(tree, PartitionTree) else 0
    order, leaves = checked_order(tree, order, n), checked_leaves(heads, n)
    signs, note = _comparisons(tree, order, _checks.at_least_one(n_functions, "n_functions"), leaves.word)
    n_rows = len(signs)
    figure = new_figure(PAGE, max(2.9, 1.6 + 0.19 * n_rows))
    picture, strip = figure.subplots(2, 1, sharex=True, height_ratios=(n_rows, 0.7))
    colors = ListedColormap([_MINUS, _NOWHERE, _PLUS, GREY])
    picture.imshow(signs, cmap=colors, vmin=-1.5, vmax=2.5, aspect="auto", interpolation="none")
    for row in range(1, n_rows):
        picture.axhline(row - 0.5, color="white", linewidth=2.5)
    counts = [f"{(row == 1).sum()} vs {(row == -1).sum()}" for row in signs[1:]]
    picture.set_yticks(range(n_rows), [f"all {n}", *counts])
    picture.tick_params(length=0, labelbottom=False)
    picture.spines[:].set_visible(False)
    picture.set_ylabel(f"numbers of {leaves.word}s compared")
    handles = [
        Patch(color=_PLUS, label=f"mean of these {leaves.word}s"),
        Patch(color=_MINUS, label="minus mean of these"),
    ]
    picture.legend(handles=handles, loc="lower right", bbox_to_anchor=(1, 1), ncols=2, borderpad=0.2)
    _name_columns(figure, strip, leaves, order, note)
    return figure


def _comparisons(
    tree: PartitionTree, order: Int[np.ndarray, " leaf"], n: int, word: str
) -> tuple[Int[np.ndarray, "function leaf"], str]:
    """Signs of the constant function and of those with the largest smaller sides, and what is left out."""
    basis = HaarBasis(tree)
    signs = np.sign(basis.matrix()[order]).astype(int).T
    smaller = np.minimum((signs == 1).sum(axis=1), (signs == -1).sum(axis=1))
    best = 1 + np.argsort(-smaller[1:], kind="stable")
    kept = np.sort(best[: n - 1])
    kept = kept[np.argsort(-basis.support[kept], kind="stable")]
    signs[0] = _OF_ALL
    rest = smaller[best[n - 1 :]]
    most = int(rest.max(initial=0))
    left_out = f"\n{len(rest)} further functions have at most {most} {word}{'s' * (most > 1)} on the smaller side"
    return signs[[0, *kept]], left_out if len(rest) else ""


def _name_columns(figure: Figure, strip: Any, leaves: Leaves, order: Int[np.ndarray, " leaf"], note: str) -> None:
    """Names below a strip of layers, as many as have room."""
    n = len(order)
    strip.set_yticks([])
    strip.spines[:].set_visible(False)
    if leaves.layers is not None:
        colors, norm = layer_scale(leaves.layers)
        strip.imshow(leaves.layers[order][None], cmap=colors, norm=norm, aspect="auto", interpolation="none")
        layer_bar(figure, figure.axes[:2], leaves.layers, shrink=0.8, pad=0.02)
    named = thin(n, 72 * PAGE * 0.75)
    strip.set_xticks(named, [leaves.names[order[column]] for column in named], rotation=90)
    strip.tick_params(length=2)
    step = named[1] if len(named) > 1 else 1
    strip.set_xlabel(f"{leaves.word}, tree order{f' (one in {step} named)' if step > 1 else ''}{note}")


@styled
def coefficients_by_support(att: AttentionTensor, org: Organization, heads: Sequence[Any]) -> Figure:
    """Query-key coefficients of some heads against the support of their functions, and of all heads together.

    Parameters
    ----------
    att : AttentionTensor
        Missing entries are filled first: probs with 0, scores with the mean of their row.
    org : Organization
        Its query and key trees make the basis.
    heads : sequence of int, str or (layer, head)
        Heads to draw in a panel of their own; two or three look best.

    Notes
    -----
    Support decreases from left to right, from the whole matrix to single entries. Colour counts the coefficients in
    each cell; the line is the root mean square in each octave of support. The last panel has that line for every
    head, coloured by layer. The line of a head that is smooth on its trees falls steeply. Coefficients below a
    millionth of the largest are rounding errors and drawn at the lower edge.

    Examples
    --------
    >>> import numpy as np
    >>> import headtree as ht
    >>> values = np.random.default_rng(0).standard_normal((4, 8, 8))
    >>> att = ht.AttentionTensor.from_array(values, heads_per_layer=2)
    >>> figure = coefficients_by_support(att, ht.organize(att), ["L0H0", "L1H1"])
    >>> [axes.get_title() for axes in figure.axes[:3]]
    ['L0H0', 'L1H1', 'all 4 heads']
    """
    check_pair(att, org)
    chosen = head_indices(att.heads, heads)
    basis = TensorHaarBasis(tuple(org.trees)[1:])
    support = np.multiply.outer(*basis.supports).ravel()
    magnitudes = np.abs(basis.analyze(att.filled().values).double().numpy()).reshape(len(att.heads), -1)
    octaves, rms = _rms_by_octave(support, magnitudes)
    figure = new_figure(PAGE, 2.5)
    panels = figure.subplots(1, len(chosen) + 1, sharex=True, sharey=True)
    positive = magnitudes[magnitudes > 0]
    top = float(magnitudes.max()) if positive.size else 1.0
    floor = max(float(np.quantile(positive, 1e-3)), _ROUNDING * top) if positive.size else 1e-3
    for axes, index in zip(panels[:-1], chosen, strict=True):
        cells = _draw_counts(axes, support, np.maximum(magnitudes[index], floor), most=top)
        axes.plot(octaves, rms[index], color=VERMILION, marker="o", markersize=2.5)
        axes.set_title(str(att.heads[index]))
    layers = np.array([head.layer for head in att.heads])
    colors, norm = layer_scale(layers)
    for index in range(len(layers)):
        panels[-1].plot(octaves, rms[index], color=colors(norm(layers[index])), linewidth=0.5, alpha=0.8)
    panels[-1].set_title(f"all {len(layers)} heads")
    panels[0].set_ylim(floor, 1.6 * top)
    panels[0].set_xlim(1.5 * float(support.max()), float(support.min()) / 1.5)
    log_axis(panels[0].yaxis, 9)
    log_axis(panels[0].xaxis, 5)
    panels[0].set_ylabel("|coefficient|")
    for axes in panels:
        axes.set_xlabel("support, entries")
        axes.grid(axis="y")
    bar = figure.colorbar(cells, ax=panels[-2], pad=0.02, format=number_words)
    bar.minorticks_off()
    finish_bar(bar, "")
    bar.ax.set_title(
        "coefficients\nin a cell", fontsize=SMALL
    )  # beside it, it would name the axis of the last panel
    panels[-1].set_ylabel("root mean square")
    layer_bar(figure, panels[-1], layers, pad=0.02)
    return figure


def _draw_counts(axes: Any, support: Any, magnitudes: Any, most: float) -> Any:
    """How many coefficients are in each cell of the plane; as dots, hundreds would overlap."""
    from matplotlib.colors import LogNorm

    rows = np.geomspace(magnitudes.min(), 1.6 * max(most, magnitudes.min()), 61)
    columns = np.geomspace(support.min() / 1.12, support.max() * 1.12, 46)
    is_empty = np.histogram(support, columns)[0] == 0  # no function has such a support: not a gap in the data
    columns = columns[np.concatenate([[True], ~is_empty])]
    counts, _, _ = np.histogram2d(magnitudes, support, (rows, columns))
    counts = np.ma.masked_equal(counts, 0)
    no_color = rising_colors().with_extremes(bad="none")  # where there is no coefficient
    return axes.pcolormesh(columns, rows, counts, cmap=no_color, norm=LogNorm(1, 1000), rasterized=True)


def _rms_by_octave(
    support: Int[np.ndarray, " function"], magnitudes: Float[np.ndarray, "head function"]
) -> tuple[Float[np.ndarray, " octave"], Float[np.ndarray, "head octave"]]:
    """Middle of each octave of support that has functions, and the root mean square of the coefficients there."""
    octave = np.floor(np.log2(support)).astype(int)
    present = np.unique(octave)
    rms = np.stack([np.sqrt(np.square(magnitudes[:, octave == o]).mean(axis=1)) for o in present], axis=1)
    middle = np.array([np.exp(np.log(support[octave == o]).mean()) for o in present])
    return middle, np.where(rms > 0, rms, np.nan)


@styled
def scores_over_heads(
    scores: Any,
    heads: Heads,
    inputs: Sequence[str] | None = None,
    *,
    label: str = "structure score",
) -> Figure:
    """A score of every head on every input: as curves over the heads in layer order, and as a picture.

    Parameters
    ----------
    scores : array (input, head)
        Such as ``[head_entropy(att, org).relative for …]``; nan where a head has none on an input.
    heads : sequence of (layer, head)
        One for each column.
    inputs : sequence of str, optional
        Names of the rows.
    label : str
        Which score it is.

    Notes
    -----
    Grey bands are layers. A dot is the mean over inputs, the line through it the range over inputs. The three
    heads of largest and of smallest mean are named.

    Examples
    --------
    >>> scores = [[1.0, 2.0, 3.0], [1.5, 2.0, 2.5]]  # inputs × heads
    >>> figure = scores_over_heads(scores, [(0, 0), (0, 1), (1, 0)], ["first", "second"])
    >>> figure.axes[0].get_ylabel()
    'structure score'
    """
    table = _table(scores, "scores")
    leaves = checked_leaves(heads, table.shape[1])
    names = _names(inputs, len(table))
    columns_at = np.arange(table.shape[1])
    figure = new_figure(PAGE, 2.3 + min(1.6, 0.14 * len(table) + 0.35))
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(2.1, min(1.6, 0.14 * len(table) + 0.35)))
    if leaves.layers is not None:
        _layer_bands(above, leaves.layers.tolist())
    with np.errstate(all="ignore"):
        mean, low, high = (
            reduce(np.ma.masked_invalid(table), axis=0) for reduce in (np.ma.mean, np.ma.min, np.ma.max)
        )
    above.vlines(columns_at, low, high, color=BLUE, alpha=0.35, linewidth=1.2, label="range over inputs")
    above.plot(columns_at, mean, color=BLUE, marker="o", markersize=2.4, linestyle="", label="mean over inputs")
    _name_extremes(above, np.ma.filled(mean, np.nan), (low, high), leaves.names)
    above.set(ylabel=plain(label, 40), xlim=(-0.5, len(leaves.names) - 0.5))
    _pad_above_and_below(above, low.min(), high.max())
    above.legend(loc="lower right", bbox_to_anchor=(1, 1.07), ncols=2, borderaxespad=0.2)
    image = draw_matrix(below, table, cmap=head_colors())
    below.set_box_aspect(None)
    rows = thin(len(table), 62 * min(1.6, 0.14 * len(table) + 0.35))
    below.set_yticks(rows, [names[row] for row in rows])
    columns = thin(len(leaves.names), 400, height=34)
    below.set_xticks(columns, [leaves.names[column] for column in columns])
    below.set(xlabel=f"{leaves.word}, in layer order" if leaves.layers is not None else leaves.word, ylabel="input")
    finish_bar(
        figure.colorbar(image, ax=[above, below], pad=0.01, shrink=0.8, format=number_words), plain(label, 40)
    )
    return figure


def _pad_above_and_below(axes: Any, low: float, high: float) -> None:
    """Room for names above and below a curve; no tick below 0 if no value is."""
    from matplotlib.ticker import MaxNLocator

    room = 0.25 * (high - low or 1.0)
    axes.set_ylim(low - room, high + room)
    ticks = MaxNLocator(6).tick_values(low - room, high + room)
    shown = [tick for tick in ticks if low - room <= tick <= high + room and (tick >= 0 or low < 0)]
    axes.set_yticks(shown, [number_words(tick) for tick in shown])


def _layer_bands(axes: Any, layers: Sequence[int]) -> None:
    """A grey band for every second layer, and layer numbers where there is room."""
    edges = [0, *(1 + np.flatnonzero(np.diff(layers))), len(layers)]
    shown = thin(len(edges) - 1, 400, height=22)
    for number, (first, end) in enumerate(pairwise(edges)):
        if number % 2 == 0:
            axes.axvspan(first - 0.5, end - 0.5, color="#f0f0f0", zorder=0, linewidth=0)
        if number in shown:
            middle, look = (first + end - 1) / 2, {"ha": "center", "va": "bottom", "fontsize": SMALL, "color": GREY}
            axes.text(middle, 1.01, str(layers[first]), transform=axes.get_xaxis_transform(), **look)
    axes.text(-0.01, 1.01, "layer", transform=axes.transAxes, ha="right", va="bottom", fontsize=SMALL, color=GREY)


def _name_extremes(
    axes: Any, mean: Float[np.ndarray, " head"], ends: tuple[Any, Any], heads: Sequence[str], n: int = 3
) -> None:
    """Names above the n heads of largest mean and below those of smallest, unless they would overlap."""
    rising = [head for head in np.argsort(mean, kind="stable") if np.isfinite(mean[head])]
    n = min(n, len(rising) // 2)
    width = len(mean) * 0.06  # of a name, in heads
    for chosen, end, up in ((rising[::-1][:n], ends[1], 1), (rising[:n], ends[0], -1)):
        taken: list[int] = []
        for head in chosen:
            if all(abs(head - other) > width for other in taken):
                taken.append(head)
                axes.annotate(
                    heads[head], (head, end[head]), xytext=(0, 3 * up), textcoords="offset points",
                    fontsize=SMALL, ha="center", va="bottom" if up > 0 else "top",
                )  # fmt: skip


_ORDERS = {
    "organized": ("learned trees", BLUE, "-"),
    "given": ("original order", VERMILION, DASHES[1]),
    "random": ("random order", BLACK, DASHES[2]),
    "shuffled": ("learned trees, leaves shuffled", ORANGE, DASHES[3]),
}


@styled
def compression(sparsity: Sparsity | Mapping[str, CompressionCurve]) -> Figure:
    """Error against the number of Haar coefficients used, on the learned trees and on others.

    Parameters
    ----------
    sparsity : Sparsity, or mapping from name to CompressionCurve
        What ``ht.sparsity(att, org)`` returns.

    Notes
    -----
    Left: the largest coefficients are used, the best possible choice. Right: those of largest support, a choice
    that does not depend on the tensor. Dots mark where 90 % and 99 % of the energy are reached. Lower is sparser.

    Examples
    --------
    >>> import numpy as np
    >>> import headtree as ht
    >>> values = np.random.default_rng(0).standard_normal((4, 8, 8))
    >>> att = ht.AttentionTensor.from_array(values, heads_per_layer=2)
    >>> figure = compression(ht.sparsity(att, ht.organize(att)))
    >>> [axes.get_title() for axes in figure.axes]
    ['largest coefficients', 'coarsest coefficients']
    """
    curves = sparsity.by_order if isinstance(sparsity, Sparsity) else sparsity
    if not isinstance(curves, Mapping) or not all(isinstance(curve, CompressionCurve) for curve in curves.values()):
        raise InvalidTypeError(f"sparsity must be what ht.sparsity returns, got {type(sparsity).__name__}")
    figure = new_figure(PAGE, 2.7)
    left, right = figure.subplots(1, 2, sharey=True)
    for i, (name, curve) in enumerate(curves.items()):
        words, color, dashes = _ORDERS.get(name, (plain(name, 30), CURVES[i % 7], DASHES[i % 7]))
        share = 100 * curve.counts / curve.n_coefficients
        look = {
            "color": color,
            "linestyle": dashes,
            "zorder": 3 if name == "random" else 2,
        }  # else hidden by shuffled
        left.plot(share, 100 * curve.largest, label=words, **look)
        right.plot(share, 100 * curve.coarsest, label=words, **look)
        marks = 100 * np.array([curve.n_for_90, curve.n_for_99]) / curve.n_coefficients
        left.plot(marks, 100 * np.sqrt([0.1, 0.01]), "o", color=color, markersize=3)
    for axes, title in ((left, "largest coefficients"), (right, "coarsest coefficients")):
        axes.set(title=title, xlabel="coefficients used, %", ylim=(0, 103))
        log_axis(axes.xaxis, 8)
        axes.grid()
    left.set_ylabel("relative error, %")
    left.legend(loc="lower left")
    return figure


@styled
def tri_haar_coefficients(
    coefficients: Any, supports: Any, inputs: Sequence[str] | None = None, *, is_relative: bool = False
) -> Figure:
    """The coarsest head-query-key coefficients of a network on several inputs.

    Parameters
    ----------
    coefficients : array (input, function)
        In the order of ``TensorHaarBasis.top``: decreasing support. Every input has its own trees: functions of the
        same rank have similar support but are not the same.
    supports : array (input, function)
        Number of entries in each function's support.
    inputs : sequence of str, optional
        Names of the rows.
    is_relative : bool
        Whether the coefficients were divided by the norm of their tensor.

    Notes
    -----
    Coefficients below a millionth of the largest, which are 0 up to rounding, are not drawn but counted.

    Examples
    --------
    >>> coefficients = [[3.0, -1.0, 0.5], [2.0, 1.0, 0.0]]  # inputs × functions
    >>> supports = [[64, 32, 32], [64, 64, 16]]
    >>> figure = tri_haar_coefficients(coefficients, supports, ["first", "second"])
    >>> figure.axes[0].get_ylabel()
    '|coefficient|'
    """
    table = np.abs(_table(coefficients, "coefficients"))
    sizes = _table(supports, "supports")
    if sizes.shape != table.shape:
        raise InvalidValueError(f"supports must have the shape of coefficients, {table.shape}, got {sizes.shape}")
    names = _names(inputs, len(table))
    ranks = np.arange(1, table.shape[1] + 1)
    floor = _ROUNDING * float(np.nanmax(table)) or 1.0
    figure = new_figure(PAGE, 3.0)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    for row, (name, values) in enumerate(zip(names, table, strict=True)):
        look = {"color": CURVES[row % 7], "marker": MARKERS[row % 7], "markersize": 3, "linestyle": ""}
        shown = np.where(values > floor, values, np.nan)
        above.plot(ranks, shown, alpha=0.8, label=f"{name}: {number_words(np.nansum(values))}", **look)
        below.plot(ranks, sizes[row], color=CURVES[row % 7], linewidth=0.9, linestyle=DASHES[row % 7])
    above.set_ylabel("|coefficient| / norm" if is_relative else "|coefficient|")
    log_axis(above.yaxis)
    above.grid(axis="y")
    n_zero = int((table <= floor).sum())
    if n_zero:
        look = {"transform": above.transAxes, "fontsize": SMALL, "va": "bottom", "color": GREY}
        above.text(1.01, 0.0, f"not drawn: {n_zero} of {table.size}\nare 0 up to rounding", **look)
    shown_at_most = 12
    handles, labels = above.get_legend_handles_labels()
    above.legend(
        handles[:shown_at_most], labels[:shown_at_most], title="input: sum of magnitudes\n(network Haar entropy)",
        title_fontsize=SMALL, loc="upper left", bbox_to_anchor=(1.0, 1.05), alignment="left",
    )  # fmt: skip
    below.set(
        xlabel="function, by decreasing support", ylabel="support,\nentries", ylim=(0, 1.05 * np.nanmax(sizes))
    )
    below.yaxis.set_major_formatter(number_words)
    below.locator_params(axis="y", nbins=3)
    below.grid(axis="y")
    below.set_xlim(0, len(ranks) + 1)
    return figure


def _table(values: Any, name: str) -> Float[np.ndarray, "input column"]:
    try:
        table = np.array([np.asarray(row, dtype=np.float64) for row in values])
    except (TypeError, ValueError):
        raise InvalidTypeError(f"{name} must be rows of numbers of one length, one row for each input") from None
    if table.ndim != 2 or 0 in table.shape:
        raise InvalidValueError(f"{name} must have one row for each input, got shape {table.shape}")
    return np.where(np.isfinite(table), table, np.nan)


def _names(inputs: Sequence[str] | None, n: int) -> list[str]:
    if inputs is None:
        return [str(row) for row in range(n)]
    if len(inputs) != n:
        raise InvalidValueError(f"inputs must name the {n} rows, got {len(inputs)}")
    return [plain(name, 14) for name in inputs]
