"""Landmarks: some slices of a long axis are organized, and the others join the nearest of them."""

import math

import numpy as np
import pytest

import headtree as ht
from benchmarks.gpu import network
from headtree.questionnaire import settings as limits
from headtree.tensor import store
from tests import oracles
from tests.questionnaire.test_lazy_arrays import OnDemand


def noisy(shape=(9, 24, 20), seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=shape) + 2 * rng.normal(size=(1, *shape[1:])) + rng.normal(size=(shape[0], shape[1], 1))


def in_families(n, n_families, seed=0):
    """Heads × queries × keys in which queries and keys are of families, with noise; and the families."""
    rng = np.random.default_rng(seed)
    family = rng.integers(n_families, size=n)
    pattern = rng.normal(size=(6, n_families, n_families))
    return pattern[:, family][:, :, family] + 0.05 * rng.normal(size=(6, n, n)), family


def result(org):
    return [*org.trees, *org.initial_trees, *(tree for step in org.history for tree in step.trees)]


@pytest.mark.parametrize("samples", [None, 8])
def test_as_many_landmarks_as_slices_change_nothing(samples):
    x = noisy()
    ours, theirs = (
        ht.organize_array(x, ht.Questionnaire(samples=samples, landmarks=n)) for n in ((24, 24, 20), None)
    )
    assert result(ours) == result(theirs)
    for kind in ("affinities", "distances", "coordinates"):
        for a, b in zip(getattr(ours, kind), getattr(theirs, kind), strict=True):
            np.testing.assert_array_equal(a, b)
    assert ours.status == theirs.status
    assert list(ours.landmarks) == [None] * 3


@pytest.mark.parametrize("samples", [None, 8])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_landmarks_are_organized_as_an_array_of_their_own(samples, masked, dtype):
    x = noisy().astype(dtype)
    mask = np.triu(np.ones((24, 20), bool), 3) if masked else None
    org = ht.organize_array(x, ht.Questionnaire(samples=samples, landmarks=(None, 10, 12)), mask=mask)
    own = [np.arange(9), *(org.landmarks[i].slices for i in (1, 2))]
    few = ht.organize_array(
        x[np.ix_(*own)], ht.Questionnaire(samples=samples), mask=mask if mask is None else mask[np.ix_(*own[1:])]
    )
    for axis, n in enumerate((9, 10, 12)):
        assert len(own[axis]) == n == len(org.affinities[axis])
        np.testing.assert_allclose(org.distances[axis], few.distances[axis], rtol=1e-12)
        np.testing.assert_allclose(org.coordinates[axis][own[axis]], few.coordinates[axis], rtol=1e-6, atol=1e-9)
        if org.landmarks[axis] is not None:
            assert org.landmarks[axis].of_landmarks(org.trees[axis]) == few.trees[axis]
    assert org.trees[0] == few.trees[0]
    assert [step.trees[0] for step in org.history] == [step.trees[0] for step in few.history]


def nearest_by_definition(x, org, axis, mask=None):
    """The nearest landmark of every slice, by the literal distance with trees on the other axes' landmarks."""
    order = org.settings.axis_order(x.ndim)[1]
    newest = org.history[-1].trees
    before = org.history[-2].trees
    others = [i for i in range(x.ndim) if i != axis]
    trees = [(newest if order.index(i) < order.index(axis) else before)[i] for i in others]
    trees = [
        t if org.landmarks[i] is None else org.landmarks[i].of_landmarks(t)
        for t, i in zip(trees, others, strict=True)
    ]
    own = [np.arange(n) if each is None else each.slices for n, each in zip(x.shape, org.landmarks, strict=True)]
    own[axis] = np.arange(x.shape[axis])
    part = np.moveaxis(x[np.ix_(*own)], axis, 0)
    hidden = None if mask is None else np.moveaxis(mask[np.ix_(*own)], axis, 0)
    distances = oracles.tree_emd(part, 0, trees, 0.0, 1.0, missing=hidden)
    return distances[:, org.landmarks[axis].slices]


@pytest.mark.parametrize("x", [noisy((5, 9, 8)), in_families(9, 3)[0][:5]], ids=["noisy", "families"])
@pytest.mark.parametrize("masked", [False, True])
def test_slices_join_the_landmark_that_is_nearest_by_definition(x, masked):
    mask = np.random.default_rng(1).random(x.shape) < 0.2 if masked else None
    org = ht.organize_array(x, ht.Questionnaire(landmarks=5, n_iter=2), mask=mask)
    assert org.landmarks[0] is None
    for axis in (1, 2):
        own, tree = org.landmarks[axis], org.trees[axis]
        distances = nearest_by_definition(x, org, axis, mask)
        np.testing.assert_allclose(distances[own.slices], org.distances[axis], rtol=1e-10, atol=1e-12)
        assert own.nearest.tolist() == distances.argmin(axis=1).tolist()
        for i, near in enumerate(own.nearest):
            assert (tree.labels[:-1, i] == tree.labels[:-1, own.slices[near]]).all()
        affinity = np.exp(-distances / np.median(org.distances[axis]))
        embedding = ht.diffusion_map(org.affinities[axis], org.coordinates[axis].shape[1])
        np.testing.assert_allclose(org.coordinates[axis], embedding.extend(affinity), rtol=1e-6, atol=1e-9)
        others = np.delete(distances, own.slices, axis=0).min(axis=1)
        ratio = others.mean() / org.distances[axis][~np.eye(5, dtype=bool)].mean()
        assert f"the others at {ratio:.2g} of the landmarks' mean distance" in org.status.notes[axis - 1]


