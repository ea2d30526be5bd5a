import dataclasses
import math

import numpy as np
import pytest
import torch

import headtree as ht
from headtree.measures.heads.patterns import distance_to_layer, own_columns
from tests.measures.attention_examples import (
    causal,
    plain_softmax,
    previous,
    probs,
    random_scores,
    to_key,
    uniform,
)

N = 16


def pattern_columns(att):
    return own_columns(att) | {"distance_to_layer": distance_to_layer(att)}


def measured(att):
    return {name: column.values for name, column in pattern_columns(att).items()}


def literal(att):
    """Every definition once more, in loops over heads and queries."""
    weights, allowed = plain_softmax(att)
    scores = np.asarray(att.values, dtype=np.float64)
    n_heads, n_queries, n_keys = att.shape
    result = {name: [] for name in measured(att)}
    for h in range(n_heads):
        a, rows = weights[h], [q for q in range(n_queries) if allowed[h, q].any()]
        columns = [sum(a[q, k] for q in range(n_queries)) for k in range(n_keys)]
        shares = [c / sum(columns) for c in columns]
        result["strongest_column_mass"].append(max(shares))
        result["sink_logit_mass"].append(np.mean([1 - a[q].sum() for q in rows]))
        entropies = {q: -sum(p * math.log(p) for p in a[q] / a[q].sum() if p > 0) for q in rows}
        result["shannon_entropy"].append(np.mean(list(entropies.values())))
        wide = [q for q in rows if allowed[h, q].sum() > 1]
        result["shannon_entropy_relative"].append(
            np.mean([entropies[q] / math.log(allowed[h, q].sum()) for q in wide])
        )
        result["confidence"].append(np.mean([a[q].max() for q in rows]))
        sigma = np.linalg.svd(a, compute_uv=False)
        result["spectral_gap"].append(sigma[0] - sigma[1])
        result["stable_rank"].append((a**2).sum() / sigma[0] ** 2)
        result["doubly_stochastic_distance"].append(sum(abs(s - 1 / n_keys) for s in shares) / 2)
        can = [k for k in range(n_keys) if allowed[h, :, k].any()]
        result["explained_away"].append(sum(columns[k] < 1 / n_keys for k in can) / len(can))
        for order in (1, 2):
            errors = []
            for q in wide:
                keys = np.flatnonzero(allowed[h, q])
                x = (np.log(a[q, keys]) if att.kind == "probs" else scores[h, q, keys]).copy()
                x -= x.mean()
                f = 1 + x + (x**2 / 2 if order == 2 else 0)
                errors.append(np.abs(f / f.sum() - a[q, keys] / a[q, keys].sum()).sum() / 2)
            result[f"polynomial_error_{order}"].append(np.mean(errors))
        others = [g for g in range(n_heads) if g != h and att.heads[g].layer == att.heads[h].layer]
        tv = [sum(np.abs(a[q] - weights[g, q]).sum() / 2 for q in rows) / len(rows) for g in others]
        result["distance_to_layer"].append(np.mean(tv) if tv else np.nan)
    return {name: np.array(values) for name, values in result.items()}


def with_sinks(att):
    return dataclasses.replace(att, sinks=torch.linspace(-1, 3, att.shape[0]))


