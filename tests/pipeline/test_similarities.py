"""Which similarities a run has, what it organizes, and what it refuses before any work."""

import numpy as np
import pytest

import headtree as ht
from headtree.pipeline.make_run import make_run
from headtree.pipeline.sources import TensorSource
from tests.runs.examples import QUICK, tensors


def made(path, kind="scores", **options):
    source = TensorSource(tensors(2, kind, n_tokens=(9,), n_layers=2))
    return make_run(source, path, measures=QUICK, draw=False, **options)


def test_families_are_of_the_similarity_that_was_asked_for(tmp_path):
    run = made(tmp_path / "run", similarity="l1")
    assert list(run.similarities) == ["l1", "attention", "questionnaire"]
    assert run.consensus.kind == run.measures.consensus.kind == run.settings.similarity == "l1"
    expected = ht.consensus(ht.head_similarity(list(run.attention), "l1"), n_bootstrap=20)
    assert run.consensus.to_dict() == expected.to_dict()
    assert list(made(tmp_path / "other", similarity="questionnaire").similarities) == ["questionnaire", "attention"]


def test_scores_are_organized_and_measured_without_constants_of_rows_unless_raw(tmp_path):
    run, raw = made(tmp_path / "run"), made(tmp_path / "raw", raw=True)
    assert (run.values_words, raw.values_words) == ("centred scores", "raw scores")
    for found, att in ((run, run.attention[0].centred()), (raw, raw.attention[0].load())):
        expected = ht.organize(att)
        np.testing.assert_array_equal(found.organization[0].affinities.head, expected.affinities.head)
        np.testing.assert_array_equal(found.measured[0].entropy, ht.head_entropy(att, expected, top=60).raw)
    np.testing.assert_array_equal(run.similarities.attention.support, raw.similarities.attention.support)


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("scores", {"similarity": "function"}, "needs the model, but this run is made from tensors"),
        ("scores", {"similarity": "hellinger"}, "similarity must be one of \\('attention'"),
        ("probs", {"raw": True}, "raw is about scores, but this run is of kind 'probs'; leave it out"),
    ],
)
def test_what_cannot_be_is_refused_before_any_work(kind, options, message, tmp_path):
    with pytest.raises(ht.HeadtreeError, match=message):
        made(tmp_path / "run", kind, **options)
    assert not (tmp_path / "run").exists()


def masked_head():
    mask = np.zeros((4, 6, 6), bool)
    mask[2] = True
    return [ht.AttentionTensor.from_array(np.zeros((4, 6, 6)), mask=mask)]


def mask_in_numbers():
    return [ht.AttentionTensor.from_array(np.where(np.tri(6, dtype=bool), 0, -1e9) + np.zeros((4, 6, 6)))]


def other_heads():
    return [ht.AttentionTensor.from_array(np.zeros((n, 6, 6))) for n in (4, 3)]


@pytest.mark.parametrize(
    ("atts", "message"),
    [
        (masked_head, "head L0H2 is masked on every query"),
        (mask_in_numbers, "hold a causal mask as large negative numbers"),
        (other_heads, "atts must have the same heads on every input, got 4 heads"),
    ],
)
def test_tensors_whose_heads_cannot_be_compared_leave_nothing(tmp_path, atts, message):
    with pytest.raises(ht.HeadtreeError, match=message):
        make_run(TensorSource(atts()), tmp_path / "run")
    assert not list(tmp_path.iterdir())
