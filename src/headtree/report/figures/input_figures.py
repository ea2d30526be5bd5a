"""The input beside a head: its text or its picture, shaded by how much attention each token receives."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float

from headtree.report.figures.style import GREY, PAGE, SMALL, plain
from headtree.tensor.attention_tensor import AttentionTensor
from headtree.tensor.probabilities import as_probabilities

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Names of tokens that are patches of a picture.
_PATCH = re.compile(r"r(\d+)c(\d+)$")

#: Points between lines of text, and the width of a line.
_LINE, _WIDTH = 12.0, 72 * PAGE * 0.96

#: Lines of text, at most.
_LINES = 9

#: Opacity of the shade of the token that receives most.
_STRONGEST = 0.75
_SHADE = "#f08c14"


def received(one: AttentionTensor) -> Float[np.ndarray, " key"]:
    """Attention that each key of the only head receives, the mean over the queries that may attend to it."""
    shown = one if one.kind == "weighted" else as_probabilities(one)
    values = shown.block()[0].double().numpy()
    allowed = np.ones(values.shape, bool) if one.mask is None else ~one.mask[0].numpy()
    return np.asarray((values * allowed).sum(axis=0) / np.maximum(allowed.sum(axis=0), 1))


def is_picture(keys: Sequence[str]) -> bool:
    """Whether the tokens are patches of a picture."""
    return any(_PATCH.match(key) for key in keys)


class Placed(NamedTuple):
    """A token of a text: where it begins, in points, its line, its width, and its words."""

    x: float
    line: int
    width: float
    words: str


def laid_out(tokens: Sequence[str]) -> list[Placed]:
    """The first tokens as flowing text; pieces of a word follow each other without a space."""
    from matplotlib.textpath import TextPath

    placed: list[Placed] = []
    x, line = 0.0, 0
    is_cut = any(token.startswith(("##", "Ġ", "▁")) and len(token) > 2 for token in tokens)
    for token in tokens:
        words = plain(token.removeprefix("##").lstrip("Ġ▁") or token, 16)
        goes_on = is_cut and (token.startswith("##") or not (token.startswith(("Ġ", "▁")) or _is_wordpiece(tokens)))
        width = max(2.0, float(TextPath((0, 0), words.replace(" ", "n"), size=SMALL).get_extents().width) + 2.5)
        x += 0 if goes_on or not placed else 3.5
        if x + width > _WIDTH:
            x, line = 0.0, line + 1
            if line == _LINES:
                break
        placed.append(Placed(x, line, width, words))
        x += width
    return placed


def _is_wordpiece(tokens: Sequence[str]) -> bool:
    """Whether pieces are marked where a word goes on, not where one begins."""
    return any(token.startswith("##") and len(token) > 2 for token in tokens)


def text_height(placed: Sequence[Placed]) -> float:
    """Inches that the text takes, with its title."""
    return ((placed[-1].line if placed else 0) + 2) * _LINE / 72


def draw_text(figure: Figure, tokens: Sequence[str], placed: Sequence[Placed], weights: Any) -> None:
    """The text at the bottom of a figure, its tokens shaded."""
    from matplotlib.patches import Rectangle

    total = figure.get_size_inches()[1]
    height = text_height(placed)
    axes = figure.add_axes((0.02, 0.0, 0.96, height / total))
    axes.set_in_layout(False)
    axes.set(xlim=(0, _WIDTH), ylim=(height * 72, 0))
    axes.set_axis_off()
    more = f"; the first {len(placed)} of {len(tokens)} tokens" if len(placed) < len(tokens) else ""
    axes.text(
        0, 8, f"Where it looks: mean over queries of the attention to each token{more}", fontsize=SMALL, color=GREY
    )
    most = float(np.max(weights)) or 1.0
    for token, weight in zip(placed, weights, strict=False):
        top = _LINE * (token.line + 1)
        opacity = _STRONGEST * (float(weight) / most) ** 0.6
        axes.add_patch(
            Rectangle((token.x - 0.7, top), token.width, _LINE - 1.5, facecolor=_SHADE, alpha=opacity, linewidth=0)
        )
        axes.text(token.x, top + 8, token.words, fontsize=SMALL)


def draw_picture(
    axes: Any, picture: Float[np.ndarray, "row column channel"], keys: Sequence[str], weights: Any
) -> None:
    """The picture, dark where it receives no attention."""
    found = [(_PATCH.match(key), float(weight)) for key, weight in zip(keys, weights, strict=True)]
    patches = [(int(match[1]), int(match[2]), weight) for match, weight in found if match]
    n_rows, n_columns = 1 + max(patch[0] for patch in patches), 1 + max(patch[1] for patch in patches)
    seen = np.zeros((n_rows, n_columns))
    for row, column, weight in patches:
        seen[row, column] = weight
    share = (seen / (seen.max() or 1.0)) ** 0.6
    extent = (-0.5, n_columns - 0.5, n_rows - 0.5, -0.5)
    axes.imshow(picture, extent=extent, interpolation="none")
    axes.imshow(
        np.zeros_like(share),
        cmap="gray",
        vmin=0,
        vmax=1,
        alpha=0.78 * (1 - share),
        extent=extent,
        interpolation="none",
    )
    axes.set(xticks=[], yticks=[], title="where it looks")
    others = [
        f"{plain(key, 10)} {weight:.0%}".replace("%", " %")
        for key, (match, weight) in zip(keys, found, strict=True)
        if not match
    ]
    axes.set_xlabel("mean over queries" + "".join(f"; {words}" for words in others[:2]))
