"""Commands and Python in README.md and docs/ run as printed.

Blocks fenced as ``sh`` are given line by line, those fenced as ``python`` are one program per document; others are
not run. All of them run in one folder in which `headtree demo` has been given before, and which has what the
documents speak of: a model, texts, images and arrays. The demo is given fewer inputs than it is printed with, and
figures and pages are drawn in some documents only.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from headtree.cli.app import app
from tests.models.conftest import bert, folder, tokenizer  # noqa: F401  (fixtures)
from tests.pipeline.conftest import pictures, text, vit_folder  # noqa: F401  (fixtures)

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
#: Of the environment, not of headtree: `make test` and `make demo` themselves are how one gets here.
OUTSIDE = ("make", "pip", "git", "cd", "python")

#: Documents whose runs are drawn; drawing takes longer than all the rest.
DRAWN = ("demo.md",)

pytestmark = pytest.mark.filterwarnings("ignore::headtree.HeadtreeWarning")


def blocks(document, language):
    return re.findall(rf"^```{language}\n(.*?)^```", document.read_text(encoding="utf-8"), re.S | re.M)


@pytest.fixture(scope="module")
def world(tmp_path_factory, folder, vit_folder, text, pictures):  # noqa: F811
    place = tmp_path_factory.mktemp("world")
    shutil.copytree(folder, place / "my-model")
    shutil.copytree(vit_folder, place / "my-vit")
    shutil.copytree(pictures, place / "photos")
    shutil.copy(text, place / "book.txt")
    rng = np.random.default_rng(0)
    np.save(place / "measurement.npy", rng.standard_normal((12, 16, 8)))
    np.savez(place / "heads.npz", scores=rng.standard_normal((2, 3, 8, 8)))
    np.savetxt(place / "table.csv", rng.standard_normal((9, 6)), delimiter=",")
    return place


def commands(document):
    for block in blocks(document, "sh"):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words and words[0] not in OUTSIDE:
                yield words


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_commands_run_as_printed(document, world, monkeypatch):
    monkeypatch.chdir(world)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for words in commands(document):
        assert words[0] == "headtree", f"{document.name} has a command that nobody checks: {words}"
        result = CliRunner().invoke(app, [*words[1:], *shorter(words, document.name in DRAWN)])
        assert result.exit_code == 0, f"{shlex.join(words)}\n{result.output}"


def shorter(words, is_drawn):
    """Options that make a command shorter than it is as printed."""
    if words[1] == "demo":
        return ("--inputs", "2")
    return ("--no-draw",) if words[1] in ("run", "organize", "compare") and not is_drawn else ()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
@pytest.mark.filterwarnings("error")
def test_python_runs_as_printed(document, world, monkeypatch):
    monkeypatch.chdir(world)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    exec(compile("\n".join(blocks(document, "python")), document.name, "exec"), {"__name__": "__main__"})


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_paths_in_documents_exist(document):
    named = re.findall(r"`((?:src|tests|docs|benchmarks|examples|packages|tools)/[\w./-]+)`", document.read_text())
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_the_example_runs(world):
    program = [sys.executable, str(ROOT / "examples" / "what_heads_do.py"), "my-model", "book.txt", "32"]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    result = subprocess.run(program, cwd=world, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "heads have a role" in result.stdout
