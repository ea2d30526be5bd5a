"""Figures of all heads of a network: their map, their affinity, and one number per head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Int

from headtree import _checks
from headtree.errors import InvalidTypeError, InvalidValueError
from headtree.report.figures.matrix_figures import averaging, draw_matrix, finish_bar
from headtree.report.figures.style import (
    BLUE,
    COLUMN,
    PAGE,
    SMALL,
    head_colors,
    layer_bar,
    layer_scale,
    name_missing,
    new_figure,
    plain,
    rising_colors,
    signed_colors,
    styled,
    thin,
)
from headtree.report.words.numbers import number_words
from headtree.tensor.attention_tensor import HeadId
from headtree.trees.tree import PartitionTree

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: (layer, head) for each slice; or names, for an axis that is not one of heads.
Heads = Sequence[tuple[int, int]] | Sequence[str]

#: Heads named in a map: those farthest from the others.
_NAMED = 10

#: The scale of affinities spans these shares of the pairs, as on the page: a few very close pairs do not darken it.
_SHOWN_AFFINITIES = (0.01, 0.98)

#: Ticks along a side of the grid of heads, at most.
_TICKS = 16


@styled
def head_map(coordinates: Any, heads: Heads, *, title: str = "") -> Figure:
    """Diffusion map of the heads: its first coordinate against the second and the third.

    Parameters
    ----------
    coordinates : array (head, component)
        Such as ``org.coordinates.head`` or ``diffusion_map(affinity).coordinates``; only the first three components
        are drawn, missing ones as 0.
    heads : sequence of (layer, head), or of str
        One for each row: heads, or the names of other slices, which then have no colour.
    title : str
        Title of the figure, such as the similarity that it shows.

    Notes
    -----
    Heads are near each other if many short steps of large affinity connect them. Colour is the layer. The heads
    farthest from the median are named, unless the name would cover another name or a head.

    Examples
    --------
    >>> import numpy as np
    >>> coordinates = np.random.default_rng(0).standard_normal((4, 3))
    >>> figure = head_map(coordinates, [(0, 0), (0, 1), (1, 0), (1, 1)])
    >>> figure.axes[1].get_ylabel()
    'coordinate 3'
    """
    points = _checked_points(coordinates)
    leaves = checked_leaves(heads, len(points))
    size = float(np.clip(2400 / len(points), 3, 22))
    dots = {"c": leaves.colors(), "s": size, "linewidths": 0.25, "edgecolors": "white"}
    figure = new_figure(PAGE, 3.2)
    for other, flat in enumerate(figure.subplots(1, 2), start=1):
        flat.scatter(points[:, 0], points[:, other], **dots)
        flat.set(xlabel="diffusion coordinate 1", ylabel=f"coordinate {other + 1}")
        flat.locator_params(nbins=6)
        flat.margins(0.12)
        _name_outliers(flat, points[:, [0, other]], leaves.names)
    if leaves.layers is not None:
        layer_bar(figure, figure.axes, leaves.layers, shrink=0.8, pad=0.02)
    if title:
        figure.suptitle(plain(title, 80))
    return figure


@styled
def head_affinity(
    affinity: Any, tree: PartitionTree, heads: Heads, order: Any = None, *, title: str = ""
) -> Figure:
    """Affinity of every two heads, in the order of a tree of heads, with each head's layer beside it.

    Parameters
    ----------
    affinity : array (head, head)
        Such as ``org.affinities.head`` or ``consensus.affinity``.
    tree : PartitionTree
        Tree of the heads, which are shown in its order.
    heads : sequence of (layer, head), or of str
        One for each row: heads, or the names of other slices, which then have no colour.
    order : integers (head), optional
        A depth-first order of the tree, such as ``org.order("head")``; by default siblings are ordered by their
        smallest head.
    title : str
        Title of the figure, such as the similarity that it shows.

    Examples
    --------
    >>> import numpy as np
    >>> import headtree as ht
    >>> affinity = np.where(np.eye(4) == 1, 1.0, 0.5)
    >>> figure = head_affinity(affinity, ht.PartitionTree.halving(4), [(0, 0), (0, 1), (1, 0), (1, 1)])
    >>> figure.axes[0].get_xlabel()
    'head, tree order'
    """
    matrix = _checks.affinity_matrix(affinity).numpy()
    leaves = checked_leaves(heads, len(matrix))
    order = checked_order(tree, order, len(matrix))
    figure = new_figure(PAGE * 0.75, 3.75, left=0.02)  # names of few heads are laid out a little too far left
    picture = figure.subplots()
    pairs = matrix[~np.eye(len(matrix), dtype=bool)] if len(matrix) > 1 else matrix.ravel()
    low, high = map(
        float, np.quantile(pairs, _SHOWN_AFFINITIES)
    )  # nor does the diagonal, which is 1, set the scale
    image = draw_matrix(
        picture, matrix[np.ix_(order, order)], cmap=rising_colors(), vmin=low, vmax=high if high > low else low + 1
    )
    picture.set(xticks=[], yticks=[], xlabel=f"{leaves.word}, tree order", title=plain(title, 60))
    _name_rows(picture, leaves, order)
    if leaves.layers is not None:
        layer_bar(figure, picture, leaves.layers, shrink=0.85, pad=0.02)
    beyond = "both" if float(pairs.min()) < low else "max" if float(matrix.max()) > high else "neither"
    bar = figure.colorbar(image, ax=picture, shrink=0.85, pad=0.02, extend=beyond)
    finish_bar(bar, "affinity" + averaging(matrix.shape))
    return figure


def _name_rows(picture: Any, leaves: Leaves, order: Int[np.ndarray, " leaf"]) -> None:
    """Names at the left of a matrix, as many as have room, and a strip of layers between them and the matrix."""
    rows = picture
    if leaves.layers is not None:
        rows = picture.inset_axes((-0.045, 0, 0.035, 1))
        colors, norm = layer_scale(leaves.layers)
        extent = (0, 1, len(order) - 0.5, -0.5)
        strip = leaves.layers[order][:, None]
        rows.imshow(strip, cmap=colors, norm=norm, aspect="auto", interpolation="none", extent=extent)
        rows.set_xticks([])
    shown = thin(len(order), 250)
    rows.set_yticks(shown, [leaves.names[order[row]] for row in shown])
    rows.tick_params(length=2)
    step = shown[1] if len(shown) > 1 else len(order)
    note = "" if step == 1 else f" (one in {step} named)"
    rows.set_ylabel(f"{leaves.word}, tree order{note}")


@styled
def head_grid(
    values: Any, heads: Sequence[tuple[int, int]], label: str, *, is_signed: bool = False, title: str = ""
) -> Figure:
    """One number per head on a grid of layers and heads, such as a column of ``heads.csv``.

    Parameters
    ----------
    values : array (head)
        Nan where a head has none: drawn grey, as are cells without a head.
    heads : sequence of (layer, head)
        One for each value.
    label : str
        What the number is, with its unit.
    is_signed : bool
        Whether to centre the colour scale on 0.
    title : str
        Title of the figure.

    Examples
    --------
    >>> figure = head_grid([0.1, 0.5, 0.9], [(0, 0), (0, 1), (1, 0)], "structure score")
    >>> figure.axes[0].get_xlabel(), figure.axes[0].get_ylabel()
    ('head of the layer', 'layer')
    """
    numbers = one_per_head(values, "values", len(heads))
    named = _checked_heads(heads)
    low_layer = min(head.layer for head in named)
    shape = max(head.layer for head in named) - low_layer + 1, max(head.head for head in named) + 1
    grid = np.full(shape, np.nan)
    for head, number in zip(named, numbers, strict=True):
        grid[head.layer - low_layer, head.head] = number
    low, high = _range(grid)
    if is_signed:
        low, high = -max(-low, high), max(-low, high)
    figure = new_figure(COLUMN, float(np.clip(0.7 + 0.16 * shape[0], 2.4, 4.5)))
    axes = figure.subplots()
    image = axes.imshow(
        grid, cmap=signed_colors() if is_signed else head_colors(), vmin=low, vmax=high, aspect="auto",
        interpolation="none", extent=(-0.5, shape[1] - 0.5, shape[0] - 0.5 + low_layer, low_layer - 0.5),
    )  # fmt: skip
    axes.set(xlabel="head of the layer", ylabel="layer", title=plain(title, 30))
    _every_tick(axes.xaxis, 0, shape[1])
    _every_tick(axes.yaxis, low_layer, shape[0])
    axes.tick_params(length=2)
    finish_bar(figure.colorbar(image, ax=axes, format=number_words), plain(label, 36))
    if np.isnan(grid).any():
        name_missing(axes)
    return figure


# -- checks ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Leaves:
    """Names of the slices of an axis; of heads, also their layers."""

    names: tuple[str, ...]
    layers: Int[np.ndarray, " leaf"] | None
    word: str  #: "head", or "slice" of an axis that is not one of heads

    def colors(self) -> Any:
        """The colour of each leaf's layer."""
        if self.layers is None:
            return [BLUE] * len(self.names)
        colors, norm = layer_scale(self.layers)
        return colors(norm(self.layers))


