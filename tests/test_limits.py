"""Numbers that decide at their very edge: each of these tests fails if one of them is changed a little."""

import numpy as np
import pytest
import torch

import headtree as ht
from headtree.geometry.affinity import distance_affinity
from headtree.geometry.diffusion import Spectrum
from headtree.geometry.grow_tree import join_clusters
from headtree.measures.heads.patterns import explained_away
from headtree.questionnaire import organize as organizing


def test_a_coefficient_at_the_threshold_is_noise():
    tree = ht.PartitionTree.halving(2)
    x = np.array([1.0, 3.0])  # coefficients 2√2 and -√2
    limit = float(np.abs(ht.HaarBasis(tree).analyze(x)[1]))
    np.testing.assert_allclose(ht.denoise(x, [tree], threshold=limit), [2, 2])
    np.testing.assert_allclose(ht.denoise(x, [tree], threshold=np.nextafter(limit, 0)), x)


def test_the_threshold_without_a_number_is_the_universal_one():
    """Median of the finest coefficients / 0.6745, the median of |z| for a standard normal z, times √(2 log n)."""
    tree = ht.PartitionTree.halving(4)
    for size, survives in ((1.001, True), (0.999, False)):
        finest = np.array([1.0, 1.0])
        limit = np.median(finest) / 0.6745 * np.sqrt(2 * np.log(4))
        x = ht.HaarBasis(tree).synthesize(np.array([8.0, limit * size, *finest]))
        coefficients = ht.HaarBasis(tree).analyze(ht.denoise(x, [tree]))
        assert (abs(coefficients[1]) > 1) == survives
        np.testing.assert_allclose(coefficients[2:], 0, atol=1e-12)


def test_affinities_are_dropped_relative_to_the_largest():
    """1e-8 of the largest is no affinity, a little more is one, whatever the unit."""
    for unit in (2.0**-664, 1.0, 2.0**664):
        affinity = np.eye(4) + np.kron(np.eye(2), np.ones((2, 2))) * 0.5
        for share, n_parts in ((0.99e-8, 2), (1e-8, 2), (1.01e-8, 1)):
            joined = affinity.copy()
            joined[1, 2] = joined[2, 1] = share * affinity.max()
            eigenvalues = ht.diffusion_map(joined * unit, 3).eigenvalues
            assert (eigenvalues == 1).sum() + (np.abs(1 - eigenvalues) < 1e-12).sum() > 0 or n_parts == 1
            assert (1 - eigenvalues[0] < 1e-12) == (n_parts == 2)


def test_eigenvalues_within_1e8th_of_each_other_tie():
    eigenvalues = torch.tensor([1, -1 + 0.99e-8, 1 - 1.01e-8], dtype=torch.float64)
    assert Spectrum(eigenvalues, torch.ones(3, 3)).same_magnitude(0) == slice(0, 2)


def test_an_eigenvalue_up_to_1e10th_is_a_rounding_error():
    """That of two points with affinity 1 - 2 e is about e."""
    for eigenvalue, n_found in ((0.99e-10, 0), (1.01e-10, 1)):
        affinity = np.where(np.eye(2), 1, 1 - 2 * eigenvalue)
        assert ht.diffusion_map(affinity).coordinates.shape == (2, n_found)


def test_a_zero_median_becomes_the_median_of_the_positive_distances():
    distances = torch.zeros(5, 5, dtype=torch.float64)
    distances[0, 1:] = distances[1:, 0] = torch.tensor([1.0, 2.0, 4.0, 8.0], dtype=torch.float64)
    affinity = distance_affinity(distances)
    assert float(affinity[0, 1]) == pytest.approx(np.exp(-1 / 3))  # median of 1 2 4 8, each twice, is 3


def test_a_zero_median_of_clusters_becomes_that_of_the_positive_ones():
    """Seven clusters in one spot, and two outside at distances 1 and 3 from all: the median 1 of the positive ones
    is the limit, so the nearer may join and the other may not."""
    n = 9
    distances = np.zeros((n, n))
    distances[7, :7] = distances[:7, 7] = 1
    distances[8, :8] = distances[:8, 8] = 3
    groups, trials = join_clusters(distances, 1.0)
    assert len(set(groups[:7])) < 7
    assert groups[8] not in groups[:8]
    assert (trials[:, 3] == 1).any()


def test_equal_trees_are_not_organized_again_unless_splits_are_drawn(monkeypatch):
    x = np.random.default_rng(0).standard_normal((2, 9))  # axis 0 has one tree only, so axis 1 always gets the same
    calls = []
    original = organizing.emd_matrix
    monkeypatch.setattr(organizing, "emd_matrix", lambda *a, **k: calls.append(a[1]) or original(*a, **k))
    ht.organize_array(x, ht.Questionnaire(tree="binary", n_iter=4, initial_axes=(0, 1)))
    assert calls.count(1) == 1
    calls.clear()
    org = ht.organize_array(x, ht.Questionnaire(tree="binary", balance=4, n_iter=4, initial_axes=(0, 1)))
    assert calls.count(1) == 4
    assert len({iteration.trees[1].labels.tobytes() for iteration in org.history}) > 1


@pytest.mark.parametrize(("share", "is_away"), [(1 - 2e-5, True), (1 - 0.5e-5, False), (1.0, False)])
def test_a_key_is_explained_away_below_one_nth(share, is_away):
    class Block:
        allowed = torch.ones(1, 2, 4, dtype=torch.bool)
        probs = torch.zeros(1, 2, 4)
        column_sums = torch.tensor([[share / 4, 1.0, 1.0, 1.0]], dtype=torch.float64)

    assert float(explained_away(Block())) == (0.25 if is_away else 0)
