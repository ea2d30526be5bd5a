"""One self-contained HTML file to explore a run: no network, no server."""

from __future__ import annotations

import base64
import hashlib
import html
import re
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from headtree import _checks
from headtree._files import checked_path, exists, write_text
from headtree.errors import InvalidTypeError, InvalidValueError
from headtree.report.words.slice_words import UNITS
from headtree.tensor.attention_tensor import Kind

if TYPE_CHECKING:
    from headtree.runs.run import Run

#: Size in bytes that a page does not exceed, unless even the smallest page of the run does.
BUDGET = 10_000_000

#: The page's own scripts, in the order in which they build on each other.
_SCRIPTS = (
    "data.js",
    "palettes.js",
    "state.js",
    "dom.js",
    "colours.js",
    "plot.js",
    "download.js",
    "network.js",
    "filter.js",
    "fields.js",
    "thumbnails.js",
    "matrix.js",
    "tokens.js",
    "grid.js",
    "head.js",
    "inputs.js",
    "map.js",
    "dendrogram.js",
    "affinity.js",
    "scales.js",
    "table.js",
    "sections.js",
    "toolbar.js",
    "groups.js",
)


def write_report(run: Run, path: str | PathLike[str], *, budget: int = BUDGET) -> Path:
    """Write the page of a run as one file.

    Parameters
    ----------
    run : Run
        What `open_run` returns, with its steps done.
    path : path
        The file to write, whole or not at all; an older one is replaced.
    budget : int
        Largest size of the file in bytes. What does not fit is left out in this order: Haar coefficients and
        paraproduct terms of all heads except one of each family, resolution of the matrices, inputs. The page
        lists what is missing.

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
    >>> values = np.random.default_rng(0).standard_normal((4, 8, 8))
    >>> att = ht.AttentionTensor.from_array(values, heads_per_layer=2)
    >>> folder = tempfile.mkdtemp()
    >>> run = make_run(TensorSource([att]), folder, draw=False)
    >>> ht.write_report(run, f"{folder}/page.html").name
    'page.html'
    """
    target = checked_path(path)
    if exists(target) and target.is_dir():
        raise InvalidValueError(
            f"path must name a file, but {target} is a folder; write to {target / 'report.html'}"
        )
    text = page_html(run, budget=budget)
    write_text(target, text)
    return target


@dataclass(frozen=True)
class Page:
    """A page that a notebook shows in a frame; `height` is in pixels."""

    text: str = field(repr=False)
    height: int

    def _repr_html_(self) -> str:
        """A frame that is isolated from the notebook, and a few lines that tell it whether the notebook is dark."""
        return (
            '<iframe class="headtree-page" sandbox="allow-scripts allow-downloads" title="headtree report" '
            f'style="width:100%;height:{self.height}px;border:0" srcdoc="{html.escape(self.text)}"></iframe>'
            f"<script>{_static('notebook.js')}</script>"
        )


def show(run: Run, *, height: int = 800) -> Page:
    """The page of a run, inline in a notebook: the one in its folder or, without one, a new one.

    The page follows the notebook's light or dark theme.

    Parameters
    ----------
    run : Run
        What `open_run` returns.
    height : int
        Height of the frame in pixels.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import headtree as ht
    >>> from headtree.pipeline.make_run import make_run
    >>> from headtree.pipeline.sources import TensorSource
    >>> values = np.random.default_rng(0).standard_normal((4, 8, 8))
    >>> att = ht.AttentionTensor.from_array(values, heads_per_layer=2)
    >>> run = make_run(TensorSource([att]), tempfile.mkdtemp(), draw=False)
    >>> ht.show(run, height=600)
    Page(height=600)
    """
    height = _checks.at_least_one(height, "height")
    return Page(_stored_page(run) or page_html(run), height)


def _stored_page(run: Run) -> str | None:
    """The page that the run's own step wrote."""
    path = getattr(run, "page", None)
    return path.read_text(encoding="utf-8") if isinstance(path, Path) else None


def page_html(run: Run, *, budget: int = BUDGET) -> str:
    """The page as text."""
    from headtree.report.page.array_data import array_data  # a stored page is shown without them, at once
    from headtree.report.page.page_data import page_data

    budget = _checks.at_least_one(budget, "budget")
    kind = getattr(run, "kind", None)
    if not isinstance(getattr(run, "path", None), Path) or kind not in (*get_args(Kind), "array"):
        raise InvalidTypeError(
            f"run must be a run, as open_run returns it, got {run!r:.80}; pass ht.open_run(path)"
        )
    is_array = kind == "array"
    entry, main = ("array_main.js", "array.html") if is_array else ("main.js", "page.html")
    unit = UNITS["slice" if is_array else run.slices]
    code, style = "\n".join(_static(name) for name in (*_SCRIPTS, entry)), _static("page.css")
    filling = {
        "policy": _policy(code, style),
        "style": style,
        "title": html.escape(run.name[:200]),
        "code": f"<script>{code}</script>",
        "choice": "Axis" if is_array else "Input",
        "one": unit.one,
        "many": unit.many,
        "Many": unit.many.capitalize(),
        "examples": html.escape(unit.examples),
    }
    template = _static("frame.html").replace("{{main}}", _static(main))
    pieces = re.split(r"\{\{(\w+)\}\}", template)  # text and names of gaps in turn
    frame = pieces[::2] + [filling.get(gap, "") for gap in pieces[1::2]]
    room = budget - sum(len(text.encode()) for text in frame)
    data = array_data(run, room) if is_array else page_data(run, room).parts
    held = {name: f'<script type="text/plain" id="part-{name}">{text}</script>' for name, text in data.items()}
    filling |= {"core": held.pop("core"), "parts": "\n".join(held.values())}
    pieces[1::2] = [filling[gap] for gap in pieces[1::2]]
    return "".join(pieces)


def _policy(code: str, style: str) -> str:
    """What the page may do: run exactly this script, use this style, show the images it contains; nothing else."""
    script, sheet = (
        f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in (code, style)
    )
    return (
        f"default-src 'none'; script-src {script}; style-src {sheet}; img-src data: blob:; connect-src 'none'; "
        "form-action 'none'; base-uri 'none'"
    )


@cache
def _static(name: str) -> str:
    return (files("headtree.report.page") / "static" / name).read_text(encoding="utf-8")
