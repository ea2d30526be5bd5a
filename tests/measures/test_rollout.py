import numpy as np
import pytest

import headtree as ht
from headtree.measures.heads.rollout import attention_rollout, rollout_columns
from tests.measures.attention_examples import causal, plain_softmax, previous, probs, random_scores, to_key


def literal(att, own):
    weights, _ = plain_softmax(att)
    n, result, rolled = att.shape[1], [], np.eye(att.shape[1])
    for layer in sorted({head.layer for head in att.heads}):
        mean = np.mean([weights[h] for h, head in enumerate(att.heads) if head.layer == layer], axis=0)
        hat = np.zeros((n, n))
        for q in range(n):
            row = mean[q] / mean[q].sum() if mean[q].sum() > 0 else np.eye(n)[q]
            hat[q] = own * np.eye(n)[q] + (1 - own) * row
        rolled = hat @ rolled
        result.append(rolled)
    return np.stack(result)


@pytest.mark.parametrize("own", [0.0, 0.5, 1.0])
def test_rollout_is_the_product_of_the_layers(own):
    padding = (np.arange(7) > 4)[:, None] | (np.arange(7) > 4)
    for mask in (None, causal(7), padding):
        att = random_scores(0, mask=mask, heads_per_layer=2)
        np.testing.assert_allclose(attention_rollout(att, own=own), literal(att, own), atol=1e-12)
    shuffled = random_scores(1, heads=[(1, 0), (0, 0), (2, 0), (0, 1), (1, 1), (2, 1)])
    np.testing.assert_allclose(attention_rollout(shuffled, own=own), literal(shuffled, own), atol=1e-12)


def test_tokens_travel_one_place_a_layer():
    att = probs(*[previous(8)] * 3, heads=[(layer, 0) for layer in range(3)])
    rolled = attention_rollout(att, own=0.0)
    for layer in range(3):
        assert rolled[layer, 7, 7 - layer - 1] == 1
    np.testing.assert_allclose(attention_rollout(att).sum(dim=2), 1)


def test_columns_tell_a_sink_from_heads_that_keep_to_themselves():
    labels = {"heads": [(0, 0), (1, 0)]}
    sink, own = (rollout_columns(probs(a, a, **labels)) for a in (to_key(8, 0), np.eye(8)))
    np.testing.assert_allclose(sink["rollout_first_token"].values, [0.5 + 0.5 / 8, 0.75 + 0.25 / 8])
    np.testing.assert_allclose(own["rollout_own_token"].values, 1)


def test_cross_attention_has_none():
    att = random_scores(0, n_queries=5, n_keys=7)
    columns = rollout_columns(att).values()
    assert all(np.isnan(column.values).all() and "same sequence" in column.reason for column in columns)
    with pytest.raises(ht.HeadtreeError, match="self-attention of one sequence, got 5 queries and 7 keys"):
        attention_rollout(att)


def test_bad_input():
    with pytest.raises(ht.HeadtreeError, match="own must be"):
        attention_rollout(random_scores(0), own=1.5)
    with pytest.raises(ht.HeadtreeError, match="att must be"):
        attention_rollout(np.eye(3))
