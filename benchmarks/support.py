"""Support of folders with known truth (noise, families, chance groups inside and across families), and its time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from jaxtyping import Bool, Float
from scipy.cluster.hierarchy import linkage
from scipy.spatial.distance import pdist, squareform

from benchmarks._measure import seconds
from headtree.geometry.combined_affinity import InputMatrices
from headtree.geometry.resampled_trees import LinkageFolders, ResampledTrees
from headtree.measures.support import as_folder, folder_support

#: Sizes of the families of heads, number of inputs, and noise relative to a pattern of standard deviation 1.
_PLANTED = [
    ((10,) * 4, 2, 0.6),
    ((5,) * 4, 3, 1.0),
    ((5,) * 4, 8, 1.0),
    ((8,) * 4, 6, 0.8),
    ((4,) * 6, 4, 0.8),
    ((4,) * 6, 6, 0.8),
    ((4,) * 6, 12, 0.8),
    ((2,) * 6, 4, 1.0),
    ((2,) * 6, 5, 1.0),
    ((2,) * 6, 8, 1.0),
    ((3, 5, 9, 13), 4, 1.0),
    ((2, 3, 10, 17), 6, 0.8),
    ((4,) * 10, 6, 0.5),
]


#: Of these also as kernels, which are centred before trees are made of them: sizes differ.
_AS_KERNELS = [((5,) * 4, 8, 1.0), ((3, 5, 9, 13), 4, 1.0), ((2, 3, 10, 17), 6, 0.8)]


def main(check: bool = False) -> None:
    """Print the tables; with `check`, use one small network of each kind only to see that everything runs."""
    n_networks = 1 if check else 20
    _noise(n_networks if check else 54, [8] if check else [8, 16, 24])
    for made, all_planted in ((_affinities, _PLANTED), (_kernels, _AS_KERNELS)):
        for planted in all_planted[:1] if check else all_planted:
            for is_base_kept in (True, False):
                _families(*planted, made, is_base_kept=is_base_kept, n_networks=n_networks)
    if not check:
        _times()


def _affinities(inputs: Float[np.ndarray, "input head _query _key"]) -> InputMatrices:
    return InputMatrices(np.stack([_affinity(x) for x in inputs])[None], False)


def _kernels(inputs: Float[np.ndarray, "input head _query _key"]) -> InputMatrices:
    """Two kernels, of the first and of the last queries, as those of attention and of values."""
    halves = np.stack(np.array_split(inputs, 2, axis=2)).reshape(2, *inputs.shape[:2], -1)
    scaled = halves / np.linalg.norm(halves, axis=-1, keepdims=True)
    return InputMatrices(scaled @ scaled.swapaxes(-1, -2), True)


def _affinity(x: Float[np.ndarray, "head _query _key"]) -> Float[np.ndarray, "head head"]:
    distances = squareform(pdist(x.reshape(len(x), -1), "cityblock"))
    return np.asarray(np.exp(-distances / np.median(distances)))


def _support(inputs: InputMatrices, seed: int) -> dict[int, float]:
    return folder_support(inputs, 60, np.random.default_rng(seed)).support


def _noise_network(n_heads: int, n_inputs: int, seed: int) -> Float[np.ndarray, "input head head"]:
    rng = np.random.default_rng([n_heads, n_inputs, seed])
    return np.stack([_affinity(rng.standard_normal((n_heads, 10, 9))) for _ in range(n_inputs)])


def _noise(n_networks: int, sizes: list[int]) -> None:
    largest = np.array([
        max(_support(InputMatrices(_noise_network(n_heads, n_inputs, seed)[None], False), seed).values())
        for n_heads in sizes
        for n_inputs in (4, 6, 10, 20)
        for seed in range(n_networks)
    ])  # fmt: skip
    print(f"{len(largest)} networks of noise, {sizes} heads, 4 to 20 inputs:")
    shares = ", ".join(f"above {limit}: {np.mean(largest > limit):.3f}" for limit in (0, 0.05, 0.2))
    print(f"  share with support somewhere {shares}; largest {largest.max():.2f}")


def _families(
    sizes: tuple[int, ...],
    n_inputs: int,
    noise: float,
    made: Callable[[Float[np.ndarray, "input head _query _key"]], InputMatrices],
    *,
    is_base_kept: bool,
    n_networks: int,
) -> None:
    """Families with one pattern each: the same in all inputs, or new in each, which makes unions of them chance."""
    true: list[float] = []
    inside: list[float] = []
    unions: list[float] = []
    for seed in range(n_networks):
        rng = np.random.default_rng(seed)
        labels = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
        patterns = rng.standard_normal((n_inputs, len(sizes), 18, 14))
        if is_base_kept:
            patterns[:] = patterns[0]
        heads = patterns[:, labels] + noise * rng.standard_normal((n_inputs, len(labels), 18, 14))
        support = _support(made(heads), seed)
        families = [as_folder(np.flatnonzero(labels == family)) for family in range(len(sizes))]
        true += [support.pop(family, 0.0) for family in families]
        for folder, value in support.items():
            is_inside = any(folder & family == folder for family in families)
            (inside if is_inside else unions).append(value)
    words = f"{'+'.join(map(str, sizes))} heads, {n_inputs} inputs, {'same' if is_base_kept else 'new'} patterns"
    words += ", as kernels" if made is _kernels else ""
    print(f"{words:>58}: families {np.sum(np.array(true) >= 0.95)} of {len(true)}", end="")
    print(f", chance inside {np.sum(np.array(inside) > 0)} of {len(inside)}", end="")
    print("" if is_base_kept else f", chance unions {np.sum(np.array(unions) > 0)} of {len(unions)}")


def _compared(
    affinities: Float[np.ndarray, "input head head"],
    weights: Float[np.ndarray, "tree input"],
    members: Bool[np.ndarray, "folder head"],
) -> None:
    trees = ResampledTrees.grow(InputMatrices(affinities[None], False), weights)
    trees.closeness()
    trees.transfer(members)


def _times() -> None:
    for n_heads, n_inputs in [(64, 6), (128, 6), (144, 10), (256, 6)]:
        x = _noise_network(n_heads, n_inputs, 0)
        took = seconds(lambda x=x: folder_support(InputMatrices(x[None], False), 200, np.random.default_rng(0)), 3)
        print(f"{n_heads} heads, {n_inputs} inputs: {took:.2f} s")
    few = np.ascontiguousarray(x[:, :12, :12])
    for n, affinities in ((256, x), (12, few)):
        weights = np.random.default_rng(0).dirichlet(np.ones(len(x)), 400)
        members = LinkageFolders.of(affinities.mean(axis=0)).members
        ours = seconds(lambda a=affinities, w=weights, m=members: _compared(a, w, m), 3)
        pairs = [squareform(1 - a, checks=False) for a in np.tensordot(weights, affinities, axes=1)]
        joins = seconds(lambda p=pairs: [linkage(distances, "average") for distances in p], 3)
        print(f"400 trees of {n} heads, made and compared: {1e3 * ours:.1f} ms; ", end="")
        print(f"scipy's joins alone {1e3 * joins:.1f} ms: {joins / ours:.1f}x")
