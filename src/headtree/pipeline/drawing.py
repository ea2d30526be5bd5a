"""The last steps of a run: its figures and its page."""

from __future__ import annotations

import os

from headtree.runs.folder import Workplace


def draw(place: Workplace) -> None:
    """Draw every figure aside, then move them into the run one by one."""
    from headtree.report.figures import draw_all

    with place.aside() as folder:
        draw_all(place.run, folder)
        names = sorted(path.name for path in folder.iterdir())
        place.announce("draw", tuple(f"figures/{name}" for name in names))
        target = place.path / "figures"
        target.mkdir(exist_ok=True)
        for name in names:
            os.replace(folder / name, target / name)


def write_page(place: Workplace) -> None:
    """Write the page."""
    from headtree.report.page.document import write_report

    with place.whole(place.path / "report.html") as draft:
        write_report(place.run, draft)
