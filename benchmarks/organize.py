"""The pairwise L1 kernel and the whole questionnaire."""

import subprocess
import sys
import time

import numpy as np
import torch
from scipy.spatial.distance import pdist, squareform

import headtree as ht
from benchmarks._measure import peak_megabytes, seconds
from headtree.geometry.emd import folder_weights
from headtree.geometry.kernels_cpu import add_pairwise_l1


def main(check: bool = False) -> None:
    kernel(n=16 if check else 256, n_features=100 if check else 60_000)
    whole(shape=(4, 8, 8) if check else (128, 256, 256), repeats=1 if check else 5)
    if not check:
        whole(shape=(144, 512, 512), repeats=1, compare=False)
    growth(tokens=(4, 8) if check else (64, 128, 256, 512, 1024, 2048), heads=(4,) if check else (64, 256, 1024))
    sampled(shapes=[(4, 8, 8)] if check else [(144, 512, 512), (64, 1024, 1024)])
    landmarks(shape=(4, 12, 12) if check else (16, 1024, 1024), n=6 if check else 256)
    busy(shape=(4, 8, 8) if check else (144, 197, 197), n_programs=1 if check else 4)


def kernel(n, n_features):
    x = np.random.default_rng(0).random((n, n_features)).astype(np.float32)
    ours = lambda: add_pairwise_l1(x, np.zeros((n, n)))  # noqa: E731
    all_threads = torch.get_num_threads()
    ours()
    torch.set_num_threads(1)
    one = seconds(ours)
    torch.set_num_threads(all_threads)
    many = seconds(ours)
    scipy = seconds(lambda: pdist(x, "cityblock"), repeats=2)
    rate = n * (n - 1) / 2 * n_features / one / 1e9
    print(f"pairwise L1 of {n} × {n_features} float32: {rate:.1f} G differences/s on one thread")
    print(f"  {scipy / one:.1f}x scipy's pdist on one thread; {one / many:.2f}x that on {all_threads} threads")


def attention_like(shape):
    """Scores of random low-rank heads with a decay along the diagonal."""
    n_heads, n_queries, n_keys = shape
    rng = np.random.default_rng(0)
    q, k = (
        rng.standard_normal((n, 16)) @ (rng.standard_normal((n_heads, 16, 16)) / 4) for n in (n_queries, n_keys)
    )
    distance = np.abs(np.arange(n_queries)[:, None] - np.arange(n_keys))
    scores = q @ k.transpose(0, 2, 1) / 4 - 0.05 * rng.random((n_heads, 1, 1)) * distance
    return scores.astype(np.float32)


def inputs(shape):
    """Name, array and mask: attention-like scores and probabilities, a causal mask, and noise."""
    scores = attention_like(shape)
    probs = np.exp(scores - scores.max(axis=2, keepdims=True))
    probs /= probs.sum(axis=2, keepdims=True)
    yield "scores", scores, None
    yield "probs", probs, None
    yield "scores, causal mask", scores, np.triu(np.ones(shape[1:], bool), 1)
    yield "noise", np.random.default_rng(1).standard_normal(shape, dtype=np.float32), None


def whole(shape, repeats, compare=True):
    budget = 2 * 4 * np.prod(shape) / 1e6 + 500
    for name, x, mask in inputs(shape):
        ht.organize_array(x[:2, :8, :8], mask=None if mask is None else mask[:8, :8])
        memory = peak_megabytes(lambda x=x, mask=mask: ht.organize_array(x, mask=mask))
        ours = seconds(lambda x=x, mask=mask: ht.organize_array(x, mask=mask), repeats)
        print(f"organize {' × '.join(map(str, shape))} {name}, 3 iterations: {ours:.2f} s", end="")
        print(f", peak {memory:.0f} MB above the start (budget {budget:.0f})", flush=True)
        if compare and mask is None:
            start = time.perf_counter()
            trees = plain_organize(x)
            plain = time.perf_counter() - start
            same = "the same trees" if trees == list(ht.organize_array(x).trees) else "OTHER TREES"
            print(f"  {plain / ours:.1f}x faster than plain numpy and scipy ({plain:.1f} s, {same})", flush=True)


def plain_organize(x, n_iter=3):
    """The questionnaire in double precision from matrix products and pdist, with the package's own trees."""
    x = x / np.abs(x).max().astype(np.float64)
    trees = [None] + [ht.flexible_tree(plain_cosines(x, axis)) for axis in (1, 2)]
    for _ in range(n_iter):
        for axis in range(3):
            distances = plain_distances(x, axis, [tree for i, tree in enumerate(trees) if i != axis])
            trees[axis] = ht.flexible_tree(np.exp(-distances / np.median(distances)))
    return trees


