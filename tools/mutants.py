"""Break the numerical core in a few hundred ways, one at a time: ``python -m tools.mutants [--share N]``.

Each mutant is one change of an operator, a comparison or a number. The tests of its module run on a copy of the
source with that change; a mutant that no test notices survives and is listed with its line, and with the reason if
`tools.survivors` has one. Everything heavy is imported once, and each mutant is a forked child.
"""

from __future__ import annotations

import argparse
import ast
import copy
import math
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from tools.survivors import KNOWN

ROOT = Path(__file__).parents[1]
#: Times as long as the tests of a module take, and seconds more, after which a mutant is taken to loop for ever.
_PATIENCE, _MORE_SECONDS = 3, 20

#: A test in processes of its own, which know nothing of the change.
_ELSEWHERE = "tests/geometry/test_rounding.py::test_results_do_not_depend_on_the_number_of_threads"

#: The tests that must notice a change of a module.
TESTS = {
    "geometry/emd.py": ("tests/geometry/test_emd.py", "tests/geometry/test_rounding.py"),
    "geometry/masked_emd.py": ("tests/geometry/test_emd.py", "tests/geometry/test_rounding.py"),
    "geometry/folder_sums.py": ("tests/geometry/test_emd.py", "tests/geometry/test_rounding.py"),
    "geometry/sampled_emd.py": ("tests/geometry/test_sampled_emd.py", "tests/questionnaire/test_lazy_arrays.py"),
    "geometry/affinity.py": (
        "tests/geometry/test_affinity.py",
        "tests/geometry/test_rounding.py",
        "tests/measures/test_conditioning.py",
        "tests/test_limits.py",
    ),
    "geometry/diffusion.py": ("tests/geometry/test_diffusion.py", "tests/test_limits.py", "tests/test_golden.py"),
    "geometry/grow_tree.py": ("tests/geometry/test_grow_tree.py", "tests/test_limits.py", "tests/test_golden.py"),
    "measures/sparsity.py": ("tests/measures/test_sparsity.py", "tests/test_limits.py"),
    "questionnaire/organize.py": (
        "tests/questionnaire/test_organize.py",
        "tests/questionnaire/test_landmarks.py",
        "tests/questionnaire/test_enough_samples.py",
        "tests/questionnaire/test_lazy_arrays.py",
        "tests/test_limits.py",
    ),
    "trees/compare.py": ("tests/trees/test_compare.py",),
    "tensor/load.py": ("tests/tensor/test_load.py",),
    "runs/checksums.py": ("tests/runs/test_damage.py",),
}

_SWAPS: dict[type, type] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip


class Mutant(NamedTuple):
    """One change of one module."""

    module: str
    number: int  #: of the line
    line: str  #: as it was
    changed: str  #: the line with the change
    source: str

    def __str__(self) -> str:
        return f"{self.module}:{self.number}: {self.line} -> {self.changed}"

    @property
    def reason(self) -> str | None:
        """Why no test can notice the change, if that is known."""
        change = f"{self.line} -> {self.changed}"
        return next((why for piece, why in KNOWN.get(self.module, {}).items() if piece in change), None)


def mutants(module: str) -> Iterator[Mutant]:
    """Every mutant of a module of headtree."""
    text = (ROOT / "src/headtree" / module).read_bytes()
    tree, lines = ast.parse(text), text.splitlines()
    sites = [node for node in ast.walk(tree) if _is_site(node)]
    ignored = {id(child) for node in ast.walk(tree) if _is_ignored(node) for child in ast.walk(node)}
    for node in sites:
        if id(node) in ignored:
            continue
        before, undo = ast.unparse(node), copy.copy(node.__dict__)
        _change(node)
        after = ast.unparse(node)
        if after != before:
            yield Mutant(module, node.lineno, *_lines(lines, node, before, after), ast.unparse(tree))  # type: ignore[attr-defined]
        node.__dict__.update(undo)


def _lines(lines: list[bytes], node: Any, *texts: str) -> Iterator[str]:
    """The line of a node with each text in its place; if the node is on several lines, as one."""
    start, stop = lines[node.lineno - 1][: node.col_offset], lines[node.end_lineno - 1][node.end_col_offset :]
    for text in texts:
        yield (start + text.encode() + stop).decode().strip()


def _is_site(node: ast.AST) -> bool:
    if isinstance(node, ast.Compare):
        return len(node.ops) == 1 and type(node.ops[0]) in _SWAPS
    if isinstance(node, ast.BinOp | ast.BoolOp):
        return type(node.op) in _SWAPS
    is_number = isinstance(node, ast.Constant) and isinstance(node.value, int | float)
    return is_number or (isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not))


