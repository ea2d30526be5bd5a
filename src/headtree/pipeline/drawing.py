"""The last steps of a run: its figures and its page."""

from __future__ import annotations

from headtree.pipeline.steps import new_figures
from headtree.runs.folder import Workplace


def draw(place: Workplace) -> None:
    """Draw every figure."""
    from headtree.report.figures import draw_all

    with new_figures(place, "draw") as folder:
        draw_all(place.run, folder)


def write_page(place: Workplace) -> None:
    """Write the page."""
    from headtree.report.page.document import write_report

    with place.whole(place.path / "report.html") as draft:
        write_report(place.run, draft)
