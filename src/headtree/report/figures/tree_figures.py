"""The tree of heads as a circular dendrogram, with the support of its folders where it is known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Int

from headtree.errors import InvalidTypeError, InvalidValueError
from headtree.measures.consensus import Consensus
from headtree.report.figures.head_figures import Heads, Leaves, checked_leaves, checked_order
from headtree.report.figures.matrix_figures import finish_bar
from headtree.report.figures.style import (
    GREY,
    PAGE,
    SMALL,
    layer_bar,
    new_figure,
    plain,
    styled,
    thin,
)
from headtree.trees.tree import PartitionTree

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Radii as shares of the picture: the leaves, the ring of layers, and where names begin.
_LEAVES, _RING, _NAMES = 1.0, (1.015, 1.055), 1.075

#: Radius of the circle of a level is (level / last level) to this power: inner circles need more room.
_SPREAD = 0.7

#: Half a side of the picture, names included.
_SIDE = 1.24

#: Gap between the first and the last leaf, at the top, in radians.
_GAP = 0.12


@dataclass(frozen=True, eq=False)
class _Layout:
    """Position of the distinct folders of a tree: angle and distance from the centre."""

    angle: Float[np.ndarray, " folder"]
    radius: Float[np.ndarray, " folder"]

    def points(self) -> Float[np.ndarray, "folder 2"]:
        return _points(self.angle, self.radius)


@styled
def head_tree(
    tree: PartitionTree | Consensus, heads: Heads, order: Any = None, *, support: Any = None, title: str = ""
) -> Figure:
    """A tree of heads as a circular dendrogram: root in the centre, a head at every leaf, coloured by layer.

    Parameters
    ----------
    tree : PartitionTree or Consensus
        A consensus includes the support of its folders.
    heads : sequence of (layer, head), or of str
        One for each leaf: heads, or the names of other slices, which then have no colour.
    order : integers (head), optional
        A depth-first order of the tree, such as ``org.order("head")``; clockwise from the top. By default siblings
        are ordered by their smallest head.
    support : mapping from node to number, optional
        Support of folders from 0 to 1, by their uppermost node in ``tree.nodes``; nan where it is not known.
    title : str
        Title of the figure, such as the similarity that it shows.

    Notes
    -----
    A folder is drawn on the circle of the level on which it splits. Its dot is darker the larger its support. The
    number is the support in percent, unless it is 0; where room is short, larger folders go first. If there are
    too many heads to name all, every second, fifth, … is named.

    Examples
    --------
    >>> import headtree as ht
    >>> figure = head_tree(ht.PartitionTree.halving(4), [(0, 0), (0, 1), (1, 0), (1, 1)])
    >>> [text.get_text() for text in figure.axes[0].texts]
    ['L0H0', 'L0H1', 'L1H0', 'L1H1']
    """
    if isinstance(tree, Consensus):
        if support is None:
            support = dict(zip(tree.node.tolist(), tree.support.tolist(), strict=True))
        tree = tree.tree
    n = tree.n_leaves if isinstance(tree, PartitionTree) else 0
    leaves, order = checked_leaves(heads, n), checked_order(tree, order, n)
    shares = _checked_support(tree, support)
    layout = _laid_out(tree, order)
    figure = new_figure(PAGE, PAGE)
    axes = figure.subplots()
    axes.set_axis_off()
    axes.set(aspect="equal", xlim=(-_SIDE, _SIDE), ylim=(-_SIDE, _SIDE), title=plain(title, 80))
    _draw_branches(axes, tree, layout)
    angle = layout.angle[tree.distinct.of_leaf]
    _draw_leaves(axes, angle, leaves)
    _name_leaves(axes, angle, leaves, order)
    if leaves.layers is not None:
        corner = axes.inset_axes((0.83, 0.06, 0.17, 0.016))
        layer_bar(figure, None, leaves.layers, cax=corner, orientation="horizontal", n_shown=6)
    if shares is not None:
        _draw_support(figure, axes, tree, layout, shares)
    return figure


def _laid_out(tree: PartitionTree, order: Int[np.ndarray, " leaf"]) -> _Layout:
    """Leaves evenly around the circle in the order; a folder in the middle of its children."""
    folders = tree.distinct
    angle, radius = np.zeros(len(folders)), np.zeros(len(folders))
    turn = (2 * np.pi - _GAP) / tree.n_leaves
    angle[folders.of_leaf[order]] = np.pi / 2 - _GAP / 2 - turn * (np.arange(tree.n_leaves) + 0.5)  # clockwise
    splits_on = folders.level + folders.stands_on - 1
    depth = (splits_on / max(1, tree.n_levels - 1)) ** _SPREAD
    radius[:] = np.where(folders.is_leaf, _LEAVES, depth)
    children, pointers = folders.children
    for folder in np.flatnonzero(~folders.is_leaf)[::-1]:  # children before parents
        own = angle[children[pointers[folder] : pointers[folder + 1]]]
        angle[folder] = (own.min() + own.max()) / 2
    return _Layout(angle, radius)


def _points(angle: Any, radius: Any) -> Float[np.ndarray, "point 2"]:
    return np.stack(np.broadcast_arrays(radius * np.cos(angle), radius * np.sin(angle)), axis=-1)


def _draw_branches(axes: Any, tree: PartitionTree, layout: _Layout) -> None:
    """From each folder an arc over its children, and from the arc a straight line out to every child."""
    from matplotlib.collections import LineCollection

    folders = tree.distinct
    children, pointers = folders.children
    lines = []
    for folder in np.flatnonzero(~folders.is_leaf):
        own = children[pointers[folder] : pointers[folder + 1]]
        spread = np.ptp(layout.angle[own])
        arc = np.linspace(layout.angle[own].min(), layout.angle[own].max(), 2 + int(spread / 0.03))
        lines.append(_points(arc, layout.radius[folder]))
        for child in own:
            ends = np.array([layout.radius[folder], layout.radius[child]])
            lines.append(_points(layout.angle[child], ends))
    axes.add_collection(LineCollection(lines, colors=GREY, linewidths=0.7, capstyle="round"), autolim=False)


def _draw_leaves(axes: Any, angle: Float[np.ndarray, " leaf"], leaves: Leaves) -> None:
    """A ring around the leaves, one piece for each, coloured by layer."""
    from matplotlib.collections import PolyCollection

    half = (2 * np.pi - _GAP) / len(angle) / 2
    steps = np.linspace(-half, half, max(2, 64 // len(angle)))
    inner = _points(angle[:, None] + steps, _RING[0])
    outer = _points(angle[:, None] + steps[::-1], _RING[1])
    pieces = np.concatenate([inner, outer], axis=1)
    axes.add_collection(
        PolyCollection(list(pieces), facecolors=leaves.colors(), edgecolors="face", linewidths=0.2),
        autolim=False,
    )


def _name_leaves(
    axes: Any, angle: Float[np.ndarray, " leaf"], leaves: Leaves, order: Int[np.ndarray, " leaf"]
) -> None:
    """Names around the ring, readable from below and not upside down."""
    rim = (2 * np.pi - _GAP) * _NAMES * 72 * PAGE / (2 * _SIDE)  # in points
    for position in thin(len(order), rim):
        leaf = order[position]
        degrees = float(np.degrees(angle[leaf]))
        flipped = np.cos(angle[leaf]) < 0
        (x, y), *_ = _points(angle[leaf : leaf + 1], _NAMES)
        axes.text(
            x, y, leaves.names[leaf], fontsize=SMALL, rotation=degrees + 180 if flipped else degrees,
            rotation_mode="anchor", ha="right" if flipped else "left", va="center",
        )  # fmt: skip


def _draw_support(
    figure: Figure, axes: Any, tree: PartitionTree, layout: _Layout, shares: Mapping[int, float]
) -> None:
    """Dots on the folders, dark where they replicate, and numbers where there is room."""
    folders = tree.distinct
    known = [folder for folder in range(len(folders)) if int(folders.node[folder]) in shares]
    values = np.array([shares[int(folders.node[folder])] for folder in known])
    points = layout.points()
    dots = axes.scatter(
        *points[known].T, c=100 * values, cmap="Greys", vmin=0, vmax=100, s=16, zorder=3, linewidths=0.6,
        edgecolors="black",
    )  # fmt: skip
    corner = axes.inset_axes((0.0, 0.06, 0.17, 0.016))
    bar = figure.colorbar(dots, cax=corner, orientation="horizontal", ticks=[0, 50, 100])
    finish_bar(bar, "support of a folder, %")
    numbers = np.zeros((0, 2))
    replicated = [i for i in range(len(known)) if round(100 * values[i]) > 0]
    for i in sorted(replicated, key=lambda i: (-int(folders.size[known[i]]), i)):
        spot = _free_spot(points[known[i]], points, numbers)
        if spot is not None:
            numbers = np.concatenate([numbers, spot[None]])
            box = {"facecolor": "white", "linewidth": 0, "pad": 0.2}  # lines must not run through a number
            axes.text(*spot, f"{100 * values[i]:.0f}", fontsize=SMALL, ha="center", va="center", bbox=box)


def _free_spot(
    point: Float[np.ndarray, " 2"], dots: Float[np.ndarray, "dot 2"], numbers: Float[np.ndarray, "number 2"]
) -> Float[np.ndarray, " 2"] | None:
    """A free position for a number beside a dot, away from all dots and numbers so far; None if there is none."""
    for dx, dy in ((0.0, 0.037), (0.0, -0.037), (0.05, 0.0), (-0.05, 0.0), (0.045, 0.035), (-0.045, 0.035)):
        spot = point + np.array([dx, dy])
        by_dot, by_number = (
            np.abs(dots - spot),
            np.abs(numbers - spot),
        )  # a number is about 0.07 wide and 0.035 high
        near = (by_dot < (0.046, 0.031)).all(axis=1).any() or (by_number < (0.074, 0.038)).all(axis=1).any()
        if not near and np.hypot(*spot) < 0.97:
            return np.asarray(spot)
    return None


def _checked_support(tree: PartitionTree, support: Any) -> dict[int, float] | None:
    if support is None:
        return None
    if not isinstance(support, Mapping):
        raise InvalidTypeError(
            f"support must map nodes of the tree to numbers, got {type(support).__name__}; pass a Consensus as tree"
        )
    known = {int(node): float(share) for node, share in support.items() if not np.isnan(share)}
    unknown = known.keys() - set(tree.distinct.node.tolist())
    if unknown or any(not 0 <= share <= 1 for share in known.values()):
        raise InvalidValueError(
            f"support must be numbers from 0 to 1 by uppermost node of a folder, got nodes {sorted(unknown)[:5]} "
            "that are not, or numbers out of range; pass a Consensus as tree"
        )
    return known or None
