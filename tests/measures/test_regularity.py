import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headtree as ht
from headtree.bases.paraproduct import decomposed
from tests.bases.test_paraproduct import average
from tests.measures.examples import blocks
from tests.strategies import partition_trees


def dyadic_field(alpha, seed, n=128):
    """The random field of ALGORITHMS section 8: ±1-valued Haar functions, coefficients that decay."""
    rng = np.random.default_rng(seed)
    functions = [(0, np.ones((1, n)))]
    for j in range(int(np.log2(n))):
        k, i = np.divmod(np.arange(n), n >> j)
        sign = np.where(i < n >> (j + 1), 1.0, -1.0)
        functions.append((j, sign * (k == np.arange(1 << j)[:, None])))
    f = np.zeros((n, n))
    for j, h in functions:
        for k, g in functions:
            f += 2 ** (-alpha * (j + k)) * h.T @ rng.uniform(-1, 1, (len(h), len(g))) @ g
    return 0.15 * f


@pytest.mark.parametrize("alpha", [0.25, 0.4, 0.5])
def test_the_theorem(alpha):
    """The residual is about twice as regular as f; eq. (12) needs its boundary terms to be near A(f)."""
    tree = ht.PartitionTree.halving(128)
    f = np.stack([dyadic_field(alpha, seed) for seed in range(6)])
    p = ht.paraproduct(f, tree, tree, "exp")
    of_f, of_residual = ht.holder_exponent(f, tree, tree), ht.holder_exponent(p.residual, tree, tree)
    assert of_f.exponent.mean() == pytest.approx(alpha, abs=0.02)
    assert (of_residual.exponent / of_f.exponent).mean() >= 1.6
    assert p.relative_error.mean() <= 0.06
    assert p.relative_error_without_boundary.min() > 0.9


def literal_fit(f, rows, columns):
    """Every dd' as a full matrix, and numpy's own least squares."""
    p = [[average(f, r, c) for c in columns.labels] for r in rows.labels]
    s, y = [], []
    for j in range(rows.n_levels - 1):
        for k in range(columns.n_levels - 1):
            dd = p[j + 1][k + 1] - p[j + 1][k] - p[j][k + 1] + p[j][k]
            rms = np.sqrt((dd**2).mean())
            if j + k >= 2 and rms > 1e-12:
                s.append(j + k)
                y.append(np.log2(rms))
    if len(set(s)) < 2 or len(s) < 5:
        return None
    (slope, intercept), covariance = np.polyfit(s, y, 1, cov="unscaled")
    residuals = np.array(y) - np.polyval((slope, intercept), s)
    variance = (residuals**2).sum() / (len(s) - 2)
    errors = np.sqrt(variance * np.diag(covariance))
    return -slope, 2**intercept, errors[0], errors[1], len(s)


@given(
    rows=partition_trees(min_leaves=6, max_leaves=9),
    columns=partition_trees(min_leaves=6),
    seed=st.integers(0, 99),
)
def test_the_fit_is_the_literal_one(rows, columns, seed):
    f = np.random.default_rng(seed).standard_normal((2, rows.n_leaves, columns.n_leaves))
    expected = literal_fit(f[1], rows, columns)
    fit = ht.holder_exponent(f, rows, columns)
    if expected is not None:
        found = (fit.exponent, fit.constant, fit.exponent_error, fit.log2_constant_error, fit.n_pairs)
        np.testing.assert_allclose([column[1] for column in found], expected, rtol=1e-6, atol=1e-7)


def test_scaling_changes_the_constant_only():
    f, tree = dyadic_field(0.4, 0, n=32), ht.PartitionTree.halving(32)
    a, b = ht.holder_exponent(f, tree, tree), ht.holder_exponent(8 * f, tree, tree)
    assert float(b.exponent) == pytest.approx(float(a.exponent))
    assert float(b.constant) == pytest.approx(8 * float(a.constant))
    assert str(a).startswith("exponent 0.3")


def test_noise_has_no_regularity():
    """White noise gets rougher with every scale: the exponent is -1/2."""
    tree = ht.PartitionTree.halving(64)
    fit = ht.holder_exponent(np.random.default_rng(0).standard_normal((64, 64)), tree, tree)
    assert float(fit.exponent) == pytest.approx(-0.5, abs=0.03)
    assert not fit.is_regular
    assert "no regularity" in str(fit)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_without_mixed_differences_there_is_no_limit(dtype):
    """Constant matrices, and sums of a function of the row and one of the column."""
    tree = ht.PartitionTree.halving(8)
    rows, columns = np.random.default_rng(0).standard_normal((2, 8))
    f = np.stack([np.full((8, 8), 0.1), np.add.outer(rows, columns)]).astype(dtype)
    fit = ht.holder_exponent(f, tree, tree)
    np.testing.assert_array_equal(fit.exponent, np.inf)
    np.testing.assert_array_equal(fit.constant, 0)


