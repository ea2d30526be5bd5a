"""The sections of a run and its images, as data of the page."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headtree.report.page.overview import shortened
from headtree.report.words.slice_words import all_said_of, said_of
from headtree.report.words.terms import SECTION_TERMS

if TYPE_CHECKING:
    from headtree.runs.run import Run

#: Bytes of figures that the page may contain.
_ROOM_FOR_PICTURES = 1_000_000

#: Bytes of the image of one input.
_ROOM_FOR_THUMBNAIL = 100_000

_ROWS_AT_MOST = 300

#: Files that a page shows as images. As the source of an image, an SVG runs no script and loads nothing.
_MEDIA = {".svg": "image/svg+xml", ".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg"}


def sections(run: Run) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """Titles, paragraphs, tables and figures of every section, and notes on what was left out."""
    described, notes = [], []
    room = _ROOM_FOR_PICTURES
    for name, section in run.sections.items():
        tables = []
        for table in section.tables:
            rows = [[_cell(value) for value in row] for row in table.rows[:_ROWS_AT_MOST]]
            tables.append({"caption": table.caption, "columns": [str(c) for c in table.columns], "rows": rows})
            if len(table.rows) > _ROWS_AT_MOST:
                notes.append(
                    f"The table “{shortened(table.caption, 80)}” shows its first {_ROWS_AT_MOST} of "
                    f"{len(table.rows)} rows."
                )
        figures = []
        for picture in section.figures:
            source = picture_source(run.path / picture.file, run.path, room)
            if source is None:
                notes.append(f"The figure {shortened(picture.file, 80)} is in the run folder only.")
            else:
                room -= len(source)
                figures.append({"source": source, "caption": said_of(run.slices, picture.caption)})
        described.append(
            {
                "id": str(name),
                "title": said_of(run.slices, section.title),
                "term": SECTION_TERMS.get(str(name), "section"),
                "text": all_said_of(run.slices, [shortened(str(paragraph), 5000) for paragraph in section.text]),
                "tables": all_said_of(run.slices, tables),
                "figures": figures,
            }
        )
    return described, tuple(notes)


def _cell(value: Any) -> Any:
    return value if isinstance(value, int | float | bool) or value is None else shortened(str(value), 500)


def thumbnail(run: Run, i: int) -> str | None:
    """The image of an input."""
    if len(run.samples) != run.n_inputs:
        return None
    return picture_source(run.samples[i], run.path, _ROOM_FOR_THUMBNAIL)


def picture_source(path: Path, folder: Path, room: int) -> str | None:
    """A file of the run folder as a data URL; None if it is too large or not an image."""
    media = _MEDIA.get(path.suffix.lower())
    inside = path.resolve().is_relative_to(folder.resolve())
    if media is None or not inside or not path.is_file() or path.stat().st_size * 4 // 3 > room:
        return None
    return f"data:{media};base64,{base64.b64encode(path.read_bytes()).decode('ascii')}"
