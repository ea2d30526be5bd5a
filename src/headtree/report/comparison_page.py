"""The page of a comparison: one HTML file with figures and tables, without scripts and requests."""

from __future__ import annotations

import base64
import html
from collections.abc import Sequence
from io import BytesIO
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headtree._extras import require
from headtree._files import checked_path, exists, write_text
from headtree.errors import InvalidTypeError, InvalidValueError
from headtree.report.words.comparison_words import (
    CHANGED_COLUMNS,
    change_sentence,
    changed_head_rows,
    distance_rows,
    event_words,
    pair_sentence,
)

if TYPE_CHECKING:
    from headtree.comparison.compare_networks import Comparison

#: Heads that are shown before the rest is unfolded.
_SHOWN = 12
#: Width of the widest figures, which fill the page.
_INCHES = 7.0

_STYLE = """
:root { color-scheme: light dark; --text: #1a1a1a; --quiet: #5c5c5c; --back: #fff; --line: #d9d9d9; --band: #f5f5f5;
  --accent: #0072b2 }
@media (prefers-color-scheme: dark) { :root { --text: #e8e8e8; --quiet: #a8a8a8; --back: #16181b; --line: #3a3d42;
  --band: #1f2226; --accent: #56b4e9 } }
* { box-sizing: border-box }
body { margin: 0 auto; padding: 1.5rem 1rem 4rem; max-width: 60rem; color: var(--text); background: var(--back);
  font: 16px/1.5 system-ui, sans-serif; overflow-wrap: anywhere }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0 0 .5rem }
h2 { font-size: 1.15rem; margin: 2.5rem 0 .5rem; padding-top: .75rem; border-top: 1px solid var(--line) }
p, li { max-width: 44rem }
.quiet, figcaption { color: var(--quiet); font-size: .875rem }
figure { margin: 1.25rem 0 }
.scroll { overflow-x: auto }
figure .scroll { background: #fff; border-radius: 6px; padding: .5rem }
img { display: block; width: 100%; height: auto }
figcaption { margin-top: .5rem; max-width: 44rem }
table { border-collapse: collapse; font-size: .875rem; font-variant-numeric: tabular-nums; min-width: 100% }
th { text-align: left; font-weight: 600; color: var(--quiet); border-bottom: 1px solid var(--line) }
th, td { padding: .3rem .75rem .3rem 0; vertical-align: top; overflow-wrap: normal; white-space: nowrap }
tr:nth-child(even) td { background: var(--band) }
summary { cursor: pointer; color: var(--accent); padding: .4rem 0 }
"""

_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def write_comparison(comparison: Comparison, path: str | PathLike[str]) -> Path:
    """Write the page of a comparison as one file that needs nothing else.

    Parameters
    ----------
    comparison : Comparison
        What `headtree.compare` returns.
    path : path
        The file to write, whole or not at all; an older one is replaced.

    Returns
    -------
    Path
        The file.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import headtree as ht
    >>> from headtree.pipeline.make_run import make_run
    >>> from headtree.pipeline.sources import TensorSource
    >>> folder, rng, runs = tempfile.mkdtemp(), np.random.default_rng(0), []
    >>> for name in "ab":
    ...     tensors = [ht.AttentionTensor.from_array(x) for x in rng.standard_normal((3, 4, 8, 8))]
    ...     runs.append(make_run(TensorSource(tensors), f"{folder}/{name}", draw=False))
    >>> ht.write_comparison(ht.compare(*runs), f"{folder}/comparison.html").name
    'comparison.html'
    """
    from headtree.comparison.compare_networks import Comparison

    if not isinstance(comparison, Comparison):
        raise InvalidTypeError(
            f"comparison must be a Comparison, got {type(comparison).__name__}; pass what ht.compare(a, b) returns"
        )
    target = checked_path(path)
    if exists(target) and target.is_dir():
        raise InvalidValueError(
            f"path must name a file, but {target} is a folder; add a name such as comparison.html"
        )
    require("report", "drawing a comparison", "matplotlib")
    write_text(target, page_of(comparison))
    return target


