"""headtree without its extras: the wheel in an environment that holds its required dependencies and nothing else.

The environment is a new one into which the distributions of this one are linked, as far as the wheel's own metadata
asks for them. Every command either works there or says in one line what to install, before it has written anything.
"""

import email
import json
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from importlib.metadata import distribution
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from headtree._extras import EXTRAS, INDEX_NAMES
from headtree.cli.app import app

ROOT = Path(__file__).parents[1]
MISSING = 2  # exit code
OPTIONAL = (
    "PIL",
    "dask",
    "datasets",
    "distributed",
    "headtree_networks",
    "matplotlib",
    "ot",
    "safetensors",
    "transformers",
)


def build(project, folder):
    """The wheel of a project, made with the build backend that is installed, or else with one that pip fetches."""
    options = ["--no-build-isolation"] if find_spec("hatchling") else []
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        *options,
        "--wheel-dir",
        folder,
        project,
    ]
    subprocess.run(list(map(str, command)), check=True)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return build(ROOT, tmp_path_factory.mktemp("wheel"))


def required(wheel):
    """The distributions that the wheel needs, and those that they need in turn, without any extra of headtree."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(archive.read(name))
    found = {}

    def follow(requirements, extras):
        for requirement in map(Requirement, requirements or ()):
            marker = requirement.marker
            if marker is not None and not any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
                continue
            key = (canonicalize_name(requirement.name), frozenset(requirement.extras))
            if key not in found:
                found[key] = distribution(requirement.name)
                follow(found[key].requires, requirement.extras)

    follow(metadata.get_all("Requires-Dist"), ())
    return found.values()


@pytest.fixture(scope="module")
def bare(wheel, tmp_path_factory):
    """The folder of an environment with the wheel and what it requires."""
    home = tmp_path_factory.mktemp("bare")
    venv.create(home, with_pip=False, symlinks=True)
    site = next((home / "lib").glob("python*/site-packages"))
    for package in required(wheel):
        names = {file.parts[0] for file in package.files or () if file.suffix != ".pth"} - {"..", "__pycache__"}
        for name in names:
            if not (site / name).exists():
                (site / name).symlink_to(package.locate_file(name))
    pip = [sys.executable, "-m", "pip", "--python", home / "bin" / "python", "install", "--quiet"]
    subprocess.run([*map(str, pip), "--no-deps", "--no-index", str(wheel)], check=True)
    share_kernels(ROOT / "src" / "headtree", site / "headtree")
    return home


def share_kernels(source, installed):
    """Copy compiled kernels, which numba takes for those of files of the same size and time."""
    for cache in source.rglob("__pycache__"):
        kernels = list(cache.glob("*.nb[ic]"))
        folder = installed / cache.parent.relative_to(source)
        for file in cache.parent.glob("*.py") if kernels else ():
            shutil.copystat(file, folder / file.name)
        for kernel in kernels:
            (folder / "__pycache__").mkdir(exist_ok=True)
            shutil.copy(kernel, folder / "__pycache__")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A working folder with an array, a file of another format, and a text."""
    folder = tmp_path_factory.mktemp("work")
    np.save(folder / "x.npy", np.random.default_rng(0).standard_normal((6, 8, 5)))
    (folder / "x.safetensors").write_bytes(b"")
    (folder / "book.txt").write_text("Some words.")
    (folder / "photos").mkdir()
    return folder


def give(bare, folder, *arguments):
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [str(bare / "bin" / "headtree"), *arguments],
        cwd=folder, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip


