"""Figures of a comparison: distances with their tree, every aspect against inputs, aligned maps, and training."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from headtree.comparison.gromov import principal_coordinates
from headtree.comparison.head_changes import same_heads
from headtree.comparison.run_profile import NO_ROLE, ROLES
from headtree.errors import InvalidValueError
from headtree.report.figures.style import (
    CURVES,
    DASHES,
    GREY,
    MARKERS,
    PAGE,
    PALE,
    SMALL,
    layer_bar,
    layer_scale,
    log_axis,
    new_figure,
    plain,
    rising_colors,
    styled,
)
from headtree.report.words.numbers import number_words

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from headtree.comparison.compare_networks import Comparison

#: Runs and pairs of runs that a figure can show side by side.
_MOST_MAPS, _MOST_PAIRS = 6, 6
#: Smallest ratio that is drawn: far less than two halves of the inputs differ.
_LEAST_RATIO = 0.05
#: Runs whose distances are written into the matrix.
_NUMBERED = 8


@styled
def comparison_matrix(comparison: Comparison, aspect: str = "geometry") -> Figure:
    """Distances of all runs in one aspect, under the tree that average linkage makes of them."""
    from scipy.cluster.hierarchy import dendrogram, linkage
    from scipy.spatial.distance import squareform

    distance = comparison.distance(aspect)
    n = len(distance)
    figure = new_figure(PAGE * 0.7, PAGE * 0.62)
    above, below = figure.subplots(2, 1, height_ratios=(1, 2.4))
    order = np.arange(n)
    joins = linkage(squareform(distance, checks=False), "average")
    if joins[-1, 2] > 0:
        drawn = dendrogram(joins, ax=above, no_labels=True, color_threshold=0, above_threshold_color=GREY)
        order = np.array(drawn["leaves"])
    else:  # the same network several times: no height to draw
        above.set(xticks=[], yticks=[0])
        above.axhline(0, color=GREY)
    above.set(ylabel="distance", title=comparison.words[aspect])
    above.spines["bottom"].set_visible(False)
    below.imshow(distance[np.ix_(order, order)], cmap=rising_colors(), vmin=0, aspect="auto")
    names = [plain(comparison.names[i], 18) for i in order]
    below.set_xticks(range(n), names, rotation=30 if n > 3 else 0, ha="right" if n > 3 else "center")
    below.set_yticks(range(n), names)
    below.tick_params(length=0)
    if n <= _NUMBERED:
        middle = distance.max() * 0.6
        for i, j in np.ndindex(n, n):
            value = distance[order[i], order[j]]
            color = "black" if value > middle else "white"
            below.text(j, i, number_words(float(value)), ha="center", va="center", color=color, size=SMALL)
    above.set_xlim(0, 10 * n)
    return figure


@styled
def comparison_aspects(comparison: Comparison) -> Figure:
    """Every distance over that between two halves of the inputs of one network: 1 is what inputs do."""
    pairs = list(dict.fromkeys((item.first, item.second) for item in comparison.distances))
    if len(pairs) > _MOST_PAIRS:  # each run and the next, then the first and the last
        pairs = [pair for pair in pairs if pair[1] == pair[0] + 1][: _MOST_PAIRS - 1]
        pairs.append((0, len(comparison.names) - 1))
    aspects = list(comparison.words)
    figure = new_figure(PAGE, 0.9 + 0.24 * len(aspects))
    axes = figure.subplots()
    rows = np.arange(len(aspects))
    for k, pair in enumerate(pairs):
        found = [comparison.between(aspect, *pair) for aspect in aspects]
        scale = np.array([item.of_halves if item.of_halves > 0 else np.nan for item in found])
        ratio = np.maximum(_LEAST_RATIO, np.array([item.estimate.number for item in found]) / scale)
        ends = np.array([item.estimate.interval for item in found]) / scale[:, None]
        at = rows + (k - (len(pairs) - 1) / 2) * 0.7 / len(pairs)
        is_clear = np.array([item.p_value <= 0.05 for item in found])
        color, marker = CURVES[k % len(CURVES)], MARKERS[k % len(MARKERS)]
        axes.hlines(at, np.maximum(_LEAST_RATIO, ends[:, 0]), ends[:, 1], color=color, lw=0.9)
        names = " and ".join(plain(comparison.names[i], 18) for i in pair)
        axes.scatter(ratio[is_clear], at[is_clear], color=color, marker=marker, s=16, label=names, zorder=3)
        axes.scatter(
            ratio[~is_clear], at[~is_clear], facecolors="white", edgecolors=color, marker=marker, s=16, zorder=3
        )
    axes.axvline(1, color=GREY, lw=0.8, ls=DASHES[1])
    log_axis(axes.xaxis)
    axes.set_yticks(rows, [comparison.words[aspect] for aspect in aspects])
    axes.set_ylim(len(aspects) - 0.5, -0.5)
    axes.set_xlabel("distance / distance between two halves of the inputs of one network   (hollow: p > 0.05)")
    axes.grid(axis="x")
    figure.legend(loc="outside lower center", ncol=min(3, len(pairs)))
    return figure


@styled
def comparison_maps(comparison: Comparison) -> Figure:
    """The heads of each run in a plane, by classical scaling of their distances, turned to match the run before."""
    points = aligned_maps(comparison)[:_MOST_MAPS]
    n = len(points)
    figure = new_figure(PAGE, PAGE / n + 0.35 if n > 2 else 3.2)
    panels = figure.subplots(1, n, sharex=True, sharey=True, squeeze=False)[0]
    layers = [[head.layer for head in profile.heads] for profile in comparison.profiles[:n]]
    every = [layer for own in layers for layer in own]
    colors, norm = layer_scale(every)
    for axes, name, own, at in zip(panels, comparison.names, layers, points, strict=False):
        axes.axhline(0, color=PALE, lw=0.5, zorder=0)
        axes.axvline(0, color=PALE, lw=0.5, zorder=0)
        size = float(np.clip(1800 / len(at), 5, 24))
        axes.scatter(at[:, 0], at[:, 1], c=own, cmap=colors, norm=norm, s=size, linewidths=0.25, edgecolors="white")
        axes.set_title(plain(name, 18))
        axes.set_aspect("equal")
    layer_bar(figure, panels, every, shrink=0.8)
    return figure


def aligned_maps(comparison: Comparison) -> list[Float[np.ndarray, "head 3"]]:
    """Principal coordinates of the heads of every run, turned and reflected towards those of the run before.

    Heads are matched by name where both runs have the same, and otherwise by the coupling of their geometries.
    """
    from scipy.linalg import orthogonal_procrustes

    found: list[Any] = []
    for i, profile in enumerate(comparison.profiles):
        points = principal_coordinates(profile.distance.mean(axis=0), 3)
        if i:
            before = comparison.profiles[i - 1]
            coupling = comparison.couplings[i - 1, i]
            if same_heads(before, profile):
                coupling = np.array([[float(a == b) for b in profile.heads] for a in before.heads])
            target = (coupling.T @ found[-1]) / coupling.sum(axis=0)[:, None]
            points = points @ orthogonal_procrustes(points, target)[0]
        found.append(points)
    return found


@styled
def comparison_curves(comparison: Comparison) -> Figure:
    """Mean curves of compression and rank, with the distribution of two measures over heads."""
    shown = {
        "compression": ("folders per head", "relative error"),
        "rank": ("directions per head", "relative error"),
        "confidence": ("share of heads", "confidence"),
        "shannon_entropy_relative": ("share of heads", "relative entropy"),
    }
    known = {aspect.name: aspect for aspect in comparison.aspects}
    names = [name for name in shown if name in known]
    figure = new_figure(PAGE, 2.3)
    panels = figure.subplots(1, len(names), squeeze=False)[0]
    for axes, name in zip(panels, names, strict=True):
        aspect = known[name]
        for i, run in enumerate(comparison.names):
            style = {"color": CURVES[i % len(CURVES)], "ls": DASHES[i % len(DASHES)]}
            axes.plot(aspect.at, aspect.mean(i), label=plain(run, 18), **style)
        axes.set(title=aspect.words, xlabel=shown[name][0], ylabel=shown[name][1], xlim=(0, 1))
    handles = panels[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncol=min(5, len(comparison.names)))
    return figure


# -- runs with the same heads ------------------------------------------------------------------------------------


@styled
def comparison_moved(comparison: Comparison) -> Figure:
    """How far each head moved from a run to the next; a dot marks those that moved beyond what inputs do."""
    changes = _checked_changes(comparison)[:_MOST_MAPS]
    heads = [_layer_and_head(name) for name in changes[0].heads]
    shape = tuple(np.max(heads, axis=0) + 1)
    most = max(float(change.moved.max()) for change in changes) or 1.0
    figure = new_figure(PAGE, max(2.2, PAGE / max(2, len(changes)) * min(1.6, shape[0] / shape[1]) + 0.5))
    panels = figure.subplots(1, len(changes), sharey=True, squeeze=False)[0]
    for axes, change in zip(panels, changes, strict=True):
        own = [_layer_and_head(name) for name in change.heads]
        grid = np.full(shape, np.nan)
        grid[tuple(np.transpose(own))] = change.moved
        image = axes.imshow(grid, cmap=rising_colors(), vmin=0, vmax=most, interpolation="nearest", aspect="auto")
        marked = np.array(own)[change.has_moved]
        if len(marked):
            axes.scatter(marked[:, 1], marked[:, 0], s=2.5, color="white", linewidths=0)
        before, after = comparison.names[change.first], comparison.names[change.second]
        axes.set_title(f"{plain(before, 12)} → {plain(after, 12)}", size=SMALL)
        axes.set_xlabel("head")
    panels[0].set_ylabel("layer")
    figure.colorbar(image, ax=panels, shrink=0.9, label="moved")
    return figure


def _layer_and_head(name: str) -> tuple[int, int]:
    layer, head = name[1:].split("H")
    return int(layer), int(head)


def _checked_changes(comparison: Comparison) -> tuple[Any, ...]:
    if not comparison.changes:
        raise InvalidValueError("the runs have different heads, so none can be followed from one to the next")
    return comparison.changes


@styled
def comparison_story(comparison: Comparison) -> Figure:
    """The runs as a story: distance to the first and last, roles present, and families that split and merge."""
    _checked_changes(comparison)
    figure = new_figure(PAGE, 6.2)
    grid = figure.add_gridspec(2, 2, height_ratios=(1, 1.5))
    _draw_way(figure.add_subplot(grid[0, 0]), comparison)
    _draw_roles(figure.add_subplot(grid[0, 1]), comparison)
    _draw_families(figure.add_subplot(grid[1, :]), comparison)
    return figure


def _draw_way(axes: Any, comparison: Comparison) -> None:
    """Distance of each run to the first and to the last, with intervals."""
    n = len(comparison.names)
    at = np.arange(n)
    for k, (end, words) in enumerate(((0, "from the first"), (n - 1, "to the last"))):
        others = [i for i in range(n) if i != end]
        found = [comparison.between("geometry", i, end) for i in others]
        numbers = np.array([item.estimate.number for item in found])
        errors = np.abs(np.array([item.estimate.interval for item in found]).T - numbers)
        axes.plot(at, comparison.distance()[end], color=CURVES[k], ls=DASHES[k], label=words)
        axes.errorbar(others, numbers, errors, fmt=MARKERS[k], color=CURVES[k], capsize=2, lw=0.9)
    axes.set_xticks(at, [plain(name, 12) for name in comparison.names], size=SMALL)
    axes.set(ylabel="distance of geometries", ylim=(0, None))
    axes.legend()


def _draw_roles(axes: Any, comparison: Comparison) -> None:
    """Share of heads with each role, stacked."""
    shares = np.array([profile.roles.mean(axis=0) for profile in comparison.profiles])
    shown = [i for i, role in enumerate(ROLES) if role != NO_ROLE and shares[:, i].max() > 0.005]
    bottom = np.zeros(len(shares))
    at = np.arange(len(shares))
    for k, i in enumerate(shown):
        hatch = "" if k < len(CURVES) else "///"
        axes.bar(
            at, shares[:, i], bottom=bottom, width=0.7, color=CURVES[k % len(CURVES)], hatch=hatch, label=ROLES[i],
            edgecolor="white", lw=0.4,
        )  # fmt: skip
        bottom += shares[:, i]
    axes.set_xticks(at, [plain(name, 12) for name in comparison.names], size=SMALL)
    axes.set(ylabel="share of heads with a role", ylim=(0, max(0.05, 1.02 * bottom.max())))
    if shown:
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize=SMALL - 1, handlelength=1)
    else:
        axes.set_xlim(-0.5, len(shares) - 0.5)
        axes.text(0.5, 0.5, "no head has a role", transform=axes.transAxes, ha="center", color=GREY)


def _draw_families(axes: Any, comparison: Comparison) -> None:
    """Families of every run as bars, as high as they have heads, and bands of heads that go from one to another."""
    profiles, gap = comparison.profiles, 0.03
    first = profiles[0].heads
    labels = [
        np.array([dict(zip(profile.heads, profile.family, strict=True)).get(head, -1) for head in first])
        if same_heads(profiles[0], profile)
        else np.full(len(first), -1)
        for profile in profiles
    ]
    n = len(first)
    tops: list[dict[int, float]] = []
    for at, own in enumerate(labels):
        top, places = 0.0, {}
        for family in [*range(own.max() + 1), -1]:
            size = float((own == family).sum()) / n
            if size == 0:
                continue
            places[family] = top
            color = PALE if family < 0 else CURVES[family % len(CURVES)]
            axes.add_patch(_rectangle((at - 0.06, top), 0.12, size, color))
            if size > 0.035 and family >= 0:
                axes.text(at, top + size / 2, str(family), ha="center", va="center", size=SMALL, color="white")
            top += size + gap
        tops.append(places)
    for at in range(len(labels) - 1):
        _draw_flow(axes, at, labels[at], labels[at + 1], (tops[at], tops[at + 1]))
    axes.set_xlim(-0.3, len(labels) - 0.7)
    axes.set_ylim(1 + gap * 9, -0.02)
    axes.set_xticks(range(len(labels)), [plain(name, 18) for name in comparison.names])
    axes.set_yticks([])
    axes.set_title("families of heads, the largest on top; grey: in no family")
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)
    axes.tick_params(length=0)


def _rectangle(corner: tuple[float, float], width: float, height: float, color: str) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle(corner, width, height, facecolor=color, edgecolor="white", linewidth=0.4, zorder=3)


def _draw_flow(
    axes: Any, at: int, before: Any, after: Any, tops: tuple[dict[int, float], dict[int, float]]
) -> None:
    """Bands between the families of two runs; their widths are the numbers of heads that they share."""
    n = len(before)
    left, right = dict(tops[0]), dict(tops[1])
    t = np.linspace(0, 1, 30)
    ease: Callable[[Any], Any] = lambda x: x * x * (3 - 2 * x)  # noqa: E731
    for a in tops[0]:
        for b in tops[1]:
            size = float(((before == a) & (after == b)).sum()) / n
            if size == 0:
                continue
            y = left[a] + (right[b] - left[a]) * ease(t)
            source = a if a >= 0 else b
            color = GREY if source < 0 else CURVES[source % len(CURVES)]
            alpha = 0.1 if min(a, b) < 0 else 0.4
            axes.fill_between(at + 0.06 + 0.88 * t, y, y + size, color=color, alpha=alpha, lw=0)
            left[a] += size
            right[b] += size


# -- all of them -------------------------------------------------------------------------------------------------

#: The figures of a comparison with their captions; the second group needs runs with the same heads.
COMPARISON_FIGURES = {
    "matrix": (comparison_matrix, "Distances between the geometries of heads, and the tree that they make."),
    "aspects": (
        comparison_aspects,
        "Distances in every aspect, relative to two halves of the inputs of one network, with 95 % intervals over "
        "inputs. Hollow marks: two sets of inputs of one network could differ so much.",
    ),
    "maps": (
        comparison_maps,
        "The heads of each network in a plane: near each other if they look at the same tokens. Each map is turned "
        "to match the one before.",
    ),
    "curves": (comparison_curves, "Mean curves over inputs, and distributions of two measures over heads."),
}
STORY_FIGURES = {
    "story": (
        comparison_story,
        "Above: distance to the first and last network, and heads with a role. Below: families of heads, and the "
        "heads that go from one to another.",
    ),
    "moved": (
        comparison_moved,
        "How far each head moved among the others. White dots: farther than inputs explain, for all heads at a "
        "level of 5 %.",
    ),
}


def comparison_figures(comparison: Comparison) -> dict[str, tuple[Figure, str]]:
    """Every figure of a comparison with its caption, by name."""
    chosen = {**(STORY_FIGURES if comparison.changes else {}), **COMPARISON_FIGURES}
    return {name: (draw(comparison), caption) for name, (draw, caption) in chosen.items()}
