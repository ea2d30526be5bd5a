"""One HTML file in which a run can be explored: no network, no server, nothing but what it holds."""

from __future__ import annotations

import base64
import hashlib
import html
import os
import tempfile
from functools import cache
from importlib.resources import files
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headtree import _checks
from headtree.errors import InvalidTypeError, InvalidValueError
from headtree.report.page_data import PageData, page_data

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
        terms of all heads but one of each main folder, resolution of the matrices, inputs; the page says so.

    Returns
    -------
    Path
        The file.
    """
    target = Path(path)
    text = page_html(run, budget=budget)
    if target.is_dir():
        raise InvalidValueError(f"path must name a file, but {target} is a folder; write to {target / 'report.html'}")
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, partial = tempfile.mkstemp(dir=target.parent, prefix=".report", suffix=".part")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        Path(partial).chmod(0o644)
        os.replace(partial, target)
    except BaseException:
        Path(partial).unlink(missing_ok=True)
        raise
    return target


def show(run: Run, *, height: int = 800) -> Any:
    """The page of a run inside a notebook.

    Parameters
    ----------
    run : Run
        What `open_run` returns.
    height : int
        Of the frame, in pixels.
    """
    try:
        from IPython.display import HTML
    except ModuleNotFoundError:
        raise InvalidValueError(
            "show needs a notebook, and IPython is not installed; use write_report(run, 'report.html') and open it "
            "in a browser"
        ) from None
    return HTML(page_frame(page_html(run), _checks.at_least_one(height, "height")))


def page_frame(page: str, height: int) -> str:
    """A page as a frame of another: it sees nothing of its surroundings."""
    return (
        f'<iframe sandbox="allow-scripts allow-downloads" style="width:100%;height:{height}px;border:0" '
        f'title="headtree report" srcdoc="{html.escape(page)}"></iframe>'
    )


def page_html(run: Run, *, budget: int = BUDGET) -> str:
    """The page as text."""
    budget = _checks.at_least_one(budget, "budget")
    if getattr(run, "kind", None) not in ("scores", "probs"):
        raise InvalidTypeError(
            "run must be a run of a network, as open_run returns it, got "
            f"{run!r:.80}; the page shows attention heads"
        )
    frame = _assembled(run.name, PageData({}, None, ()))
    return _assembled(run.name, page_data(run, budget - len(frame.encode())))


def _assembled(title: str, data: PageData) -> str:
    style = _static("page.css")
    scripts = [_bokeh(), "\n".join(_static(name) for name in _SCRIPTS)]
    parts = "\n".join(
        f'<script type="text/plain" id="part-{name}">{text}</script>' for name, text in data.parts.items()
    )
    code = "\n".join(f"<script>{script}</script>" for script in scripts)
    return (
        _static("page.html")
        .replace("{{policy}}", _policy(scripts))
        .replace("{{style}}", style)
        .replace("{{title}}", html.escape(title[:200]))
        .replace("{{parts}}", parts)
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
    return (files("headtree.report") / "static" / name).read_text(encoding="utf-8")


@cache
def _bokeh() -> str:
    """BokehJS and its plotting interface, as the installed Bokeh has them."""
    try:
        from bokeh.resources import INLINE
    except ModuleNotFoundError:
        raise InvalidValueError(
            "the page needs Bokeh, which is not installed; install it with: pip install 'headtree[report]'"
        ) from None
    folder = Path(str(INLINE.js_files[0])).parent if INLINE.js_files else _bokeh_folder()
    texts = [(folder / f"{name}.min.js").read_text(encoding="utf-8") for name in ("bokeh", "bokeh-api")]
    return "\n".join(texts).replace("</script", "<\\/script")


def _bokeh_folder() -> Path:
    import bokeh

    return Path(str(bokeh.__file__)).parent / "server" / "static" / "js"
