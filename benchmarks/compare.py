"""Comparing two runs of 144 heads: time by part, and how good the matching of geometries is for its time."""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
from jaxtyping import Float
from scipy.spatial.distance import pdist, squareform

import headtree as ht
from benchmarks._measure import seconds
from headtree.comparison.aspects import aspects_of
from headtree.comparison.gromov import descend, gromov_wasserstein
from headtree.comparison.run_profile import run_profile
from headtree.pipeline.make_run import Measures, make_run
from headtree.pipeline.sources import TensorSource
from headtree.runs.run import Run


def main(check: bool = False) -> None:
    """Print the tables; with `check`, use tiny networks only to see that everything runs."""
    n_layers, n_inputs, lengths = (2, 3, (8,)) if check else (12, 10, (64, 197))
    with tempfile.TemporaryDirectory() as folder:
        for n_tokens in lengths:
            runs = [_run(Path(folder, f"{n_tokens}-{seed}"), n_layers, n_inputs, n_tokens, seed) for seed in (0, 1)]
            _compare(runs, repeats=1 if check else 3)
    _matching(*((8, 2, 3) if check else (40, 12, 30)))


def _run(folder: Path, n_layers: int, n_inputs: int, n_tokens: int, seed: int) -> Run:
    """A network of random weights, of which nearby tokens attract each other, as a run."""
    rng = np.random.default_rng(seed)
    weights, near = rng.normal(size=(12 * n_layers, 8, 8)), rng.uniform(0, 1, 12 * n_layers)
    distance = np.abs(np.arange(n_tokens)[:, None] - np.arange(n_tokens))
    tensors = []
    for i in range(n_inputs):
        x = np.random.default_rng([i, 1]).normal(size=(n_tokens, 8))
        scores = np.einsum("qi,hij,kj->hqk", x, weights, x) / 4 - near[:, None, None] * distance
        tensors.append(ht.AttentionTensor.from_array(scores.astype(np.float32), heads_per_layer=12))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make_run(TensorSource(tensors), folder, measures=Measures(bootstrap=20), draw=False)


def _compare(runs: list[Run], repeats: int) -> None:
    ht.compare(*runs)  # imports and compiled code
    shape = runs[0].attention[0].shape
    print(f"two runs of {shape[0]} heads × {shape[1]} × {shape[2]} tokens, {runs[0].n_inputs} inputs:")
    profiles = [run_profile(run) for run in runs]
    geometries = [profile.distance.mean(axis=0) for profile in profiles]
    parts: dict[str, Callable[[], object]] = {
        "compare": lambda: ht.compare(*runs),
        "reading both runs": lambda: [run_profile(run) for run in runs],
        "curves of all aspects": lambda: aspects_of(profiles),
        "matching the geometries": lambda: gromov_wasserstein(*geometries),
    }
    for name, call in parts.items():
        print(f"  {name:24} {seconds(call, repeats):6.2f} s, processor {_processor_seconds(call):6.2f} s")


def _processor_seconds(call: Callable[[], object]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


def _matching(n_heads: int, n_pairs: int, n_random: int) -> None:
    """Distances of points without structure, relative to the best of all: ours, POT's start, random starts."""
    uniform = np.full((n_heads, n_heads), 1 / n_heads**2)
    rows = []
    for seed in range(n_pairs):
        a, b = _points(n_heads, seed), _points(n_heads, seed + 1000)
        rng = np.random.default_rng(seed)
        random = [descend(a, b, np.eye(n_heads)[rng.permutation(n_heads)] / n_heads) for _ in range(n_random)]
        found = gromov_wasserstein(a, b).distance, descend(a, b, uniform), random[0], min(random)
        rows.append(np.array(found) / min(found) - 1)
    ours, pot, one, many = 100 * np.mean(rows, axis=0)
    print(f"distance of {n_heads} random points above the best found, mean of {n_pairs} pairs:")
    print(f"  ours {ours:.1f} %, POT's default start {pot:.1f} %, ", end="")
    print(f"one random start {one:.1f} %, the best of {n_random} {many:.1f} %")


def _points(n: int, seed: int) -> Float[np.ndarray, "head head"]:
    return squareform(pdist(np.random.default_rng(seed).normal(size=(n, 3))))
