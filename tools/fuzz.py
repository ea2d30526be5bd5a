"""Organize drawn arrays and compare them with literal definitions: ``python -m tools.fuzz [N] [SEED] [--jobs J]``.

Every array must give an answer or an error of headtree's own. Distances equal the literal sum over all tuples of
folders; exact or sampled, they are symmetric and exactly 0 between equal slices; constant arrays have flat trees,
whatever is missing; the tree of the last affinity equals the tree grown in plain loops; nothing is NaN; arrays
without ties give permuted trees when they are permuted. The first array that breaks a law is printed with its
number, and ``--only NUMBER`` repeats it.
"""

from __future__ import annotations

import argparse
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from multiprocessing import get_context
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.sparse.csgraph import connected_components

import headtree as ht
from tests import oracles

#: Distances are sums of a few thousand products of numbers of size one.
_CLOSE = {np.dtype(np.float64): 1e-11, np.dtype(np.float32): 2e-5}


class Case(NamedTuple):
    """An array, its mask and the settings, and whether its slices are all different or its entries all equal."""

    x: np.ndarray[Any, Any]
    mask: np.ndarray[Any, Any] | None
    settings: ht.Questionnaire
    is_generic: bool
    is_constant: bool


def drawn(seed: int, number: int) -> Case:
    """The case of this number."""
    rng = np.random.default_rng([seed, number])
    shape = tuple(rng.integers(1 if rng.random() < 0.1 else 2, 8, size=rng.integers(2, 5)))
    shape = tuple(min(n, 4) for n in shape) if len(shape) == 4 else shape
    special = ["constant", "integers", "sparse", "copies", "last bit", "rank one"]
    kind = rng.choice(["normal"] * 4 + ["uniform"] * 2 + special)
    x = rng.standard_normal(shape)
    if kind == "uniform":
        x = rng.random(shape)
    elif kind == "constant":
        x = np.full(shape, rng.choice([0.0, 1.0, -3.5, 0.1, 1e-300, 7e30]))
    elif kind == "integers":
        x = rng.integers(-2, 3, size=shape).astype(float)
    elif kind == "sparse":
        x = x * (rng.random(shape) < 0.2)
    elif kind == "copies":
        axis = rng.integers(len(shape))
        x = np.take(x, rng.integers(0, shape[axis], size=shape[axis]), axis)
    elif kind == "last bit":
        x = 1 + 2.0**-52 * (rng.random(shape) < 0.5)
    elif kind == "rank one":
        x = np.multiply.outer(x.ravel()[: shape[0]], np.ones(shape[1:])) if len(x.ravel()) >= shape[0] else x
    is_plain = kind in ("normal", "uniform")
    if is_plain and rng.random() < 0.2:
        x = x * 10.0 ** rng.integers(-200, 200)
    if rng.random() < 0.3 and np.abs(x).max() < 1e30:
        x = x.astype(np.float32)
    mask = rng.random(shape) < rng.choice([0.1, 0.5, 0.9]) if rng.random() < 0.4 else None
    settings = ht.Questionnaire(
        alpha=float(rng.choice([0, 1, 2, -0.5, 8])),
        beta=float(rng.choice([1, 0, 2, 0.5])),
        n_iter=int(rng.integers(1, 3)),
        tree=str(rng.choice(["flexible", "flexible", "binary"])),  # type: ignore[arg-type]
        initial=str(rng.choice(["cosine", "correlation", "gaussian"])),  # type: ignore[arg-type]
        weights=str(rng.choice(["levels", "distinct"])),  # type: ignore[arg-type]
        samples=int(rng.integers(2, 17)) if rng.random() < 0.2 else "auto",
    )
    is_generic = is_plain and mask is None and x.dtype == np.float64 and min(shape) > 1
    return Case(x, mask, settings, is_generic, kind in ("constant", "last bit"))


def problem(case: Case) -> str | None:
    """The law that a case breaks; None if it breaks none."""
    x, mask, settings = case.x, case.mask, case.settings
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ht.HeadtreeWarning)
            org = ht.organize_array(x, settings, mask=mask)
            distances = [
                ht.tree_emd(x, axis, org.trees, settings.alpha, settings.beta, weights=settings.weights, mask=mask)
                for axis in range(x.ndim)
            ]
    except ht.HeadtreeError:
        return None if mask is not None and mask.all() else "an array that is in order was refused"
    except Exception as error:
        return f"foreign error {type(error).__name__}: {error}"
    for axis, found in enumerate(distances):
        others = [tree for i, tree in enumerate(org.trees) if i != axis]
        said = _wrong_distances(case, axis, found, others) or _wrong_tree(case, org, axis)
        said = said or _unlawful(case, axis, org.distances[axis])
        if said:
            return f"axis {axis}: {said}"
    return None


def _wrong_distances(
    case: Case, axis: int, found: np.ndarray[Any, Any], trees: list[ht.PartitionTree]
) -> str | None:
    x, s = case.x, case.settings
    unit = np.abs(x[~case.mask] if case.mask is not None else x).max(initial=0) or 1.0
    expected = oracles.tree_emd(
        x / unit, axis, trees, s.alpha, s.beta, distinct=s.weights == "distinct", missing=case.mask
    )
    scale = max(1.0, np.abs(expected[np.isfinite(expected)]).max(initial=0))
    if not np.allclose(found / unit, expected, rtol=_CLOSE[x.dtype], atol=_CLOSE[x.dtype] * scale):
        return "distances differ from the literal sum"
    return _unlawful(case, axis, found)


