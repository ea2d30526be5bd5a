"""Depth and sensitivity, asked for when the run is done already."""

import pytest

from headtree.pipeline.make_run import make_run
from headtree.pipeline.model_source import ModelSource
from tests.runs.examples import QUICK

pytestmark = pytest.mark.filterwarnings("ignore::headtree.HeadtreeWarning")


def test_optional_steps_are_added_to_a_finished_run(folder, text, tmp_path):
    source = ModelSource(model=str(folder), text=text, inputs=2, tokens=8)
    make_run(source, tmp_path / "run", measures=QUICK, draw=False)
    told = []
    run = make_run(
        source, tmp_path / "run", measures=QUICK, depth=True, sensitivity=True, draw=False,
        say=lambda name, seconds: told.append(name),
    )  # fmt: skip
    assert told == ["depth", "sensitivity"]
    assert set(run.sections) == {"diagnostics", "depth", "sensitivity"}
    assert "residual_as_is" in run.layers
    assert "depth_residual" in run.figures
    assert all((run.path / picture.file).exists() for picture in run.sections.depth.figures)
    assert len(run.sections.sensitivity.tables[0].rows) > 15
