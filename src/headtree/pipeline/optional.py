"""The step that a run has if it is asked for and that runs the model again: rank collapse with depth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from headtree.depth.model_depth import measure_depth
from headtree.errors import InvalidValueError
from headtree.pipeline.model_source import ModelCapture
from headtree.pipeline.sources import Capture
from headtree.pipeline.steps import join_tables, new_figures, write_section
from headtree.report.words.depth_section import depth_section
from headtree.runs.folder import Workplace


def add_depth(place: Workplace, begin: Callable[[], Capture]) -> None:
    """Add relative residuals and paths by length to the layers' table, with a section and its figures."""
    from headtree.report.figures import draw_depth

    ready = begin()
    if not isinstance(ready, ModelCapture):
        raise InvalidValueError("depth is measured by running the model, and this run was made from tensors alone")
    found = measure_depth(replace(ready.prepared, kind="probs"), seed=place.record.settings["measures"]["seed"])
    with new_figures(place, "depth", "layers.csv", "sections/depth.json") as folder:
        draw_depth(found, folder)
    join_tables(place, "layers.csv", found.layer_table())
    write_section(place, "depth", depth_section(found))
