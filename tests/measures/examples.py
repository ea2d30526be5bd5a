"""Small network tensors with known structure, organized."""

import numpy as np

import headtree as ht


def families(seed, n_families=4, per_family=5, n_queries=18, n_keys=14, noise=0.6):
    """Heads in families that share one matrix; noise is drawn anew for every seed, the families are not."""
    base = np.random.default_rng(1234).standard_normal((n_families, n_queries, n_keys))
    drawn = np.random.default_rng(seed).standard_normal((n_families * per_family, n_queries, n_keys))
    return ht.AttentionTensor.from_array(
        np.repeat(base, per_family, axis=0) + noise * drawn, heads_per_layer=per_family
    )


def noise(seed, shape=(20, 18, 14)):
    return ht.AttentionTensor.from_array(np.random.default_rng(seed).standard_normal(shape))


def blocks(seed=0, n=32, n_heads=6, noise=0.1):
    """Heads constant on blocks of shuffled tokens: sparse on the right trees, rough in the given order."""
    rng = np.random.default_rng(seed)
    rows, columns = rng.permutation(n) % 4, rng.permutation(n) % 4
    values = rng.standard_normal((n_heads, 4, 4))[:, rows][:, :, columns]
    return ht.AttentionTensor.from_array(values + noise * rng.standard_normal(values.shape))
