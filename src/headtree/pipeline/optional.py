"""Steps that a run has if they are asked for: rank collapse with depth; sensitivity is in a module of its own."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace

from headtree.errors import InvalidValueError
from headtree.pipeline.model_source import ModelCapture
from headtree.pipeline.sources import Capture
from headtree.pipeline.steps import join_tables, write_section
from headtree.runs.folder import Workplace
from headtree.section import Section


def measure_depth(place: Workplace, begin: Callable[[], Capture]) -> None:
    """Add relative residuals and paths by length to the layers' table, with a section and its figures."""
    from headtree.report.words.depth_section import depth_content

    ready = begin()
    if not isinstance(ready, ModelCapture):
        raise InvalidValueError("depth is measured by running the model, and this run was made from tensors alone")
    with place.aside() as folder:
        content = depth_content(
            replace(ready.job, kind="probs"), folder, seed=place.record.settings["measures"]["seed"]
        )
        names = sorted(path.name for path in folder.iterdir())
        place.announce("depth", ("layers.csv", "sections/depth.json", *(f"figures/{name}" for name in names)))
        (place.path / "figures").mkdir(exist_ok=True)
        for name in names:
            os.replace(folder / name, place.path / "figures" / name)
    join_tables(place, "layers.csv", content.layers)
    write_section(place, "depth", Section.from_dict(content.section))