def page_of(comparison: Comparison) -> str:
    """The HTML of the page. Names come from folders and models: everything but our own markup is escaped."""
    from headtree.report.figures.comparison_figures import comparison_figures

    names = comparison.names
    n = len(names)
    pairs = [(first, second) for first in range(n) for second in range(first + 1, n)]
    shown = pairs if n <= 3 else [*((i, i + 1) for i in range(n - 1)), (0, n - 1)]
    parts = [
        f"<h1>{_text(' · '.join(names))}</h1>",
        f'<p class="quiet">A comparison of {n} networks by where their heads look. {_text(_about(comparison))}</p>',
        _list([pair_sentence(comparison, *pair) for pair in shown]),
    ]
    if comparison.notes:
        parts.append("<h2>Before you read on</h2>" + _list(comparison.notes))
    if comparison.changes:
        parts.append("<h2>What changed</h2>")
        parts.append(_list([change_sentence(comparison, change) for change in comparison.changes]))
    figures = comparison_figures(comparison)
    parts += [_figure(figure, caption, name) for name, (figure, caption) in figures.items()]
    parts.append("<h2>Distances</h2>")
    parts.append(
        '<p class="quiet">With 95 % jackknife intervals over inputs. “Halves” is the distance between two halves '
        "of the inputs of one network. p is the probability that two sets of inputs of one network differ so "
        "much, for one aspect alone.</p>"
    )
    for pair in pairs:
        title = f"{names[pair[0]]} and {names[pair[1]]}"
        table = _table(("aspect", "distance", "halves", "p"), distance_rows(comparison, *pair))
        parts.append(_unfolding(title, table, is_open=len(pairs) == 1))
    for change in comparison.changes:
        title = f"Heads from {names[change.first]} to {names[change.second]}"
        rows = changed_head_rows(change, comparison.words)
        parts += [f"<h2>{_text(title)}</h2>", _table(CHANGED_COLUMNS, rows[:_SHOWN])]
        if len(rows) > _SHOWN:
            parts.append(
                _unfolding(f"the other {len(rows) - _SHOWN} heads", _table(CHANGED_COLUMNS, rows[_SHOWN:]))
            )
        if change.families:
            parts.append(_list([event_words(item) for item in change.families]))
    title = _text(f"Comparison of {', '.join(names)}")
    head = (
        f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><title>{title}</title>'
        f"<style>{_STYLE}</style>"
    )
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head>\n<body>\n' + "\n".join(parts) + "\n</body></html>\n"
    )


def _about(comparison: Comparison) -> str:
    profiles = comparison.profiles
    said = [f"{p.name}: {len(p.heads)} heads, {p.n_inputs} input{'s' * (p.n_inputs != 1)}" for p in profiles]
    return f"Values: {profiles[0].values}. {'; '.join(said)}."


def _text(text: object) -> str:
    """Text as HTML; characters that change the direction of writing become visible."""
    shown = "".join("\ufffd" if _is_invisible(c) else c for c in str(text))
    return html.escape(shown)


def _is_invisible(character: str) -> bool:
    import unicodedata

    return unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp") and character != "\n"


def _list(lines: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li>{_text(line)}</li>" for line in lines) + "</ul>"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f'<th scope="col">{_text(column)}</th>' for column in columns)
    body = "".join("<tr>" + "".join(f"<td>{_text(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return (
        f'<div class="scroll" tabindex="0"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def _unfolding(title: str, content: str, *, is_open: bool = False) -> str:
    return f"<details{' open' * is_open}><summary>{_text(title)}</summary>{content}</details>"


def _figure(figure: Any, caption: str, name: str) -> str:
    """A figure as an image: a picture of vectors in an <img> cannot run anything."""
    from headtree.report.figures.style import style

    buffer = BytesIO()
    with style():
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": "headtree"})
    data = base64.b64encode(buffer.getvalue()).decode()
    width = 60 * float(figure.get_figwidth()) / _INCHES  # in rem; figures narrower than the page stay so
    size = f"max-width: {width:.0f}rem; min-width: {min(34.0, width):.0f}rem"
    image = f'<img src="data:image/svg+xml;base64,{data}" alt="{_text(caption)}" style="{size}">'
    return (
        f'<figure id="{_text(name)}"><div class="scroll" tabindex="0">{image}</div>'
        f"<figcaption>{_text(caption)}</figcaption></figure>"
    )