def _checked_heads(heads: Any) -> list[HeadId]:
    try:
        return [HeadId(int(layer), int(head)) for layer, head in heads]
    except (TypeError, ValueError):
        raise InvalidTypeError("heads must be pairs (layer, head); pass att.heads") from None


def checked_leaves(heads: Any, n: int) -> Leaves:
    """Heads as (layer, head), or the names of other slices; exactly n of them."""
    given = _checks.as_list(heads, "heads", "pairs (layer, head)")
    if len(given) != n:
        raise InvalidValueError(f"heads must name the {n} slices, got {len(given)}; pass att.heads of this tensor")
    if all(isinstance(name, str) for name in given):
        return Leaves(tuple(plain(name, 12) for name in given), None, "slice")
    named = _checked_heads(given)
    return Leaves(tuple(map(str, named)), np.array([head.layer for head in named]), "head")


def checked_order(tree: Any, order: Any, n: int) -> Int[np.ndarray, " leaf"]:
    """A depth-first order of the tree: the leaves of every folder are contiguous."""
    if not isinstance(tree, PartitionTree):
        raise InvalidTypeError(f"tree must be a PartitionTree, got {type(tree).__name__}")
    if tree.n_leaves != n:
        raise InvalidValueError(f"tree must have one leaf for each of the {n} heads, got {tree.n_leaves}")
    if order is None:
        return tree.order()
    leaves = np.asarray(order)
    if leaves.shape != (n,) or not np.array_equal(np.sort(leaves), np.arange(n)):
        raise InvalidValueError(f"order must be a permutation of 0..{n - 1}; pass org.order('head')")
    runs = 1 + np.count_nonzero(np.diff(tree.labels[:, leaves], axis=1), axis=1)
    if (runs != tree.n_folders).any():
        raise InvalidValueError("order must keep the leaves of every folder together; pass tree.order(…)")
    return leaves


