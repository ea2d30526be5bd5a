import numpy as np
import pytest

import headtree as ht
from headtree.measures.heads.normalization import doubly_normalized
from headtree.measures.heads.patterns import own_columns
from tests.measures.attention_examples import causal, plain_softmax, probs, random_scores, to_key, uniform


def literal(att, n_iter):
    _, allowed = plain_softmax(att)
    values = np.asarray(att.values, dtype=np.float64)
    a = np.where(allowed, np.exp(values) if att.kind == "scores" else values, 0.0)
    for _ in range(n_iter):
        a = a / a.sum(axis=1, keepdims=True)
        a = a / a.sum(axis=2, keepdims=True)
    return a


@pytest.mark.parametrize("n_iter", [1, 2, 7])
@pytest.mark.parametrize("mask", [None, causal(7)], ids=["full", "causal"])
def test_it_normalises_over_queries_then_over_keys(mask, n_iter):
    att = random_scores(0, mask=mask)
    found = doubly_normalized(att, n_iter)
    np.testing.assert_allclose(found.values, literal(att, n_iter), atol=1e-12)
    assert found.kind == "probs"
    assert (found.mask is None) == (mask is None)
    assert found.provenance["doubly_normalized"] == n_iter
    other = random_scores(1, n_queries=5, n_keys=9)
    np.testing.assert_allclose(doubly_normalized(other, n_iter).values, literal(other, n_iter), atol=1e-12)


def test_no_key_is_explained_away_afterwards():
    att = random_scores(0, n_heads=4, n_queries=40, n_keys=40, scale=1.0)
    values = np.array(att.values)
    values[:, :, 0] += 9  # one key takes nearly everything
    att = ht.AttentionTensor.from_array(values)
    assert (own_columns(att)["explained_away"].values > 0.9).all()
    after = own_columns(doubly_normalized(att))
    assert (after["explained_away"].values == 0).all()
    assert (np.asarray(doubly_normalized(att).values).sum(axis=1) >= 1 / 40).all()


def test_many_passes_are_doubly_stochastic():
    found = doubly_normalized(random_scores(0), 300)
    np.testing.assert_allclose(found.values.sum(1), 1, atol=1e-9)
    assert own_columns(found)["doubly_stochastic_distance"].values == pytest.approx(0, abs=1e-9)


def test_a_causal_mask_leaves_only_the_identity():
    found = doubly_normalized(random_scores(0, mask=causal(7)), 5000)
    np.testing.assert_allclose(found.values, np.broadcast_to(np.eye(7), (6, 7, 7)), atol=2e-3)


def test_doubly_stochastic_heads_stay_and_scores_of_any_size_stay_in_range():
    att = probs(np.eye(5), uniform(5))
    np.testing.assert_allclose(doubly_normalized(att).values, att.values, atol=1e-12)
    huge = ht.AttentionTensor.from_array(1e4 * np.random.default_rng(0).standard_normal((2, 6, 6)))
    assert np.isfinite(doubly_normalized(huge, 3).values.numpy()).all()


def test_a_key_that_nobody_attends_to_stays_at_zero():
    found = doubly_normalized(probs(to_key(5, 2), uniform(5))).values
    np.testing.assert_allclose(found[0], to_key(5, 2))


def test_the_result_can_be_organized():
    att = random_scores(0, n_heads=12, n_queries=10, n_keys=10)
    assert ht.organize(doubly_normalized(att)).shape == (12, 10, 10)


def test_bad_input():
    with pytest.raises(ht.HeadtreeError, match="att must be"):
        doubly_normalized(np.eye(3))
    with pytest.raises(ht.HeadtreeError, match="n_iter must be at least 1"):
        doubly_normalized(random_scores(0), 0)