def listing(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_no_optional_package_is_there(bare):
    code = f"from importlib.util import find_spec; print([name for name in {OPTIONAL} if find_spec(name)])"
    result = subprocess.run(
        [str(bare / "bin/python"), "-I", "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"


REFUSED = {
    "demo": "demo",
    "demo --no-draw": "demo",
    "run bert-base-uncased --text book.txt": "models,report",
    "run bert-base-uncased --text book.txt --no-draw": "models",
    "run bert-base-uncased --text book.txt --no-draw --depth": "models,report",
    "run ./model --images photos --no-draw": "models",
    "run txl": "demo",
    "run vit --no-draw": "demo",
    "run vit --no-draw --dask local:2": "cluster,demo",
    "organize x.npy": "report",
    "organize x.safetensors --no-draw": "models",
    "report runs/x": "report",
    "reproduce": "demo",
    "reproduce --networks minilm": "demo",
    "reproduce --networks photos": "report",
    "reproduce --similarities": "demo",
    "depth bert-base-uncased --text book.txt": "models,report",
    "depth vit": "demo",
    "depth --tasks": "report",
    "compare runs/a runs/b": "compare,report",
    "compare runs/a runs/b --no-draw": "compare",
    "compare --checkpoints txl": "compare,demo",
    "compare --checkpoints photos --text book.txt --no-draw": "compare,models",
    "prune bert-base-uncased --data book.txt": "models,report",
    "prune txl": "demo",
    "train txl --output new --data photos": "models",
    "train vit --output new --config paper": "train",
}


@pytest.mark.parametrize("command", REFUSED)
def test_what_is_missing_is_said_before_anything_is_written(bare, folder, command):
    before = listing(folder)
    result = give(bare, folder, *command.split())
    assert (result.returncode, result.stdout) == (MISSING, ""), result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert result.stderr.startswith(f"headtree {command.split()[0]}: ")
    assert result.stderr.endswith(f"pip install 'headtree[{REFUSED[command]}]'\n")
    assert listing(folder) == before


def test_every_command_is_tried():
    tried = {command.split()[0] for command in REFUSED}
    assert tried == {command.callback.__name__ for command in app.registered_commands}


def test_help_and_version_need_nothing(bare, folder):
    text = give(bare, folder, "--help")
    assert text.returncode == 0
    assert f"{MISSING} wrong input, or an optional package is missing" in " ".join(text.stdout.split())
    for command in app.registered_commands:
        assert give(bare, folder, command.callback.__name__, "--help").returncode == 0
    assert give(bare, folder, "--version").stdout.startswith("headtree 0.")


def test_arrays_are_organized_without_any_extra(bare, tmp_path):
    np.save(tmp_path / "x.npy", np.random.default_rng(0).standard_normal((6, 8, 5)))
    result = give(bare, tmp_path, "organize", "x.npy", "--no-draw", "--json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["shape"] == [6, 8, 5]
    assert (tmp_path / "runs/x/axis0.csv").is_file()


IN_PYTHON = """
import headtree as ht
from headtree.errors import MissingPackageError

def figures():
    from headtree.report import figures

for call in (
    lambda: ht.capture("bert-base-uncased", texts=["Some words."]),
    lambda: ht.load_bundled("txl"),
    lambda: ht.load_tensor("x.safetensors"),
    figures,
):
    try:
        call()
    except MissingPackageError as error:
        assert isinstance(error, ImportError) and isinstance(error, ht.HeadtreeError)
        print(str(error).split("pip install ")[1])
"""


def test_python_raises_the_same_error(bare, folder):
    before = listing(folder)
    result = subprocess.run(
        [str(bare / "bin/python"), "-I", "-W", "error", "-c", IN_PYTHON],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    extras = ["models", "demo", "models", "report"]
    assert result.stdout.split("\n")[:-1] == [f"'headtree[{extra}]'" for extra in extras]
    assert listing(folder) == before


def test_each_extra_brings_what_is_asked_of_it():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]

    def brought(extra):
        for requirement in map(Requirement, project[extra]):
            yield requirement.name
            for other in requirement.extras:
                yield from brought(other)

    for extra, packages in EXTRAS.items():
        assert {INDEX_NAMES.get(name, name) for name in packages} <= set(brought(extra))


def test_the_wheel_is_small_and_whole(wheel):
    assert wheel.stat().st_size < 1_000_000
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert not [name for name in names if name.endswith((".safetensors", ".npz"))]
    source = ROOT / "src"
    code = {str(path.relative_to(source)) for path in source.rglob("*.py*") if path.suffix in (".py", ".pyi")}
    assert code <= set(names)
    for name in ("py.typed", "report/page/static/page.html", "report/page/static/main.js"):
        assert f"headtree/{name}" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_data_package_holds_weights_card_and_licence(tmp_path):
    with zipfile.ZipFile(build(ROOT / "packages" / "headtree-networks", tmp_path)) as archive:
        names = archive.namelist()
    for network in ("txl", "vit"):
        for name in ("weights.safetensors", "samples.safetensors", "config.json", "card.json"):
            assert f"headtree_networks/{network}/{name}" in names
    assert "headtree_networks/README.md" in names  # the data card
    assert "headtree_networks/passages.txt.license" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
