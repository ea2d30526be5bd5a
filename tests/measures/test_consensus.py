import numpy as np
import pytest

import headtree as ht
from tests.measures.examples import families, noise


@pytest.fixture(scope="module")
def organizations():
    return [ht.organize(families(seed)) for seed in range(8)]


def test_planted_families_have_support_near_one(organizations):
    found = ht.consensus(organizations, n_bootstrap=100)
    support = {tuple(leaves): value for leaves, value in zip(found.folders, found.support, strict=True)}
    for family in range(4):
        assert support[tuple(range(5 * family, 5 * family + 5))] >= 0.95
    assert any(np.array_equal(leaves, np.arange(5)) for leaves in found.supported(0.9))


def test_noise_has_no_support():
    found = ht.consensus([ht.organize(noise(seed)) for seed in range(12)], n_bootstrap=100)
    assert found.support.max() < 0.5
    assert found.support.mean() < 0.15
    assert found.supported(0.5) == []


def test_tree_and_folders_are_those_of_the_mean_affinity(organizations):
    found = ht.consensus(organizations, n_bootstrap=2)
    mean = np.mean([org.affinities.head for org in organizations], axis=0)
    np.testing.assert_allclose(found.affinity, mean)
    assert found.tree == ht.flexible_tree(mean)
    for leaves, node in zip(found.folders, found.node, strict=True):
        level = found.tree.levels[node]
        np.testing.assert_array_equal(np.flatnonzero(found.tree.nodes[level] == node), leaves)
        assert 1 < len(leaves) < 20
    assert len(set(map(tuple, found.folders))) == len(found.folders)
    assert found.to_dict()["size"] == [len(leaves) for leaves in found.folders]


def test_equal_inputs_agree_on_everything(organizations):
    found = ht.consensus([organizations[0]] * 3, n_bootstrap=5)
    np.testing.assert_array_equal(found.support, 1)
    assert found.tree == organizations[0].trees.head


def test_support_is_the_same_on_every_run(organizations):
    a, b = (ht.consensus(organizations, n_bootstrap=10, rng=1) for _ in range(2))
    np.testing.assert_array_equal(a.support, b.support)


def test_other_axes_and_binary_trees():
    settings = ht.Questionnaire(tree="binary", n_iter=1)
    found = ht.consensus([ht.organize(families(seed), settings) for seed in range(3)], "query", n_bootstrap=3)
    assert found.tree.n_leaves == 18
    assert found.n_inputs == 3


def test_bad_input(organizations):
    with pytest.raises(ValueError, match="two or more, one for each input, got 1"):
        ht.consensus(organizations[:1])
    with pytest.raises(TypeError, match="Organization objects, got int"):
        ht.consensus([1, 2])
    with pytest.raises(ValueError, match="same leaves along axis 0"):
        ht.consensus([organizations[0], ht.organize(noise(0, (7, 18, 14)))])
    with pytest.raises(ValueError, match="n_bootstrap must be at least 1"):
        ht.consensus(organizations, n_bootstrap=0)
