import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import headtree as ht
from headtree.bases.paraproduct import Scales, _Nonlinearity, _summed, decomposed
from headtree.bases.pyramid import Ladder
from tests.golden import golden
from tests.strategies import partition_trees

IDENTITY = (lambda u: u, np.ones_like, np.zeros_like)
EXP = (np.exp, np.exp, np.exp)


def softmax(u):
    e = np.exp(u - u.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def average(f, row_labels, column_labels):
    """P^j P'^j' f: every entry becomes the mean over its product of folders."""
    result = np.empty_like(f)
    for r in range(f.shape[0]):
        for c in range(f.shape[1]):
            result[r, c] = f[np.ix_(row_labels == row_labels[r], column_labels == column_labels[c])].mean()
    return result


def literal_terms(f, rows, columns, a, da, d2a):
    """Section 8 of ALGORITHMS in plain loops: first, second and boundary."""
    p = [[average(f, r, c) for c in columns.labels] for r in rows.labels]
    first, second = np.zeros_like(f), np.zeros_like(f)
    for j in range(rows.n_levels - 1):
        for k in range(columns.n_levels - 1):
            u = p[j][k]
            first += da(u) * (p[j + 1][k + 1] - p[j + 1][k] - p[j][k + 1] + u)
            second += d2a(u) * (p[j + 1][k] - u) * (p[j][k + 1] - u)
    return first, second, a(p[-1][0]) + a(p[0][-1]) - a(p[0][0])


@given(rows=partition_trees(max_leaves=7), columns=partition_trees(max_leaves=7), seed=st.integers(0, 99))
def test_residual_of_the_identity_is_rounding_error(rows, columns, seed):
    f = np.random.default_rng(seed).standard_normal((2, rows.n_leaves, columns.n_leaves))
    p = ht.paraproduct(f, rows, columns, IDENTITY)
    np.testing.assert_allclose(p.residual, 0, atol=1e-14)
    np.testing.assert_array_equal(p.value, f)


@pytest.mark.parametrize("n", [64, 197])
def test_residual_of_the_identity_on_large_trees(n):
    f = np.random.default_rng(n).standard_normal((n, n))
    tree = ht.flexible_tree(np.exp(-np.abs(np.subtract.outer(np.arange(n), np.arange(n))) / 9))
    for t in (tree, ht.PartitionTree.halving(n)):
        assert np.abs(ht.paraproduct(f, t, t, IDENTITY).residual).max() < 2e-14


@given(rows=partition_trees(max_leaves=6), columns=partition_trees(max_leaves=6), seed=st.integers(0, 99))
def test_terms_are_the_literal_sums(rows, columns, seed):
    f = np.random.default_rng(seed).standard_normal((rows.n_leaves, columns.n_leaves))
    shifted = f - np.log(np.exp(f).sum(axis=1, keepdims=True))
    one = np.ones_like
    for fn, g, a in (
        ("exp", f, EXP),
        (EXP, f, EXP),
        ("softmax", shifted, EXP),
        ("eq18", f, (np.exp, one, one)),
        ((softmax, np.sin, np.cos), f, (softmax, np.sin, np.cos)),
    ):
        p = decomposed(f, rows, columns, fn)
        for found, expected in zip(
            (p.first, p.second, p.boundary), literal_terms(g, rows, columns, *a), strict=True
        ):
            np.testing.assert_allclose(found, expected, atol=1e-12)
        np.testing.assert_allclose(p.approximation + p.residual, p.value, atol=1e-12)
        np.testing.assert_allclose(p.value, a[0](g), atol=1e-14)


@given(rows=partition_trees(max_leaves=6), columns=partition_trees(max_leaves=6), seed=st.integers(0, 99))
def test_equivariance_under_relabelling(rows, columns, seed):
    rng = np.random.default_rng(seed)
    f = rng.standard_normal((rows.n_leaves, columns.n_leaves))
    r, c = rng.permutation(rows.n_leaves), rng.permutation(columns.n_leaves)
    p = decomposed(f, rows, columns, "softmax")
    q = decomposed(f[np.ix_(r, c)], rows.take(r), columns.take(c), "softmax")
    for name in ("value", "first", "second", "boundary", "residual"):
        np.testing.assert_allclose(getattr(q, name), getattr(p, name)[np.ix_(r, c)], atol=1e-12)


def test_folders_and_full_matrices_agree_when_the_derivatives_differ():
    f = torch.randn(2, 9, 8, dtype=torch.float64)
    rows, columns = (Ladder(ht.PartitionTree.halving(n), f.device, f.dtype) for n in (9, 8))
    every = Scales(frozenset(range(4)), frozenset(range(3)))
    a, b = (
        _summed(f, rows, columns, _Nonlinearity(torch.exp, torch.sin, torch.cos, is_pointwise), every)
        for is_pointwise in (True, False)
    )
    torch.testing.assert_close(a.first, b.first)
    torch.testing.assert_close(a.second, b.second)


def test_levels_that_repeat_add_nothing():
    f = np.random.default_rng(0).standard_normal((5, 6))
    rows, columns = ht.PartitionTree.halving(5), ht.PartitionTree.flat(6)
    repeated = ht.PartitionTree(np.repeat(rows.labels, 2, axis=0))
    p, q = (decomposed(f, tree, columns, "exp") for tree in (rows, repeated))
    np.testing.assert_allclose(p.first, q.first, atol=1e-14)
    np.testing.assert_allclose(p.second, q.second, atol=1e-14)


def test_scales_add_up_to_the_whole():
    f = np.random.default_rng(0).standard_normal((2, 9, 8))
    rows, columns = ht.PartitionTree.halving(9), ht.PartitionTree.halving(8)
    for fn in ("softmax", EXP):
        p = decomposed(f, rows, columns, fn)
        assert p.n_scales == (4, 3)
        pairs = [p.scales(j, k) for j in range(4) for k in range(3)]
        np.testing.assert_allclose(sum(pair.first for pair in pairs), p.first, atol=1e-13)
        np.testing.assert_allclose(sum(pair.second for pair in pairs), p.second, atol=1e-13)
        np.testing.assert_allclose(p.scales(range(4), range(3)).first, p.first, atol=1e-13)


def test_batches_are_matrices_one_by_one():
    f = np.random.default_rng(0).standard_normal((2, 3, 6, 5))
    trees = ht.PartitionTree.halving(6), ht.PartitionTree.halving(5)
    p = decomposed(f, *trees, "softmax")
    for i, j in np.ndindex(2, 3):
        one = decomposed(f[i, j], *trees, "softmax")
        np.testing.assert_allclose(p.first[i, j], one.first, atol=1e-14)
        assert p.relative_error[i, j] == pytest.approx(float(one.relative_error))
    assert p.shares["first"].shape == (2, 3)


def test_many_matrices_are_taken_some_at_a_time(monkeypatch):
    f = np.random.default_rng(0).standard_normal((7, 6, 5))
    trees = ht.PartitionTree.halving(6), ht.PartitionTree.halving(5)
    whole = decomposed(f, *trees, "exp")
    monkeypatch.setattr("headtree.bases.paraproduct._ENTRIES_AT_A_TIME", 150)
    parts = decomposed(f, *trees, "exp")
    np.testing.assert_array_equal(parts.first, whole.first)
    np.testing.assert_array_equal(parts.second, whole.second)


def test_dtype_and_kind_are_kept():
    f = torch.randn(4, 4, dtype=torch.float32)
    tree = ht.PartitionTree.halving(4)
    kinds = []

    def seen(u):
        kinds.append(type(u))
        return torch.exp(u)

    p = decomposed(f, tree, tree, (seen, torch.exp, torch.exp))
    assert p.first.dtype == torch.float32
    assert set(kinds) == {torch.Tensor}
    assert decomposed(f.half(), tree, tree, "exp").residual.dtype == torch.float32
    assert decomposed(f.numpy(), tree, tree, "exp").residual.dtype == np.float32
    assert decomposed(f.double().numpy().tolist(), tree, tree, EXP).residual.dtype == np.float64


# -- golden ------------------------------------------------------------------------------------------------


def derivative_pairs():
    def ds(u):
        s = softmax(u)
        return s * (1 - s)

    def d2s(u):
        s = softmax(u)
        return s * (1 - s) * (1 - 2 * s)

    return {
        "identity": IDENTITY,
        "square": (np.square, lambda u: 2 * u, lambda u: np.full_like(u, 2)),
        "exp": "exp",
        "softmaxdiag": (softmax, ds, d2s),
    }


@pytest.mark.parametrize("name", derivative_pairs())
def test_golden_equation_12(name):
    vectors, tree = golden("para_64x64_logits_s7"), ht.PartitionTree.halving(64)
    p = decomposed(vectors["f"], tree, tree, derivative_pairs()[name])
    for term in ("first", "second"):
        expected = vectors[f"eq12_{name}_{term}"]
        np.testing.assert_allclose(
            getattr(p, term), expected, rtol=1e-12, atol=1e-12 * np.abs(expected).max(initial=1)
        )
    np.testing.assert_allclose(p.boundary, vectors[f"boundary_{name}"], rtol=1e-12, atol=1e-13)
    tolerance = {"rel": 1e-9, "abs": 1e-14}
    assert np.abs(p.residual).max() == pytest.approx(float(vectors[f"resid_full_{name}_maxabs"]), **tolerance)
    without = float(np.abs(p.residual + p.boundary).max())
    assert without == pytest.approx(float(vectors[f"resid_eq12_{name}_maxabs"]), rel=1e-9)


@pytest.mark.parametrize(
    ("name", "scales"), [("exp", range(6)), ("exp_3to5", range(3, 6)), ("exp_4to4", 4), ("exp_4and5", (4, 5))]
)
def test_golden_scales(name, scales):
    vectors, tree = golden("para_64x64_logits_s7"), ht.PartitionTree.halving(64)
    terms = decomposed(vectors["f"], tree, tree, "exp").scales(scales, scales)
    np.testing.assert_allclose(terms.first, vectors[f"eq12_{name}_first"], atol=1e-11)
    np.testing.assert_allclose(terms.second, vectors[f"eq12_{name}_second"], atol=1e-11)


def test_golden_equation_18_and_softmax():
    vectors, tree = golden("para_64x64_logits_s7"), ht.PartitionTree.halving(64)
    p = decomposed(vectors["f"], tree, tree, "eq18")
    np.testing.assert_allclose(p.first, vectors["eq18_first"], atol=1e-12)
    np.testing.assert_allclose(p.second, vectors["eq18_second"], atol=1e-12)
    np.testing.assert_allclose(
        decomposed(vectors["f"], tree, tree, "softmax").value, vectors["softmax_f"], atol=1e-14
    )


# -- limits and bad input ------------------------------------------------------------------------------------


def test_softmax_is_exact_where_exp_overflows():
    f = np.random.default_rng(0).standard_normal((8, 8)) + 5000
    tree = ht.PartitionTree.halving(8)
    p = decomposed(f, tree, tree, "softmax")
    np.testing.assert_allclose(p.value, softmax(f), rtol=1e-11)
    np.testing.assert_allclose(p.value.sum(axis=1), 1)
    with pytest.raises(ValueError, match=r"at most 709\.8 for exp in torch\.float64.*use fn='softmax'"):
        ht.paraproduct(f, tree, tree, "exp")
    with pytest.raises(ValueError, match=r"at most 88\.72 for exp in torch\.float32"):
        ht.paraproduct(np.full((8, 8), 90, np.float32), tree, tree, "exp")


@pytest.mark.parametrize(("dtype", "offset"), [(np.float32, 1e4), (np.float32, -1e6), (np.float64, 1e15)])
def test_softmax_keeps_its_digits_beside_a_large_offset(dtype, offset):
    f = (offset + np.random.default_rng(0).standard_normal((8, 16))).astype(dtype)
    p = decomposed(f, ht.PartitionTree.halving(8), ht.PartitionTree.halving(16), "softmax")
    expected = softmax(f.astype(np.float64) - offset)
    np.testing.assert_allclose(
        p.value, expected, rtol=16 * np.finfo(dtype).eps
    )  # a few roundings of f less its row


def test_shares_are_in_range_where_norms_are_not():
    tree = ht.PartitionTree.halving(16)
    p = ht.paraproduct(np.full((16, 16), 709.0), tree, tree)  # exp is 8e307, its norm 1e309
    assert float(p.shares["boundary"]) == pytest.approx(1)
    assert float(p.relative_error) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("fn", ["exp", "softmax"])
def test_constant_matrices_are_all_boundary(fn):
    tree = ht.PartitionTree.halving(5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        p = ht.paraproduct(np.full((5, 5), 2.0), tree, tree, fn)
    np.testing.assert_allclose(p.boundary, p.value)
    for name in ("first", "second", "residual"):
        np.testing.assert_allclose(getattr(p, name), 0, atol=1e-15)


def test_zero_over_zero_is_no_error():
    tree = ht.PartitionTree.flat(3)
    assert float(ht.paraproduct(np.zeros((3, 3)), tree, tree, IDENTITY).relative_error) == 0


def test_a_single_row_or_column():
    one, tree = ht.PartitionTree.flat(1), ht.PartitionTree.halving(4)
    f = np.random.default_rng(0).standard_normal((1, 4))
    for p in (decomposed(f, one, tree, "exp"), decomposed(f.T, tree, one, EXP)):
        np.testing.assert_allclose(p.boundary, p.value)
        np.testing.assert_allclose(p.first, 0)


@pytest.mark.parametrize(("deviation", "warns"), [(0.1, False), (4, True)])
def test_a_large_residual_is_worth_a_warning(deviation, warns):
    f = deviation * np.random.default_rng(0).standard_normal((2, 16, 16))
    tree = ht.PartitionTree.halving(16)
    if warns:
        with pytest.warns(ht.HeadtreeWarning, match="residual of 2 of 2 matrices exceeds 25%"):
            p = ht.paraproduct(f, tree, tree, "softmax")
        assert (p.relative_error > 0.25).all()
    else:
        assert (ht.paraproduct(f, tree, tree, "softmax").relative_error < 0.25).all()


def test_bad_input():
    tree = ht.PartitionTree.flat(4)
    f = np.zeros((4, 4))
    with pytest.raises(ValueError, match="tree has 4 leaves, the axis 5 entries"):
        ht.paraproduct(np.zeros((4, 5)), tree, tree)
    with pytest.raises(TypeError, match="col_tree must be a PartitionTree"):
        ht.paraproduct(f, tree, None)
    with pytest.raises(ValueError, match="at least two axes"):
        ht.paraproduct(np.zeros(4), tree, tree)
    with pytest.raises(ValueError, match="f must be finite"):
        ht.paraproduct(np.full((4, 4), np.inf), tree, tree)
    with pytest.raises(ValueError, match="masked array"):
        ht.paraproduct(np.ma.masked_equal(f, 0), tree, tree)
    with pytest.raises(ValueError, match="fn must be one of"):
        ht.paraproduct(f, tree, tree, "relu")
    with pytest.raises(TypeError, match="three callables"):
        ht.paraproduct(f, tree, tree, (np.exp, np.exp))
    with pytest.raises(ValueError, match="must return an array of the shape"):
        ht.paraproduct(f, tree, tree, (np.exp, np.sum, np.exp))
    with np.errstate(divide="ignore"), pytest.raises(ValueError, match="finite on f and its averages"):
        ht.paraproduct(f, tree, tree, (np.log, np.exp, np.exp))
    with pytest.raises(ValueError, match="rows must be scales between 0 and 0"):
        ht.paraproduct(f, tree, tree).scales(1, 0)
    for scales in (0.5, [0.7], None, "0"):
        with pytest.raises(TypeError, match="columns must be a scale or several scales, which are integers, got"):
            ht.paraproduct(f, tree, tree).scales(0, scales)


def test_functions_need_not_be_hashable():
    class Exp:
        __hash__ = None

        def __call__(self, u):
            return np.exp(u)

    f, tree = np.random.default_rng(0).standard_normal((4, 4)), ht.PartitionTree.halving(4)
    np.testing.assert_allclose(
        decomposed(f, tree, tree, (Exp(),) * 3).first, decomposed(f, tree, tree, "exp").first, atol=1e-12
    )
