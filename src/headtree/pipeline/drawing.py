"""The last steps of a run: its page."""

from __future__ import annotations

from headtree.pipeline.workplace import Workplace


def write_page(place: Workplace) -> None:
    """Write the page."""
    from headtree.report.page import write_report

    with place.whole(place.path / "report.html") as draft:
        write_report(place.run, draft)
