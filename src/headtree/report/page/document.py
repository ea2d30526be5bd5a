"""One HTML file in which a run can be explored: no network, no server, nothing but what it holds."""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from headtree import _checks
from headtree._files import write_text
from headtree.errors import InvalidTypeError, InvalidValueError
from headtree.report.page.material import page_data

if TYPE_CHECKING:
    from headtree.runs.run import Run

#: Size that a page does not exceed unless the run's least cannot be made smaller.
BUDGET = 10_000_000

#: The page's own scripts, in the order in which they build on each other.
_SCRIPTS = (
    "data.js",
    "state.js",
    "dom.js",
    "plots.js",
    "download.js",
    "overview.js",
    "tree.js",
    "table.js",
    "matrix.js",
    "compare.js",
    "sections.js",
    "main.js",
)


def write_report(run: Run, path: str | PathLike[str], *, budget: int = BUDGET) -> Path:
    """Write the page of a run as one file.

    Parameters
    ----------
    run : Run
        What `open_run` returns, its steps done.
    path : path
        The file to write, whole or not at all; an older one is replaced.
    budget : int
        Bytes that the file may have. What does not fit is left out in this order: Haar coefficients and paraproduct
        terms of all heads but one of each main family, resolution of the matrices, inputs; the page says so.

    Returns
    -------
    Path
        The file.
    """
    target = Path(path)
    if target.is_dir():
        raise InvalidValueError(
            f"path must name a file, but {target} is a folder; write to {target / 'report.html'}"
        )
    text = page_html(run, budget=budget)
    write_text(target, text)
    return target


@dataclass(frozen=True)
class Page:
    """A page that a notebook shows in a frame of this many pixels."""

    text: str = field(repr=False)
    height: int

    def _repr_html_(self) -> str:
        """A frame that sees nothing of its surroundings, and they nothing of it."""
        return (
            '<iframe sandbox="allow-scripts allow-downloads" title="headtree report" '
            f'style="width:100%;height:{self.height}px;border:0" srcdoc="{html.escape(self.text)}"></iframe>'
        )


def show(run: Run, *, height: int = 800) -> Page:
    """The page of a run, inline in a notebook.

    Parameters
    ----------
    run : Run
        What `open_run` returns.
    height : int
        Of the frame, in pixels.
    """
    height = _checks.at_least_one(height, "height")
    return Page(page_html(run), height)


def page_html(run: Run, *, budget: int = BUDGET) -> str:
    """The page as text."""
    budget = _checks.at_least_one(budget, "budget")
    if getattr(run, "kind", None) == "array":
        raise InvalidValueError(
            f"run {run.path} is of an array that is no attention; the page shows heads. Its figures are in "
            f"{run.path / 'figures'}; headtree organize FILE --attention hqk makes a run with a page of heads × "
            "queries × keys"
        )
    if getattr(run, "kind", None) not in ("scores", "probs"):
        raise InvalidTypeError(
            "run must be a run of a network, as open_run returns it, got "
            f"{run!r:.80}; the page shows attention heads"
        )
    frame = _assembled(run.name, {})
    return _assembled(run.name, page_data(run, budget - len(frame.encode())).parts)


def _assembled(title: str, data: Mapping[str, str]) -> str:
    style = _static("page.css")
    scripts = [_bokeh(), "\n".join(_static(name) for name in _SCRIPTS)]
    parts = {name: f'<script type="text/plain" id="part-{name}">{text}</script>' for name, text in data.items()}
    code = "\n".join(f"<script>{script}</script>" for script in scripts)
    return (
        _static("page.html")
        .replace("{{policy}}", _policy(scripts))
        .replace("{{style}}", style)
        .replace("{{title}}", html.escape(title[:200]))
        .replace("{{core}}", parts.pop("core", ""))
        .replace("{{parts}}", "\n".join(parts.values()))
        .replace("{{code}}", code)
    )


def _policy(scripts: list[str]) -> str:
    """What the page may do: run these very scripts, show pictures it holds, and nothing else.

    Styles may be inline, since Bokeh sets them; without a source to load from they can reach nothing.
    """
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" for script in scripts
    )
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; font-src data:; "
        "connect-src 'none'; form-action 'none'; base-uri 'none'"
    )


@cache
def _static(name: str) -> str:
    return (files("headtree.report.page") / "static" / name).read_text(encoding="utf-8")


@cache
def _bokeh() -> str:
    """BokehJS and its plotting interface, as the installed Bokeh has them."""
    try:
        import bokeh
    except ModuleNotFoundError:
        raise InvalidValueError(
            "the page needs Bokeh, which is not installed; install it with: pip install 'headtree[report]'"
        ) from None
    folder = Path(str(bokeh.__file__)).parent / "server" / "static" / "js"
    texts = [(folder / f"{name}.min.js").read_text(encoding="utf-8") for name in ("bokeh", "bokeh-api")]
    return "\n".join(texts).replace("</script", "<\\/script")
