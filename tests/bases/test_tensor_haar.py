import itertools

import numpy as np
import pytest
import pywt
import torch
from hypothesis import given
from hypothesis import strategies as st

import headtree as ht
from tests.golden import golden
from tests.strategies import partition_trees

tree_lists = st.lists(partition_trees(max_leaves=6), min_size=1, max_size=3)


def literal_coefficients(x, trees):
    for axis, tree in enumerate(trees, start=x.ndim - len(trees)):
        x = np.moveaxis(np.tensordot(x, ht.HaarBasis(tree).matrix(), axes=(axis, 0)), -1, axis)
    return x


def literal_order(basis):
    """All products by falling support, then by numbers in axis order."""
    everything = itertools.product(*(range(n) for n in basis.shape))

    def support(numbers):
        return int(np.prod([s[i] for s, i in zip(basis.supports, numbers, strict=True)]))

    return sorted(everything, key=lambda numbers: (-support(numbers), numbers)), support


@given(trees=tree_lists, seed=st.integers(0, 99))
def test_analyze_is_the_literal_product_and_synthesize_its_inverse(trees, seed):
    basis = ht.TensorHaarBasis(trees)
    x = np.random.default_rng(seed).standard_normal((2, *basis.shape))
    c = basis.analyze(x)
    np.testing.assert_allclose(c, literal_coefficients(x, trees), atol=1e-13)
    np.testing.assert_allclose(basis.synthesize(c), x, atol=1e-13)
    assert (c**2).sum() == pytest.approx((x**2).sum())


@given(trees=tree_lists, data=st.data())
def test_top_is_the_literal_order(trees, data):
    basis = ht.TensorHaarBasis(trees)
    m = data.draw(st.integers(1, len(basis)))
    order, support = literal_order(basis)
    top = basis.top(m)
    np.testing.assert_array_equal(top, order[:m])
    np.testing.assert_array_equal(basis.support(top), [support(numbers) for numbers in order[:m]])
    assert basis.threshold(m) == support(order[m - 1])


@given(trees=tree_lists, data=st.data())
def test_at_least_is_the_literal_order_cut_at_a_support(trees, data):
    basis = ht.TensorHaarBasis(trees)
    eps = data.draw(st.floats(-1, len(basis) + 1))
    order, support = literal_order(basis)
    expected = [numbers for numbers in order if support(numbers) >= eps]
    np.testing.assert_array_equal(basis.at_least(eps), np.reshape(expected, (-1, len(trees))))


@given(trees=tree_lists, seed=st.integers(0, 99))
def test_coefficients_are_entries_of_analyze(trees, seed):
    rng = np.random.default_rng(seed)
    basis = ht.TensorHaarBasis(trees)
    x = rng.standard_normal((2, *basis.shape))
    indices = np.column_stack([rng.integers(n, size=7) for n in basis.shape])
    expected = basis.analyze(x)[(slice(None), *indices.T)]
    np.testing.assert_allclose(basis.coefficients(x, indices), expected, atol=1e-13)
    names = [(b.level[i], b.node[i], b.index[i]) for b, i in zip(basis.axes, indices[0], strict=True)]
    np.testing.assert_allclose(basis.coefficient(x, *names), expected[:, 0], atol=1e-13)


def test_dyadic_coefficients_are_those_of_pywavelets():
    x = np.random.default_rng(0).standard_normal((16, 8))
    expected = np.concatenate(pywt.wavedec(x, "haar", axis=0), axis=0)
    expected = np.concatenate(pywt.wavedec(expected, "haar", axis=1), axis=1)
    basis = ht.TensorHaarBasis([ht.PartitionTree.halving(16), ht.PartitionTree.halving(8)])
    np.testing.assert_allclose(basis.analyze(x), expected, atol=1e-13)


@pytest.mark.parametrize("name", ["q3d_24x20x16_rand_s0", "q3d_24x20x16_signed_s3"])
def test_golden_top_and_coefficients(name):
    vectors = golden(name)
    trees = [ht.PartitionTree(vectors[f"it2_{axis}_tree_labels"]) for axis in ("row", "col", "head")]
    x = vectors["X"]  # the golden order of axes, in which its ties are broken
    bi, tri = ht.TensorHaarBasis(trees[:2]), ht.TensorHaarBasis(trees)
    top = bi.top(400)
    np.testing.assert_array_equal(top, vectors["canon_top400_idx"])
    np.testing.assert_array_equal(bi.support(top), vectors["canon_top400_supp"])
    heads = x.transpose(2, 0, 1)
    np.testing.assert_allclose(bi.coefficients(heads, top), vectors["canon_top400_coef"], atol=1e-12)
    assert bi.threshold(400) == vectors["canon_eps"]
    assert len(bi.at_least(bi.threshold(400))) == vectors["canon_n_geq"]
    top = tri.top(100)
    np.testing.assert_array_equal(top, vectors["canon_tri100_idx"])
    np.testing.assert_array_equal(tri.support(top), vectors["canon_tri100_supp"])
    np.testing.assert_allclose(tri.coefficients(x, top), vectors["canon_tri100_coef"], atol=1e-12)


