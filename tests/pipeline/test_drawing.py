"""Figures and page: the last steps, which can be done again."""

import json

import pytest
from typer.testing import CliRunner

import headtree as ht
from headtree.cli.app import app
from headtree.errors import HeadtreeError
from headtree.pipeline.make_run import redraw
from headtree.report.figures import FIGURES
from headtree.runs.folder import WORK
from headtree.runs.record import signed
from tests.runs.examples import small_run


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    return small_run(tmp_path_factory.mktemp("runs") / "drawn", draw=True)


def test_every_figure_is_there_twice_and_recorded(drawn):
    names = {*FIGURES, *(f"{name}_questionnaire" for name in ("map", "affinity", "tree"))}
    assert set(drawn.figures) == names
    files = {f"figures/{name}.{kind}" for name in names for kind in ("svg", "png")}
    assert set(drawn.record.steps["draw"].files) == files
    assert {path.name for path in drawn.path.iterdir()} == {
        "attention.zarr", "figures", "heads.csv", "layers.csv", "measured", "measures.json", "organization.zarr",
        "overlap.csv", "report.html", "run.json", "sections", "similarity.zarr",
    }  # fmt: skip
    assert "<html" in (drawn.path / "report.html").read_text(encoding="utf-8")[:500]


def test_drawing_again_gives_the_same_and_leaves_the_rest_alone(drawn):
    before = {path: path.read_bytes() for path in (drawn.path / "figures").iterdir()}
    arrays = (drawn.path / "organization.zarr").stat().st_mtime_ns
    next(iter(before)).unlink()
    result = CliRunner().invoke(app, ["report", str(drawn.path), "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["report"] == str(drawn.path / "report.html")
    assert {path: path.read_bytes() for path in (drawn.path / "figures").iterdir()} == before
    assert (drawn.path / "organization.zarr").stat().st_mtime_ns == arrays
    assert not (drawn.path / WORK).exists()


def test_what_is_no_run_or_not_far_enough_is_not_drawn(tmp_path, drawn):
    with pytest.raises(HeadtreeError, match="does not exist"):
        redraw(tmp_path / "nothing")
    assert CliRunner().invoke(app, ["report", str(tmp_path)]).exit_code == 3
    record = json.loads((drawn.path / "run.json").read_text())
    record["steps"] = {}
    (tmp_path / "run.json").write_text(json.dumps(signed(record | {"files": {}})))
    with pytest.raises(HeadtreeError, match="step measure is not done"):
        redraw(tmp_path)
    assert ht.open_run(tmp_path).figures == {}
