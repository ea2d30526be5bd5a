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
from tests.runs.examples import small_run

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
VIEW = ht.ModelView(MODEL)  # finds the attention once
LABELS = [torch.arange(8), torch.arange(8)]


class Described(torch.nn.Module):
    """A module whose attention is described."""


#: Stands for what is made of a run.
OF_RUNS = object()

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
    "attention_relevance": {"model": VIEW, "inputs": INPUTS},
    "attention_rollout": {"att": PROBS},
    "binary_tree": {"affinity": AFFINITY},
    "capture": {"model": VIEW, "inputs": INPUTS},
    "compare": {"runs": OF_RUNS, "n_permutations": 9},
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
    "frozen_networks": {"model": VIEW, "inputs": INPUTS},
    "head_effects": {"model": VIEW, "inputs": INPUTS, "labels": LABELS},
    "head_entropy": {"att": ATT, "org": ORG},
    "head_importance": {"model": VIEW, "inputs": INPUTS},
    "head_roles": {"atts": [PROBS]},
    "head_similarity": {"atts": [PROBS, PROBS]},
    "head_weights": {"model": VIEW, "inputs": INPUTS},
    "holder_exponent": {"f": X[0], "row_tree": TREES[1], "col_tree": TREES[2]},
    "induction": {"model": VIEW},
    "interactions": {"model": VIEW, "groups": [[(0, 0), (0, 1)]], "inputs": INPUTS, "labels": LABELS},
    "load_bundled": {"name": "nothing"},
    "load_pruned": {"folder": "nowhere"},
    "load_tensor": {"path": "nowhere"},
    "model_cost": {"models": [MODEL], "inputs": INPUTS, "n_runs": 1},
    "network_entropy": {"att": ATT, "org": ORG},
    "open_run": {"path": "nowhere"},
    "organize": {"att": ATT},
    "organize_array": {"x": X},
    "overlap": {"heads": TABLE, "n_bootstrap": 5},
    "paraproduct": {"f": X[0], "row_tree": TREES[1], "col_tree": TREES[2]},
    "path_lengths": {"model": VIEW, "inputs": INPUTS},
    "perturbation_test": {"model": VIEW, "inputs": INPUTS, "methods": ["attention"], "steps": 1},
    "prune_curve": {
        "model": VIEW,
        "criteria": "confidence",
        "inputs": INPUTS * 3,
        "labels": LABELS * 3,
        "steps": 1,
        "n_random": 1,
    },
    "prune_heads": {"model": VIEW, "heads": [(0, 1)], "inputs": INPUTS},
    "rank_residual": {"model": VIEW, "inputs": INPUTS},
    "register_attention": {"kind": Described, "describe": max},
    "regularity": {"att": ATT, "org": ORG},
    "save_pruned": {"model": ht.prune_heads(VIEW, [(0, 1)], inputs=INPUTS), "folder": "somewhere"},
    "show": {"run": OF_RUNS},
    "softmax_invariance": {"att": ATT, "org": ORG},
    "sparsity": {"att": ATT, "org": ORG},
    "stability": {"entropies": RNG.random((5, 6)), "n_bootstrap": 5},
    "token_relevance": {"model": VIEW, "inputs": INPUTS, "methods": ["attention"]},
    "tree_agreement": {"tree": TREES[1], "labels": list("aabbccdd"), "n_permutations": 9},
    "tree_conditioning": {"org": ORG, "n_trials": 1},
    "tree_distance": {"a": TREES[0], "b": TREES[0]},
    "tree_emd": {"x": X, "axis": 0, "trees": TREES},
    "unregister_attention": {"kind": Described},
    "write_comparison": {"comparison": OF_RUNS, "path": "somewhere.html"},
    "write_report": {"run": OF_RUNS, "path": "somewhere.html"},
}
NEED_FILES = {"AttentionTensor.open", "load_bundled", "load_pruned", "load_tensor", "open_run", "induction"}

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
    "long": "x" * 5000,
    "no name of a file": "\ud800",
    "sparse": torch.eye(3).to_sparse(),
    "another model": torch.nn.Linear(2, 2),
    "unknown tokens": [{"input_ids": torch.full((1, 8), 10**6)}],
    "no entries in an array": np.array(np.nan),
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
FEW = ("none", "text", "minus one", "object", "ragged", "matrix", "another model", "unknown tokens")


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


@pytest.fixture(scope="module")
def of_runs(tmp_path_factory):
    """What is made of runs, by the name of the argument."""
    folder = tmp_path_factory.mktemp("runs")
    runs = [small_run(folder / name, n_inputs=2, n_layers=2, n_per_layer=3, n_tokens=(8,)) for name in "ab"]
    return {"runs": runs, "run": runs[0], "comparison": ht.compare(*runs, n_permutations=9)}


@pytest.fixture
def call(of_runs, tmp_path, monkeypatch):
    """Calls a public function with arguments that work, but for those given."""
    monkeypatch.chdir(tmp_path)  # some write what they are asked to

    def call(name, /, **wrong):
        given = {key: of_runs[key] if value is OF_RUNS else value for key, value in VALID[name].items()}
        in_order = [
            parameter.name
            for parameter in inspect.signature(target(name)).parameters.values()
            if parameter.kind is inspect.Parameter.VAR_POSITIONAL
        ]
        several = [each for key in in_order for each in given.pop(key)]
        for key in in_order:
            several = [wrong.pop(key), *several[1:]] if key in wrong else several
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", HeadtreeWarning)
            return target(name)(*several, **(given | wrong))

    return call


@pytest.mark.parametrize(("name", "argument"), list(arguments()))
def test_an_answer_or_an_error_of_ours(call, name, argument):
    foreign, default = {}, inspect.signature(target(name)).parameters[argument].default
    for what, wrong in WRONG.items():
        is_slow = bool({"model", "models"} & VALID[name].keys())
        if (is_slow and what not in FEW) or (wrong is None and default is None):
            continue
        if argument == "remember" and callable(wrong):
            continue  # a function of the caller's own, whose errors are the caller's
        try:
            call(name, **{argument: wrong})
        except HeadtreeError as error:
            assert str(error)  # noqa: PT017
        except Exception as error:
            foreign[what] = f"{type(error).__name__}: {str(error)[:100]}"
    assert not foreign


@pytest.mark.parametrize("name", sorted(VALID))
def test_the_call_works(call, name):
    try:
        call(name)
    except HeadtreeError:
        assert name in NEED_FILES


def test_every_public_function_is_here():
    functions = {name for name in ht.__all__ if inspect.isfunction(getattr(ht, name))}
    assert functions <= set(VALID)
