import re
import subprocess
import sys
from pathlib import Path

import headtree as ht

ROOT = Path(__file__).parents[1]


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_every_public_name_is_there():
    for name in ht.__all__:
        assert getattr(ht, name) is not None
    assert set(ht.__all__) == set(dir(ht))


def test_importing_headtree_imports_nothing_heavy():
    code = "import sys, headtree; print([m for m in ('torch', 'numba', 'numpy', 'scipy') if m in sys.modules])"
    assert run(sys.executable, "-c", code).stdout.strip() == "[]"


def test_help_needs_nothing_heavy_and_nothing_of_the_study():
    unwanted = ("torch", "numba", "numpy", "scipy", "headtree.study")
    code = f"import sys, headtree.cli.app; print([m for m in {unwanted} if m in sys.modules])"
    assert run(sys.executable, "-c", code).stdout.strip() == "[]"


def test_every_module_name_occurs_once():
    names = [path.name for path in (ROOT / "src").rglob("*.py") if path.name != "__init__.py"]
    assert sorted(set(names)) == sorted(names)


def test_python_in_the_readme_runs_as_printed():
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert blocks
    for block in blocks:
        result = run(sys.executable, "-W", "error", "-c", block)
        assert result.returncode == 0, result.stderr


def test_progress_is_silent_when_nobody_watches(capfd):
    ht.organize_array([[1.0, 2.0, 4.0], [2.0, 1.0, 0.0]])
    assert capfd.readouterr() == ("", "")
