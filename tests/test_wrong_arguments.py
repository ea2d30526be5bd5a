"""Every public function, with every argument replaced by things it cannot be: an answer, or an error of ours.

The arguments come from the signatures, so a new function or argument is tested as soon as it is public.
"""

import inspect
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from transformers import BertConfig, BertForMaskedLM

import headtree as ht
from headtree.errors import HeadtreeError, HeadtreeWarning

RNG = np.random.default_rng(0)
X = RNG.standard_normal((6, 8, 8))
ATT = ht.AttentionTensor.from_array(X, heads_per_layer=3)
PROBS = ht.AttentionTensor.from_array(np.full((6, 8, 8), 1 / 8), heads_per_layer=3, kind="probs")
ORG = ht.organize(ATT)
TREES = [ht.PartitionTree.halving(n) for n in X.shape]
AFFINITY = np.exp(-np.abs(np.subtract.outer(np.arange(6), np.arange(6))))
TABLE = pd.DataFrame(RNG.random((8, 3)), columns=["structure", "a", "b"])
MODEL = BertForMaskedLM(
    BertConfig(
        vocab_size=20,
        hidden_size=12,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=8,
        max_position_embeddings=16,
    )
).eval()
INPUTS = [{"input_ids": torch.arange(8)[None]}, {"input_ids": torch.arange(8, 16)[None]}]
LABELS = [torch.arange(8), torch.arange(8)]

#: A call that works, or fails for want of a file, for every public name that can be called.
VALID = {
    "AttentionTensor.from_array": {"x": X},
    "AttentionTensor.open": {"path": "nowhere"},
    "HaarBasis": {"tree": TREES[0]},
    "PartitionTree": {"labels": TREES[0].labels},
    "PartitionTree.flat": {"n_leaves": 4},
    "PartitionTree.halving": {"n_leaves": 4},
    "Questionnaire": {},
    "TensorHaarBasis": {"trees": TREES},
    "attention_relevance": {"model": MODEL, "inputs": INPUTS},
    "attention_rollout": {"att": PROBS},
    "binary_tree": {"affinity": AFFINITY},
    "capture": {"model": MODEL, "inputs": INPUTS},
    "compress": {"x": X, "trees": TREES, "n": 5},
    "compression_curve": {"x": X, "trees": TREES},
    "consensus": {"inputs": [ORG, ORG, ORG], "n_bootstrap": 5},
    "denoise": {"x": X, "trees": TREES},
    "denoising_errors": {"att": ATT, "org": ORG, "noise": 0.5},
    "describe_folders": {"tree": ORG.trees.head, "heads": ATT.heads, "roles": ["none"] * 6},
    "diagnostics": {"atts": [PROBS]},
    "diffusion_map": {"affinity": AFFINITY},
    "doubly_normalized": {"att": PROBS},
    "flexible_tree": {"affinity": AFFINITY},
    "frozen_networks": {"model": MODEL, "inputs": INPUTS},
    "head_effects": {"model": MODEL, "inputs": INPUTS, "labels": LABELS},
    "head_entropy": {"att": ATT, "org": ORG},
    "head_roles": {"atts": [PROBS]},
    "head_similarity": {"atts": [PROBS, PROBS]},
    "head_weights": {"model": MODEL, "inputs": INPUTS},
    "holder_exponent": {"f": X[0], "row_tree": TREES[1], "col_tree": TREES[2]},
    "induction": {"model": MODEL},
    "interactions": {"model": MODEL, "groups": [[(0, 0), (0, 1)]], "inputs": INPUTS, "labels": LABELS},
    "load_bundled": {"name": "nothing"},
    "load_tensor": {"path": "nowhere"},
    "network_entropy": {"att": ATT, "org": ORG},
    "open_run": {"path": "nowhere"},
    "organize": {"att": ATT},
    "organize_array": {"x": X},
    "overlap": {"heads": TABLE, "n_bootstrap": 5},
    "paraproduct": {"f": X[0], "row_tree": TREES[1], "col_tree": TREES[2]},
    "path_lengths": {"model": MODEL, "inputs": INPUTS},
    "rank_residual": {"model": MODEL, "inputs": INPUTS},
    "regularity": {"att": ATT, "org": ORG},
    "softmax_invariance": {"att": ATT, "org": ORG},
    "sparsity": {"att": ATT, "org": ORG},
    "stability": {"entropies": RNG.random((5, 6)), "n_bootstrap": 5},
    "tree_agreement": {"tree": TREES[1], "labels": list("aabbccdd"), "n_permutations": 9},
    "tree_conditioning": {"org": ORG, "n_trials": 1},
    "tree_distance": {"a": TREES[0], "b": TREES[0]},
    "tree_emd": {"x": X, "axis": 0, "trees": TREES},
}
#: Public functions of runs, registered modules and pruned models: they have tests of their own.
ELSEWHERE = {
    "compare",
    "head_importance",
    "load_pruned",
    "model_cost",
    "perturbation_test",
    "prune_curve",
    "prune_heads",
    "register_attention",
    "save_pruned",
    "show",
    "token_relevance",
    "unregister_attention",
    "write_comparison",
    "write_report",
}

WRONG = {
    "none": None,
    "text": "a",
    "seven": 7,
    "minus one": -1,
    "a part": 2.5,
    "nan": float("nan"),
    "huge": 10**30,
    "true": True,
    "object": object(),
    "bytes": b"a",
    "dict": {},
    "empty": [],
    "ragged": [[1], [1, 2]],
    "texts": ["a", "b"],
    "numbers": [1, 2, 3],
    "no entries": np.zeros((0, 3)),
    "matrix": np.ones((2, 3)),
    "complex": np.ones((3, 3)) * 1j,
    "denormal": np.full((6, 6), 1e-310),
    "meta": torch.zeros(3, 3, device="meta"),
    "a type": int,
    "a tree": ht.PartitionTree.flat(2),
    "an attention tensor": ht.AttentionTensor.from_array(np.ones((1, 2, 2))),
}


#: What a function of a model is tried with: each call runs the model.
FEW = ("none", "text", "minus one", "object", "ragged", "matrix")


def target(name):
    found = ht
    for each in name.split("."):
        found = getattr(found, each)
    return found


def arguments():
    for name in VALID:
        for parameter in inspect.signature(target(name)).parameters.values():
            if parameter.kind is not inspect.Parameter.VAR_KEYWORD:
                yield pytest.param(name, parameter.name, id=f"{name}-{parameter.name}")


@pytest.mark.parametrize(("name", "argument"), list(arguments()))
def test_an_answer_or_an_error_of_ours(name, argument):
    foreign = {}
    for what, wrong in WRONG.items():
        if "model" in VALID[name] and what not in FEW:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", HeadtreeWarning)
            try:
                target(name)(**(VALID[name] | {argument: wrong}))
            except HeadtreeError as error:
                assert str(error)  # noqa: PT017
            except Exception as error:
                foreign[what] = f"{type(error).__name__}: {str(error)[:100]}"
    assert not foreign


@pytest.mark.parametrize("name", sorted(VALID))
def test_the_call_works(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HeadtreeWarning)
        try:
            target(name)(**VALID[name])
        except HeadtreeError:
            assert name in ("AttentionTensor.open", "load_bundled", "load_tensor", "open_run", "induction")


def test_every_public_function_is_here():
    functions = {name for name in ht.__all__ if inspect.isfunction(getattr(ht, name))}
    assert functions - ELSEWHERE <= set(VALID)