def one_per_head(values: Any, name: str, n: int) -> Float[np.ndarray, " head"]:
    """Numbers, one for each head; nan where there is none."""
    try:
        numbers = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidTypeError(f"{name} must be numbers, one for each head") from None
    if numbers.shape != (n,) or n == 0:
        raise InvalidValueError(f"{name} must be one number for each of the {n} heads, got shape {numbers.shape}")
    return np.where(np.isfinite(numbers), numbers, np.nan)


def _checked_points(coordinates: Any) -> Float[np.ndarray, "head 3"]:
    points = np.asarray(coordinates, dtype=np.float64)
    if points.ndim != 2 or len(points) == 0 or not np.isfinite(points).all():
        raise InvalidValueError(
            f"coordinates must be finite numbers of shape (head, component), got shape {points.shape}"
        )
    padded = np.zeros((len(points), 3))
    padded[:, : points.shape[1]] = points[:, :3]
    return padded


def _every_tick(axis: Any, first: int, n: int) -> None:
    """A tick for every layer or head, or for one in two, three, … if there are many."""
    axis.set_ticks(range(first, first + n, -(-n // _TICKS)))


def _range(grid: Float[np.ndarray, "layer head"]) -> tuple[float, float]:
    present = grid[np.isfinite(grid)]
    if present.size == 0:
        return 0.0, 1.0
    low, high = float(present.min()), float(present.max())
    return (low, high) if high > low else (low - 0.5, high + 0.5)


# -- details ---------------------------------------------------------------------------------------------


def _name_outliers(axes: Any, points: Float[np.ndarray, "head 2"], names: tuple[str, ...]) -> None:
    """Names beside the points farthest from the median, unless they would cover other names or points."""
    low, spread = points.min(axis=0), np.ptp(points, axis=0)
    scaled = (points - low) / np.where(spread > 0, spread, 1)
    far = np.linalg.norm(scaled - np.median(scaled, axis=0), axis=1)
    box = np.array([0.03 + 0.035 * max(map(len, names)), 0.13])  # size of a name, as a share of the panel
    taken = np.zeros((0, 2))
    for head in np.argsort(-far, kind="stable")[:_NAMED]:
        inwards = -1 if scaled[head, 0] > 0.5 else 1  # names that grow towards the middle stay in the panel
        for side in (inwards, -inwards):
            middle = scaled[head] + (side * (0.02 + box[0] / 2), 0.05)
            covers_name = (np.abs(taken - middle) < box).all(axis=1).any()
            covers_point = (np.abs(np.delete(scaled, head, axis=0) - middle) < box / 2).all(axis=1).any()
            if not covers_name and not covers_point and 0 < middle[0] < 1:
                taken = np.concatenate([taken, middle[None]])
                axes.annotate(
                    names[head], points[head], xytext=(3 * side, 2), textcoords="offset points",
                    fontsize=SMALL, ha="left" if side > 0 else "right", clip_on=True,
                )  # fmt: skip
                break
