import dataclasses

import numpy as np
import pytest
import torch

import headtree as ht
from headtree.questionnaire.organization import PerAxis
from tests.golden import golden
from tests.measures.examples import noise


@pytest.fixture(scope="module")
def example():
    att = noise(0, (5, 9, 8))
    return att, ht.organize(att)


def with_trees(org, trees):
    """The organization with other trees."""
    return dataclasses.replace(org, trees=PerAxis(("head", "query", "key"), trees))


@pytest.mark.parametrize("name", ["q3d_24x20x16_rand_s0", "q3d_24x20x16_signed_s3"])
def test_golden_entropies(name):
    vectors = golden(name)
    att = ht.AttentionTensor.from_array(vectors["X"].transpose(2, 0, 1))
    trees = [ht.PartitionTree(vectors[f"it2_{axis}_tree_labels"]) for axis in ("head", "row", "col")]
    org = with_trees(ht.organize(att, ht.Questionnaire(n_iter=1)), trees)
    np.testing.assert_allclose(ht.head_entropy(att, org), vectors["canon_entropy400"], rtol=1e-12)
    keep = ht.head_entropy(att, org, ties="keep")
    np.testing.assert_allclose(keep, vectors["canon_entropy_geq"], rtol=1e-12)
    assert (keep.n_functions, keep.eps) == (vectors["canon_n_geq"], vectors["canon_eps"])
    np.testing.assert_allclose(ht.head_entropy(att, org, top=24 * 20), vectors["canon_entropy_all"], rtol=1e-12)
    # the golden top 100 breaks ties by query, key, head: what all agree on is the tie-free sum
    x, basis = vectors["X"], ht.TensorHaarBasis([trees[1], trees[2], trees[0]])
    expected = np.abs(basis.coefficients(x, basis.at_least(basis.threshold(100)))).sum()
    assert float(ht.network_entropy(att, org, ties="keep")) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("p", [0.5, 1, 2, 3.5])
def test_entropies_are_the_literal_sums(example, p):
    att, org = example
    q, k = (ht.HaarBasis(org.trees[i]) for i in (1, 2))
    supports = np.outer(q.support, k.support).ravel()
    first = np.argsort(-supports, kind="stable")[:20]
    for head, found in enumerate(ht.head_entropy(att, org, top=20, p=p).raw):
        c = (q.matrix().T @ att.values[head] @ k.matrix()).ravel()[first]
        assert found == pytest.approx(sum(abs(b) ** p for b in c) ** (1 / p))
    tri = ht.TensorHaarBasis(tuple(org.trees))
    c = tri.coefficients(att.values, tri.top(30))
    assert float(ht.network_entropy(att, org, top=30, p=p)) == pytest.approx((np.abs(c) ** p).sum() ** (1 / p))


def test_relative_entropies_do_not_change_with_scale(example):
    att, org = example
    scaled = ht.AttentionTensor.from_array(1e6 * att.values)
    for measure in (ht.head_entropy, ht.network_entropy):
        a, b = measure(att, org), measure(scaled, org)
        np.testing.assert_allclose(b.raw, 1e6 * a.raw)
        np.testing.assert_allclose(b.relative, a.relative)
    np.testing.assert_allclose(ht.head_entropy(att, org).norm, np.linalg.norm(att.values, axis=(1, 2)))


def test_all_functions_with_p_2_hold_the_norm(example):
    att, org = example
    np.testing.assert_allclose(ht.head_entropy(att, org, top=72, p=2).relative, 1)
    assert float(ht.network_entropy(att, org, top=360, p=2).relative) == pytest.approx(1)


def test_top_beyond_the_basis_is_the_whole_basis(example):
    att, org = example
    assert ht.head_entropy(att, org, top=400).n_functions == 72
    np.testing.assert_array_equal(ht.head_entropy(att, org, top=400), ht.head_entropy(att, org, top=72))


def test_zero_and_constant_tensors():
    att = ht.AttentionTensor.from_array(np.zeros((3, 4, 5)))
    with pytest.warns(ht.HeadtreeWarning):
        org = ht.organize(att)
    np.testing.assert_array_equal(ht.head_entropy(att, org).relative, 0)
    constant = ht.AttentionTensor.from_array(np.full((3, 4, 5), 2.0))
    np.testing.assert_allclose(ht.head_entropy(constant, org), 2 * np.sqrt(20))


def test_large_values_do_not_overflow(example):
    att, org = example
    huge = ht.AttentionTensor.from_array(att.values * 1e200)
    assert np.isfinite(ht.head_entropy(huge, org, p=2).raw).all()


def test_missing_entries_are_filled_and_counted(example):
    att, org = example
    mask = np.triu(np.ones((9, 8), dtype=bool), 1)
    values = np.where(mask, np.nan, att.values)
    probs = ht.AttentionTensor.from_array(values, kind="probs", mask=mask)
    found = ht.head_entropy(probs, org)
    assert found.n_filled == 5 * mask.sum()
    expected = ht.head_entropy(ht.AttentionTensor.from_array(np.where(mask, 0, att.values)), org)
    np.testing.assert_allclose(found, expected)


def test_float32_tensors(example):
    att, org = example
    single = ht.AttentionTensor.from_array(torch.from_numpy(att.values).float())
    np.testing.assert_allclose(ht.head_entropy(single, org), ht.head_entropy(att, org), rtol=1e-5)


def test_bad_input(example):
    att, org = example
    with pytest.raises(TypeError, match="att must be an AttentionTensor"):
        ht.head_entropy(att.values, org)
    with pytest.raises(TypeError, match="org must be an Organization"):
        ht.network_entropy(att, org.trees)
    with pytest.raises(ValueError, match="org must be the organization of att"):
        ht.head_entropy(noise(0, (5, 8, 9)), org)
    with pytest.raises(ValueError, match="p must be greater than 0, got 0"):
        ht.head_entropy(att, org, p=0)
    with pytest.raises(ValueError, match="p must be greater than 0, got -1"):
        ht.network_entropy(att, org, p=-1)
    with pytest.raises(ValueError, match="top must be at least 1"):
        ht.head_entropy(att, org, top=0)
    with pytest.raises(ValueError, match="ties must be one of"):
        ht.head_entropy(att, org, ties="all")
    with pytest.raises(ValueError, match="must be finite"):
        ht.head_entropy(ht.AttentionTensor.from_array(np.where(att.values > 2, np.nan, att.values)), org)