def test_families_are_found_with_a_quarter_of_the_tokens_as_landmarks():
    x, family = in_families(80, 4)
    org = ht.organize_array(x, ht.Questionnaire(landmarks=20))
    for axis in (1, 2):
        folders = [
            set(leaves.tolist())
            for level in range(org.trees[axis].n_levels)
            for leaves in org.trees[axis].folders(level)
        ]
        assert all(set(np.flatnonzero(family == i).tolist()) in folders for i in range(4))
    assert "axis1: 20 landmarks of 80, the others at 0.0" in str(org.status)


@pytest.mark.parametrize("samples", [None, 8])
@pytest.mark.parametrize("masked", [False, True])
def test_permuted_input_gives_permuted_trees(samples, masked):
    x = noisy((7, 18, 16))
    rng = np.random.default_rng(3)
    mask = np.triu(np.ones((18, 16), bool), 2) if masked else None
    settings = ht.Questionnaire(samples=samples, landmarks=9)
    org = ht.organize_array(x, settings, mask=mask)
    orders = [rng.permutation(n) for n in x.shape]
    moved = ht.organize_array(
        x[np.ix_(*orders)], settings, mask=None if mask is None else mask[np.ix_(*orders[1:])]
    )
    for axis, order in enumerate(orders):
        assert moved.trees[axis] == org.trees[axis].take(order)
        if axis:
            assert set(order[moved.landmarks[axis].slices]) == set(org.landmarks[axis].slices)


