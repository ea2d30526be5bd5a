"""What sphinx-gallery does not know: headtree's figures do without pyplot, and examples have a reading order."""

from pathlib import Path
from typing import Any

from sphinx_gallery.scrapers import figure_rst

#: Examples in the order in which they are read.
ORDER = (
    "vit",
    "transformer_xl",
    "sentence_encoder",
    "families",
    "induction",
    "paraproduct",
    "sinks",
    "rank_collapse",
    "training",
    "pruning",
    "comparison",
    "serology",
    "planted_order",
    "on_disk",
)

_shown: Any = None


class ReadingOrder:
    """Sort key of examples: their position in `ORDER`."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __call__(self, filename: str) -> int:
        """Position of an example's file; one that is not listed is an error."""
        return ORDER.index(Path(filename).stem.removeprefix("plot_"))


def scrape(block: Any, block_vars: dict[str, Any], gallery_conf: dict[str, Any]) -> str:
    """Save the value of a block's last line if it is a figure, as a notebook would show it."""
    global _shown  # noqa: PLW0603  (sphinx-gallery leaves the value there until another block has one)
    figure = block_vars["example_globals"].get("___")
    if figure is _shown or not hasattr(figure, "_repr_png_"):
        return ""
    _shown = figure
    path = next(block_vars["image_path_iterator"])
    Path(path).write_bytes(figure._repr_png_())
    return str(figure_rst([path], gallery_conf["src_dir"]))
