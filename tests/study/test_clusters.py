import numpy as np
import pytest
from sklearn.metrics import silhouette_score

from headtree.study.claims.clusters import clustering, mean_silhouette


def test_silhouettes_are_those_of_scikit_learn():
    rng = np.random.default_rng(0)
    points = rng.standard_normal((30, 2))
    distances = np.linalg.norm(points[:, None] - points, axis=-1)
    labels = rng.integers(0, 4, 30)
    expected = silhouette_score(distances, labels, metric="precomputed")
    assert mean_silhouette(distances, labels) == pytest.approx(expected)


def test_a_point_that_is_alone_has_none():
    distances = np.array([[0, 1, 4.0], [1, 0, 4], [4, 4, 0]])
    assert mean_silhouette(distances, np.array([0, 0, 7])) == pytest.approx(0.75 * 2 / 3)


def distances_of(points):
    return np.linalg.norm(points[:, None] - points, axis=-1)


@pytest.mark.parametrize("seed", range(5))
def test_planted_clusters_are_found_and_a_cloud_has_none(seed):
    rng = np.random.default_rng(seed)
    cloud = rng.standard_normal((60, 3))
    clusters = 0.15 * cloud + rng.standard_normal((4, 3))[np.arange(60) % 4]
    assert clustering(distances_of(clusters)).excess > 2
    assert abs(clustering(distances_of(cloud)).excess) < 2.5


def test_noise_in_many_dimensions_has_no_clusters():
    """Plain L1 distances between slices of noise, which are not Euclidean, over ten draws."""
    found = []
    for seed in range(10):
        x = np.random.default_rng(seed).standard_normal((20, 500))
        found.append(clustering(np.abs(x[:, None] - x).sum(axis=-1)).excess)
    assert abs(np.mean(found)) < 1
    assert max(found) < 3


def test_outliers_are_no_clusters():
    points = np.random.default_rng(0).standard_normal((60, 3))
    points[:2] += 9
    assert clustering(distances_of(points)).excess < 2.5


def test_too_few_points_say_nothing():
    assert np.isnan(clustering(np.zeros((4, 4))).silhouette)
    assert np.isnan(clustering(np.zeros((9, 9))).excess)