@pytest.mark.parametrize("samples", [None, "auto"])
@pytest.mark.parametrize("masked", [False, True])
def test_lazy_arrays_give_the_result_of_those_in_memory(samples, masked, monkeypatch):
    if samples == "auto":
        monkeypatch.setattr(limits, "EXACT_ENTRIES", 100)
    x = noisy().astype(np.float32)
    mask = np.triu(np.ones((24, 20), bool), 3) if masked else None
    settings = ht.Questionnaire(samples=samples, landmarks=8, initial="correlation")
    lazy = OnDemand(x)
    memory = 4 * 24 * 20 * 8 * (2 if samples == "auto" else 3)
    ours = ht.organize_array(lazy, settings, mask=mask, memory=memory)
    theirs = ht.organize_array(x, settings, mask=mask)
    assert lazy.largest < x.size
    assert list(ours.trees) == list(theirs.trees)
    for a, b in zip(ours.coordinates, theirs.coordinates, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def read_shapes(x, settings, memory):
    """The shapes of the blocks that are read of an array on disk."""
    lazy, shapes = OnDemand(x), []
    original = lazy.read
    lazy.read = lambda *index: shapes.append(tuple(original(*index).shape)) or original(*index)
    ht.organize_array(lazy, settings, memory=memory)
    return shapes


def test_landmarks_are_read_at_once_if_they_fit_twice_with_their_copies():
    settings = ht.Questionnaire(samples=8, n_iter=1, landmarks=(None, 12, 16))
    bytes_ = 2 * 3 * 4 * 9 * 12 * 16
    x = noisy().astype(np.float32)
    assert read_shapes(x, settings, bytes_).count((9, 12, 16)) == 1
    assert (1, 12, 16) in read_shapes(x, settings, bytes_ - 1)


def test_exact_distances_to_landmarks_need_memory_for_three_copies():
    settings = ht.Questionnaire(samples=None, n_iter=1, landmarks=8)
    bytes_ = 3 * 4 * 8 * 24 * 8
    x = noisy().astype(np.float32)
    found = ht.organize_array(OnDemand(x), settings, memory=bytes_)
    assert list(found.trees) == list(ht.organize_array(x, settings).trees)
    with pytest.raises(ht.HeadtreeError, match="memory must hold all of x for exact distances, about 18"):
        ht.organize_array(OnDemand(x), settings, memory=bytes_ - 1)


def test_slices_that_share_no_entry_with_a_landmark():
    """With a causal mask, the last key has one query, which may be no landmark."""
    x = noisy((4, 30, 30))
    mask = np.triu(np.ones((30, 30), bool), 1)
    org = ht.organize_array(x, ht.Questionnaire(landmarks=6), mask=mask)
    unseen = np.flatnonzero(mask[org.landmarks[1].slices].all(axis=0))
    assert len(unseen)
    assert np.isin(np.flatnonzero(org.landmarks[2].nearest < 0), unseen).all()
    lost = org.landmarks[2].nearest < 0
    assert lost.any()
    assert not org.coordinates[2][lost].any()
    assert all(np.isfinite(points).all() for points in org.coordinates)
    for i in np.flatnonzero(lost):
        assert (org.trees[2].labels[1] == org.trees[2].labels[1, i]).sum() == 1
    assert f"{lost.sum()} slices have no entry in common with any landmark" in str(org.status)
    affinity = org.all_affinities(2)
    assert affinity.shape == (30, 30)
    assert (np.diag(affinity) == 1).all()


def test_equal_slices():
    x = np.tile(np.arange(5.0), (12, 1))
    with pytest.warns(ht.HeadtreeWarning, match="all landmarks along axis0 are equal"):
        org = ht.organize_array(x, ht.Questionnaire(landmarks=4))
    assert org.trees[0] == ht.PartitionTree.flat(12)
    assert org.coordinates[0].shape == (12, 0)
    assert "axis0: 4 landmarks of 12" in org.status.notes  # no mean distance to compare with


def test_a_slice_far_from_all_landmarks_has_the_coordinates_of_the_nearest():
    x = noisy((1, 30, 6))[0]
    x[7] *= 1e3  # the largest of all: no landmark, since these are in the middle of their ranks
    org = ht.organize_array(x, ht.Questionnaire(landmarks=(8, None)))
    near = org.landmarks[0].slices[org.landmarks[0].nearest[7]]
    assert near != 7
    np.testing.assert_array_equal(org.coordinates[0][7], org.coordinates[0][near])


@pytest.mark.parametrize("bad", [0, 1, -1, (None, 0), (3, -2)])
def test_too_few_landmarks(bad):
    with pytest.raises(ht.HeadtreeError, match=r"landmarks must be at least 2.*pass None"):
        ht.Questionnaire(landmarks=bad)


@pytest.mark.parametrize("bad", [2.5, "a", True, (2, 3.0), [4, 4], math.nan])
def test_landmarks_that_are_no_numbers(bad):
    with pytest.raises(ht.HeadtreeError, match=r"landmarks must be an integer, None, or a tuple"):
        ht.Questionnaire(landmarks=bad)


def test_landmarks_for_another_number_of_axes():
    with pytest.raises(ht.HeadtreeError, match=r"landmarks must have a number or None for each of the 3 axes"):
        ht.organize_array(noisy(), ht.Questionnaire(landmarks=(4, 4)))


def test_landmarks_without_entries():
    x = np.diag(np.arange(1.0, 9))
    with pytest.raises(ht.HeadtreeError, match=r"landmarks must have entries, but all 2 × 4.*take more"):
        ht.organize_array(x, ht.Questionnaire(landmarks=(2, 4)), mask=x == 0)


def test_a_notebook_shows_landmarks():
    html = ht.organize_array(noisy(), ht.Questionnaire(landmarks=8))._repr_html_()
    assert "8 landmarks of 20," in html
    assert "affinity of axis2 landmarks" in html


def test_what_compares_all_slices_says_what_to_do():
    heads = [ht.organize_array(noisy(seed=i), ht.Questionnaire(landmarks=6)) for i in range(2)]
    with pytest.raises(ht.HeadtreeError, match=r"got 6 landmarks of 9; organize with None for this axis"):
        ht.consensus(heads)
    atts = [ht.AttentionTensor.from_array(noisy(seed=i)) for i in range(2)]
    with pytest.raises(ht.HeadtreeError, match=r"all slices along head must be compared"):
        ht.head_similarity(atts, "questionnaire", settings=ht.Questionnaire(landmarks=6))
    tokens = ht.Questionnaire(landmarks=(None, 6, 6))
    assert ht.head_similarity(atts, "questionnaire", settings=tokens).affinity.shape == (2, 9, 9)


def test_conditioning_of_landmarks():
    x, _ = in_families(40, 3)
    org = ht.organize_array(x, ht.Questionnaire(landmarks=(None, 12, 12)))
    assert not ht.tree_conditioning(org, 1, sizes=[0.0], n_trials=1).moved.any()


def test_a_tensor_on_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "EXACT_ENTRIES", 100)
    monkeypatch.setattr(store, "_CHUNK_BYTES", 4 * 20 * 5)
    att = ht.AttentionTensor.from_array(noisy().astype(np.float32), mask=np.triu(np.ones((24, 20), bool), 3))
    att.save(tmp_path / "a.zarr")
    stored = ht.AttentionTensor.open(tmp_path / "a.zarr")
    settings = ht.Questionnaire(landmarks=8)
    assert list(ht.organize(stored, settings, memory=30_000).trees) == list(ht.organize(att, settings).trees)


def test_factors_give_the_result_of_their_products(monkeypatch):
    monkeypatch.setattr(limits, "EXACT_ENTRIES", 100)
    att = network(2, 4, 2, 24, 6, "cpu")
    dense = ht.AttentionTensor.from_array(np.asarray(att.values), mask=att.mask)
    settings = ht.Questionnaire(landmarks=(None, 10, 9))
    ours, theirs = ht.organize(att, settings, memory=30_000), ht.organize(dense, settings)
    assert list(ours.trees) == list(theirs.trees)
    for a, b in zip(ours.distances, theirs.distances, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)
