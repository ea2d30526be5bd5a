"""Markdown pages as GitHub shows them, turned into pages of the site.

On GitHub, a page links to the script of a gallery example; here it links to the page that the script makes. Files
outside docs/ are not in the site, so links to them become plain text. findings.md ends with long generated tables;
the site has them on a page of their own.
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
    if docname == "findings":
        source[0] = findings(source[0])[0]


def findings(text: str) -> tuple[str, str]:
    """findings.md up to the table of verdicts, and the tables behind it."""
    before, _, block = text.partition("<!-- claims: begin -->")
    verdicts, heading, tables = block.partition("\n### ")
    link = (
        "\n\nThe [tables](reference/findings_tables.md) behind these verdicts have every statistic and interval.\n"
    )
    behind = re.sub(r"^#(#+ )", r"\1", heading + tables, flags=re.M)  # a page of its own: one level up
    return before + verdicts.strip() + link, "# Tables behind the findings\n" + behind


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("source-read", turn_links)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
