import itertools

import numpy as np
import pytest

from headtree.comparison.exchange import divisions_of, energy_p_value, fewest_divisions


def distances(x):
    return np.abs(x[:, None] - x)


def energy(d, first):
    second = [i for i in range(len(d)) if i not in first]
    return 2 * d[np.ix_(first, second)].mean() - d[np.ix_(first, first)].mean() - d[np.ix_(second, second)].mean()


def test_all_divisions_give_the_exact_p_value():
    d = distances(np.array([0.0, 1.0, 0.5, 5.0, 6.0, 5.5, 7.0]))
    every = [list(first) for first in itertools.combinations(range(7), 3)]
    exact = sum(energy(d, first) >= energy(d, [0, 1, 2]) - 1e-12 for first in every)
    table = np.array([[int(i in first) for i in range(7)] for first in every])
    assert energy_p_value(d, 3, table) == (exact + 1) / (len(every) + 1)
    assert len(every) == fewest_divisions(3, 4)


def test_inputs_of_one_network_are_not_different():
    rng = np.random.default_rng(0)
    found = []
    for _ in range(200):
        d = distances(rng.normal(size=12))
        found.append(energy_p_value(d, 6, divisions_of((6, 6), 99, rng)))
    assert np.mean(np.array(found) <= 0.05) <= 0.1
    assert 0.4 < np.mean(found) < 0.6


def test_other_networks_are():
    rng = np.random.default_rng(0)
    d = distances(np.concatenate([rng.normal(size=8), rng.normal(size=8) + 3]))
    assert energy_p_value(d, 8, divisions_of((8, 8), 999, rng)) == 0.001


def test_equal_items_are_not_different():
    assert energy_p_value(np.zeros((8, 8)), 4, divisions_of((4, 4), 99, np.random.default_rng(0))) == 1.0


@pytest.mark.parametrize("n_first", [1, 4])
def test_one_input_says_nothing(n_first):
    d = distances(np.arange(5.0))
    assert np.isnan(energy_p_value(d, n_first, divisions_of((n_first, 5 - n_first), 9, np.random.default_rng(0))))


def test_divisions_have_the_sizes_of_the_runs():
    found = divisions_of((3, 5), 50, np.random.default_rng(0))
    assert (found.sum(axis=1) == 3).all()
    assert found.shape == (50, 8)
