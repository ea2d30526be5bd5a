"""Break the numerical core in a few hundred ways, one at a time: ``python -m tools.mutants [--share N]``.

Each mutant is one change of an operator, a comparison or a number. The tests of its module run on a copy of the
source with that change; a mutant that no test notices survives and is listed with its line. `KNOWN` says why some
may. Everything heavy is imported once, and each mutant is a forked child.
"""

from __future__ import annotations

import argparse
import ast
import copy
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
_SECONDS = 300

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
    "questionnaire/organize.py": ("tests/questionnaire/test_organize.py", "tests/test_limits.py"),
    "trees/compare.py": ("tests/trees/test_compare.py",),
    "tensor/load.py": ("tests/tensor/test_load.py",),
    "runs/checksums.py": ("tests/runs/test_damage.py",),
}

#: Changes, as "module: before -> after", that change no result, and why.
KNOWN = {
    "geometry/emd.py: 8 -> 9": "a bound on rounding errors may be a little larger",
    (
        "geometry/sampled_emd.py: n_corners * (sum(shape) + n_corners + _MULTIPLICATIONS) * "
        "torch.finfo(torch.float64).eps / 2 -> n_corners * (sum(shape) + n_corners + _MULTIPLICATIONS) * "
        "torch.finfo(torch.float64).eps * 2"
    ): "a bound on rounding errors may be a little larger",
    (
        "geometry/sampled_emd.py: len(counted) * n_tuples <= _COUNTS_ON_GPU -> "
        "len(counted) * n_tuples < _COUNTS_ON_GPU"
    ): "both ways of counting give the same",
    "geometry/folder_sums.py: (self._n + LANES - 1) // LANES -> (self._n + LANES - 1) * LANES": "wastes memory",
}

_SWAPS: dict[type, type] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip


class Mutant(NamedTuple):
    """One change of one module."""

    module: str
    line: int
    before: str
    after: str
    source: str

    @property
    def name(self) -> str:
        """The change in words, as `KNOWN` has it."""
        return f"{self.module}: {self.before} -> {self.after}"


def mutants(module: str) -> Iterator[Mutant]:
    """Every mutant of a module of headtree."""
    tree = ast.parse((ROOT / "src/headtree" / module).read_text(encoding="utf-8"))
    sites = [node for node in ast.walk(tree) if _is_site(node)]
    ignored = {id(child) for node in ast.walk(tree) if _is_ignored(node) for child in ast.walk(node)}
    for node in sites:
        if id(node) in ignored:
            continue
        before, undo = ast.unparse(node), copy.copy(node.__dict__)
        _change(node)
        after = ast.unparse(node)
        if after != before:
            yield Mutant(module, node.lineno, before, after, ast.unparse(tree))  # type: ignore[attr-defined]
        node.__dict__.update(undo)


def _is_site(node: ast.AST) -> bool:
    if isinstance(node, ast.Compare):
        return len(node.ops) == 1 and type(node.ops[0]) in _SWAPS
    if isinstance(node, ast.BinOp | ast.BoolOp):
        return type(node.op) in _SWAPS
    is_number = isinstance(node, ast.Constant) and isinstance(node.value, int | float)
    return is_number or (isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not))


def _is_ignored(node: ast.AST) -> bool:
    """Annotations, messages of errors, and types."""
    return isinstance(node, ast.Raise | ast.JoinedStr | ast.AnnAssign | ast.arg | ast.Import | ast.ImportFrom) or (
        isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr)
    )


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


def survives(mutant: Mutant, source: Path) -> bool:
    """Whether the tests pass with the change; `source` is a copy of src that nobody else uses."""
    target = source / "headtree" / mutant.module
    before = target.read_bytes(), target.stat()
    target.write_text(mutant.source, encoding="utf-8")
    try:
        return _tests_pass(source, TESTS[mutant.module])
    finally:
        target.write_bytes(before[0])
        os.utime(target, ns=(before[1].st_atime_ns, before[1].st_mtime_ns))


def _tests_pass(source: Path, tests: tuple[str, ...]) -> bool:
    child = os.fork()
    if child == 0:
        os.setsid()
        signal.alarm(_SECONDS)  # a mutant may loop for ever, which counts as noticed
        code = 1
        try:
            with open(os.devnull, "w") as nothing:
                os.dup2(nothing.fileno(), 1)
                os.dup2(nothing.fileno(), 2)
            sys.dont_write_bytecode = True
            sys.path.insert(0, str(source))
            import pytest

            code = pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *tests])
        finally:
            os._exit(int(code))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


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
            if not _tests_pass(each, TESTS["trees/compare.py"]):
                raise SystemExit("the tests fail without any change")

        def try_out(mutant: Mutant) -> None:
            source = copies.pop()
            if survives(mutant, source):
                survivors.append(mutant)
                print(f"survives: {mutant.module}:{mutant.line}: {mutant.before} -> {mutant.after}", flush=True)
            copies.append(source)

        with ThreadPoolExecutor(given.workers) as pool:
            list(pool.map(try_out, chosen))
    unknown = [mutant for mutant in survivors if mutant.name not in KNOWN]
    seconds = time.perf_counter() - start
    print(f"{len(chosen)} mutants, {len(survivors)} survive, {len(unknown)} without a reason; {seconds:.0f} s")


if __name__ == "__main__":
    main()
