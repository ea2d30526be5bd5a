"""What runs on a GPU where trees are grown, here on the CPU, against the compiled loops."""

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headtree.geometry import join_on_gpu, order_statistics
from headtree.geometry.grow_tree import _DIGITS, _PAIRS_FIRST, join_clusters
from headtree.geometry.kernels_cpu import mean_distances, rounded_distances
from tests.geometry.test_grow_tree import distances_of

kinds = st.sampled_from(["normal", "lattice", "copies", "clusters"])


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 40), kinds, st.sampled_from([0.5, 1, 3]))
def test_clusters_join_the_same_groups(seed, n, kind, constant):
    distances = distances_of(seed, n, kind)
    ours = join_on_gpu.groups_of_clusters(torch.from_numpy(distances.copy()), constant, _DIGITS, _PAIRS_FIRST)
    np.testing.assert_array_equal(ours, join_clusters(distances, constant)[0])


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(2, 30))
def test_distances_are_rounded_to_the_same_digits(seed, n):
    rng = np.random.default_rng(seed)
    distances = rng.random((n, n)) * 10.0 ** rng.integers(-13, 3, (n, n))
    ours = join_on_gpu.rounded_to_digits(torch.from_numpy(distances.copy()), _DIGITS)
    np.testing.assert_array_equal(ours.numpy(), rounded_distances(distances, _DIGITS)[0])


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(2, 30))
@example(0, 3)  # every leaf is a cluster, in another order
def test_mean_distances_of_clusters(seed, n):
    rng = np.random.default_rng(seed)
    points, labels = rng.standard_normal((n, 3)), np.unique(rng.integers(0, n, n), return_inverse=True)[1]
    ours = join_on_gpu.mean_cluster_distances(torch.from_numpy(points), labels).numpy()
    theirs = mean_distances(np.ascontiguousarray(points.T), labels)
    others = ~np.eye(len(theirs), dtype=bool)
    np.testing.assert_allclose(ours[others], theirs[others], atol=1e-12)


def test_pairs_that_are_copied_in_several_blocks(monkeypatch):
    monkeypatch.setattr(join_on_gpu, "_PAIRS_AT_A_TIME", 3)
    distances = distances_of(0, 40, "normal")
    ours = join_on_gpu.groups_of_clusters(torch.from_numpy(distances.copy()), 1.0, _DIGITS, _PAIRS_FIRST)
    np.testing.assert_array_equal(ours, join_clusters(distances, 1.0)[0])


@pytest.mark.parametrize("kind", ["random", "constant", "two values", "sorted"])
def test_order_statistics_from_a_sample(kind, monkeypatch):
    monkeypatch.setattr(order_statistics, "_SORTED_WHOLE", 1000)
    monkeypatch.setattr(order_statistics, "_SAMPLED", 100)
    x = np.random.default_rng(0).standard_normal(5000)
    x = {"random": x, "constant": 0 * x, "two values": (x > 1.3) * 1.0, "sorted": np.sort(x)}[kind]
    x[7] = np.inf
    ranks = [0, 3, 2499, 2500, 4400, 4999]
    assert order_statistics.order_statistics(torch.from_numpy(x), ranks) == np.sort(x)[ranks].tolist()
