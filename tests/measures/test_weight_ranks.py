import numpy as np
import pytest
import torch

from headtree.measures.heads.weight_ranks import eigenvalue_moments, ranks, weight_columns
from headtree.models.graph.head_weights import HeadWeights
from headtree.tensor.attention_tensor import HeadId


def random_weights(n_heads=3, width=10, features=4, layer=0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = [(n_heads, width, features)] * 3 + [(n_heads, features, width)]
    return HeadWeights("", layer, False, *(torch.randn(shape, generator=generator) for shape in shapes))


def test_moments_are_those_of_all_eigenvalues():
    weights = random_weights()
    mean, variance = eigenvalue_moments(weights.query, weights.key)
    for h, w in enumerate(weights.qk.double().numpy()):
        values = np.linalg.eigvals(w)
        assert float(mean[h]) == pytest.approx(values.mean().real, abs=1e-6)
        assert float(variance[h]) == pytest.approx((values**2).mean().real - values.mean().real ** 2, rel=1e-5)


def test_a_scaled_identity_has_a_mean_and_no_variance():
    eye = torch.eye(6)[None]
    mean, variance = eigenvalue_moments(3 * eye, eye)
    assert (float(mean[0]), float(variance[0])) == pytest.approx((3, 0))
    half = torch.diag(torch.tensor([1.0, 1, 1, -1, -1, -1]))[None]
    assert [float(x[0]) for x in eigenvalue_moments(half, eye)] == pytest.approx([0, 1])


def test_ranks_are_numpys():
    weights = random_weights()
    cut = weights.key.clone()
    cut[0, :, 2:] = 0  # head 0 has two features left
    cut[1] = 0
    rank, stable = ranks(weights.query, cut.mT)
    for h in (0, 2):
        w = (weights.query[h] @ cut[h].T).double().numpy()
        sigma = np.linalg.svd(w, compute_uv=False)
        assert float(stable[h]) == pytest.approx((sigma**2).sum() / sigma[0] ** 2, rel=1e-6)
    assert rank.tolist() == [2, 0, 4]
    assert stable[1].isnan()


def test_rounding_of_float32_is_no_rank():
    weights = random_weights(2, 64, 8)
    left = weights.query.double()
    left[:, :, 5:] = left[:, :, :3] + 1e-8 * left[:, :, 5:]
    assert ranks(left, weights.output.double())[0].tolist() == [5, 5]
    assert ranks(weights.query, weights.output)[0].tolist() == [8, 8]


def test_columns_find_their_heads_and_say_what_is_missing():
    weights = [random_weights(layer=0), random_weights(layer=1, seed=1)]
    heads = [HeadId(1, 2), HeadId(0, 0), HeadId(5, 0)]
    columns = weight_columns(heads, weights)
    expected = eigenvalue_moments(weights[1].query, weights[1].key)[0][2]
    assert columns["qk_eigenvalue_mean"].values[0] == pytest.approx(float(expected))
    assert np.isnan(columns["ov_rank"].values).tolist() == [False, False, True]
    cross = HeadWeights("", 0, True, *(getattr(weights[0], name) for name in ("query", "key", "value", "output")))
    assert np.isnan(weight_columns([HeadId(0, 0)], [cross])["qk_eigenvalue_mean"].values).all()
