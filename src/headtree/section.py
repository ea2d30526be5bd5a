"""Optional sections of a run: text, tables and figures in one format that a page can show."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headtree.errors import InvalidValueError


@dataclass(frozen=True)
class Table:
    """Rows of plain values under named columns, stored as tuples."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", tuple(self.columns))
        object.__setattr__(self, "rows", tuple(tuple(row) for row in self.rows))
        for i, row in enumerate(self.rows):
            if len(row) != len(self.columns):
                raise InvalidValueError(
                    f"rows[{i}] of the table {self.caption!r} must have a value for each of the "
                    f"{len(self.columns)} columns, got {len(row)}"
                )


@dataclass(frozen=True)
class Picture:
    """A figure of a run, with a caption."""

    file: str  #: path in the run folder, such as figures/depth.svg
    caption: str


@dataclass(frozen=True)
class Section:
    """A title, paragraphs, tables and figures, stored as tuples.

    Examples
    --------
    >>> import headtree as ht
    >>> from headtree.section import Table
    >>> table = Table("Most recurring heads", ["head", "inputs"], [["L0H1", 3], ["L1H0", 2]])
    >>> section = ht.Section("Stability", ["Two heads recur."], tables=[table])
    >>> section.tables[0].rows
    (('L0H1', 3), ('L1H0', 2))
    >>> ht.Section.from_dict(section.to_dict()) == section
    True
    """

    title: str
    text: Sequence[str] = ()
    tables: Sequence[Table] = ()
    figures: Sequence[Picture] = ()

    def __post_init__(self) -> None:
        if isinstance(self.text, str):
            raise InvalidValueError(f"text must be a sequence of paragraphs, got one string: {self.text[:40]!r}")
        for name in ("text", "tables", "figures"):
            object.__setattr__(self, name, tuple(getattr(self, name)))

    def to_dict(self) -> dict[str, Any]:
        """The section as stored in its file, in plain JSON values."""
        return {
            "title": self.title,
            "text": list(self.text),
            "tables": [
                {"caption": t.caption, "columns": list(t.columns), "rows": [list(row) for row in t.rows]}
                for t in self.tables
            ],
            "figures": [{"file": p.file, "caption": p.caption} for p in self.figures],
        }

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Section:
        """The section that `to_dict` was called on."""
        return cls(
            title=str(value["title"]),
            text=tuple(map(str, value.get("text", ()))),
            tables=tuple(Table(t["caption"], t["columns"], t["rows"]) for t in value.get("tables", ())),
            figures=tuple(Picture(p["file"], p["caption"]) for p in value.get("figures", ())),
        )

    def to_json(self) -> str:
        """The section as JSON text; numpy numbers become plain ones."""
        return json.dumps(self.to_dict(), indent=1, ensure_ascii=False, default=_plain) + "\n"


def read_section(path: Path) -> Section:
    """Read a section from its file."""
    try:
        return Section.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidValueError(
            f"{path} cannot be read as a section of a run ({type(error).__name__}: {error}); remove it, or "
            "write it again"
        ) from error


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else str(value)
