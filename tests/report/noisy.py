"""A run of noise of any size, not organized but made up: for sizes and times of its page."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd

import headtree as ht
from headtree.measures.consensus import Consensus
from headtree.questionnaire.organization import Organization, PerAxis, Status
from headtree.runs.containers import attr_tree


def stability_of(entropies):
    """The stability in the measures of a run, if it has several inputs."""
    if len(entropies) < 2:
        return {}
    found = ht.stability(entropies)
    return {
        "stability": {
            "correlations": found.correlations.tolist(),
            "mean_correlation": found.mean_correlation,
            "interval": found.interval,
            "confidence": found.confidence,
            "n_selected": found.n_selected,
            "table": [{name: str(value) for name, value in row.items()} for row in found.table(5)],
        }
    }


def noisy_run(n_heads, n_tokens, n_inputs, per_layer):
    """A run of noise, the worst to compress, on trees that were not found but made."""
    rng = np.random.default_rng(0)
    shape = (n_heads, n_tokens, n_tokens)
    names = ("head", "query", "key")
    trees = PerAxis(names, [ht.PartitionTree.halving(n).take(rng.permutation(n)) for n in shape])
    square = rng.random((n_heads, n_heads))
    affinities = PerAxis(names, [(square + square.T) / 2, np.eye(n_tokens), np.eye(n_tokens)])
    org = Organization(
        trees, affinities, affinities, PerAxis(names, [rng.standard_normal((n, 3)) for n in shape]),
        PerAxis(names, [None] * 3), (), Status(True, "settled"), ht.Questionnaire(),
    )  # fmt: skip
    folders = trees.head.distinct
    inner = np.flatnonzero(~folders.is_leaf)[1:]
    support = rng.random(len(inner))
    kinds = ("attention", "function", "questionnaire")
    joint = {
        kind: Consensus(kind, trees.head, affinities.head, support, support, None, (), n_inputs, 9)
        for kind in kinds
    }
    atts = [
        ht.AttentionTensor.from_array(rng.standard_normal(shape, dtype=np.float32), heads_per_layer=per_layer)
        for _ in range(n_inputs)
    ]
    layer, head = np.divmod(np.arange(n_heads), per_layer)
    table = {"name": [f"L{a}H{b}" for a, b in zip(layer, head, strict=True)], "layer": layer, "head": head}
    table |= {f"structure_{i}": rng.random(n_heads) for i in range(n_inputs)}
    table |= {f"coordinate_{i}": rng.standard_normal(n_heads) for i in (1, 2, 3)}
    table |= {"structure": rng.random(n_heads), "structure_rank": rng.permutation(n_heads) + 1}
    table |= {"family": trees.head.labels[2], **{f"measure_{i}": rng.random(n_heads) for i in range(20)}}
    measures = {
        "consensus": {
            "kind": "attention",
            "n_folders": n_heads - 2,
            "families": [],
            "coverage": 0.0,
            "replication": None,
        },
        "sparsity": {"median_gain": 1.0},
    }
    return SimpleNamespace(
        path=Path("noise"), name="noise", kind="scores", slices="head", settings={}, info={}, n_inputs=n_inputs,
        attention=atts,
        inputs=tuple(f"input {i}" for i in range(n_inputs)), organization=[org] * n_inputs, values=atts,
        consensus=joint["attention"], similarities=joint,
        values_words="raw scores", record=SimpleNamespace(notes=()),
        heads=pd.DataFrame(table), sections={}, samples=(),
        measures=attr_tree(stability_of([table[f"structure_{i}"] for i in range(n_inputs)]) | measures, "measure"),
    )  # fmt: skip
