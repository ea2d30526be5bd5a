import numpy as np
import pytest
import torch

import headtree as ht
from headtree.errors import HeadtreeError
from headtree.geometry.affinity import perturbed


@pytest.fixture(scope="module")
def noise():
    return ht.organize_array(np.random.default_rng(0).standard_normal((20, 12, 10)))


def test_no_change_moves_no_tree(noise):
    for axis, name in enumerate(noise.names):
        for found in (ht.tree_conditioning(noise, a, sizes=[0], n_trials=2) for a in (axis, name)):
            assert found.axis == name
            np.testing.assert_array_equal(found.moved, 0)


def test_is_the_tree_distance_to_the_tree_of_the_perturbed(noise):
    found = ht.tree_conditioning(noise, 1, sizes=(0.01, 0.2), rng=3, n_trials=2)
    rng = np.random.default_rng(3)
    for row, size in zip(found.moved, found.sizes, strict=True):
        for moved in row:
            z = np.tril(rng.standard_normal((12, 12)), -1)
            changed = np.maximum(noise.affinities[1] * (1 + size * (z + z.T)), 0)
            assert moved == ht.tree_distance(noise.trees[1], ht.flexible_tree(changed))
    np.testing.assert_array_equal(found.mean, found.moved.mean(axis=1))


def test_noise_is_unsteady_and_planted_groups_hold(noise):
    rng = np.random.default_rng(1)
    groups = np.repeat(rng.standard_normal((4, 30)), 5, axis=0)
    planted = ht.organize_array(groups + 1e-3 * rng.standard_normal((20, 30)))
    top = planted.trees[0].folders(planted.trees[0].n_levels - 2)
    assert {tuple(leaves) for leaves in top} <= {tuple(range(5 * i, 5 * i + 5)) for i in range(4)} or len(top) >= 4
    assert ht.tree_conditioning(noise, sizes=[0.1]).mean[0] > ht.tree_conditioning(planted, sizes=[1e-4]).mean[0]


def test_binary_trees_are_grown_as_binary_trees():
    org = ht.organize_array(np.random.default_rng(2).standard_normal((9, 11)), ht.Questionnaire(tree="binary"))
    np.testing.assert_array_equal(ht.tree_conditioning(org, sizes=[0], n_trials=1).moved, 0)


def test_a_perturbation_is_symmetric_and_of_the_given_size():
    changed = perturbed(torch.ones(300, 300, dtype=torch.float64), 0.01, np.random.default_rng(0))
    torch.testing.assert_close(changed, changed.T, rtol=0, atol=0)
    assert float((changed - 1).std()) == pytest.approx(0.01, rel=0.02)
    assert (changed.diagonal() == 1).all()
    assert (perturbed(torch.ones(50, 50), 0.9, np.random.default_rng(0)) >= 0).all()


@pytest.mark.parametrize(
    "wrong",
    [{"org": 3}, {"axis": 7}, {"axis": "head"}, {"sizes": 5}, {"sizes": []}, {"sizes": [2]}, {"n_trials": 0}],
)
def test_wrong_arguments_are_named(noise, wrong):
    with pytest.raises(HeadtreeError, match=next(iter(wrong))):
        ht.tree_conditioning(**({"org": noise} | wrong))


def test_the_status_says_when_sampling_alone_may_move_a_tree():
    x = np.random.default_rng(3).standard_normal((30, 40, 41))
    org = ht.organize_array(x, ht.Questionnaire(samples=8, n_iter=1))
    assert any("sampling error of" in note and "may move the tree of axis0" in note for note in org.status.notes)
    exact = ht.organize_array(x[:, :9, :9], ht.Questionnaire(samples=None, n_iter=1))
    assert not any("sampling error" in note for note in exact.status.notes)