@pytest.mark.parametrize(("dtype", "offset"), [(np.float32, 1e3), (np.float32, -1e4), (np.float64, 1e10)])
def test_a_large_offset_drowns_no_differences(dtype, offset):
    """Rounding of the entries is at most a tenth of the smallest differences here."""
    f, tree = dyadic_field(0.4, 0), ht.PartitionTree.halving(128)
    rows = np.random.default_rng(0).standard_normal((128, 1))
    found = ht.holder_exponent((f + offset * (1 + 0.1 * rows)).astype(dtype), tree, tree)
    expected = ht.holder_exponent(f, tree, tree)
    assert found.n_pairs == expected.n_pairs
    assert float(found.exponent) == pytest.approx(float(expected.exponent), abs=2e-3)
    assert float(found.constant) == pytest.approx(float(expected.constant), rel=1e-2)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("offset", [0, 7.3, 1e6])
def test_rounding_of_blocks_is_no_difference(dtype, offset):
    """All entries of a block are rounded alike, which a coarse scale sees."""
    tree = ht.PartitionTree.halving(128)
    rows, columns = (np.repeat(x, 32) for x in np.random.default_rng(0).standard_normal((2, 4)))
    f = (np.add.outer(rows, columns) + offset).astype(dtype)
    assert np.isinf(ht.holder_exponent(f, tree, tree).exponent)


def test_large_entries_drown_no_small_differences():
    """As in probabilities: rounding of an entry near 1 is much more than that of the others."""
    f, tree = 1e-5 * dyadic_field(0.4, 0), ht.PartitionTree.halving(128)
    f[3] = 1  # a row without mixed differences; those of the others are down to 3e-8
    single, double = (ht.holder_exponent(f.astype(dtype), tree, tree) for dtype in (np.float32, np.float64))
    assert single.n_pairs == double.n_pairs == 46
    np.testing.assert_allclose(single.rms, double.rms, rtol=1e-4)


def test_too_few_scales():
    tree = ht.PartitionTree.flat(5)
    fit = ht.holder_exponent(np.random.default_rng(0).standard_normal((5, 5)), tree, tree)
    assert np.isnan(fit.exponent)
    assert str(fit) == "too few scales to measure an exponent"
    assert str(ht.holder_exponent(np.random.default_rng(0).standard_normal((2, 5, 5)), tree, tree)) == str(fit)
    assert np.isinf(
        ht.holder_exponent(np.zeros((1, 1)), ht.PartitionTree.flat(1), ht.PartitionTree.flat(1)).exponent
    )


def test_many_matrices_are_taken_some_at_a_time(monkeypatch):
    f, tree = np.random.default_rng(0).standard_normal((5, 8, 8)), ht.PartitionTree.halving(8)
    whole = ht.holder_exponent(f, tree, tree)
    monkeypatch.setattr("headtree.measures.regularity._ENTRIES_AT_A_TIME", 200)
    np.testing.assert_allclose(ht.holder_exponent(f, tree, tree).exponent, whole.exponent, rtol=1e-12)


def test_organizing_makes_shuffled_blocks_regular():
    att = blocks(noise=0.02)
    org = ht.organize(att)
    found = ht.regularity(att, org)
    by_order = {name: np.median(fit.exponent) for name, fit in found.by_order.items()}
    assert by_order["organized"] > max(by_order[name] for name in ("given", "random", "shuffled")) + 0.3
    table = found.to_dict()
    assert len(table["layer"]) == len(table["exponent_organized"]) == att.shape[0]


def test_bad_input():
    tree = ht.PartitionTree.flat(4)
    with pytest.raises(ValueError, match="tree has 4 leaves"):
        ht.holder_exponent(np.zeros((4, 5)), tree, tree)
    with pytest.raises(ValueError, match="at least two axes"):
        ht.holder_exponent(np.zeros(4), tree, tree)
    with pytest.raises(ValueError, match="must be finite"):
        ht.holder_exponent(np.full((4, 4), np.nan), tree, tree)


# -- softmax invariance ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def scores():
    rng = np.random.default_rng(0)
    values = np.concatenate([0.05 * rng.standard_normal((2, 12, 10)), 3 + 2 * rng.standard_normal((2, 12, 10))])
    att = ht.AttentionTensor.from_array(values, heads_per_layer=2)
    return att, ht.organize(att)


