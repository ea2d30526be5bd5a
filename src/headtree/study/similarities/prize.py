"""One similarity that is best in everything? Sixty-five candidates, and the one chosen on inputs apart.

    python -m headtree.study.similarities.prize WIKITEXT/valid.txt PICTURES

measures all candidates on text and pictures that no report uses, and stores what they score in ``candidates.csv``
beside this file. `prize_choice` has the rule by which one is chosen; that one is measured on the inputs that are
reported. Roles are held against the best level of the tree here, since families of all candidates take hours.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from headtree.geometry.combined_affinity import InputMatrices
from headtree.geometry.linkage import linkage_tree
from headtree.measures.agreement import tree_agreement
from headtree.measures.heads.roles import head_roles
from headtree.measures.similarity import head_similarity
from headtree.models.bundled import vit
from headtree.study.similarities.candidate_kernels import candidate_kernels
from headtree.study.similarities.evidence_networks import (
    EvidenceNetwork,
    evidence_network,
    text_pieces,
    truth_by_embeddings,
    truth_by_loss,
)
from headtree.study.similarities.geometries import PLAIN
from headtree.study.similarities.predicted_function import pair_correlation
from headtree.study.similarities.prize_choice import FILE, prize_words, write_scores
from headtree.study.similarities.replication import transfer_by_draw
from headtree.study.similarities.similarity_settings import PIECES_FOR_EFFECTS, SEED, TOKENS
from headtree.study.similarities.variants import VARIANTS, of_variant
from headtree.study.similarities.vit_effects import read_pictures

#: Networks on which candidates are compared.
NETWORKS = ("txl", "minilm", "vit")

#: Inputs on which candidates are compared, passages of 256 tokens on which txl's heads are ablated for it, the
#: first piece of text on which MiniLM's are, and the first test picture that may be taken.
N_INPUTS = 20
N_PASSAGES = 10
FIRST_FOR_EFFECTS = 80
FIRST_PICTURE = 2000


def scores_on(network: EvidenceNetwork) -> dict[str, dict[tuple[str, str], float]]:
    """All candidates and plain similarities on one network."""
    given = [dict(item) for item in network.inputs]
    atts = network.view.capture(inputs=given, kind="probs")
    layers = [head.layer for head in atts[0].heads]
    pairs = np.ones((len(layers), len(layers)), dtype=bool)
    roles = head_roles(atts).leanings
    truth = None if network.measure_function is None else network.measure_function()
    plain = {kind: head_similarity(atts, kind=kind) for kind in PLAIN}
    hellinger = plain["attention"]
    kernels = candidate_kernels("PSVOJTU", network.view, given, atts)
    matrices: dict[str, InputMatrices] = {kind: found.inputs for kind, found in plain.items()}
    matrices |= {name: of_variant(variant, kernels, hellinger.affinity) for name, variant in VARIANTS.items()}
    result = {}
    for name, inputs in matrices.items():
        affinity = inputs.combined()
        scores = {(network.name, "TBE"): float(transfer_by_draw(inputs).mean())}
        agreement = tree_agreement(linkage_tree(affinity), roles, n_permutations=1)
        if np.isfinite(agreement.information):
            scores[network.name, "roles"] = agreement.information
        if truth is not None:
            scores[network.name, "function"] = pair_correlation(affinity, truth.similarity, pairs)
        result[name] = scores
    return result


def selection_network(name: str, text: Path, pictures: Path) -> EvidenceNetwork:
    """A network with other inputs: a text of WikiText's validation part, or other pictures."""
    network = evidence_network(name)
    if name == "vit":
        images = read_pictures(pictures)
        chosen = np.random.default_rng(SEED).permutation(np.arange(FIRST_PICTURE, len(images)))[:N_INPUTS]
        pixels = vit.pixel_values(images[torch.from_numpy(chosen)], 224)
        return replace(network, inputs=[{"pixel_values": image[None]} for image in pixels], measure_function=None)
    words = text.read_text(encoding="utf-8")
    if name == "txl":
        long_pieces = _shuffled(text_pieces(network.view, [words[:400_000]], 4 * TOKENS))
        passages = long_pieces[N_INPUTS : N_INPUTS + N_PASSAGES]
        return replace(
            network,
            inputs=[{"input_ids": piece["input_ids"][:, :TOKENS]} for piece in long_pieces[:N_INPUTS]],
            measure_function=lambda: truth_by_loss(network.view, passages, "words"),
        )
    pieces = _shuffled(text_pieces(network.view, [words[:600_000]], TOKENS))
    others = pieces[FIRST_FOR_EFFECTS : FIRST_FOR_EFFECTS + PIECES_FOR_EFFECTS]
    return replace(
        network,
        inputs=pieces[:N_INPUTS],
        measure_function=lambda: truth_by_embeddings(network.view, others),
    )


def _shuffled(pieces: Sequence[dict[str, torch.Tensor]]) -> list[dict[str, torch.Tensor]]:
    return [pieces[i] for i in np.random.default_rng(SEED).permutation(len(pieces))]


def main() -> None:
    """Measure all candidates on inputs apart from those reported, and print the choice."""
    parser = argparse.ArgumentParser(description="Choose one similarity of heads among all candidates.")
    parser.add_argument("text", type=Path, help="WikiText-2's validation text")
    parser.add_argument("pictures", type=Path, help="an .npz with x, or a folder with CIFAR-10")
    parser.add_argument("--output", type=Path, default=FILE, help="the file to write; the default is read")
    given = parser.parse_args()
    scores: dict[str, dict[tuple[str, str], float]] = {}
    for network in NETWORKS:
        for name, found in scores_on(selection_network(network, given.text, given.pictures)).items():
            scores.setdefault(name, {}).update(found)
            print(network, name, " ".join(f"{q} {value:.3f}" for (_, q), value in found.items()), flush=True)
    write_scores(given.output, scores)
    print("\n".join(prize_words(scores)))


if __name__ == "__main__":
    main()
