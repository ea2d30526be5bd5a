import numpy as np
import pytest
import pywt
import torch
from hypothesis import given
from hypothesis import strategies as st

import headtree as ht
from tests.measures.examples import blocks
from tests.strategies import partition_trees


@given(rows=partition_trees(max_leaves=6), columns=partition_trees(max_leaves=6), data=st.data())
def test_curves_are_the_errors_of_compress(rows, columns, data):
    x = np.random.default_rng(0).standard_normal((rows.n_leaves, columns.n_leaves))
    n = data.draw(st.integers(1, x.size))
    curve = ht.compression_curve(x, [rows, columns], counts=[n])
    for keep in ("largest", "coarsest"):
        rest = x - ht.compress(x, [rows, columns], n, keep)
        assert getattr(curve, keep)[0] == pytest.approx(np.linalg.norm(rest) / np.linalg.norm(x), abs=1e-13)


@pytest.mark.parametrize("size", [1e-3, 1e-10, 1e-100])
def test_small_errors_keep_their_digits(size):
    trees = [ht.PartitionTree.halving(8), ht.PartitionTree.halving(4)]
    coefficients = np.zeros((8, 4))
    coefficients[0, 0], coefficients[1, 1] = 1, size
    found = ht.compression_curve(ht.TensorHaarBasis(trees).synthesize(coefficients), trees, counts=[1, 31, 32])
    rounding = 1e-15
    np.testing.assert_allclose(found.largest, [size, 0, 0], rtol=1e-4, atol=rounding)
    np.testing.assert_allclose(found.coarsest, [size, 0, 0], rtol=1e-4, atol=rounding)
    assert found.largest[-1] == found.coarsest[-1] == 0


def test_counts_for_energy_are_literal():
    x = np.random.default_rng(0).standard_normal((7, 8))
    trees = [ht.PartitionTree.halving(7), ht.PartitionTree.halving(8)]
    curve = ht.compression_curve(x, trees)
    energy = np.sort(ht.TensorHaarBasis(trees).analyze(x).ravel() ** 2)[::-1]
    for share, found in ((0.9, curve.n_for_90), (0.99, curve.n_for_99)):
        assert energy[:found].sum() >= share * energy.sum() > energy[: found - 1].sum()
    assert (np.diff(curve.largest) <= 1e-12).all()
    assert (curve.largest <= curve.coarsest + 1e-12).all()
    np.testing.assert_array_equal(curve.counts, np.unique(np.geomspace(1, 56, 64).round()))


def test_ties_go_to_the_first_in_index_order():
    x = np.tile([1.0, -1.0], 256)
    kept = ht.compress(x, [ht.PartitionTree.halving(512)], 5)
    np.testing.assert_allclose(kept, np.where(np.arange(512) < 10, x, 0), atol=1e-12)


def test_coarsest_keeps_the_top():
    x = np.random.default_rng(0).standard_normal((6, 5))
    basis = ht.TensorHaarBasis([ht.PartitionTree.halving(6), ht.PartitionTree.flat(5)])
    c = basis.analyze(ht.compress(x, basis.trees, 7, "coarsest"))
    kept = {tuple(i) for i in basis.top(7)}
    for i in np.ndindex(6, 5):
        assert (abs(c[i]) > 1e-12) == (i in kept)


def test_zero_needs_no_coefficients():
    curve = ht.compression_curve(np.zeros((3, 4)), [ht.PartitionTree.flat(3), ht.PartitionTree.flat(4)])
    assert (curve.n_for_90, curve.n_for_99) == (0, 0)
    np.testing.assert_array_equal(curve.largest, 0)
    zeros = ht.AttentionTensor.from_array(np.zeros((3, 4, 5)))
    with pytest.warns(ht.HeadtreeWarning):
        org = ht.organize(zeros)
    assert ht.sparsity(zeros, org).gain == 1
    drawn = np.random.default_rng(0).standard_normal(zeros.shape)
    assert ht.denoising_errors(zeros, org, noise=0.5)["noisy"] == pytest.approx(0.5 * np.linalg.norm(drawn))


