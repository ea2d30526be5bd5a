"""Small runs with known families of heads, made by the real pipeline."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import headtree as ht
from headtree.pipeline.make_run import Measures, make_run
from headtree.pipeline.sources import TensorSource

#: Few resamplings, so that a run takes a second.
QUICK = Measures(head_functions=60, network_functions=30, bootstrap=20)


def tensors(n_inputs=3, kind="scores", n_layers=4, n_per_layer=5, n_tokens=(18, 16, 14), causal=True, seed=0):
    """Heads in four families that are spread over the layers; every input draws its own noise and length."""
    n_heads = n_layers * n_per_layer
    longest = max(n_tokens)
    base = np.random.default_rng(1234).standard_normal((4, longest, longest))
    family = np.arange(n_heads) % 4
    result = []
    for i in range(n_inputs):
        n = n_tokens[i % len(n_tokens)]
        drawn = np.random.default_rng([seed, i]).standard_normal((n_heads, n, n))
        values = (base[family][:, :n, :n] + 0.6 * drawn).astype(np.float32)
        mask = np.triu(np.ones((n, n), bool), 1) if causal else None
        if kind == "probs":
            logits = values if mask is None else np.where(mask, -np.inf, values)
            values = np.exp(logits - logits.max(axis=2, keepdims=True))
            values /= values.sum(axis=2, keepdims=True)
        words = [f"w{j}" for j in range(n - 2)]
        tokens = ["<s>", *words, "</s>\"&'"]
        result.append(
            ht.AttentionTensor.from_array(
                values, heads_per_layer=n_per_layer, kind=kind, mask=mask, queries=tokens, keys=tokens
            )
        )
    return result


def small_run(path: Path, n_inputs=3, kind="scores", draw=False, **options) -> ht.Run:
    """A run of 20 heads in 4 layers, all steps done but, unless asked for, the drawing."""
    return make_run(TensorSource(tensors(n_inputs, kind, **options)), path, measures=QUICK, draw=draw)