def test_invariance_columns_are_what_they_say(scores, monkeypatch):
    att, org = scores
    monkeypatch.setattr("headtree.measures.invariance._HEADS_AT_A_TIME", 3)
    table = ht.softmax_invariance(att, org)
    trees = org.trees[1], org.trees[2]
    for i, f in enumerate(att.values):
        eq17, eq18, softmax = (decomposed(f, *trees, fn) for fn in ("exp", "eq18", "softmax"))
        ours, theirs = eq17.first + eq17.second, eq18.first + eq18.second
        assert table.distance[i] == pytest.approx(np.linalg.norm(ours - theirs) / np.linalg.norm(ours))
        assert table.mean[i] == pytest.approx(f.mean())
        mixed = f - f.mean(axis=0) - f.mean(axis=1, keepdims=True) + f.mean()
        assert table.mixed[i] == pytest.approx(np.sqrt((mixed**2).mean()))
        assert table.error_printed[i] == pytest.approx(float(softmax.relative_error_without_boundary))
        for name, share in softmax.shares.items():
            assert getattr(table, f"share_{name}")[i] == pytest.approx(float(share))
        assert table.exponent[i] == pytest.approx(float(ht.holder_exponent(f, *trees).exponent), nan_ok=True)
        residual = ht.holder_exponent(softmax.residual, *trees).exponent
        assert table.exponent_residual[i] == pytest.approx(float(residual), nan_ok=True)
        flat = abs(softmax.value - np.median(softmax.value)) <= 0.01 * np.ptp(softmax.value)
        apart = abs(ours - np.median(ours)) > 0.01 * np.ptp(ours)
        assert table.squashed[i] == pytest.approx(flat.mean())
        assert table.kept[i] == pytest.approx((flat & apart).sum() / max(1, flat.sum()))


def test_the_claim_holds_for_small_scores_and_not_for_large_ones(scores):
    table = ht.softmax_invariance(*scores)
    np.testing.assert_array_equal(table.holds, [True, True, False, False])
    assert (table.distance[:2] < 0.1).all()
    assert (np.abs(table.mean[2:]) > 2).all()
    rows = table.rows()
    assert rows[3]["layer"] == 1
    assert rows[3]["holds"] is False
    assert set(rows[0]) == set(table.to_dict())


@pytest.mark.parametrize("size", [3.3, 1e-5, 40.0])
def test_rounding_is_no_finding(scores, size):
    """Of a constant head, and of functions of the row or the column alone, both equations are 0."""
    rng = np.random.default_rng(0)
    parts = [
        np.ones((12, 10)),
        np.tile(rng.standard_normal((12, 1)), 10),
        np.tile(rng.standard_normal(10), (12, 1)),
    ]
    both = parts[1] + parts[2]
    table = ht.softmax_invariance(ht.AttentionTensor.from_array(size * np.stack([*parts, both])), scores[1])
    np.testing.assert_array_equal(table.distance[:3], 0)
    assert table.distance[3] > 0  # a sum of both has a second-order term
    np.testing.assert_array_equal(table.exponent, np.inf)
    np.testing.assert_array_equal(table.exponent_softmax, np.inf)
    np.testing.assert_array_equal(table.exponent_residual, np.inf)  # softmax takes the rows off: nothing is left


@pytest.mark.parametrize("offset", [-1e4, 300.0])
def test_exponents_do_not_change_with_an_offset(scores, offset):
    att, org = scores
    small = 1e-3 * np.asarray(att.values)
    plain, shifted = (ht.softmax_invariance(ht.AttentionTensor.from_array(f), org) for f in (small, small + offset))
    for name in ("exponent", "exponent_softmax", "exponent_residual"):
        # the residual of the last two heads is 1e-6 of softmax, that of the others next to rounding
        np.testing.assert_allclose(getattr(shifted, name)[2:], getattr(plain, name)[2:], atol=1e-3)


def test_scores_on_which_exp_underflows(scores):
    """What is left of exp is next to nothing, and eq. (18) infinitely far from it."""
    att, org = scores
    table = ht.softmax_invariance(ht.AttentionTensor.from_array(np.asarray(att.values) - 745), org)
    assert (table.distance > 1e300).all()
    assert not table.holds.any()


def test_overflow_is_reported_head_by_head(scores):
    att, org = scores
    large = ht.AttentionTensor.from_array(np.where(np.arange(4)[:, None, None] == 2, 1000.0, 0) + att.values)
    with pytest.warns(ht.HeadtreeWarning, match="exp overflows on 1 heads, the first is L0H2"):
        table = ht.softmax_invariance(large, org)
    np.testing.assert_array_equal(np.isnan(table.distance), [False, False, True, False])
    assert np.isfinite(table.share_residual).all()
    assert not table.holds[2]


def test_invariance_of_masked_scores_counts_what_it_filled(scores):
    att, org = scores
    mask = np.triu(np.ones((12, 10), dtype=bool), 1)
    masked = ht.AttentionTensor.from_array(att.values, mask=mask)
    assert ht.softmax_invariance(masked, org).n_filled == 4 * mask.sum()


def test_invariance_needs_scores(scores):
    att, org = scores
    probs = ht.AttentionTensor.from_array(att.values, kind="probs")
    with pytest.raises(ValueError, match="kind='scores'"):
        ht.softmax_invariance(probs, org)
    with pytest.raises(ValueError, match="tolerance must be"):
        ht.softmax_invariance(att, org, tolerance=0)
