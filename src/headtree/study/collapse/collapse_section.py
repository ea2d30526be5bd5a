"""The tasks and the circle of [RC] as a section, and their figures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from headtree.section import Picture, Section, Table
from headtree.study.collapse.circle import CircleRuns
from headtree.study.collapse.path_tasks import TaskPaths


def collapse_section(tasks: Sequence[TaskPaths], circle: CircleRuns) -> Section:
    """What the tasks and the circle show, in words, tables and two figures."""
    tables = [_accuracy_table(task) for task in tasks]
    figures = [
        Picture(
            "figures/depth_tasks.svg",
            "Share of labels that all paths of one length together get right, mean and 95 % interval over seeds.",
        ),
        Picture(
            "figures/depth_circle.svg",
            "One layer applied again and again to two points that should follow opposite arcs (grey). Marks are "
            "the end points; paths that leave the figure diverge.",
        ),
    ]
    text = [" ".join(task.findings()) for task in tasks] + circle.findings()
    return Section("Depth: tasks of [RC]", text, tables, figures)


def _accuracy_table(task: TaskPaths) -> Table:
    table = task.table()
    return Table(f"{task.task}: accuracy of the paths of each length", list(table), table.to_numpy(object).tolist())


def draw_collapse(tasks: Sequence[TaskPaths], circle: CircleRuns, folder: Path) -> None:
    """Draw the figures of the section, ``depth_tasks`` and ``depth_circle``, into a folder."""
    from headtree.report.figures.style import save
    from headtree.study.collapse.collapse_figures import circle_paths, task_accuracies

    save(task_accuracies(tasks), folder, "depth_tasks")
    save(circle_paths(circle), folder, "depth_circle")
