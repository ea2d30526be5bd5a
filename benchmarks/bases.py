"""Haar bases, entropies and paraproduct compared with dense-matrix versions in the same run."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import headtree as ht
from benchmarks._measure import peak_megabytes, seconds
from headtree.questionnaire.organization import PerAxis, Status

Tree = ht.PartitionTree


def main(check: bool = False) -> None:
    """Print the tables; with `check`, use tiny sizes only to see that everything runs and agrees."""
    n_heads, n = (4, 16) if check else (128, 256)
    tables = [
        _whole_network(n_heads, n, check),
        _growth([8, 16] if check else [64, 128, 256, 512, 1024, 2048], check),
    ]
    for rows in tables:
        for row in rows:
            print("  ".join(f"{cell:>22}" for cell in row))
        print()


def _whole_network(n_heads: int, n: int, check: bool) -> list[list[str]]:
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.standard_normal((n_heads, n, n)))
    trees = _trees([n_heads, n, n], rng)
    att, org = ht.AttentionTensor.from_array(x), _organization(x, trees)
    rows = [[f"{n_heads} x {n} x {n}", "time", "extra memory", "dense time", "dense memory", "ratio of times"]]
    jobs: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
        "head entropies": (lambda: ht.head_entropy(att, org).raw, lambda: _dense_entropy(x, trees[1:], 400)),
        "network entropy": (lambda: ht.network_entropy(att, org).raw, lambda: _dense_entropy(x, trees, 100)),
        "all coefficients": (
            lambda: ht.TensorHaarBasis(trees).analyze(x).abs().sum(),
            lambda: _dense_coefficients(x, trees).abs().sum(),
        ),
        "paraproduct, 1 head": (
            lambda: _quiet_paraproduct(x[:1], trees).first.abs().sum(),
            lambda: _dense_paraproduct(x[:1], trees[1:]).abs().sum(),
        ),
        f"paraproduct, {n_heads} heads": (
            lambda: _quiet_paraproduct(x, trees).first.abs().sum(),
            lambda: _dense_paraproduct(x, trees[1:]).abs().sum(),
        ),
    }
    for name, (ours, dense) in jobs.items():
        is_long = name.endswith("heads") and name.startswith("paraproduct")
        a, time_, memory = _measured(ours, 1 if check else 2 if is_long else 5)
        b, dense_time, dense_memory = _measured(dense, 0 if is_long else 2)
        if not np.allclose(a, b, rtol=1e-6, atol=1e-6 * float(np.abs(np.asarray(b)).max())):
            raise RuntimeError(f"{name}: the two versions disagree")
        rows.append([name, *_cells(time_, memory, dense_time, dense_memory, check)])
    return rows


def _growth(sizes: list[int], check: bool) -> list[list[str]]:
    """One n x n matrix: time per entry is constant for the tree versions and grows with n for dense products."""
    rows = [["growth, ns per entry", "bi-Haar, tree", "bi-Haar, dense", "paraproduct", "top 400, ms"]]
    for n in sizes:
        rng = np.random.default_rng(n)
        x, trees = torch.from_numpy(rng.standard_normal((n, n))), _trees([n, n], rng)
        basis, matrices = ht.TensorHaarBasis(trees), [_dense(tree) for tree in trees]
        times = [
            _measured(lambda: basis.analyze(x), 3)[1],  # noqa: B023, called immediately
            _measured(lambda: matrices[0].T @ x @ matrices[1], 3)[1],  # noqa: B023
            _measured(lambda: _quiet_paraproduct(x, [None, *trees]), 3)[1],  # noqa: B023
        ]
        top = _measured(lambda: basis.top(min(400, n * n)), 3)[1]  # noqa: B023
        cells = ["-"] * 4 if check else [f"{t / n**2 * 1e9:.1f}" for t in times] + [f"{top * 1e3:.2f}"]
        rows.append([f"n = {n}", *cells])
    return rows


def _cells(time_: float, memory: float, dense_time: float, dense_memory: float, check: bool) -> list[str]:
    if check:
        return ["-"] * 5
    return [
        f"{time_:.4f} s",
        f"{memory:.0f} MB",
        f"{dense_time:.4f} s",
        f"{dense_memory:.0f} MB",
        f"{dense_time / time_:.1f}",
    ]


def _trees(shape: list[int], rng: np.random.Generator) -> list[Tree]:
    """Flexible trees of random points, with folders of all sizes as in the questionnaire."""
    trees = []
    for n in shape:
        points = rng.standard_normal((n, 3))
        squares = ((points[:, None] - points[None]) ** 2).sum(axis=-1)
        trees.append(ht.flexible_tree(np.exp(-squares)))
    return trees


def _organization(x: torch.Tensor, trees: list[Tree]) -> ht.Organization:
    """An organization with these trees; the measures here use nothing else."""
    names = ("head", "query", "key")
    nothing = PerAxis(names, [np.empty((0, 0))] * 3)
    return ht.Organization(
        trees=PerAxis(names, trees),
        affinities=nothing,
        distances=nothing,
        coordinates=nothing,
        initial_trees=PerAxis(names, [None] * 3),
        history=(),
        status=Status(True, "made for a benchmark"),
        settings=ht.Questionnaire(),
    )


def _quiet_paraproduct(f: torch.Tensor, trees: list[Any]) -> ht.Paraproduct:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ht.HeadtreeWarning)  # noise is not regular
        return ht.paraproduct(f, *trees[1:], "softmax")


# -- dense versions ------------------------------------------------------------------------------------------


def _dense(tree: Tree) -> torch.Tensor:
    return torch.from_numpy(ht.HaarBasis(tree).matrix())


def _dense_coefficients(x: torch.Tensor, trees: list[Tree]) -> torch.Tensor:
    matrices = [_dense(tree) for tree in trees]
    result = matrices[-2].T @ x @ matrices[-1]
    return torch.tensordot(matrices[0].T, result, dims=1) if len(trees) == 3 else result


def _dense_entropy(x: torch.Tensor, trees: list[Tree], m: int) -> np.ndarray:
    """All coefficients, then all supports sorted."""
    coefficients = _dense_coefficients(x, trees)
    product = torch.ones(1)
    for tree in trees:
        product = torch.outer(product, torch.from_numpy(ht.HaarBasis(tree).support.copy()).double()).ravel()
    top = torch.sort(product, descending=True, stable=True).indices[:m]
    flat = coefficients.reshape(-1, len(product)) if len(trees) == 2 else coefficients.reshape(1, -1)
    sums = flat[:, top].abs().sum(dim=1).numpy()
    return sums if len(trees) == 2 else sums[0]


def _dense_paraproduct(f: torch.Tensor, trees: list[Tree]) -> torch.Tensor:
    """First-order term of softmax, with every average as a full matrix product."""
    shifted = f - torch.logsumexp(f, dim=-1, keepdim=True)
    averages = [[_averaging(labels) for labels in tree.labels] for tree in trees]
    total = torch.zeros_like(shifted)
    for above, below in zip(averages[0][:-1], averages[0][1:], strict=True):
        upper, lower = above @ shifted, below @ shifted
        for left, right in zip(averages[1][:-1], averages[1][1:], strict=True):
            u = upper @ left
            total += torch.exp(u) * (lower @ right - upper @ right - lower @ left + u)
    return total


def _averaging(labels: np.ndarray) -> torch.Tensor:
    together = torch.from_numpy(labels[:, None] == labels[None, :]).double()
    return together / together.sum(dim=1, keepdim=True)


def _measured(job: Callable[[], Any], repeats: int) -> tuple[Any, float, float]:
    """Result, smallest time of `repeats` runs after a first one, and peak megabytes of the first one.

    Without repeats, the time is that of the first run.
    """
    result = None
    start = time.perf_counter()

    def first() -> None:
        nonlocal result
        result = job()

    megabytes = peak_megabytes(first)
    elapsed = time.perf_counter() - start
    return result, seconds(job, repeats) if repeats else elapsed, megabytes


if __name__ == "__main__":
    main()
