"""Figures of single heads: the matrix in original and in tree order, and softmax decomposed by scales."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from headtree import _checks
from headtree.bases.paraproduct import Paraproduct, relative_norm
from headtree.errors import InvalidTypeError, InvalidValueError
from headtree.questionnaire.organization import Organization
from headtree.report.figures.input_figures import draw_picture, draw_text, laid_out, received, text_height
from headtree.report.figures.style import (
    BLUE,
    GREY,
    PAGE,
    SMALL,
    VERMILION,
    color_limits,
    name_missing,
    new_figure,
    plain,
    rising_colors,
    root_norm,
    root_ticks,
    signed_colors,
    styled,
    thin,
)
from headtree.report.words.numbers import number_words
from headtree.tensor.attention_tensor import AttentionTensor
from headtree.trees.tree import PartitionTree

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Beside(NamedTuple):
    """The input of a head: its keys, the attention that each receives, and its picture, if it is one."""

    keys: Sequence[str]
    weights: Float[np.ndarray, " key"]
    picture: Any


#: Folder boundaries are drawn for the finest level with at most this many folders.
_FOLDERS = 12

#: A matrix with more rows or columns than this is drawn by blocks; printed panels have a lower resolution.
_SIDE = 512

_UNITS = {
    "scores": "attention score (before softmax)",
    "probs": "attention probability",
    "weighted": "value-weighted attention",
    "signed": "signed value",
}


@styled
def organized_head(
    att: AttentionTensor,
    org: Organization,
    head: int | str | tuple[int, int],
    *,
    unit: str = "",
    picture: Any = None,
    text: bool = False,
) -> Figure:
    """A head in the original order and with its queries and keys in tree order, on one colour scale.

    Parameters
    ----------
    att : AttentionTensor
        Only this head of a tensor on disk is read. For one matrix, ``AttentionTensor.from_array(matrix[None])``.
    org : Organization
        Its last two axes order queries and keys: an organization of `att`, or of the one matrix.
    head : int, str or (layer, head)
        Index, name such as "L3H5", or layer and head.
    unit : str
        What the entries are; by default the kind of `att` says it.
    picture : array (row, column, channel), optional
        The picture that the tokens are patches of (named ``r0c0``, ``r0c1``, …), drawn beside the matrices and dark
        where it receives no attention.
    text : bool
        Whether to write the keys below the matrices, shaded by the attention that each receives.

    Notes
    -----
    Thin lines are the boundaries of the finest tree level with at most 12 folders. Missing entries are grey. A few
    entries far larger than all others are drawn in the last colour of the scale, whose end is then pointed.

    Examples
    --------
    >>> import numpy as np
    >>> import headtree as ht
    >>> values = np.random.default_rng(0).standard_normal((4, 8, 8))
    >>> att = ht.AttentionTensor.from_array(values, heads_per_layer=2)
    >>> figure = organized_head(att, ht.organize(att), "L0H1")
    >>> [axes.get_title() for axes in figure.axes[:2]]
    ['L0H1, original order', 'L0H1, organized']
    """
    if not isinstance(att, AttentionTensor):
        raise InvalidTypeError(f"att must be an AttentionTensor, got {type(att).__name__}")
    one = att.take([head])
    values = one.block()[0].double().numpy()
    return _as_given_and_organized(
        values if one.mask is None else np.where(one.mask[0], np.nan, values),
        org,
        title=str(one.heads[0]),
        unit=unit or ("centred attention score" if att.provenance.get("centred") else _UNITS[att.kind]),
        axes=("query", "key"),
        labels=(att.queries, att.keys),
        is_signed=att.kind in ("scores", "signed"),
        is_root=att.kind == "probs",
        beside=Beside(att.keys, received(one), picture) if text or picture is not None else None,
    )


@styled
def organized_matrix(
    values: Any,
    org: Organization,
    *,
    title: str = "matrix",
    unit: str = "value",
    labels: tuple[Sequence[str], Sequence[str]] | None = None,
) -> Figure:
    """Any matrix in the original order and with rows and columns in tree order; otherwise as `organized_head`.

    Parameters
    ----------
    values : array (row, column)
        Nan where an entry is missing.
    org : Organization
        Its last two axes order rows and columns, and name them.
    title, unit : str
        What the matrix is, and what its entries are.
    labels : two sequences of str, optional
        Names of rows and columns; by default their numbers.

    Examples
    --------
    >>> import numpy as np
    >>> import headtree as ht
    >>> matrix = np.random.default_rng(0).standard_normal((6, 8))
    >>> figure = organized_matrix(matrix, ht.organize_array(matrix), title="noise")
    >>> [axes.get_title() for axes in figure.axes[:2]]
    ['noise, original order', 'noise, organized']
    """
    matrix = _checks.real_tensor(values, "values").double().numpy()
    if matrix.ndim != 2 or 0 in matrix.shape:
        raise InvalidValueError(f"values must be a matrix, got shape {matrix.shape}")
    names = labels or tuple([str(i) for i in range(n)] for n in matrix.shape)
    present = matrix[np.isfinite(matrix)]
    return _as_given_and_organized(
        matrix,
        org,
        title=title,
        unit=unit,
        axes=getattr(org, "names", ("row", "column"))[-2:],
        labels=(names[0], names[1]),
        is_signed=bool(present.size and present.min() < 0 < present.max()),
    )


def _as_given_and_organized(
    shown: Float[np.ndarray, "row column"],
    org: Organization,
    *,
    title: str,
    unit: str,
    axes: tuple[str, ...],
    labels: tuple[Sequence[str], Sequence[str]],
    is_signed: bool,
    is_root: bool = False,
    beside: Beside | None = None,
) -> Figure:
    """A matrix in both orders, nan where entries are missing, on one colour scale; the input beside or below it."""
    trees = _row_and_column_trees(shown.shape, org)
    scale, beyond = _scale(shown, is_signed, is_root)
    orders = [org.order(len(org.shape) - 2), org.order(len(org.shape) - 1)]
    placed = laid_out(beside.keys) if beside and beside.picture is None else []
    below = text_height(placed) if placed else 0.0
    has_picture = beside is not None and beside.picture is not None
    height = 2.6 if has_picture else 3.35
    figure = new_figure(PAGE, height + below, bottom=below / (height + below))
    left, right, *third = figure.subplots(
        1, 3 if has_picture else 2, width_ratios=(1, 1, 0.8) if has_picture else (1, 1)
    )
    if beside and third:
        draw_picture(third[0], beside.picture, beside.keys, beside.weights)
    elif beside:
        draw_text(figure, beside.keys, placed, beside.weights)
    draw_matrix(left, shown, **scale)
    image = draw_matrix(right, shown[np.ix_(*orders)], **scale)
    _name_tokens(left, axes, labels, orders=None)
    _name_tokens(right, axes, labels, orders)
    _draw_folders(right, trees, orders, color="black" if is_signed else "white")  # 0 is white, or dark
    left.set_title(f"{plain(title, 24)}, original order")
    right.set_title(f"{plain(title, 24)}, organized")
    if np.isnan(shown).any():
        name_missing(right)
    bar = figure.colorbar(image, ax=[left, right], extend=beyond, shrink=0.85, pad=0.02)
    finish_bar(bar, plain(unit, 40) + averaging(shown.shape))
    if is_root:
        _tick_roots(bar, 0.0, image.get_clim()[1], 2)
    return figure


def _scale(shown: Float[np.ndarray, "row column"], is_signed: bool, is_root: bool) -> tuple[dict[str, Any], str]:
    """The colours of a matrix, as on the page, and which ends of the scale its values reach beyond.

    Probabilities are spaced by their square root. Other values of one sign span their range.
    """
    low, high, beyond = color_limits(shown, is_signed=is_signed)
    if is_signed:
        return {"cmap": signed_colors(), "vmin": low, "vmax": high}, beyond
    present = shown[np.isfinite(shown)]
    most = float(present.max()) if present.size else 1.0
    if is_root:
        return {"cmap": rising_colors(), "norm": root_norm(0.0, most or 1.0, 2)}, "neither"
    least = float(present.min()) if present.size else 0.0
    return {"cmap": rising_colors(), "vmin": least, "vmax": most if most > least else least + 1}, "neither"


@styled
def paraproduct_terms(
    product: Paraproduct,
    row_order: Int[np.ndarray, " row"] | None = None,
    column_order: Int[np.ndarray, " column"] | None = None,
    *,
    missing: Bool[np.ndarray, "row column"] | None = None,
    name: str = "",
    function: str = "softmax",
) -> Figure:
    """Softmax of one head beside its paraproduct and the terms of the decomposition, on one colour scale.

    Parameters
    ----------
    product : Paraproduct
        The decomposition of one matrix: ``paraproduct(matrix, query_tree, key_tree, "softmax")``.
    row_order, column_order : integers, optional
        Order of queries and keys, ``org.order("query")`` and ``org.order("key")``; by default the original order.
    missing : bool (row, column), optional
        Entries that were filled before the decomposition; drawn grey.
    name, function : str
        Name of the head and of the function that was decomposed.

    Notes
    -----
    Percentages are norms relative to the norm of softmax(f), also in the bars. "eq. (12)" is what [OA] prints:
    first- plus second-order terms. "With boundary" adds the terms that eq. (12) leaves out. Softmax(f) is "with
    boundary" plus residual. Colours are spaced by the fourth root of the values, which shows small terms.

    Examples
    --------
    >>> import numpy as np
    >>> import headtree as ht
    >>> scores = 0.5 * np.random.default_rng(0).standard_normal((8, 8))
    >>> trees = ht.organize_array(scores).trees
    >>> figure = paraproduct_terms(ht.paraproduct(scores, *trees, "softmax"), name="L0H0")
    >>> figure.get_suptitle()
    'L0H0: softmax by scales'
    """
    if not isinstance(product, Paraproduct) or len(np.shape(product.value)) != 2:
        raise InvalidTypeError("product must be the Paraproduct of one matrix; pass paraproduct(f[head], …)")
    terms = {term: _checks.real_tensor(getattr(product, term), term).double().numpy() for term in _TERMS}
    printed = terms["first"] + terms["second"]
    panels = {
        f"{plain(function)}(f)": terms["value"],
        "with boundary": terms["boundary"] + printed,
        "eq. (12) as printed": printed,
        "residual": terms["residual"],
        "boundary": terms["boundary"],
        "first order": terms["first"],
        "second order": terms["second"],
    }
    shape = terms["value"].shape
    orders = [
        _checked_order(order, n, label)
        for order, n, label in zip((row_order, column_order), shape, ("row_order", "column_order"), strict=True)
    ]
    hidden = np.zeros(shape, bool) if missing is None else np.asarray(missing, bool)
    stack = np.where(hidden, np.nan, np.stack(list(panels.values())))
    most = float(np.nanmax(np.abs(stack), initial=0.0)) or 1.0
    norm = root_norm(-most, most, 4)
    figure = new_figure(PAGE, 3.9)
    grid = figure.subplots(2, 4)
    for axes, (title, values), shown in zip(grid.flat, panels.items(), stack, strict=False):
        image = draw_matrix(axes, shown[np.ix_(*orders)], cmap=signed_colors(), norm=norm)
        share = float(relative_norm(values, terms["value"]))
        axes.set_title(title if values is terms["value"] else f"{title}, {share:.0%}", fontsize=SMALL + 0.5)
        axes.set(xticks=[], yticks=[])
    grid[0, 0].set_ylabel("query, tree order" if row_order is not None else "query")
    grid[1, 0].set_ylabel(grid[0, 0].get_ylabel())
    for axes in grid[1, :3]:
        axes.set_xlabel("key, tree order" if column_order is not None else "key")
    _share_bars(grid[1, 3], product, plain(function))
    bar = figure.colorbar(image, ax=grid, shrink=0.8, pad=0.01)
    finish_bar(bar, "value of the term, fourth-root scale" + averaging(shape))
    _tick_roots(bar, -most, most, 4)
    title = f"{plain(name, 60)}: {plain(function)} by scales" if name else f"{plain(function)} by scales"
    figure.suptitle(f"{title} (grey: missing)" if hidden.any() else title)
    return figure


_TERMS = ("value", "first", "second", "boundary", "residual")


def _share_bars(axes: Any, product: Paraproduct, function: str) -> None:
    shares = {
        "boundary": product.shares["boundary"],
        "first order": product.shares["first"],
        "second order": product.shares["second"],
        "residual": product.relative_error,
        "error, eq. (12)": product.relative_error_without_boundary,
    }
    values = [100 * float(share) for share in shares.values()]
    axes.barh(range(5), values, color=[GREY, GREY, GREY, BLUE, VERMILION], height=0.7)
    axes.set_yticks([])
    axes.set_xlim(0, 1.08 * max(values) or 1)
    for bar, (label, value) in enumerate(zip(shares, values, strict=True)):
        inside = value > 0.55 * max(values)
        axes.text(
            0.03 * axes.get_xlim()[1] if inside else value + 0.03 * axes.get_xlim()[1],
            bar,
            label,
            va="center",
            fontsize=SMALL,
            color="white" if inside else "black",
        )
    axes.invert_yaxis()
    axes.set_box_aspect(1)
    axes.set_title(f"norm relative to {function}(f)", fontsize=SMALL + 0.5)
    axes.set_xlabel("%")


# -- shared by figures of matrices -------------------------------------------------------------------------


def folder_edges(
    tree: PartitionTree, order: Int[np.ndarray, " leaf"], at_most: int = _FOLDERS
) -> Int[np.ndarray, " edge"]:
    """Positions in the order where a new folder begins, on the finest level with at most this many folders."""
    level = int(np.flatnonzero(tree.n_folders <= at_most)[-1])
    return 1 + np.flatnonzero(np.diff(tree.labels[level][order]))


def draw_matrix(axes: Any, values: Float[np.ndarray, "row column"], **scale: Any) -> Any:
    """A matrix as an image, one square per entry; above 512 entries a side, one per block, with its mean."""
    blocks = _block_means(values)
    n_rows, n_columns = values.shape
    extent = (-0.5, n_columns - 0.5, n_rows - 0.5, -0.5)
    image = axes.imshow(np.ma.masked_invalid(blocks), interpolation="none", extent=extent, **scale)
    finish_image(axes)
    return image


def averaging(shape: tuple[int, ...]) -> str:
    """Addition to the label of a matrix that `draw_matrix` averages over blocks."""
    rows, columns = _block_sides(shape)
    return f", mean of {rows}×{columns}" if rows * columns > 1 else ""


def _block_sides(shape: tuple[int, ...]) -> tuple[int, int]:
    rows, columns = (-(-n // _SIDE) for n in shape)
    return rows, columns


def _block_means(values: Float[np.ndarray, "row column"]) -> Float[np.ndarray, "block block"]:
    """Means over the present entries of each block; nan where a block has none."""
    rows, columns = _block_sides(values.shape)
    if rows * columns == 1:
        return values
    starts = np.arange(0, values.shape[0], rows), np.arange(0, values.shape[1], columns)
    here = np.isfinite(values)
    sums = np.add.reduceat(np.add.reduceat(np.where(here, values, 0.0), starts[0], axis=0), starts[1], axis=1)
    counts = np.add.reduceat(np.add.reduceat(here.astype(float), starts[0], axis=0), starts[1], axis=1)
    return np.divide(sums, counts, out=np.full_like(sums, np.nan), where=counts > 0)


def finish_image(axes: Any) -> None:
    """A square image with a thin frame on all sides."""
    axes.set_aspect("auto")
    axes.set_box_aspect(1)
    axes.spines[["top", "right"]].set_visible(True)
    axes.tick_params(length=2)


def finish_bar(bar: Any, label: str) -> None:
    """Label a colour bar."""
    bar.set_label(label)
    bar.outline.set_linewidth(0.5)
    bar.ax.tick_params(length=2)


def _tick_roots(bar: Any, low: float, high: float, power: int) -> None:
    """Round values on the bar of a scale of roots."""
    ticks = root_ticks(low, high, power)
    bar.set_ticks(ticks, labels=[number_words(tick) for tick in ticks])
    bar.minorticks_off()


def _row_and_column_trees(shape: tuple[int, ...], org: Any) -> tuple[PartitionTree, PartitionTree]:
    if not isinstance(org, Organization) or len(org.shape) < 2:
        raise InvalidTypeError(f"org must be an Organization of two or more axes, got {type(org).__name__}")
    if org.shape[-2:] != shape:
        raise InvalidValueError(
            f"org must organize the matrix, which has shape {shape}, but its last two trees have {org.shape[-2:]} "
            "leaves"
        )
    return org.trees[len(org.shape) - 2], org.trees[len(org.shape) - 1]


def _checked_order(order: Any, n: int, name: str) -> Int[np.ndarray, " slice"]:
    if order is None:
        return np.arange(n)
    if not np.array_equal(np.sort(np.asarray(order)), np.arange(n)):
        raise InvalidValueError(f"{name} must be a permutation of 0..{n - 1}; pass org.order(axis)")
    return np.asarray(order)


def _name_tokens(
    axes: Any, what: tuple[str, ...], tokens: tuple[Sequence[str], Sequence[str]], orders: list[Any] | None
) -> None:
    """Token strings if all of them have room; else positions, or nothing in tree order."""
    points = 190.0  # the side of a panel
    for names, order, axis, word in zip(
        tokens, orders or (None, None), (axes.yaxis, axes.xaxis), what, strict=True
    ):
        n = len(names)
        tokens_at = range(n) if order is None else [int(i) for i in order]
        if len(thin(n, points)) == n:
            axis.set_ticks(np.arange(n), [plain(names[i], 10) for i in tokens_at])
        elif order is None:
            axis.set_major_locator(_whole_numbers())
        else:
            axis.set_ticks([])
        axis.set_label_text(f"{plain(word)}, position" if order is None else f"{plain(word)}, tree order")
    if len(axes.get_xticks()) and len(thin(len(tokens[1]), points)) == len(tokens[1]):
        axes.tick_params(axis="x", rotation=90)


def _whole_numbers() -> Any:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(nbins=6, integer=True)


def _draw_folders(axes: Any, trees: Sequence[PartitionTree], orders: Sequence[Any], color: str) -> None:
    for tree, order, line in zip(trees, orders, (axes.axhline, axes.axvline), strict=True):
        for edge in folder_edges(tree, order):
            line(edge - 0.5, color=color, linewidth=0.4, alpha=0.7)
