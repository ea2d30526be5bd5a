"""Do families hold? Those of two disjoint sets of inputs, each found without the other, and what their heads do.

Networks are txl, the ViT, MiniLM and rxnmapper, on their samples. If the environment variable HEADTREE_TEXT names a
text file, txl and MiniLM read pieces of it drawn at random instead.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import Tensor

import headtree as ht
from headtree.measures.comparisons import adjusted_rand_index
from headtree.measures.families import Families
from headtree.models.bundled.bundle import load_bundled
from headtree.study.similarities.evidence_networks import EvidenceNetwork, evidence_network, text_pieces
from headtree.study.similarities.functional_truth import FunctionalTruth
from headtree.study.similarities.predicted_function import family_function
from headtree.study.similarities.replication import labels_of, mean_support

Inputs = Sequence[Mapping[str, Tensor]]

TOKENS = 64


@dataclass(frozen=True)
class Goal:
    """What must hold on a network: inputs of each set, and the least support, agreement and coverage."""

    n_inputs: int = 10
    support: float = 0.6
    rand_index: float = 0.7
    coverage: float = 0.8


GOALS = {"txl": Goal(), "vit": Goal(20, 0.5, 0.6, 0.6), "minilm": Goal(), "rxnmapper": Goal()}

#: Networks whose functional families are measured too; the least ratio to heads shuffled within layers, and z.
FUNCTIONAL = ("txl", "minilm")
LEAST_RATIO, LEAST_Z = 3.0, 4.0


def main(check: bool = False) -> None:
    for name, goal in [("txl", Goal(2))] if check else GOALS.items():
        network = evidence_network(name)
        inputs = _inputs(network)
        for first in range(0, 2 if check else len(inputs) - 2 * goal.n_inputs + 1, 2 * goal.n_inputs):
            sets = [inputs[i : i + goal.n_inputs] for i in (first, first + goal.n_inputs)]
            compare_sets(network, sets, goal)
        if name in FUNCTIONAL and network.measure_function is not None and not check:
            truth = network.measure_function()
            for n in (goal.n_inputs, 2 * goal.n_inputs):
                for first in range(0, len(network.inputs) - n + 1, n):
                    functional_families(network, list(network.inputs)[first : first + n], truth)


def _inputs(network: EvidenceNetwork) -> Inputs:
    """At least 40: all samples, or pieces of a text of one's own."""
    file = os.environ.get("HEADTREE_TEXT")
    if file is not None and network.name in FUNCTIONAL:
        text = Path(file).read_text(encoding="utf-8")[:900_000]
        pieces = text_pieces(network.view, [text], TOKENS)
        return [pieces[i] for i in np.random.default_rng(0).permutation(len(pieces))[:200]]
    if network.name == "txl":
        return [{"input_ids": item["input_ids"][:, :TOKENS]} for item in load_bundled("txl").inputs]
    return network.inputs


def compare_sets(network: EvidenceNetwork, sets: Sequence[Inputs], goal: Goal) -> None:
    """Print support and coverage of the families of each set, how far both agree, and the longer of both times."""
    found, taken = zip(*(_families(network, inputs) for inputs in sets), strict=True)
    support = [mean_support(families) for families in found]
    coverage = [families.coverage for families in found]
    agreement = adjusted_rand_index(*map(labels_of, found))
    holds = min(support) >= goal.support and agreement >= goal.rand_index and min(coverage) >= goal.coverage
    print(
        f"{network.name}, 2 × {goal.n_inputs} inputs: support {_both(support)} (goal {goal.support}), "
        f"ARI {agreement:.2f} (goal {goal.rand_index}), covered {_both(coverage)} (goal {goal.coverage}), "
        f"{max(taken):.1f} s{'' if holds else ': MISSED'}",
        flush=True,
    )


def _families(network: EvidenceNetwork, inputs: Inputs) -> tuple[Families, float]:
    """The families of heads that look alike, and how long it took, with capture."""
    start = time.perf_counter()
    atts = network.view.capture(inputs=[dict(item) for item in inputs], kind="probs")
    families = ht.consensus(ht.head_similarity(atts)).families()
    return families, time.perf_counter() - start


def functional_families(network: EvidenceNetwork, inputs: Inputs, truth: FunctionalTruth) -> None:
    """Print how much more alike the heads of functional families are, in function, than shuffled heads."""
    similarity = network.view.head_similarity(inputs=[dict(item) for item in inputs])
    families = ht.consensus(similarity).families()
    layers = [head.layer for head in similarity.heads]
    function = family_function(labels_of(families), truth, layers)
    holds = function.ratio >= LEAST_RATIO and function.z >= LEAST_Z
    print(
        f"{network.name}, functional families of {len(inputs)} inputs: {function.ratio:.1f} times shuffled heads "
        f"(goal {LEAST_RATIO}), z {function.z:.1f} (goal {LEAST_Z}), covered {families.coverage:.2f}"
        f"{'' if holds else ': MISSED'}",
        flush=True,
    )


def _both(values: Sequence[float]) -> str:
    return " and ".join(f"{value:.2f}" for value in values)


if __name__ == "__main__":
    main()
