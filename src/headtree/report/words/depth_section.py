"""What depth does to a model's tokens, as a section of its page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from headtree.depth.model_depth import ModelDepth
from headtree.depth.paths import PathLengths
from headtree.depth.residual import PUBLISHED_BERT, VARIANTS, RankResidual
from headtree.report.words.numbers import number_words
from headtree.section import Picture, Section, Table

if TYPE_CHECKING:
    import pandas as pd


def depth_section(found: ModelDepth) -> Section:
    """Words, tables and the captions of the figures that `headtree.report.figures.draw_depth` draws."""
    curves, paths = found.residual, found.paths
    text, tables = _residual_words(curves), [_residual_table(curves)]
    figures = [Picture("figures/depth_residual.svg", _residual_caption(curves))]
    if paths is None:
        text.append(f"Paths were not measured: {found.no_paths}.")
    else:
        text += _path_words(paths)
        tables += [_frame_table("Paths by length, mean over inputs", paths.table()), _head_table(paths)]
        figures.append(Picture("figures/depth_paths.svg", _PATH_CAPTION))
    return Section("Depth: rank collapse and paths", text, tables, figures)


def _frame_table(caption: str, frame: pd.DataFrame) -> Table:
    return Table(caption, [str(name) for name in frame], frame.to_numpy(object).tolist())


def _residual_table(curves: RankResidual) -> Table:
    frame = curves.table()
    means = [name for name in frame if not str(name).endswith("spread")]
    return _frame_table("Relative residual of the residual stream by depth, mean over inputs", frame[means])


def _head_table(paths: PathLengths) -> Table:
    return Table("Heads with the largest share of the paths of length 1", ("head", "share"), paths.top_heads(10))


def _residual_caption(curves: RankResidual) -> str:
    return (
        f"Relative residual of the residual stream on {curves.trained.shape[1]} inputs: mean, and range over "
        "inputs. Values below 10⁻⁷ are rounding error and drawn at 10⁻⁷. Open marks: pretrained BERT on 128 "
        "tokens in [RC]."
    )


_PATH_CAPTION = (
    "All paths of one length together: their signed share of the output of the network without MLPs, their norm "
    "and relative residual, and the share of each head's path of length 1. Bars are standard deviations over "
    "inputs."
)


def _half_depth(curve: Sequence[float] | Float[np.ndarray, " depth"]) -> int | None:
    """The first depth at which a curve is below half of its first value."""
    return next((depth for depth, value in enumerate(curve) if value < curve[0] / 2), None)


#: Below this the residual of single precision is rounding error, and its decay means nothing.
_ROUNDING = 1e-6


def _fall_words(curve: Float[np.ndarray, " depth"]) -> str:
    """Whether the decay of attention alone accelerates, from the factor per layer in its two halves."""
    end = next((depth for depth, value in enumerate(curve) if not value > _ROUNDING), len(curve)) - 1
    if end < 2:
        return "Attention alone reaches rounding error after too few layers to see how the residual decays."
    middle = end // 2
    first, second = (float((curve[b] / curve[a]) ** (1 / (b - a))) for a, b in ((0, middle), (middle, end)))
    shape = "accelerates, as in [RC]" if second < first else "does not accelerate, unlike in [RC]"
    return (
        f"With attention alone, a layer multiplies the residual on average by {number_words(first)} up to depth "
        f"{middle}, and by {number_words(second)} from there to depth {end}: the decay {shape}."
    )


def _half_words(subject: str, variant: str, mean: Float[np.ndarray, " depth"]) -> str:
    """At which depth the residual falls below half of its initial value, here and for BERT in [RC]."""
    half = _half_depth(mean)
    fall = (
        "never falls below half of its initial value"
        if half is None
        else f"falls below half of its initial value at depth {half}"
    )
    published = PUBLISHED_BERT[variant]
    theirs = _half_depth(list(published.values()))
    known = "" if theirs is None else f" (BERT in [RC]: depth {list(published)[theirs]})"
    return f"{subject}, the residual {fall}{known}."


def _residual_words(curves: RankResidual) -> list[str]:
    n_layers = curves.trained.shape[-1] - 1
    means = {name: curves.curve(name).mean(axis=0) for name in VARIANTS}
    ends = ", ".join(f"{number_words(mean[-1])} ({name})" for name, mean in means.items())
    said = [
        f"The relative residual of the tokens is {number_words(means['as is'][0])} before the first layer. After "
        f"all {n_layers} layers it is {ends}.",
        _half_words("With attention alone", "attention alone", means["attention alone"]),
        _half_words("In the network as it is", "as is", means["as is"]),
        _fall_words(means["attention alone"]),
    ]
    if curves.bound is not None and curves.log_bound is not None:
        last = float(curves.log_bound.mean(axis=0)[-1]) / np.log(10)
        meaning = "and says nothing about this network" if last > 0 else "below the trivial value of 1"
        said.append(
            f"The bound of [RC] for attention alone, with β = {number_words(curves.bound.beta)}, is 10 to the "
            f"power of {number_words(last)} after the last layer, {meaning}. It ignores the norms, which rescale "
            "every token."
        )
    return said


def _size_words(size: Float[np.ndarray, " length"]) -> str:
    """Whether the lengths can be read one by one."""
    large = np.flatnonzero(size > 1.1)
    last = number_words(size[-1])
    if not large.size:
        return f"No length has a sum larger than the output; the longest paths reach {last} of its norm."
    most = int(size.argmax())
    return (
        f"The sums of lengths {large[0]} to {large[-1]} are larger than the output itself, up to "
        f"{number_words(size[most])} times at length {most}, and cancel each other. No single length is what the "
        f"network computes, unlike in [RC], where short paths carry it. The longest paths reach {last} of the "
        "output's norm."
    )


def _path_words(paths: PathLengths) -> list[str]:
    share, residual = paths.share.mean(axis=0), paths.residual.mean(axis=0)
    falls = "falls with every length" if np.all(np.diff(residual) <= 1e-12) else "does not fall with every length"
    rank = "long paths are closer to rank one" if residual[-1] < residual[0] else "long paths do not lose rank"
    names = ", ".join(name for name, _ in paths.top_heads(5))
    return [
        f"Without MLPs the network is a sum of {number_words(sum(paths.n_paths))} paths and the biases. Paths of "
        f"length 0 and 1 contribute {share[:2].sum():.0%} of its output, the biases {paths.bias_share.mean():.0%}. "
        f"The relative residual of a length's sum {falls}, from {number_words(residual[0])} (length 0) to "
        f"{number_words(residual[-1])} (length {len(share) - 1}): {rank}.",
        _size_words(paths.size.mean(axis=0)),
        f"The heads with the largest share of the paths of length 1 are {names}. The sum of all paths differs from "
        f"the model's own output by at most {number_words(paths.difference.max())}, relative.",
    ]
