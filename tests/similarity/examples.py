"""Attention with every complication: masks of single heads, missing queries, sinks."""

import numpy as np

import headtree as ht


def scores(n_heads=5, n_queries=6, n_keys=7, seed=0, scale=2.0):
    return scale * np.random.default_rng(seed).standard_normal((n_heads, n_queries, n_keys))


def own_masks(n_heads=5, n_queries=6, n_keys=7, seed=0):
    """A mask for each head; some heads miss some queries, but the last query is there for all."""
    rng = np.random.default_rng([seed, 1])
    mask = rng.random((n_heads, n_queries, n_keys)) < 0.3
    mask[1::2, 0] = mask[::3, 1] = True
    mask[:, -1, 0] = False
    return mask


def tensor(x, mask=None, sinks=None, kind="scores"):
    n_heads, n_queries, n_keys = x.shape
    return ht.AttentionTensor(
        x,
        heads=[(0, i) for i in range(n_heads)],
        queries=range(n_queries),
        keys=range(n_keys),
        kind=kind,
        mask=mask,
        sinks=sinks,
    )


def cases(seed=0, dtype=np.float64):
    """Tensors by name."""
    x = scores(seed=seed).astype(dtype)
    causal = np.triu(np.ones(x.shape[1:], bool), 1)
    sinks = np.random.default_rng(seed).standard_normal(len(x))
    sinks[2] = -np.inf  # a head without one
    return {
        "plain": tensor(x),
        "causal": tensor(x, causal),
        "own masks": tensor(x, own_masks(seed=seed)),
        "sinks": tensor(x, sinks=sinks),
        "sinks and own masks": tensor(x, own_masks(seed=seed), sinks),
        "weighted": tensor(np.abs(x), own_masks(seed=seed), kind="weighted"),
    }