@pytest.mark.parametrize("name", ["q2d_40x30_rand_s0_a0b1_it3"])
def test_golden_2d_energy_per_pair_of_nodes(name):
    """The reference's child order is that of a Python set: only the energy per pair of nodes is defined."""
    vectors = golden(name)
    rows = ht.HaarBasis(ht.PartitionTree(vectors["q2_row_tree3_labels"]))
    columns = ht.HaarBasis(ht.PartitionTree(vectors["q2_col_tree3_labels"]))
    np.testing.assert_array_equal(rows.node, vectors["q2_haar_row_node"])
    np.testing.assert_array_equal(columns.node, vectors["q2_haar_col_node"])
    c = ht.TensorHaarBasis([rows.tree, columns.tree]).analyze(vectors["F"])
    found, expected = (
        np.add.reduceat(np.add.reduceat(a**2, np.unique(rows.node, return_index=True)[1], axis=0),
                        np.unique(columns.node, return_index=True)[1], axis=1)
        for a in (c, vectors["q2_bihaar"])
    )  # fmt: skip
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_top_does_not_enumerate(monkeypatch):
    """Top 100 of 144 × 197 × 197 looks at a few thousand candidates, not at 5.6 million."""
    seen = []
    lexsort = np.lexsort
    monkeypatch.setattr(np, "lexsort", lambda keys: seen.append(len(keys[0])) or lexsort(keys))
    basis = ht.TensorHaarBasis([ht.PartitionTree.halving(n) for n in (144, 197, 197)])
    seen.clear()
    assert basis.top(100).shape == (100, 3)
    assert max(seen) < 1000


def test_tensors_stay_tensors():
    basis = ht.TensorHaarBasis([ht.PartitionTree.flat(3), ht.PartitionTree.halving(4)])
    x = torch.randn(5, 3, 4, dtype=torch.float32)
    assert basis.analyze(x).dtype == torch.float32
    assert basis.coefficients(x.half(), basis.top(3)).dtype == torch.float32
    assert isinstance(basis.coefficients(x.numpy(), basis.top(3)), np.ndarray)


def test_one_tree_will_do():
    tree = ht.PartitionTree.halving(4)
    assert ht.TensorHaarBasis(tree).shape == (4,)


def test_bad_input():
    basis = ht.TensorHaarBasis([ht.PartitionTree.flat(3), ht.PartitionTree.flat(4)])
    with pytest.raises(ValueError, match="at least one tree"):
        ht.TensorHaarBasis([])
    with pytest.raises(TypeError, match="must be a PartitionTree"):
        ht.TensorHaarBasis([3, 4])
    with pytest.raises(ValueError, match="at least 2 axes"):
        basis.analyze(np.zeros(4))
    with pytest.raises(ValueError, match="tree has 3 leaves, the axis 4 entries"):
        basis.analyze(np.zeros((4, 3)))
    with pytest.raises(ValueError, match="m must be at most the size of the basis, 12, got 13"):
        basis.top(13)
    with pytest.raises(ValueError, match="m must be at least 1"):
        basis.top(0)
    with pytest.raises(TypeError, match="m must be an integer"):
        basis.top(2.5)
    with pytest.raises(ValueError, match="eps must be a finite"):
        basis.at_least(float("nan"))
    with pytest.raises(ValueError, match=r"at least 0 and below the sizes of the axes, \(3, 4\), got \(3, 0\)"):
        basis.coefficients(np.zeros((3, 4)), [[3, 0]])
    with pytest.raises(ValueError, match=r"shape \(functions, 2\)"):
        basis.coefficients(np.zeros((3, 4)), [[1, 0, 0]])
    with pytest.raises(TypeError, match="must be integers"):
        basis.coefficients(np.zeros((3, 4)), [[0.5, 0]])
    with pytest.raises(ValueError, match="a \\(level, node, index\\) for each of the 2 axes"):
        basis.coefficient(np.zeros((3, 4)), (0, 0, 0))
