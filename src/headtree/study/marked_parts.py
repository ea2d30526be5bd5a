"""Results in Markdown documents: each part of them stands between two lines that name it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from headtree._files import write_text
from headtree.errors import InvalidValueError


def marks(name: str) -> tuple[str, str]:
    """The lines of a document between which a part stands."""
    return f"<!-- {name}: begin -->", f"<!-- {name}: end -->"


def write_parts(parts: Mapping[str, str], documents: Sequence[Path]) -> None:
    """Replace the text between the marks of each part, in every document that has them, without figures.

    The first heading of a part becomes one of level two, below the title of the document.
    """
    for document in documents:
        text = document.read_text(encoding="utf-8")
        here = [name for name in parts if all(mark in text for mark in marks(name))]
        if not here:
            pairs = " or ".join(" and ".join(map(repr, marks(name))) for name in parts)
            raise InvalidValueError(f"{document} must have the lines {pairs}, which mark where the results go")
        for name in here:
            begin, end = marks(name)
            before, after = text.split(begin)[0], text.split(end)[1]
            text = f"{before}{begin}\n\n{_body(parts[name])}\n\n{end}{after}"
        write_text(document, text)


def _body(part: str) -> str:
    paragraphs = part.strip().split("\n\n")
    after_figure = {i + 1 for i, paragraph in enumerate(paragraphs) if paragraph.startswith("![")}
    kept = [
        paragraph
        for i, paragraph in enumerate(paragraphs)
        if not paragraph.startswith("![") and i not in after_figure
    ]
    levels = [len(paragraph) - len(paragraph.lstrip("#")) for paragraph in kept]
    first = next(filter(None, levels), 2)
    return "\n\n".join(
        "#" * (level - first + 2) + paragraph.lstrip("#") if level else paragraph
        for level, paragraph in zip(levels, kept, strict=True)
    )