def _is_ignored(node: ast.AST) -> bool:
    """Annotations, messages of errors, types, and what only guards against other mistakes."""
    is_type = isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr)
    is_guard = isinstance(node, ast.keyword) and node.arg in ("strict", "frozen", "eq", "cache")
    texts = ast.Raise | ast.JoinedStr | ast.AnnAssign | ast.arg | ast.Import | ast.ImportFrom
    return is_type or is_guard or isinstance(node, texts)


def _change(node: ast.AST) -> None:
    if isinstance(node, ast.Compare):
        node.ops = [_SWAPS[type(node.ops[0])]()]
    elif isinstance(node, ast.BinOp | ast.BoolOp):
        node.op = _SWAPS[type(node.op)]()
    elif isinstance(node, ast.UnaryOp):
        node.op, node.operand = ast.Not(), ast.UnaryOp(ast.Not(), node.operand)
    elif isinstance(node, ast.Constant):
        value = node.value
        node.value = not value if isinstance(value, bool) else value + 1 if isinstance(value, int) else value * 1.5  # type: ignore[operator]


def survives(mutant: Mutant, source: Path, seconds: float) -> bool:
    """Whether the tests pass with the change, in time; `source` is a copy of src that nobody else uses."""
    target = source / "headtree" / mutant.module
    before = target.read_bytes(), target.stat()
    target.write_text(mutant.source, encoding="utf-8")
    try:
        return _tests_pass(source, TESTS[mutant.module], seconds)
    finally:
        target.write_bytes(before[0])
        os.utime(target, ns=(before[1].st_atime_ns, before[1].st_mtime_ns))


class _OneFailure:
    """Hypothesis draws the same examples for every mutant, and looks for no simpler one that fails."""

    def pytest_configure(self) -> None:
        """Called by pytest after tests/conftest.py, which has settings of its own."""
        from hypothesis import Phase, settings  # not before pytest, which rewrites its assertions

        phases = (Phase.explicit, Phase.generate)
        settings.register_profile("mutants", deadline=None, derandomize=True, phases=phases)
        settings.load_profile("mutants")


def _tests_pass(source: Path, tests: tuple[str, ...], seconds: float) -> bool:
    child = os.fork()
    if child == 0:
        os.setsid()
        signal.alarm(math.ceil(seconds))  # a mutant may loop for ever, which counts as noticed
        code = 1
        try:
            with open(os.devnull, "w") as nothing:
                os.dup2(nothing.fileno(), 1)
                os.dup2(nothing.fileno(), 2)
            sys.dont_write_bytecode = True
            sys.path.insert(0, str(source))
            import pytest

            plain = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", f"--deselect={_ELSEWHERE}"]
            code = pytest.main([*plain, *tests], plugins=[_OneFailure()])
        finally:
            os._exit(int(code))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def _limits(source: Path, modules: Iterable[str]) -> dict[tuple[str, ...], float]:
    """Seconds that the tests of each module may take, which must pass without any change."""
    limits: dict[tuple[str, ...], float] = {}
    for tests in dict.fromkeys(TESTS[module] for module in modules):
        start = time.perf_counter()
        if not _tests_pass(source, tests, 3600):
            raise SystemExit(f"the tests fail without any change: {' '.join(tests)}")
        limits[tests] = _PATIENCE * (time.perf_counter() - start) + _MORE_SECONDS
    return limits


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--share", type=int, default=3, help="try every N-th mutant; 1 tries all, about a thousand")
    parser.add_argument("--only", default="", help="modules whose name contains this")
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    import numba  # noqa: F401  (with the imports below, what takes long; pytest imports its plugins itself)
    import pandas  # noqa: F401, ICN001
    import scipy.sparse.linalg  # noqa: F401
    import sklearn.metrics  # noqa: F401
    import torch  # noqa: F401
    import xarray  # noqa: F401

    chosen = [m for module in TESTS if given.only in module for m in mutants(module)][:: given.share]
    start, survivors = time.perf_counter(), []
    with tempfile.TemporaryDirectory() as folder:
        copies = [Path(folder, str(i)) for i in range(given.workers)]
        for each in copies:
            shutil.copytree(ROOT / "src", each)
        limits = _limits(copies[0], dict.fromkeys(mutant.module for mutant in chosen))

        def try_out(mutant: Mutant) -> None:
            source = copies.pop()
            if survives(mutant, source, limits[TESTS[mutant.module]]):
                survivors.append(mutant)
                print(f"survives: {mutant} ({mutant.reason or 'why?'})", flush=True)
            copies.append(source)

        with ThreadPoolExecutor(given.workers) as pool:
            list(pool.map(try_out, chosen))
    unknown = [mutant for mutant in survivors if mutant.reason is None]
    seconds = time.perf_counter() - start
    print(f"{len(chosen)} mutants, {len(survivors)} survive, {len(unknown)} without a reason; {seconds:.0f} s")


if __name__ == "__main__":
    main()