EXAMPLES = {
    "scores": lambda: random_scores(0, heads_per_layer=3),
    "causal": lambda: random_scores(1, mask=causal(7), heads_per_layer=2),
    "rectangular": lambda: random_scores(2, n_queries=5, n_keys=9),
    "tall": lambda: random_scores(3, n_queries=9, n_keys=5),
    "sinks": lambda: with_sinks(random_scores(4, mask=causal(7))),
    "a row masked, a key masked, by head": lambda: random_scores(
        5, mask=np.random.default_rng(0).random((6, 7, 7)) < 0.3
    ),
    "padding": lambda: random_scores(6, mask=(np.arange(7) > 4)[:, None] | (np.arange(7) > 4)),
    "heads not in layer order": lambda: random_scores(7, heads=[(1, 0), (0, 0), (1, 1), (0, 1), (0, 2), (1, 2)]),
    "probs": lambda: probs(*np.random.default_rng(8).dirichlet(np.ones(7), (4, 7))),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_measure_is_its_definition(name):
    att = EXAMPLES[name]()
    found, expected = measured(att), literal(att)
    if att.sinks is None:
        assert np.isnan(found.pop("sink_logit_mass")).all()
    for column, values in found.items():
        # float64 throughout; the Gram matrix squares the condition, which costs σ₂ half the digits
        np.testing.assert_allclose(values, expected[column], rtol=1e-7, atol=1e-9, err_msg=column)


def test_a_sink_fires_and_even_attention_does_not():
    sink, even = (measured(probs(a, a)) for a in (0.9 * to_key(N, 3) + 0.1 * uniform(N), uniform(N)))
    assert sink["strongest_column_mass"][0] == pytest.approx(0.9 + 0.1 / N)
    assert even["strongest_column_mass"][0] == pytest.approx(1 / N)
    assert sink["doubly_stochastic_distance"][0] == pytest.approx(0.9 * (1 - 1 / N))
    assert even["doubly_stochastic_distance"][0] == pytest.approx(0)


def test_entropy_and_confidence_tell_sharp_from_even():
    found = measured(
        probs(np.eye(N), uniform(N), uniform(N, causal(N)), mask=np.stack([np.zeros((N, N), bool)] * 3))
    )
    np.testing.assert_allclose(
        found["shannon_entropy"], [0, np.log(N), np.log(np.arange(1, N + 1)).mean()], atol=1e-12
    )
    np.testing.assert_allclose(found["confidence"][:2], [1, 1 / N])
    under_mask = measured(probs(uniform(N, causal(N)), mask=causal(N)))
    np.testing.assert_allclose(under_mask["shannon_entropy_relative"], 1)  # even among what is allowed


def test_rank_collapse_shows_in_gap_and_stable_rank():
    found = measured(probs(uniform(N), np.eye(N), previous(N)))
    np.testing.assert_allclose(found["spectral_gap"], [1, 0, np.sqrt(2) - 1], atol=1e-7)
    np.testing.assert_allclose(found["stable_rank"], [1, N, N / 2])


def test_long_inputs_are_iterated(monkeypatch):
    """Heads of noise, whose singular values crowd together, to 1e-3 of the largest; others to 1e-4."""
    noise = random_scores(0, 3, 60, 50, scale=2.0)
    clear = probs(uniform(60), 0.7 * to_key(60, 3) + 0.3 * np.eye(60), 0.5 * np.eye(60) + 0.5 * uniform(60))
    exact = [measured(att) for att in (noise, clear)]
    monkeypatch.setattr("headtree.measures.heads.patterns._EXACT_UP_TO", 10)
    for att, expected, tolerance in zip((noise, clear), exact, (1e-3, 1e-4), strict=True):
        found = measured(att)
        np.testing.assert_allclose(found["stable_rank"], expected["stable_rank"], rtol=2 * tolerance)
        largest = expected["spectral_gap"].max() + 1
        np.testing.assert_allclose(found["spectral_gap"], expected["spectral_gap"], atol=tolerance * largest)
    nothing = np.zeros((2, 60, 60), bool)
    nothing[1] = True
    assert np.isnan(measured(random_scores(0, 2, 60, 60, mask=nothing))["spectral_gap"]).tolist() == [False, True]


def test_explained_away_counts_the_keys_nobody_needs():
    some = np.zeros((N, N))
    some[:, :4] = 0.25  # twelve of the keys get nothing
    found = measured(probs(some, uniform(N), np.eye(N)))
    np.testing.assert_allclose(found["explained_away"], [0.75, 0, 0])


def test_small_scores_are_factorizable_and_large_ones_are_not():
    scores = np.random.default_rng(0).standard_normal((1, N, N))
    small, large = (measured(ht.AttentionTensor.from_array(s * scores)) for s in (0.05, 4))
    assert small["polynomial_error_2"][0] < small["polynomial_error_1"][0] < 2e-3
    assert large["polynomial_error_1"][0] > large["polynomial_error_2"][0] > 0.3
    # order p leaves an error of order p + 1
    half = measured(ht.AttentionTensor.from_array(0.025 * scores))
    assert small["polynomial_error_1"][0] / half["polynomial_error_1"][0] == pytest.approx(4, rel=0.1)
    assert small["polynomial_error_2"][0] / half["polynomial_error_2"][0] == pytest.approx(8, rel=0.1)


@pytest.mark.parametrize(("dtype", "size"), [(np.float32, 1e37), (np.float64, 1e200)])
def test_scores_at_the_end_of_their_range_are_measured(dtype, size):
    """Order 1 is far off, and order 2 weighs squares: the smallest score as much as the largest."""
    x = np.array([[[-1.0, 0, 1], [0, 0, 0], [1, 0, -1]]] * 2)
    found = measured(ht.AttentionTensor.from_array((size * x).astype(dtype)))
    np.testing.assert_allclose(found["polynomial_error_2"], 0.5 * 2 / 3)
    np.testing.assert_allclose(found["polynomial_error_1"], size / 3 * 2 / 3, rtol=1e-6)
    np.testing.assert_allclose(found["confidence"], (1 + 1 + 1 / 3) / 3, rtol=1e-6)


def test_scores_and_their_probabilities_agree_and_rows_may_shift():
    att = random_scores(0, mask=causal(7))
    as_probs = ht.AttentionTensor.from_array(plain_softmax(att)[0], kind="probs", mask=causal(7))
    shifted = ht.AttentionTensor.from_array(
        att.values + 7 * np.random.default_rng(1).standard_normal((6, 7, 1)), mask=causal(7)
    )
    expected = measured(att)
    for other in (as_probs, shifted):
        for name, values in measured(other).items():
            np.testing.assert_allclose(values, expected[name], rtol=1e-6, atol=1e-9, err_msg=name)


def test_heads_that_are_alike_have_no_distance():
    att = probs(np.eye(N), np.eye(N), to_key(N, 0), heads=[(0, 0), (0, 1), (1, 0)])
    column = pattern_columns(att)["distance_to_layer"]
    np.testing.assert_allclose(column.values, [0, 0, np.nan])
    assert "alone in their layer" in column.reason
    far = pattern_columns(probs(np.eye(N), np.roll(np.eye(N), 1, axis=1)))["distance_to_layer"]
    np.testing.assert_allclose(far.values, 1)


def test_permuted_tokens_change_nothing():
    att = random_scores(0)
    order = np.random.default_rng(0).permutation(7)
    turned = ht.AttentionTensor.from_array(att.values[:, order][:, :, order])
    for name, values in measured(turned).items():
        np.testing.assert_allclose(values, measured(att)[name], rtol=1e-9, atol=1e-9, err_msg=name)


def test_blocks_of_heads_and_queries_change_nothing(monkeypatch):
    att = random_scores(0, mask=causal(7), heads_per_layer=3)
    whole = measured(att)
    monkeypatch.setattr("headtree.tensor.probabilities._ENTRIES", 50)
    for name, values in measured(att).items():
        np.testing.assert_allclose(values, whole[name], rtol=1e-12, err_msg=name)


def test_what_cannot_be_measured_says_why():
    one = pattern_columns(random_scores(0, n_queries=1, n_keys=1))
    for column in one.values():
        assert np.isnan(column.values).all()
        assert "choose between two keys" in column.reason
    zeros = pattern_columns(probs(np.eye(4), uniform(4)))
    assert np.isnan(zeros["polynomial_error_1"].values).tolist() == [True, False]
    assert "0 has no logarithm" in zeros["polynomial_error_1"].reason
    hidden = np.zeros((2, 4, 4), bool)
    hidden[1] = True
    some = pattern_columns(random_scores(0, 2, 4, 4, mask=hidden))
    for name, column in some.items():
        if name not in ("sink_logit_mass", "distance_to_layer"):
            assert np.isnan(column.values).tolist() == [False, True], name
            assert column.reason


def test_bad_values_are_refused():
    with pytest.raises(ht.HeadtreeError, match="must be probabilities"):
        pattern_columns(ht.AttentionTensor.from_array(np.full((1, 3, 3), -0.1), kind="probs"))
    with pytest.raises(ht.HeadtreeError, match="largest row sum is 3"):
        pattern_columns(ht.AttentionTensor.from_array(np.ones((1, 3, 3)), kind="probs"))
    with pytest.raises(ht.HeadtreeError, match="must be finite"):
        pattern_columns(ht.AttentionTensor.from_array(np.full((1, 3, 3), np.nan)))
