"""docs/contributing.md: the paths it names exist, and its map is the one that import-linter enforces."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "headtree"
TEXT = (ROOT / "docs" / "contributing.md").read_text(encoding="utf-8")
MAP = re.search(r"## The map\n.*?```\n(.*?)```", TEXT, re.S)[1]


def test_every_path_exists():
    quoted = re.findall(r"`([\w.-]+(?:/[\w.-]+)+/?|[\w.-]+\.(?:py|pyi|md|toml|txt))`", TEXT)
    assert len(quoted) > 30
    assert [path for path in quoted if not (ROOT / path).exists()] == []
    named = re.findall(r"[\w/]+\.(?:py|pyi|md|toml)\b", TEXT)
    assert [path for path in named if not (ROOT / path).exists() and not (PACKAGE / path).exists()] == []


def test_every_task_starts_in_one_file():
    table = TEXT.split("## Where things start")[1].split("##")[0]
    rows = [line.split("|")[2].strip().strip("`") for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(rows) >= 10
    assert all((ROOT / path).is_file() for path in rows)


def test_every_package_is_in_the_map():
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert set(re.findall(r"^([a-z]+) ", MAP, re.M)) == packages
    modules = {path.name for path in PACKAGE.glob("*.py")} - {"__init__.py", "__main__.py", "_version.py"}
    assert set(re.findall(r"\b\w+\.py\b", MAP)) == modules
    inner = {path.parent.name for path in PACKAGE.glob("*/*/__init__.py")}
    assert set(re.findall(r"\b(\w+)/", MAP)) == inner


def test_the_map_is_the_contract():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = [re.findall(r"headtree\.(\w+)", layer) for layer in settings["contracts"][0]["layers"]]
    floors = [
        re.findall(r"^([a-z]+) ", floor, re.M) or re.findall(r"(\w+)\.py", floor) for floor in MAP.split("  ↓\n")
    ]
    assert [sorted(floor) for floor in floors] == [sorted(layer) for layer in layers]