def plain_cosines(x, axis):
    slices = np.moveaxis(x, axis, 0).reshape(x.shape[axis], -1)
    slices = slices / np.linalg.norm(slices, axis=1, keepdims=True)
    return np.clip(slices @ slices.T, 0, 1)


def plain_distances(x, axis, trees):
    features = np.moveaxis(x, axis, 0)
    for position, tree in enumerate(trees):
        folders = np.concatenate([np.equal.outer(np.unique(k), k) for k in tree.labels])[tree.distinct.node]
        folders = folders * (folder_weights(tree, 0.0, 1.0, "levels") / tree.distinct.size)[:, None]
        features = np.moveaxis(np.tensordot(folders, features, axes=(1, position + 1)), 0, position + 1)
    return squareform(pdist(features.reshape(len(features), -1), "cityblock"))


def growth(tokens, heads):
    """Seconds of attention-like arrays of more and more tokens, then heads; many distances are sampled."""
    shapes = [(min(n, 64), n, n) for n in tokens] + [(n, 4 * tokens[0], 4 * tokens[0]) for n in heads]
    for shape in shapes:
        x = attention_like(shape)
        ht.organize_array(x)
        t = seconds(lambda x=x: ht.organize_array(x), repeats=1 if x.size > 1 << 25 else 3)
        print(f"organize {' × '.join(map(str, shape))}: {t:.3f} s, {t / x.size * 1e9:.0f} ns per entry", flush=True)


def sampled(shapes):
    """Exact and sampled distances: time, and how far the last affinities are apart."""
    for shape in shapes:
        x = attention_like(shape)
        for mask in (None, np.triu(np.ones(shape[1:], bool), 1)):
            took, found = [], []
            for samples in (None, 256):
                start = time.perf_counter()
                found.append(ht.organize_array(x, ht.Questionnaire(samples=samples, n_iter=3), mask=mask))
                took.append(time.perf_counter() - start)
            words = "causal mask" if mask is not None else "no mask"
            print(f"organize {' × '.join(map(str, shape))}, {words}: exact {took[0]:.1f} s, ", end="")
            print(f"sampled {took[1]:.1f} s, {took[0] / took[1]:.1f}x; {found[1].status.distances}", flush=True)


def landmarks(shape, n):
    """All tokens compared, and landmarks: time, and how far apart the trees of tokens are."""
    x = attention_like(shape)
    for mask in (None, np.triu(np.ones(shape[1:], bool), 1)):
        took, found = [], []
        for number in (None, (None, n, n)):
            start = time.perf_counter()
            found.append(ht.organize_array(x, ht.Questionnaire(landmarks=number), mask=mask))
            took.append(time.perf_counter() - start)
        moved = [ht.tree_distance(*(org.trees[axis] for org in found)) for axis in (0, 1, 2)]
        words = "causal mask" if mask is not None else "no mask"
        print(f"organize {' × '.join(map(str, shape))}, {words}: all tokens {took[0]:.1f} s, ", end="")
        print(f"{n} landmarks {took[1]:.1f} s, {took[0] / took[1]:.1f}x; tree distances ", end="")
        print(", ".join(f"{distance:.2f}" for distance in moved) + f"; {found[1].status}", flush=True)


def busy(shape, n_programs):
    """Time while other programs keep all cores busy, relative to an idle machine."""
    x = attention_like(shape)
    ht.organize_array(x)
    idle, idle_processor = _both_times(x)
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(n_programs)]
    try:
        while_busy, processor = _both_times(x)
    finally:
        for other in others:
            other.kill()
            other.wait()
    print(
        f"organize {' × '.join(map(str, shape))} beside {n_programs} busy programs: {while_busy:.2f} s, "
        f"{while_busy / idle:.1f}x the time of an idle machine ({idle:.2f} s); processor time {processor:.2f} s, "
        f"{processor / idle_processor:.1f}x ({idle_processor:.2f} s)"
    )


def _both_times(x, repeats=3):
    """Seconds and processor seconds of the fastest call."""
    found = []
    for _ in range(repeats):
        start = time.perf_counter(), time.process_time()
        ht.organize_array(x)
        found.append((time.perf_counter() - start[0], time.process_time() - start[1]))
    return min(found)


if __name__ == "__main__":
    main()
