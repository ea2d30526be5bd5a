import numpy as np
import pytest
import torch

from headtree.measures.heads.activations import (
    activation_columns,
    dirichlet_energy,
    massive_activation_ratio,
    token_similarity,
)
from tests.measures.attention_examples import plain_softmax, random_scores

X = torch.randn(7, 5, generator=torch.Generator().manual_seed(0))


def test_similarity_is_the_mean_cosine_of_different_tokens():
    pairs = [(i, j) for i in range(7) for j in range(7) if i != j]
    cosines = [float(X[i] @ X[j] / X[i].norm() / X[j].norm()) for i, j in pairs]
    assert token_similarity(X) == pytest.approx(np.mean(cosines), abs=1e-7)
    assert token_similarity(torch.ones(4, 3)) == pytest.approx(1)  # all tokens alike
    assert token_similarity(torch.eye(5)) == pytest.approx(0)
    assert np.isnan(token_similarity(torch.ones(1, 3)))
    assert np.isnan(token_similarity(torch.zeros(4, 3)))


def test_one_huge_number_is_a_massive_activation():
    assert massive_activation_ratio(X) == pytest.approx(float(X.abs().max() / np.median(X.abs())), rel=1e-6)
    spiked = X.clone()
    spiked[0, 2] = 5000
    assert massive_activation_ratio(spiked) > 1000 > massive_activation_ratio(X)
    assert np.isnan(massive_activation_ratio(torch.zeros(3, 3)))


def test_energy_is_the_sum_over_pairs():
    a = torch.rand(7, 7, generator=torch.Generator().manual_seed(1)).double()
    w = (a + a.T) / 2
    total = sum(float(w[i, j] * (X[i] - X[j]).double().square().sum()) for i in range(7) for j in range(7)) / 2
    assert dirichlet_energy(X, a) == pytest.approx(total / float(X.square().sum()), rel=1e-6)
    assert dirichlet_energy(torch.ones(7, 3), a) == pytest.approx(0, abs=1e-12)  # smoothed out
    assert dirichlet_energy(X, torch.eye(7)) == pytest.approx(0, abs=1e-12)  # nobody looks at anybody
    assert np.isnan(dirichlet_energy(torch.zeros(7, 3), a))


def test_columns_pair_layers_with_states():
    att = random_scores(0, heads_per_layer=2)
    states = [X, 2 * X + 1, torch.ones(7, 5)]
    columns = activation_columns(att, states)
    weights, _ = plain_softmax(att)
    for layer, x in enumerate(states):
        a = torch.from_numpy(weights[2 * layer : 2 * layer + 2].mean(axis=0))
        assert columns["dirichlet_energy"].values[layer] == pytest.approx(dirichlet_energy(x, a), abs=1e-12)
        assert columns["token_similarity"].values[layer] == pytest.approx(token_similarity(x))
    cross = activation_columns(random_scores(0, n_queries=5, n_keys=7), [X])
    assert "same sequence" in cross["dirichlet_energy"].reason
    assert np.isnan(cross["dirichlet_energy"].values).all()
