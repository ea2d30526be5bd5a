"""`headtree compare`."""

import json
import shutil

import pandas as pd
import pytest
from typer.testing import CliRunner

from headtree.cli.app import app
from tests.comparison.networks import made, tensors, weights

pytestmark = pytest.mark.filterwarnings("ignore::headtree.HeadtreeWarning")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("training")
    for number, strength in ((9, 0.3), (10, 1.5)):
        made(tensors(weights(0, strength), range(3)), folder / f"step-{number}")
    return folder


def give(*arguments):
    return CliRunner().invoke(app, ["compare", *map(str, arguments)])


def test_two_runs(runs, tmp_path):
    result = give(runs / "step-9", runs / "step-10", "-o", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert "the geometry of heads differs by" in result.output
    files = {path.name for path in (tmp_path / "out").iterdir()}
    assert files == {
        "comparison.html",
        "comparison.json",
        "distances.csv",
        "changed_heads.csv",
        "families.csv",
        "figures",
    }
    assert json.loads((tmp_path / "out" / "comparison.json").read_text())["names"] == ["step-9", "step-10"]
    table = pd.read_csv(tmp_path / "out" / "distances.csv")
    assert len(table) == 13
    assert len(pd.read_csv(tmp_path / "out" / "changed_heads.csv")) == 9


def test_files_of_others_are_not_replaced(runs, tmp_path):
    """A comparison replaces its own files only."""
    mine = tmp_path / "out" / "families.csv"
    mine.parent.mkdir()
    mine.write_text("mine")
    command = (runs / "step-9", runs / "step-10", "--no-draw", "-o", tmp_path / "out")
    result = give(*command)
    assert result.exit_code == 2
    assert "families.csv would be replaced" in result.stderr
    assert [path.read_text() for path in mine.parent.iterdir()] == ["mine"]
    mine.unlink()
    for _ in range(2):
        assert give(*command).exit_code == 0


def test_checkpoints_are_sorted_by_their_numbers(runs, tmp_path):
    result = give("--checkpoints", runs, "-o", tmp_path / "out", "--no-draw", "--json")
    assert result.exit_code == 0, result.output
    said = json.loads(result.stdout)
    assert said["names"] == ["step-9", "step-10"]
    assert len(said["distances"]) == 13
    assert not (tmp_path / "out" / "comparison.html").exists()


def test_checkpoints_of_a_trainer(folder, text, tmp_path):
    for number in (9, 10):
        shutil.copytree(folder, tmp_path / "trainer" / f"checkpoint-{number}")
    command = ("--text", text, "--inputs", 3, "--tokens", 8, "--no-draw", "--json", "-o", tmp_path / "out")
    result = give("--checkpoints", tmp_path / "trainer", *command)
    assert result.exit_code == 0, result.output
    said = json.loads(result.stdout)
    assert said["names"] == ["checkpoint-9", "checkpoint-10"]
    assert max(row["distance"] for row in said["distances"]) < 1e-6  # the same model twice
    assert (tmp_path / "out" / "runs" / "checkpoint-10" / "run.json").is_file()


@pytest.mark.parametrize(
    ("arguments", "words", "code"),
    [
        ((), "two or more, got 0", 2),
        (("step-9",), "two or more, got 1", 2),
        (("step-9", "nothing"), "does not exist", 3),
        (("step-9", "."), "is not a run", 3),
        (("step-9", "step-10", "--checkpoints", "."), "not both", 2),
        (("--checkpoints", "step-9"), "is a run itself", 2),
        (("--checkpoints", "nothing"), "is not a folder", 2),
        (("--checkpoints", "step-9/figures"), "is not a folder", 2),
        (("--checkpoints", "step-9/measured"), "holds neither", 2),
        (("step-9", "step-10", "-o", "step-9"), "is a run; write into another folder", 2),
        (("step-9", "step-10", "--permutations", 0), "n_permutations must be at least 1", 2),
    ],
)
def test_bad_input(runs, monkeypatch, arguments, words, code):
    monkeypatch.chdir(runs)
    result = give(*arguments)
    assert words in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert result.exit_code == code
    assert sorted(path.name for path in runs.iterdir()) == ["step-10", "step-9"]
