"""Sampled tree distances: all folders give the exact distance, some give it in the mean, with their error."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import headtree as ht
from headtree.geometry import folder_sums
from headtree.geometry import sampled_emd as sampling
from headtree.geometry.emd import emd_matrix
from headtree.geometry.kernels_cpu import BLOCK
from headtree.geometry.sampled_emd import n_differences, sampled_emd
from tests.geometry.test_emd import arrays_with_trees

ALL = 10**6


def estimate(x, axis, trees, missing=None, *, samples, seed=0, alpha=0.0, beta=1.0, weights="levels", n_first=None):
    orders = [tree.order(np.random.default_rng(1).normal(size=tree.n_leaves)) for tree in trees]
    values = torch.from_numpy(x if missing is None else np.where(missing, 0, x))
    mask = missing if missing is None or isinstance(missing, torch.Tensor) else torch.from_numpy(missing)
    rng = np.random.default_rng(seed)
    given = values, axis, trees, orders, alpha, beta, weights, mask
    return sampled_emd(*given, samples=samples, rng=rng, n_first=n_first)


@settings(max_examples=60, deadline=None)
@given(arrays_with_trees(), st.floats(-1, 1), st.floats(-1, 2), st.sampled_from(["levels", "distinct"]))
def test_all_folders_give_the_exact_distance(case, alpha, beta, weights):
    x, axis, trees, _ = case
    exact = ht.tree_emd(x, axis, trees, alpha, beta, weights=weights)
    found = estimate(x, axis, trees, samples=ALL, alpha=alpha, beta=beta, weights=weights)
    np.testing.assert_allclose(found.distances.numpy(), exact, rtol=1e-10, atol=1e-12)
    assert found.relative_error is None


@settings(max_examples=60, deadline=None)
@given(arrays_with_trees(masked=True), st.floats(-1, 1), st.floats(-1, 2))
def test_all_folders_give_the_exact_distance_with_missing_entries(case, alpha, beta):
    x, axis, trees, missing = case
    if missing.all():
        return
    exact = ht.tree_emd(x, axis, trees, alpha, beta, mask=missing)
    found = estimate(x, axis, trees, missing, samples=ALL, alpha=alpha, beta=beta)
    np.testing.assert_allclose(found.distances.numpy(), exact, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("n_axes", [1, 2])
def test_all_folders_give_the_exact_distance_of_many_slices(n_axes, monkeypatch):
    """In bands of slices that are added together, and in the last few; entries are counted in several runs."""
    monkeypatch.setattr(folder_sums, "_SUMS_AT_A_TIME", 1 << 12)
    monkeypatch.setattr(folder_sums, "BLOCK", 1)
    rng = np.random.default_rng(8)
    x = rng.normal(size=(70, *[9] * n_axes))
    missing, trees = rng.random(x.shape) < 0.6, [ht.PartitionTree.halving(9)] * n_axes
    exact = ht.tree_emd(x, 0, trees, 0.3, mask=missing)
    found = estimate(x, 0, trees, missing, samples=ALL, alpha=0.3)
    np.testing.assert_allclose(found.distances.numpy(), exact, rtol=1e-9)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_all_folders_give_the_exact_distance_under_a_causal_mask(axis):
    rng = np.random.default_rng(5)
    x = rng.normal(size=(4, 9, 9))
    missing = torch.ones(9, 9, dtype=torch.bool).triu(1).expand(x.shape)
    trees = [ht.PartitionTree.halving(n) for i, n in enumerate(x.shape) if i != axis]
    exact = ht.tree_emd(x, axis, trees, 0.3, mask=missing)
    found = estimate(x, axis, trees, missing, samples=ALL, alpha=0.3)
    np.testing.assert_allclose(found.distances.numpy(), exact, rtol=1e-9)


@settings(max_examples=60, deadline=None)
@given(
    arrays_with_trees(masked=True), st.sampled_from([None, 2, ALL]), st.booleans(), st.sampled_from([1, 2, 10**6])
)
def test_distances_of_the_first_slices_are_rows_of_all(case, samples, is_masked, n_first):
    x, axis, trees, missing = case
    missing = missing if is_masked and not missing.all() else None
    n_first = min(n_first, x.shape[axis])
    every, few = (estimate(x, axis, trees, missing, samples=samples, n_first=n).distances for n in (None, n_first))
    np.testing.assert_allclose(few.numpy(), every[:n_first].numpy(), rtol=1e-12)
    values = torch.from_numpy(x if missing is None else np.where(missing, 0, x)).float()
    mask = missing if missing is None else torch.from_numpy(missing)
    every, few = (emd_matrix(values, axis, trees, 0.0, 1.0, "levels", mask, n) for n in (None, n_first))
    np.testing.assert_allclose(few.numpy(), every[:n_first].numpy(), rtol=1e-12)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    ("alpha", "beta", "weights"), [(0, 1, "levels"), (1, 0.5, "distinct"), (-0.5, 0, "levels")]
)
def test_the_estimate_is_unbiased_and_its_error_is_that_of_repeated_draws(masked, alpha, beta, weights):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(5, 24, 30)) + rng.normal(size=(5, 1, 1))
    missing = rng.random(x.shape) < 0.3 if masked else None
    trees = [ht.PartitionTree.halving(n) for n in x.shape[1:]]
    exact = ht.tree_emd(x, 0, trees, alpha, beta, weights=weights, mask=missing)
    options = {"samples": 8, "alpha": alpha, "beta": beta, "weights": weights}
    found = [estimate(x, 0, trees, missing, seed=seed, **options) for seed in range(200)]
    off = ~np.eye(5, dtype=bool)
    drawn = np.array([each.distances.numpy()[off] for each in found])
    assert np.abs(drawn.mean(axis=0) / exact[off] - 1).max() < 4 * (drawn.std(axis=0) / exact[off]).max() / 200**0.5
    spread = np.sqrt(np.mean((drawn - exact[off]) ** 2)) / exact[off].mean()
    claimed = np.sqrt(np.mean([each.relative_error**2 for each in found]))
    assert 0.8 < claimed / spread < 1.25


def test_as_many_samples_as_folders_take_all_of_them():
    x = np.random.default_rng(0).normal(size=(4, 9))
    trees = [ht.PartitionTree.flat(9)]
    found = estimate(x, 0, trees, samples=9)
    np.testing.assert_allclose(found.distances.numpy(), ht.tree_emd(x, 0, trees), rtol=1e-12)
    assert found.relative_error is None
    assert estimate(x, 0, trees, samples=8).relative_error > 0


@pytest.mark.parametrize("n_blocks", [0, 1, 2, 3, 5])
def test_features_are_made_in_runs_that_fit_into_memory(n_blocks, monkeypatch):
    rng = np.random.default_rng(1)
    x, trees = rng.normal(size=(5, 60, 70)), [ht.PartitionTree.halving(n) for n in (60, 70)]
    whole = estimate(x, 0, trees, samples=ALL)
    monkeypatch.setattr(sampling, "_FEATURES_AT_A_TIME", n_blocks * BLOCK * 5 * 8)
    np.testing.assert_allclose(estimate(x, 0, trees, samples=ALL).distances, whole.distances, rtol=1e-12)
    parts = [slice(0, 5 * BLOCK), slice(5 * BLOCK, 5 * BLOCK + 7)]
    step = max(1, n_blocks) * BLOCK
    starts = [*range(0, 5 * BLOCK, step), 5 * BLOCK]
    expected = [slice(start, min(start + step, 5 * BLOCK)) for start in starts[:-1]] + parts[1:]
    assert sampling._columns_at_a_time(torch.from_numpy(x), 0, parts) == expected
    monkeypatch.setattr(sampling, "_FEATURES_AT_A_TIME", parts[1].stop * 5 * 8)
    assert sampling._columns_at_a_time(torch.from_numpy(x), 0, parts) == [slice(0, parts[1].stop)]


@pytest.mark.parametrize("n_axes", [1, 2, 3])
def test_draws_cover_the_first_axis_evenly(n_axes):
    """As many draws as there are folders of equal weight take each of them once; half as many take every second."""
    level = np.arange(12), np.full(12, 0.25)
    drawn = sampling._lattice([level] * n_axes, 12, np.random.default_rng(3))
    assert drawn.shape == (12, n_axes)
    np.testing.assert_array_equal(np.sort(drawn[:, 0]), np.arange(12))
    few = sampling._lattice([level] * n_axes, 6, np.random.default_rng(3))
    np.testing.assert_array_equal(np.diff(np.sort(few[:, 0])), 2)


def test_draws_cover_two_axes_evenly():
    """Of a multiple of the golden ratio, no two of the first 12 are closer to each other than 1 / 18, modulo 1."""
    levels = [(np.arange(n), np.full(n, 1 / n)) for n in (12, 18)]
    for seed in range(5):
        drawn = sampling._lattice(levels, 12, np.random.default_rng(seed))
        assert len(np.unique(drawn[:, 1])) == 12


def test_draws_by_the_smallest_weights_are_folders():
    """Even where the sum of the weights times a number below 1 is rounded to the sum."""
    drawn = sampling._lattice([(np.arange(4), np.full(4, 5e-324))], 64, np.random.default_rng(0))
    assert set(drawn[:, 0]) <= set(range(4))


@pytest.mark.parametrize("samples", [8, 9])
def test_the_two_halves_have_the_samples_together(samples, monkeypatch):
    numbers, drawn = [], sampling._lattice
    monkeypatch.setattr(sampling, "_lattice", lambda levels, n, rng: numbers.append(n) or drawn(levels, n, rng))
    estimate(np.random.default_rng(0).normal(size=(3, 20)), 0, [ht.PartitionTree.flat(20)], samples=samples)
    assert numbers == [samples - 4, 4]


def test_more_samples_have_smaller_errors():
    x = np.random.default_rng(0).normal(size=(6, 64, 64))
    trees = [ht.PartitionTree.halving(64)] * 2
    errors = [estimate(x, 0, trees, samples=m).relative_error for m in (8, 128, 2048)]
    assert errors[0] > 2 * errors[1] > 4 * errors[2]


def test_equal_slices_have_distance_zero():
    x = np.random.default_rng(0).normal(size=(1, 40, 40)).repeat(4, axis=0)
    assert not estimate(x, 0, [ht.PartitionTree.halving(40)] * 2, samples=8).distances.any()


@pytest.mark.parametrize("samples", [None, 8])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_equal_slices_with_missing_entries_have_distance_zero_and_distances_are_symmetric(axis, dtype, samples):
    rng = np.random.default_rng(2)
    shape = (21, 22, 23)
    copies = rng.integers(0, 5, size=shape[axis])
    x, missing = rng.standard_normal(shape).astype(dtype), rng.random(shape) < 0.7
    x, missing = np.take(x, copies, axis), np.take(missing, copies, axis)
    trees = [ht.PartitionTree.halving(n) for i, n in enumerate(shape) if i != axis]
    found = estimate(x, axis, trees, missing, samples=samples, alpha=1.0).distances.numpy()
    np.testing.assert_array_equal(found == 0, copies[:, None] == copies)
    np.testing.assert_array_equal(found, found.T)


@pytest.mark.filterwarnings("ignore:the sample shows no difference")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.9])
def test_a_constant_array_is_flat(share, dtype):
    rng = np.random.default_rng(3)
    for x in (np.full((6, 40, 40), 0.1), 1 + 2.0**-52 * (rng.random((6, 40, 40)) < 0.5)):
        mask = rng.random(x.shape) < share
        org = ht.organize_array(x.astype(dtype), ht.Questionnaire(samples=16, alpha=2), mask=mask)
        assert not any(distances.any() for distances in org.distances)
        assert [tree.n_levels for tree in org.trees] == [2, 2, 2]


@pytest.mark.parametrize("samples", [None, 16])
@pytest.mark.parametrize(("dtype", "size"), [(np.float64, 1e-10), (np.float32, 1e-5)])
def test_differences_above_rounding_are_kept(dtype, size, samples):
    rng = np.random.default_rng(4)
    x = (1 + size * rng.standard_normal((5, 30, 30))).astype(dtype)
    trees = [ht.PartitionTree.halving(30)] * 2
    assert (estimate(x, 0, trees, samples=samples).distances.numpy() > 0).sum() == 20


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sums_up_to_the_bound_are_zero(dtype):
    """Slices of 42 ones, each in four prefix sums after 6 + 7 additions, four more and eight products."""
    x, scale, weight = torch.ones(5, 6, 7, dtype=dtype), torch.tensor([0.5]), torch.tensor([300.0])
    of_slice = 4 * (6 + 7 + 4 + 8) * 2.0**-53 * 0.5 * 42 + torch.finfo(dtype).eps * 300
    for share, is_left in ((0.999, False), (1.001, True)):
        sums = torch.full((5, 5), share * 2 * of_slice, dtype=torch.float64)
        found = sampling._without_rounding_errors(sums, x, 0, scale.double(), weight.double())
        assert found.all() == found.any() == is_left


@pytest.mark.parametrize("size", [2.0**-k for k in range(33, 52)])
def test_all_folders_have_one_bound_on_rounding_errors_drawn_or_not(size):
    x, trees = np.ones((2, 64)), [ht.PartitionTree.flat(64)]
    x[1] += size
    drawn, all_ = (estimate(x, 0, trees, samples=samples).distances for samples in (ALL, None))
    np.testing.assert_array_equal(drawn == 0, all_ == 0)


@pytest.mark.parametrize("samples", [None, ALL])
def test_small_slices_beside_large_ones_keep_their_differences(samples):
    """The bound on rounding errors is that of the two slices, not of the whole array."""
    x = np.random.default_rng(5).random((5, 12, 13)).astype(np.float32)
    x[:3] *= 2.0**-30
    trees = [ht.PartitionTree.halving(n) for n in x.shape[1:]]
    found = estimate(x, 0, trees, samples=samples).distances.numpy()
    np.testing.assert_allclose(found, ht.tree_emd(x.astype(float), 0, trees), rtol=1e-4)


@pytest.mark.parametrize("samples", [None, ALL])
def test_two_slices_with_different_entries(samples):
    x, missing = np.array([[1.0, 2.0, 4.0, 8.0], [3.0, 5.0, 7.0, 9.0]]), np.zeros((2, 4), bool)
    missing[0, 1] = missing[1, 2] = missing[1, 3] = True
    trees = [ht.PartitionTree.halving(4)]
    found = estimate(x, 0, trees, missing, samples=samples).distances.numpy()
    # root |13/3 - 4|, left half |1 - 4| / 2, first leaf |1 - 3| / 4; they have 7/4 of the weight 3
    assert found[0, 1] == pytest.approx((1 / 3 + 3 / 2 + 2 / 4) * 3 / (7 / 4))
    np.testing.assert_allclose(found, ht.tree_emd(x, 0, trees, mask=missing), rtol=1e-12)


@pytest.mark.parametrize("samples", [None, 8, ALL])
def test_slices_without_entries_are_infinitely_far(samples):
    x = np.random.default_rng(6).normal(size=(4, 9, 9))
    hidden = torch.tensor([False, True, False, True])
    trees = [ht.PartitionTree.halving(9)] * 2
    found = estimate(x, 0, trees, hidden[:, None, None].expand(x.shape), samples=samples).distances
    far = (hidden[:, None] | hidden[None]).fill_diagonal_(False)
    np.testing.assert_array_equal(found.isinf(), far)
    if samples != 8:
        np.testing.assert_allclose(found[~far], ht.tree_emd(x, 0, trees)[~far], rtol=1e-12)


def test_differences_are_counted():
    trees = [ht.PartitionTree.halving(4), ht.PartitionTree.flat(5)]
    assert n_differences(3, trees) == 3 * 7 * 6
    assert n_differences(3, trees, 1) == 2 * 7 * 6


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("n_first", [2, 6])
def test_permuted_slices_give_permuted_trees(masked, n_first):
    rng = np.random.default_rng(3)
    x = rng.normal(size=(n_first, 40, 40)) + 3 * rng.normal(size=(n_first, 1, 40))
    mask = rng.random((40, 40)) < 0.2 if masked else np.zeros((40, 40), bool)
    orders = [rng.permutation(n) for n in x.shape]
    settings_ = ht.Questionnaire(samples=16)
    org = ht.organize_array(x, settings_, mask=np.broadcast_to(mask, x.shape))
    moved = ht.organize_array(
        x[np.ix_(*orders)], settings_, mask=np.broadcast_to(mask[np.ix_(*orders[1:])], x.shape)
    )
    assert org.status.relative_errors["axis1"] > 0
    assert [tree.take(order) for tree, order in zip(org.trees, orders, strict=True)] == list(moved.trees)


def test_the_same_on_any_number_of_threads():
    x = np.random.default_rng(0).normal(size=(20, 50, 50)).astype(np.float32)
    before = torch.get_num_threads()
    found = []
    try:
        for n in (1, 2, 3):
            torch.set_num_threads(n)
            found.append(ht.organize_array(x, ht.Questionnaire(samples=16)).distances)
    finally:
        torch.set_num_threads(before)
    for axis in range(3):
        assert all(np.array_equal(found[0][axis], other[axis]) for other in found[1:])


def test_auto_is_exact_for_small_arrays_and_the_status_says_which():
    x = np.random.default_rng(0).normal(size=(6, 20, 20))
    auto, exact = ht.organize_array(x), ht.organize_array(x, ht.Questionnaire(samples=None))
    sampled = ht.organize_array(x, ht.Questionnaire(samples=8))
    assert list(auto.trees) == list(exact.trees)
    assert str(auto.status).endswith("tree distances are exact")
    assert "tree distances are sampled, with relative errors axis0" in str(sampled.status)
    for ours, theirs in zip(sampled.distances, exact.distances, strict=True):
        assert np.corrcoef(ours.ravel(), theirs.ravel())[0, 1] > 0.9


@pytest.mark.parametrize("samples", [0, 1, -3, True, 2.5, "many"])
def test_samples_must_be_two_or_more(samples):
    with pytest.raises(ht.HeadtreeError, match="samples must be"):
        ht.Questionnaire(samples=samples)


def test_the_bundled_vit_by_sampling():
    """At most 2 % off and correlation of affinities of 0.998 or more, as the defaults promise for large arrays."""
    network = ht.load_bundled("vit")
    (att,) = ht.ModelView(network.model).capture(inputs=network.inputs[:1])
    exact = ht.organize(att)
    head = att.values
    keys = [exact.coordinates[i][:, 0] for i in (1, 2)]
    trees = [exact.trees[i] for i in (1, 2)]
    orders = [tree.order(key) for tree, key in zip(trees, keys, strict=True)]
    rng = np.random.default_rng(0)
    found = sampled_emd(head, 0, trees, orders, 0.0, 1.0, "levels", None, samples=256, rng=rng)
    truth = emd_matrix(head, 0, trees, 0.0, 1.0, "levels").numpy()
    off = ~np.eye(len(truth), dtype=bool)
    ours = found.distances.numpy()
    assert np.sqrt(np.mean((ours[off] - truth[off]) ** 2)) / truth[off].mean() < 0.02
    affinities = [np.exp(-d / np.median(d))[off] for d in (ours, truth)]
    assert np.corrcoef(*affinities)[0, 1] > 0.998


def test_a_status_can_be_a_key():
    org = ht.organize_array(np.random.default_rng(0).normal(size=(4, 9, 9)), ht.Questionnaire(samples=4))
    assert {org.status: 1}[org.status] == 1


def test_a_sample_without_differences_claims_nothing():
    x = np.zeros((2, 4096))
    x[0, 5], x[0, 900] = 1.0, -1.0
    found = [estimate(x, 0, [ht.PartitionTree.halving(4096)], samples=16, seed=seed) for seed in range(5)]
    for each in found:
        assert each.distances.any() or np.isnan(each.relative_error)


def test_a_single_slice_has_no_error():
    x = np.random.default_rng(0).normal(size=(1, 80, 80))
    status = ht.organize_array(x, ht.Questionnaire(samples=8)).status
    assert set(status.relative_errors) == {"axis1", "axis2"}
    assert str(status).endswith("; those of axis0 are exact")
