"""What depth has to say about a model, as a part of its page: words, tables, figures, columns for layers.csv."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float
from torch import nn

from headtree.depth.paths import PathLengths, paths_of
from headtree.depth.residual import PUBLISHED_BERT, VARIANTS, RankResidual, measured
from headtree.depth.untrained import fresh_copy
from headtree.errors import InvalidValueError
from headtree.models.watching.collect import PreparedInputs
from headtree.report.figures.depth_figures import (
    circle_figure,
    path_figure,
    residual_figure,
    save_figure,
    task_figure,
)
from headtree.study.collapse.circle import CircleRuns
from headtree.study.collapse.path_tasks import TaskPaths

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class DepthContent:
    """The section in the shape of `headtree.section.Section.to_dict`, and columns by layer."""

    section: dict[str, Any]
    layers: pd.DataFrame
    residual: RankResidual
    paths: PathLengths | None  #: None where the layers are not linear in the stream; the section says so


def depth_content(
    job: PreparedInputs, figures: Path, fresh: bool | nn.Module = True, seed: int = 0
) -> DepthContent:
    """Measure a prepared model and write its figures.

    Parameters
    ----------
    job : PreparedInputs
        What `headtree.models.view.prepare` gave.
    figures : path
        Folder for ``depth_residual`` and ``depth_paths``, as SVG and PNG; it is made if it is not there.
    fresh : bool or module
        Whether to measure an untrained network as well; or that network.
    seed : int
        Of the fresh weights.
    """
    new = fresh_copy(job.model, seed) if fresh is True else fresh
    curves = measured(job, new if isinstance(new, nn.Module) else None)
    paths, reason = None, ""
    try:
        paths = paths_of(job)
    except InvalidValueError as error:
        reason = str(error)
    figures.mkdir(parents=True, exist_ok=True)
    pictures = [_picture(residual_figure(curves), figures, "depth_residual", _residual_caption(curves))]
    tables = [_residual_table(curves)]
    text = [*_residual_words(curves)]
    if paths is not None:
        pictures.append(_picture(path_figure(paths), figures, "depth_paths", _PATH_CAPTION))
        tables += [_path_table(paths), _head_table(paths)]
        text += _path_words(paths)
    else:
        text.append(f"Paths were not measured: {reason}.")
    section = {"title": "Depth: rank collapse and paths", "text": text, "tables": tables, "figures": pictures}
    return DepthContent(section, layer_columns(curves, paths), curves, paths)


def layer_columns(curves: RankResidual, paths: PathLengths | None) -> pd.DataFrame:
    """A row per layer, for layers.csv: relative residual after it by variant, and its share in the short paths."""
    import pandas as pd

    names = {name: "residual_" + name.lower().replace(" ", "_") for name in VARIANTS}
    columns: dict[str, Any] = {"layer": np.arange(curves.trained.shape[-1] - 1)}
    for values, ending in ((curves.trained, ""), (curves.fresh, "_fresh")):
        if values is not None:
            for name, curve in zip(VARIANTS, values, strict=True):
                columns[names[name] + ending] = curve.mean(axis=0)[1:]
    if paths is not None:
        columns["short_path_share"] = np.nansum(paths.head_share, axis=2).mean(axis=0)
    return pd.DataFrame(columns)


def tasks_content(tasks: Sequence[TaskPaths], circle: CircleRuns, figures: Path) -> dict[str, Any]:
    """The section of the tasks, and their figures ``depth_tasks`` and ``depth_circle``."""
    figures.mkdir(parents=True, exist_ok=True)
    text = [" ".join(task.findings()) for task in tasks] + circle.findings()
    tables = [_table(f"{task.task}: labels right by paths of one length", task.table()) for task in tasks]
    pictures = [
        _picture(
            task_figure(tasks),
            figures,
            "depth_tasks",
            "Labels that all paths of one length get right together, mean and 95 % interval over seeds.",
        ),
        _picture(
            circle_figure(circle),
            figures,
            "depth_circle",
            "One layer applied again and again to two points that should run along opposite arcs (grey). Marks are "
            "the ends; paths that leave the picture run off.",
        ),
    ]
    return {"title": "Depth: tasks of [RC]", "text": text, "tables": tables, "figures": pictures}


def _picture(figure: Any, folder: Path, name: str, caption: str) -> dict[str, str]:
    save_figure(figure, folder, name)
    return {"file": f"figures/{name}.svg", "caption": caption}


def _table(caption: str, table: pd.DataFrame) -> dict[str, Any]:
    rows = [[value.item() if hasattr(value, "item") else value for value in row] for row in table.to_numpy(object)]
    return {"caption": caption, "columns": [str(name) for name in table], "rows": rows}


def _residual_table(curves: RankResidual) -> dict[str, Any]:
    table = curves.table()
    kept = table[[name for name in table if not str(name).endswith("spread")]]
    return _table("Relative residual of the stream by depth, mean over inputs", kept)


def _path_table(paths: PathLengths) -> dict[str, Any]:
    return _table("Paths by length, mean over inputs", paths.table())


def _head_table(paths: PathLengths) -> dict[str, Any]:
    rows = [[name, share] for name, share in paths.top_heads(10)]
    return {"caption": "Heads that carry most of the paths of length 1", "columns": ["head", "share"], "rows": rows}


def _residual_caption(curves: RankResidual) -> str:
    return (
        f"Relative residual of the residual stream, {curves.trained.shape[1]} inputs: mean, and range over inputs. "
        "Values under 1e-7 are rounding and drawn there. Open marks: pretrained BERT on 128 tokens in [RC]."
    )


_PATH_CAPTION = (
    "All paths of one length together: their signed share of the output of the network without MLPs, their norm "
    "and relative residual, and the share of each head's paths of length 1. Bars are standard deviations over "
    "inputs."
)


def _half_depth(curve: Sequence[float] | Float[np.ndarray, " depth"]) -> int | None:
    """The first depth at which a curve is under half of where it began."""
    return next((depth for depth, value in enumerate(curve) if value < curve[0] / 2), None)


#: Under this the residual of single precision is rounding, and how it falls says nothing.
_ROUNDING = 1e-6


def _fall_words(curve: Float[np.ndarray, " depth"]) -> str:
    """Whether the fall of attention alone gets faster, from the factor per layer in its two halves."""
    end = next((depth for depth, value in enumerate(curve) if not value > _ROUNDING), len(curve)) - 1
    if end < 2:
        return "Attention alone is at rounding after so few layers that how it falls cannot be seen."
    first, second = (float((curve[b] / curve[a]) ** (1 / (b - a))) for a, b in ((0, end // 2), (end // 2, end)))
    shape = "ever faster, as in [RC]" if second < first else "not faster with depth, unlike [RC]"
    return (
        f"With attention alone a layer leaves {first:.2g} of the residual on average up to depth {end // 2}, and "
        f"{second:.2g} from there to depth {end}: it falls {shape}."
    )


def _residual_words(curves: RankResidual) -> list[str]:
    depth = curves.trained.shape[-1] - 1
    said = []
    means = {name: curves.curve(name).mean(axis=0) for name in VARIANTS}
    ends = ", ".join(f"{name} {mean[-1]:.3g}" for name, mean in means.items())
    said.append(
        f"The tokens' relative residual is {means['as is'][0]:.3g} before the first layer. After all {depth} "
        f"layers it is: {ends}."
    )
    for name, variant in (("attention alone", "attention alone"), ("as it is", "as is")):
        half = _half_depth(means[variant])
        published = _half_depth(list(PUBLISHED_BERT[variant].values()))
        ours = "never falls to half of its start" if half is None else f"is under half of its start at depth {half}"
        known = list(PUBLISHED_BERT[variant])
        theirs = "" if published is None else f"; that of BERT in [RC] is at depth {known[published]}"
        said.append(
            f"The residual of the network with {name} {ours}{theirs}.".replace("network with as", "network as")
        )
    said.append(_fall_words(means["attention alone"]))
    if curves.bound is not None and curves.log_bound is not None:
        last = float(curves.log_bound.mean(axis=0)[-1]) / np.log(10)
        is_empty = "so it says nothing about this network" if last > 0 else "below the trivial value 1"
        said.append(
            f"The bound of [RC] for attention alone, with β = {curves.bound.beta:.3g}, is 10^{last:.4g} after the "
            f"last layer, {is_empty}; norms, which it leaves out, rescale every token."
        )
    return said


def _size_words(size: Float[np.ndarray, " length"]) -> str:
    """Whether the lengths can be looked at one by one."""
    large = np.flatnonzero(size > 1.1)
    if not large.size:
        return f"No length's sum is larger than the output; the last has {size[-1]:.2g} of its norm."
    most = int(size.argmax())
    return (
        f"The sums of lengths {large[0]} to {large[-1]} are larger than the output itself, up to {size[most]:.3g} "
        f"times at length {most}, and cancel each other: no length by itself is what the network computes, unlike "
        f"[RC], where short paths carry it. The longest paths have {size[-1]:.2g} of the output's norm."
    )


def _path_words(paths: PathLengths) -> list[str]:
    share, residual = paths.share.mean(axis=0), paths.residual.mean(axis=0)
    short = float(share[:2].sum())
    falls = bool(np.all(np.diff(residual) <= 1e-12))
    names = ", ".join(name for name, _ in paths.top_heads(5))
    order = "falls with every length" if falls else "does not fall with every length"
    return [
        f"Without MLPs the network is a sum of {sum(paths.n_paths):.4g} paths and the biases. Paths of length 0 "
        f"and 1 make {short:.0%} of its output, the biases {paths.bias_share.mean():.0%}. The relative residual of "
        f"a length's sum {order}, from {residual[0]:.3g} (length 0) to {residual[-1]:.3g} (length "
        f"{len(share) - 1}): "
        + ("long paths are closer to rank one." if residual[-1] < residual[0] else "long paths keep their rank."),
        _size_words(paths.size.mean(axis=0)),
        f"The heads that carry most of the paths of length 1 are {names}. All paths together differ from the "
        f"model's own numbers by {paths.difference.max():.1g} at most, relative.",
    ]
