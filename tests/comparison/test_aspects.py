import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform

from headtree.comparison.aspects import compression_curve_of_heads, rank_curve, tree_curve
from headtree.similarity.head_similarity import affinity_of

MIDDLES = (np.arange(512) + 0.5) / 512


def maps(n, seed):
    """Heads as rows of unit norm, with distances √(1 - product)."""
    x = np.random.default_rng(seed).uniform(0.1, 1, size=(n, 7))
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def hellinger(x):
    d = np.sqrt(np.clip(1 - x @ x.T, 0, None))
    np.fill_diagonal(d, 0)
    return (d + d.T) / 2


@given(st.integers(2, 9), st.integers(0, 99))
@settings(max_examples=20, deadline=None)
def test_compression_is_the_error_of_the_means_of_folders(n, seed):
    x = maps(n, seed)
    d = hellinger(x)
    joins = linkage(squareform(1 - affinity_of(d)), "average")
    errors = []
    for m in range(1, n + 1):
        labels = fcluster(joins, m, "maxclust")
        means = np.stack([x[labels == label].mean(axis=0) for label in labels])
        errors.append(np.linalg.norm(x - means) / np.linalg.norm(x))
    expected = np.interp(MIDDLES, np.arange(1, n + 1) / n, errors)
    assert compression_curve_of_heads(d) == pytest.approx(expected, abs=1e-6)


@given(st.integers(1, 9), st.integers(0, 99))
@settings(max_examples=20, deadline=None)
def test_rank_is_the_error_of_the_best_approximation_and_below_compression(n, seed):
    x = maps(n, seed)
    values = np.linalg.svd(x, compute_uv=False)
    values = np.append(values, np.zeros(max(0, n - len(values))))
    errors = [np.sqrt((values[m:] ** 2).sum() / (values**2).sum()) for m in range(1, n + 1)]
    found = rank_curve(hellinger(x))
    assert found == pytest.approx(np.interp(MIDDLES, np.arange(1, n + 1) / n, errors), abs=1e-6)
    assert (found <= compression_curve_of_heads(hellinger(x)) + 1e-6).all()


def test_the_tree_curve_counts_heads_in_the_smallest_common_folder():
    x = np.repeat(np.eye(3), 2, axis=0) + 1e-3 * np.random.default_rng(0).uniform(size=(6, 3))
    d = hellinger(x / np.linalg.norm(x, axis=1, keepdims=True))
    found = tree_curve(d)
    assert found[0] == pytest.approx(2 / 6)  # three of the fifteen pairs
    assert np.mean(found < 0.5) == pytest.approx(3 / 15, abs=1 / 512)
    assert found[-1] == 1
    assert tree_curve(np.zeros((1, 1))).tolist() == [1.0] * 512
