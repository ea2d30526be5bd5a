import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import adjusted_mutual_info_score

import headtree as ht
from headtree.measures.agreement import _levels, expected_information, mutual_information, tree_agreement

RNG = np.random.default_rng(0)


def tree_of(folders):
    """Everything, these folders, single leaves."""
    return ht.PartitionTree(np.stack([np.zeros(len(folders), int), folders, np.arange(len(folders))]))


partitions = st.integers(4, 14).flatmap(
    lambda n: st.tuples(*[st.lists(st.integers(0, 3), min_size=n, max_size=n) for _ in range(2)])
)


@given(partitions)
def test_information_is_that_of_scikit_learn(pair):
    folders, labels = (np.array(part) for part in pair)
    tree = tree_of(folders)
    found = tree_agreement(tree, labels, n_permutations=1)
    if not 1 < len(set(folders)) < len(folders) or len(set(labels)) < 2:
        assert np.isnan(found.information)
        assert found.reason
        return
    expected = adjusted_mutual_info_score(labels, folders)
    if len(set(labels)) < len(labels):  # else both entropies equal the expected information, and the ratio is 0 / 0
        assert found.information == pytest.approx(expected, abs=1e-9)


def test_expected_information_is_the_mean_over_all_permutations():
    folders, labels = np.array([0, 0, 0, 1, 1, 2]), np.array([0, 0, 1, 1, 1, 2])
    values = []
    for order in itertools.permutations(range(6)):
        counts = np.zeros((3, 3), int)
        for folder, label in zip(folders, labels[list(order)], strict=True):
            counts[folder, label] += 1
        values.append(mutual_information(counts[None])[0])
    assert expected_information(np.bincount(folders), np.bincount(labels)) == pytest.approx(np.mean(values))


def test_it_fires_on_a_tree_that_knows_the_labels():
    labels = np.repeat(["previous token", "first token", ""], 10)
    tree = tree_of(np.repeat([0, 1, 2], 10))
    found = tree_agreement(tree, labels, n_permutations=199)
    assert found.information == pytest.approx(1)
    assert (found.level, found.n_folders, found.n_labels) == (1, 3, 3)
    assert found.p_value == pytest.approx(1 / 200)
    assert found.chance < 0.3


def test_it_does_not_fire_on_shuffled_labels():
    """Under chance alone the p-value is uniform: of 100 tests about 5 are below 0.05."""
    tree = ht.PartitionTree.halving(32)
    values = [
        tree_agreement(tree, RNG.permutation(np.arange(32) % 4), n_permutations=99, rng=i).p_value
        for i in range(100)
    ]
    assert 0 <= np.mean(np.array(values) <= 0.05) <= 0.13
    assert 0.35 < np.mean(values) < 0.65


def test_the_best_level_is_found_and_its_choice_is_paid_for():
    labels = np.arange(64) // 8
    found = tree_agreement(ht.PartitionTree.halving(64), labels, n_permutations=99)
    assert found.level == 3
    assert found.information == pytest.approx(1)


def test_of_a_tree_with_many_levels_some_are_looked_at():
    """One leaf splits off on each level: n levels, of which twelve count."""
    n = 40
    tree = ht.PartitionTree(np.stack([np.minimum(np.arange(n), level) for level in range(n)]))
    labels = np.minimum(np.arange(n), 1)
    found = tree_agreement(tree, labels, n_permutations=20)
    assert (found.level, found.information) == (1, pytest.approx(1))
    assert len(_levels(tree)) == 12


def test_roles_that_layers_explain_are_not_found_within_layers():
    layers = np.arange(60) // 10
    roles = np.where(layers < 3, "early", "late")
    tree = tree_of(layers)
    assert tree_agreement(tree, roles, n_permutations=199).p_value < 0.01
    assert tree_agreement(tree, roles, within=layers, n_permutations=199).p_value == 1
    mixed = np.where(np.arange(60) % 2, "odd", "even")
    by_role = tree_of(np.arange(60) % 2)
    assert tree_agreement(by_role, mixed, within=layers, n_permutations=199).p_value < 0.01


def test_names_and_order_do_not_matter():
    tree = ht.PartitionTree.halving(16)
    labels = RNG.integers(0, 3, 16)
    order = RNG.permutation(16)
    plain = tree_agreement(tree, labels).information
    assert tree_agreement(tree.take(order), labels[order]).information == pytest.approx(plain)
    assert tree_agreement(tree, ["abc"[label] for label in labels]).information == pytest.approx(plain)


def test_bad_input():
    tree = ht.PartitionTree.halving(6)
    with pytest.raises(ht.HeadtreeError, match="one label for each of the 6 leaves, got 5"):
        tree_agreement(tree, range(5))
    with pytest.raises(ht.HeadtreeError, match="within must contain"):
        tree_agreement(tree, range(6), within=[1])
    with pytest.raises(ht.HeadtreeError, match="PartitionTree"):
        tree_agreement(np.eye(3), range(3))
    flat = tree_agreement(ht.PartitionTree.flat(4), [0, 0, 1, 1])
    assert flat.reason == "no level has folders of several leaves"
    assert tree_agreement(tree, [0] * 6).reason == "all leaves have the same label"
