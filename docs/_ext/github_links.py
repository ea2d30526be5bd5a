"""Markdown pages as GitHub shows them, turned into pages of the site.

On GitHub, a page links to the script of a gallery example; here it links to the page that the script makes. Files
outside docs/ are not in the site, so links to them become plain text.
"""

import re
from pathlib import Path

from sphinx.application import Sphinx

_SCRIPT = re.compile(r"\]\(gallery/(plot_\w+)\.py\)")
_OUTSIDE = re.compile(r"\[([^\]]*)\]\(\.\./[^)\s]+\)")


def turn_links(app: Sphinx, docname: str, source: list[str]) -> None:
    """Rewrite the links of one page."""
    if Path(app.env.doc2path(docname)).suffix == ".md":
        source[0] = _SCRIPT.sub(r"](auto_gallery/\1.rst)", source[0])
        if "/" not in docname:
            source[0] = _OUTSIDE.sub(r"\1", source[0])


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("source-read", turn_links)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