def _unlawful(case: Case, axis: int, found: np.ndarray[Any, Any]) -> str | None:
    """What no distances between slices may be, exact or sampled."""
    x = case.x
    if np.isnan(found).any() or not np.array_equal(found, found.T):
        return "distances are NaN or not symmetric"
    if case.is_constant and found[np.isfinite(found)].any():
        return "slices of a constant array have a distance"
    slices = np.moveaxis(x, axis, 0).reshape(x.shape[axis], -1)
    hidden = (
        np.zeros_like(slices, bool) if case.mask is None else np.moveaxis(case.mask, axis, 0).reshape(slices.shape)
    )
    shown = np.where(hidden, 0, slices)
    same = (shown[:, None] == shown[None]).all(2) & (hidden[:, None] == hidden[None]).all(2) & ~hidden.all(1)
    return "equal slices have a distance" if found[same].any() else None


def _wrong_tree(case: Case, org: ht.Organization, axis: int) -> str | None:
    if not all(np.isfinite(a).all() for a in (org.affinities[axis], org.coordinates[axis])):
        return "affinities or coordinates are not finite"
    if case.is_constant and any(tree.n_levels > 2 for tree in org.trees):
        return "a constant array has a tree"
    if case.settings.tree != "flexible" or not case.is_generic:
        return None
    return None if org.trees[axis] == oracles.flexible_tree(org.affinities[axis]) else "the tree differs from loops"


def permutes(case: Case, rng: np.random.Generator) -> bool:
    """Whether the trees of the permuted array are the permuted trees."""
    orders = [rng.permutation(n) for n in case.x.shape]
    org, other = (ht.organize_array(x, case.settings) for x in (case.x, case.x[np.ix_(*orders)]))
    return all(other.trees[axis] == org.trees[axis].take(order) for axis, order in enumerate(orders))


def _ties(case: Case) -> bool:
    """Whether first affinities leave slices that cannot be told apart: two alone, or two with each other only."""
    if case.settings.initial == "gaussian":
        return False
    for axis in case.settings.axis_order(case.x.ndim)[0]:
        slices = np.moveaxis(case.x / np.abs(case.x).max(), axis, 0).reshape(case.x.shape[axis], -1)
        if case.settings.initial == "correlation":
            slices = slices - slices.mean(axis=1, keepdims=True)
        n_parts, part = connected_components(slices @ slices.T > 0, directed=False)
        sizes = np.bincount(part)
        if n_parts > 1 and ((sizes == 1).sum() > 1 or (sizes == 2).any()):
            return True
    return False


class Verdict(NamedTuple):
    """What was found for the array of a number."""

    problem: str | None
    is_masked: bool
    is_permuted: bool


def verdict(seed: int, number: int) -> Verdict:
    """Check the array of this number, and the permuted array too if its slices are all different."""
    case = drawn(seed, number)
    said = problem(case)
    is_permuted = said is None and case.is_generic and not _ties(case)
    if is_permuted and not permutes(case, np.random.default_rng(number)):
        said = "permuted slices have other trees"
    if said is not None:
        said = f"array {number} of seed {seed} {case.x.shape} {case.x.dtype} {case.settings}: {said}"
    return Verdict(said, case.mask is not None, is_permuted)


def run(n: int, seed: int, jobs: int = 1) -> str:
    """Check `n` arrays; returns a line of figures, or raises SystemExit with the first that breaks a law.

    With several jobs, as many processes share the arrays. What is found is the same.
    """
    start, n_masked, n_permuted = time.perf_counter(), 0, 0
    pool = ProcessPoolExecutor(jobs, get_context("spawn"), torch.set_num_threads, (1,)) if jobs > 1 else None
    try:
        each = (
            pool.map(verdict, repeat(seed), range(n), chunksize=20)
            if pool
            else map(verdict, repeat(seed), range(n))
        )
        for found in each:
            if found.problem is not None:
                raise SystemExit(found.problem)
            n_masked += found.is_masked
            n_permuted += found.is_permuted
    finally:
        if pool:
            pool.shutdown(cancel_futures=True)
    seconds = time.perf_counter() - start
    return (
        f"{n} arrays ({n_masked} with missing entries) agree with the literal definitions, "
        f"{n_permuted} also when permuted; {seconds:.0f} s"
    )


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("n", type=int, nargs="?", default=10_000)
    parser.add_argument("seed", type=int, nargs="?", default=0)
    parser.add_argument("--only", type=int, help="number of one array")
    parser.add_argument("--jobs", type=int, default=1, help="number of processes")
    given = parser.parse_args()
    if given.only is None:
        print(run(given.n, given.seed, given.jobs))
    else:
        print(drawn(given.seed, given.only), verdict(given.seed, given.only), sep="\n")


if __name__ == "__main__":
    main()
