"""Rules of the house that no linter knows; import-linter checks who may import whom."""

import ast
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODULES = sorted((ROOT / "src" / "headtree").rglob("*.py"))


def repeated(names):
    return sorted(name for name, n in Counter(names).items() if n > 1)


def test_every_module_has_a_name_of_its_own():
    assert repeated(path.stem for path in MODULES if not path.stem.startswith("__")) == []


def test_every_class_has_a_name_of_its_own():
    names = [
        node.name
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    ]
    assert repeated(names) == []


def test_no_package_has_the_name_of_a_public_function():
    """``import headtree.organize`` would hide ``headtree.organize``."""
    import headtree as ht

    assert {path.name for path in (ROOT / "src" / "headtree").iterdir()}.isdisjoint(ht.__all__)


def test_the_command_line_imports_the_study_inside_functions():
    for path in (ROOT / "src" / "headtree" / "cli").glob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ImportFrom):
                assert not (node.module or "").startswith("headtree.study"), path


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_modules_can_be_finished(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 500


def test_the_repository_stays_small():
    """Files that git knows, or all of them where there is no git: less than 64 million bytes together."""
    import subprocess

    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listing.returncode:
        pytest.skip("not a git checkout")
    files = [ROOT / name for name in listing.stdout.decode().split("\0") if name]
    assert sum(path.stat().st_size for path in files if path.is_file()) < 64_000_000
