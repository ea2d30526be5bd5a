"""The commands as users give them: what they print, the codes they end with."""

import json
import subprocess
import sys
import time

import numpy as np
import pytest
from typer.testing import CliRunner

import headtree as ht
from headtree.cli.app import app
from headtree.runs.folder import locked

pytestmark = pytest.mark.filterwarnings("ignore::headtree.HeadtreeWarning")


@pytest.fixture
def headtree(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    def give(*arguments):
        return CliRunner().invoke(app, list(map(str, arguments)))

    return give


def failed(result, code, *words):
    """One line on standard error, nothing on standard output."""
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    assert result.stderr.startswith("headtree ")
    for word in words:
        assert word in result.stderr
    return True


def test_run_says_what_it_found_and_does_nothing_the_second_time(headtree, folder, text, tmp_path):
    command = ("run", folder, "--text", text, "--batches", 2, "--tokens", 16, "--no-draw", "-o", "runs/small")
    result = headtree(*command)
    assert result.exit_code == 0, result.output
    for word in ("capture", "organize", "measure", "most active heads", "families", "correlation", "runs/small"):
        assert word in result.stdout
    assert result.stdout.count("heads.csv") == 1  # there is no page to look at
    before = (tmp_path / "runs/small/run.json").read_bytes()
    again = headtree(*command, "--json")
    found = json.loads(again.stdout)
    assert (found["heads"], len(found["inputs"])) == (ht.open_run("runs/small").attention[0].shape[0], 2)
    assert again.stderr == ""
    assert (tmp_path / "runs/small/run.json").read_bytes() == before
    assert failed(headtree(*command, "--kind", "probs"), 3, "kind is 'scores' there and 'probs' here", "--force")
    with locked(tmp_path / "runs/small"):
        assert failed(headtree(*command), 3, "in use by another process")


def test_organize_any_array(headtree, tmp_path):
    np.save("x.npy", np.random.default_rng(0).standard_normal((6, 8, 5)))
    result = headtree("organize", "x.npy", "--axes", "sensor,time,trial", "--no-draw", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["shape"] == [6, 8, 5]
    assert "organize" in result.stderr  # progress goes where it does not disturb
    assert ht.open_run("runs/x").organization[0].names == ("sensor", "time", "trial")
    words = headtree("organize", "x.npy", "--axes", "sensor,time,trial", "--no-draw")
    assert "6 sensor × 8 time × 5 trial" in words.stdout
    attention = headtree(
        "organize", "x.npy", "--attention", "hqk", "--heads-per-layer", 3, "-o", "runs/heads", "--no-draw"
    )
    assert "6 heads in 2 layers" in attention.stdout
    assert failed(headtree("organize", "x.npy"), 3, "axes")
    assert failed(headtree("organize", "y.npy"), 2, "does not exist")
    assert failed(headtree("organize", "x.npy", "--tree", "oak", "-o", "runs/y"), 2, "tree must be one of")


def test_bad_input_in_one_line_with_the_remedy(headtree, folder, text, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    assert failed(headtree("run", folder, "--text", text, "-o", "full"), 3, "not a run", "another folder")
    assert failed(headtree("run", folder), 2, "--text")
    assert failed(headtree("run", folder, "--text", "none.txt"), 2, "none.txt does not exist")
    assert failed(headtree("run", "no/such", "--text", text), 2, "cannot be reached")
    assert failed(headtree("run", folder, "--text", text, "-o", text / "run"), 4, "cannot be")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["full"]


def test_help_is_quick_and_names_everything():
    times = []
    for _ in range(3):
        start = time.perf_counter()
        result = subprocess.run(
            [sys.executable, "-m", "headtree", "--help"], capture_output=True, text=True, check=False
        )
        times.append(time.perf_counter() - start)
    assert result.returncode == 0
    for word in ("demo", "run", "organize", "train", "Exit codes", "open_run"):
        assert word in result.stdout
    assert "\b" not in result.stdout
    # CPU time is 0.1 s; the wall clock of a busy machine is allowed more than the half second of a quiet one
    assert min(times) < 2


def test_version(headtree):
    assert headtree("--version").stdout == f"headtree {ht.__version__}\n"
