"""Small networks for comparisons: heads with weights of their own, on tokens drawn for each input."""

import hashlib

import numpy as np

import headtree as ht
from headtree.comparison.compare_networks import compare_profiles  # noqa: F401  (for the tests)
from headtree.comparison.run_profile import tensors_profile
from headtree.pipeline.make_run import Measures, make_run
from headtree.pipeline.sources import TensorSource

LAYERS, PER_LAYER, WIDTH = 3, 3, 5


def weights(seed, strength=1.5, n_layers=LAYERS):
    """One matrix W per head: its scores are x W xᵀ, plus a preference for near tokens that grows with the layer."""
    rng = np.random.default_rng(seed)
    return strength * rng.normal(size=(n_layers * PER_LAYER, WIDTH, WIDTH)), rng.uniform(
        0, 1.5, n_layers * PER_LAYER
    )


def tensors(network, inputs, n_tokens=10, kind="scores"):
    """The network on some inputs, each given by a number."""
    content, near = network
    result = []
    for i in inputs:
        x = np.random.default_rng([i, 7]).normal(size=(n_tokens, WIDTH))
        distance = np.abs(np.arange(n_tokens)[:, None] - np.arange(n_tokens))
        scores = np.einsum("qi,hij,kj->hqk", x, content, x) - near[:, None, None] * distance
        if kind == "probs":
            scores = np.exp(scores - scores.max(axis=2, keepdims=True))
            scores /= scores.sum(axis=2, keepdims=True)
        tokens = [f"t{i}.{j}" for j in range(n_tokens)]
        heads = [(h // PER_LAYER, h % PER_LAYER) for h in range(len(content))]
        result.append(ht.AttentionTensor(scores, heads=heads, queries=tokens, keys=tokens, kind=kind))
    return result


def made(tensors, folder, **settings):
    """A run of these tensors, whose inputs are named and hashed by what is in them."""
    return make_run(TensorSource(tensors), folder, measures=Measures(bootstrap=20), draw=False, **settings)


def profile(tensors, name, families=None):
    """What is compared of these tensors, without a run."""
    inputs = [hashlib.sha256(" ".join(att.queries).encode()).hexdigest() for att in tensors]
    family = [-1] * tensors[0].shape[0] if families is None else families
    return tensors_profile(tensors, name, values="centred scores", inputs=inputs, family=family, measured={})


def reordered(att, heads, tokens=None):
    """The same attention with heads, and queries and keys, in another order."""
    att = att.take(heads)
    if tokens is None:
        return att
    values = np.asarray(att.values)[:, tokens][:, :, tokens]
    names = [att.queries[i] for i in tokens]
    return ht.AttentionTensor(values, heads=att.heads, queries=names, keys=names, kind=att.kind)
