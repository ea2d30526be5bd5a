"""Heads whose attention is known: what a measure must fire on, and what it must leave alone."""

import numpy as np

import headtree as ht

WORDS = "the cat sat on the mat , and the dog lay on the rug . the end".split()  # noqa: SIM905


def uniform(n, mask=None):
    allowed = np.ones((n, n)) if mask is None else ~mask
    return allowed / allowed.sum(axis=1, keepdims=True)


def to_key(n, key):
    return np.eye(n)[np.full(n, key)]


def previous(n):
    return np.eye(n)[np.maximum(np.arange(n) - 1, 0)]


def causal(n):
    return np.triu(np.ones((n, n), bool), 1)


def probs(*heads, **labels):
    """A tensor of these matrices, all in one layer."""
    return ht.AttentionTensor.from_array(np.stack(heads), kind="probs", **labels)


def random_scores(seed, n_heads=6, n_queries=7, n_keys=7, mask=None, scale=2.0, **labels):
    rng = np.random.default_rng(seed)
    x = scale * rng.standard_normal((n_heads, n_queries, n_keys))
    return ht.AttentionTensor.from_array(x, mask=mask, **labels)


def plain_softmax(att):
    """Softmax in loops: zeros where missing, and for sinks a share that goes nowhere."""
    values = np.asarray(att.values, dtype=np.float64)
    allowed = np.ones(att.shape, bool) if att.mask is None else ~np.asarray(att.mask)
    result = np.zeros(att.shape)
    for h in range(att.shape[0]):
        for q in range(att.shape[1]):
            keys = [k for k in range(att.shape[2]) if allowed[h, q, k]]
            if att.kind == "probs":
                result[h, q, keys] = values[h, q, keys]
                continue
            total = sum(np.exp(values[h, q, k]) for k in keys)
            total += 0.0 if att.sinks is None else np.exp(float(att.sinks[h]))
            for k in keys:
                result[h, q, k] = np.exp(values[h, q, k]) / total
    return result, allowed
