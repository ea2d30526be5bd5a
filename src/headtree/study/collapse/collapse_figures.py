"""Figures of the tasks and of the circle of [RC]."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from headtree.report.figures.style import BLUE, GREEN, GREY, MISSING, PAGE, SMALL, VERMILION, new_figure, styled
from headtree.study.collapse.circle import CircleRuns
from headtree.study.collapse.path_tasks import TaskPaths

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@styled
def task_accuracies(tasks: Sequence[TaskPaths]) -> Figure:
    """Accuracy of the paths of each length, with 95 % intervals over seeds, beside the network and chance."""
    figure = new_figure(PAGE, 2.7)
    all_axes = np.atleast_1d(figure.subplots(1, len(tasks), sharey=True))
    for axes, task in zip(all_axes, tasks, strict=True):
        mean, half = task.interval()
        length = np.arange(len(mean))
        axes.axhline(100 * task.network.mean(), color=GREEN, label="whole network")
        axes.axhline(100 * task.chance, color=GREY, linestyle=":", label="chance")
        axes.errorbar(length, 100 * mean, 100 * half, color=BLUE, marker="o", label="paths of this length")
        axes.set(title=f"{task.task} ({len(task.accuracy)} seeds)", xlabel="path length", ylim=(0, 105))
        axes.set_xticks(length)
        axes.grid()
    all_axes[0].set_ylabel("correct labels, %")
    figure.legend(*all_axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


@styled
def circle_paths(circle: CircleRuns) -> Figure:
    """Where two points go when one layer is applied again and again, by variant; the first seed."""
    figure = new_figure(PAGE, 2.2)
    all_axes = figure.subplots(1, len(circle.runs), sharex=True, sharey=True)
    for axes, (name, runs) in zip(all_axes, circle.runs.items(), strict=True):
        for point, (color, marker) in enumerate(((BLUE, "o"), (VERMILION, "s"))):
            truth, run = circle.truth[:, point], runs[0, :, point]
            axes.plot(*truth.T, color=MISSING, linewidth=3, zorder=1)
            axes.plot(*run.T, color=color, zorder=2)
            axes.plot(*run[-1], color=color, marker=marker, zorder=3)
        ends = [f"{n} {end}" for end, n in circle.ends(name).items() if n]
        axes.set_title(f"{name}\n{', '.join(ends)}", fontsize=SMALL)
        axes.set_aspect("equal")
        axes.set(xlim=(-0.45, 0.45), ylim=(-0.45, 0.45))
        axes.grid()
    return figure