@pytest.mark.parametrize("mode", ["hard", "soft"])
def test_denoise_thresholds_as_pywavelets_does(mode):
    x = np.random.default_rng(0).standard_normal((8, 16))
    basis = ht.TensorHaarBasis([ht.PartitionTree.halving(8), ht.PartitionTree.halving(16)])
    c = basis.analyze(x)
    expected = pywt.threshold(c, 0.8, mode)
    expected[0, 0] = c[0, 0]
    np.testing.assert_allclose(basis.analyze(ht.denoise(x, basis.trees, 0.8, mode)), expected, atol=1e-13)


def test_universal_threshold_removes_noise():
    x = np.random.default_rng(0).standard_normal((64, 64))
    tree = ht.PartitionTree.halving(64)
    cleaned = ht.denoise(x, [tree, tree])
    assert cleaned.mean() == pytest.approx(x.mean())
    assert cleaned.std() < 0.1 * x.std()


def test_kind_is_kept():
    x, tree = torch.randn(4, 4, dtype=torch.float32), ht.PartitionTree.halving(4)
    for result in (ht.denoise(x, [tree, tree], mode="soft"), ht.compress(x, [tree, tree], 3)):
        assert isinstance(result, torch.Tensor)
        assert result.dtype == torch.float32
    assert isinstance(ht.denoise(x.numpy(), [tree, tree]), np.ndarray)


@pytest.fixture(scope="module")
def organized_blocks():
    att = blocks()
    return att, ht.organize(att)


def test_the_organized_order_needs_fewer_coefficients(organized_blocks):
    """The paper's claim, on a tensor that has an order to find."""
    found = ht.sparsity(*organized_blocks)
    assert list(found.by_order) == ["organized", "given", "random", "shuffled"]
    table = found.to_dict()
    assert found.gain == table["n_for_99"][1] / table["n_for_99"][0] > 3
    again = ht.sparsity(*organized_blocks, rng=0).by_order["random"]
    np.testing.assert_array_equal(found.by_order["random"].largest, again.largest)
    assert table["n_for_99"][0] < min(table["n_for_99"][1:]) / 3
    assert table["n_for_90"][0] < min(table["n_for_90"][1:]) / 3
    organized, given_order = found.by_order["organized"], found.by_order["given"]
    assert (organized.largest <= given_order.largest + 1e-9).all()


def test_denoising_is_best_in_the_organized_order(organized_blocks):
    errors = ht.denoising_errors(*organized_blocks, noise=0.5)
    values = np.asarray(organized_blocks[0].values)
    assert errors["noisy"] == pytest.approx(0.5 * values.size**0.5 / np.linalg.norm(values), rel=0.1)
    noisy = values + 0.5 * np.random.default_rng(0).standard_normal(values.shape)
    rest = ht.denoise(noisy, organized_blocks[1].trees) - values
    assert errors["organized"] == pytest.approx(np.linalg.norm(rest) / np.linalg.norm(values), rel=1e-5)
    assert errors["organized"] < 0.6 * errors["noisy"]
    assert errors["organized"] < min(errors[name] for name in ("given", "random", "shuffled"))


def test_bad_input():
    tree = ht.PartitionTree.flat(4)
    x = np.zeros((4, 4))
    with pytest.raises(ValueError, match="one axis per tree, 2"):
        ht.compression_curve(np.zeros((2, 4, 4)), [tree, tree])
    with pytest.raises(ValueError, match="n must be at most the number of coefficients, 16, got 17"):
        ht.compress(x, [tree, tree], 17)
    with pytest.raises(ValueError, match="keep must be one of"):
        ht.compress(x, [tree, tree], 3, "smallest")
    with pytest.raises(ValueError, match="mode must be one of"):
        ht.denoise(x, [tree, tree], 1.0, "firm")
    with pytest.raises(ValueError, match="threshold must be greater than 0"):
        ht.denoise(x, [tree, tree], -1.0)
    with pytest.raises(ValueError, match="counts must be integers between 1"):
        ht.compression_curve(x, [tree, tree], counts=[0, 3])
