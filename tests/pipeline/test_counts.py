"""Nothing is computed twice in a run, and no more than one input is in memory."""

import gc
import sys
import weakref
from collections import Counter
from functools import wraps

import pytest

from headtree.measures.consensus import consensus, consensus_of
from headtree.measures.entropy import head_entropy, network_entropy
from headtree.measures.heads.diagnostics import combined, input_tables
from headtree.measures.heads.patterns import distance_to_layer, own_columns
from headtree.measures.heads.roles import role_tables
from headtree.measures.heads.rollout import rollout_columns
from headtree.measures.invariance import softmax_invariance
from headtree.measures.overlap import overlap
from headtree.measures.per_input import measure_input
from headtree.measures.regularity import regularity
from headtree.measures.similarity import from_organizations
from headtree.measures.sparsity import sparsity
from headtree.measures.stability import stability
from headtree.questionnaire.organize import organize
from headtree.runs.folder import rewriting_run
from headtree.similarity.attention_distances import attention_distance
from headtree.tensor.attention_tensor import AttentionTensor
from headtree.tensor.stored_array import StoredArray
from tests.runs.examples import small_run

ONCE = (stability, from_organizations, combined, overlap)
TWICE = (consensus, consensus_of)  # looks alike, and the questionnaire's; tensors have no values for "function"
FOR_EACH_INPUT = (
    organize, attention_distance, measure_input, network_entropy, sparsity, softmax_invariance,
    own_columns, distance_to_layer, rollout_columns, role_tables, input_tables,
)  # fmt: skip
TWICE_FOR_EACH_INPUT = (head_entropy,)  # of centred scores, and of probabilities: the structure score
NEVER = (regularity,)  # which has four orders where two are stored


@pytest.fixture
def counts(monkeypatch):
    """How often each function is called, whichever module calls it."""
    found = Counter()

    def counted(function):
        @wraps(function)
        def call(*given, **named):
            found[function.__name__] += 1
            return function(*given, **named)

        return call

    modules = [module for name, module in list(sys.modules.items()) if name.split(".")[0] == "headtree"]
    for function in (*ONCE, *TWICE, *FOR_EACH_INPUT, *TWICE_FOR_EACH_INPUT, *NEVER):
        replaced = counted(function)
        for module in modules:
            if vars(module).get(function.__name__) is function:
                monkeypatch.setattr(module, function.__name__, replaced)
    return found


@pytest.mark.parametrize("n_inputs", [2, 3])
def test_each_thing_is_computed_once(counts, tmp_path, n_inputs):
    small_run(tmp_path / "run", n_inputs=n_inputs, draw=True)
    assert counts == {
        **{function.__name__: 1 for function in ONCE},
        **{function.__name__: 2 for function in TWICE},
        **{function.__name__: n_inputs for function in FOR_EACH_INPUT},
        **{function.__name__: 2 * n_inputs for function in TWICE_FOR_EACH_INPUT},
    }


def test_a_run_is_opened_once_for_each_state(tmp_path):
    with rewriting_run(small_run(tmp_path / "run", n_inputs=2).path) as writer:
        before = writer.run
        assert writer.run is before
        writer.save(writer.record.with_step("draw", writer.record.steps["measure"]))
        assert writer.run is not before
        assert writer.run.record is writer.record


def test_one_input_is_in_memory_at_a_time(monkeypatch, tmp_path):
    """Tensors loaded from the run, those alive when another is loaded."""
    alive = weakref.WeakSet()
    most = []
    load = AttentionTensor.load

    def watched(att):
        if not isinstance(att.values, StoredArray):
            return load(att)
        gc.collect()
        most.append(len(alive))
        loaded = load(att)
        alive.add(loaded.values)
        return loaded

    monkeypatch.setattr(AttentionTensor, "load", watched)
    gc.collect()
    gc.freeze()  # what is there already is not looked through again and again
    try:
        small_run(tmp_path / "run", n_inputs=3, draw=True)
    finally:
        gc.unfreeze()
    assert len(most) >= 9  # organized, measured, diagnosed
    assert max(most) == 0
