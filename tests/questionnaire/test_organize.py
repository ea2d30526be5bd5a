from contextlib import contextmanager

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from sklearn.metrics import adjusted_rand_score

import headtree as ht
from headtree.errors import HeadtreeError, HeadtreeWarning
from headtree.geometry.affinity import distance_affinity
from headtree.questionnaire import organize as organizing
from headtree.tensor.planted import planted_array
from headtree.trees.tree import PartitionTree
from tests import oracles


def literal_questionnaire(x, n_iter=2, head_from="latest", alpha=0.0, beta=1.0, missing=None):
    """Algorithm 1 with every step in plain loops, for arrays of any number of axes."""
    n_axes = x.ndim
    initial_axes = (0,) if n_axes == 2 else range(1, n_axes)
    order = [axis for axis in range(n_axes) if axis not in initial_axes] + list(initial_axes)
    trees = {axis: oracles.flexible_tree(oracles.cosine(x, axis, missing)) for axis in initial_axes}
    initial = dict(trees)
    for _ in range(n_iter):
        for axis in order:
            source = initial if head_from == "initial" and axis == order[0] else trees
            others = [source[i] for i in range(n_axes) if i != axis]
            e = oracles.tree_emd(x, axis, others, alpha, beta, missing=missing)
            trees[axis] = oracles.flexible_tree(distance_affinity(torch.from_numpy(e)).numpy())
    return [trees[axis] for axis in range(n_axes)]


@pytest.mark.parametrize("shape", [(7, 9), (5, 6, 7), (4, 5, 3, 4)])
@pytest.mark.parametrize("head_from", ["latest", "initial"])
def test_is_the_literal_algorithm(shape, head_from):
    x = np.random.default_rng(0).random(shape)
    org = ht.organize_array(x, ht.Questionnaire(n_iter=2, head_from=head_from, alpha=0.5, beta=0.5))
    assert list(org.trees) == literal_questionnaire(x, head_from=head_from, alpha=0.5, beta=0.5)


def test_is_the_literal_algorithm_with_missing_entries():
    rng = np.random.default_rng(1)
    x, missing = rng.random((5, 7, 7)), np.triu(np.ones((7, 7), bool), 1)
    org = ht.organize_array(x, ht.Questionnaire(n_iter=2), mask=missing)
    assert list(org.trees) == literal_questionnaire(x, missing=np.broadcast_to(missing, x.shape))
    as_masked = np.ma.masked_array(x, np.broadcast_to(missing, x.shape))
    assert list(ht.organize_array(as_masked, ht.Questionnaire(n_iter=2)).trees) == list(org.trees)


def recovery(planted, org, level):
    """Adjusted Rand index of a planted level and the most similar level of the tree found, per axis."""
    return [
        max(adjusted_rand_score(true.labels[level], labels) for labels in found.labels)
        for found, true in zip(org.trees, planted.trees, strict=True)
    ]


# A level of the flexible tree may join two families one level before it takes in the last stray of a third: single
# levels fall to 0.7, means over axes and draws stay high.
@pytest.mark.parametrize("shape", [(48, 40), (48, 40, 36), (18, 16, 20, 17)])
@pytest.mark.parametrize(("branching", "level", "least"), [((4,), 1, 0.9), ((4, 2), 1, 0.8), ((4, 2), 2, 0.75)])
def test_planted_folders_are_found(shape, branching, level, least):
    draws = [planted_array(shape, branching, noise=0.1, rng=seed) for seed in range(6)]
    assert np.mean([recovery(draw, ht.organize_array(draw.values), level) for draw in draws]) > least


def test_planted_halves_are_found_by_binary_trees():
    planted = planted_array((48, 40, 36), (2, 2), noise=0.1, rng=2)
    org = ht.organize_array(planted.values, ht.Questionnaire(tree="binary"))
    assert recovery(planted, org, 1) == recovery(planted, org, 2) == [1.0] * 3


def test_noise_has_no_planted_folders():
    planted = planted_array((48, 40, 36), noise=0.1, rng=2)
    noise = np.random.default_rng(3).standard_normal(planted.values.shape)
    org = ht.organize_array(noise)
    assert max(recovery(planted, org, 1)) < 0.3


# -- the same answer every time ---------------------------------------------------------------------------


def test_same_on_every_run_and_number_of_threads():
    x = np.random.default_rng(4).standard_normal((70, 50, 40)).astype(np.float32)
    first = ht.organize_array(x)
    before = torch.get_num_threads()
    try:
        for n_threads in range(1, 5):
            torch.set_num_threads(n_threads)
            again = ht.organize_array(x)
            assert list(again.trees) == list(first.trees)
            for axis in range(3):
                np.testing.assert_allclose(again.distances[axis], first.distances[axis], rtol=1e-13)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(40, 30), (30, 24, 20), (9, 8, 10, 7)])
@pytest.mark.parametrize("tree", ["flexible", "binary"])
def test_permuting_slices_permutes_trees(shape, dtype, tree):
    rng = np.random.default_rng(5)
    x = rng.standard_normal(shape).astype(dtype)
    orders = [rng.permutation(n) for n in shape]
    org, permuted = (ht.organize_array(y, ht.Questionnaire(tree=tree)) for y in (x, x[np.ix_(*orders)]))
    for axis, order in enumerate(orders):
        assert permuted.trees[axis] == org.trees[axis].take(order)


def test_float32_agrees_with_float64():
    x = np.random.default_rng(6).standard_normal((40, 36, 30))
    assert list(ht.organize_array(x).trees) == list(ht.organize_array(x.astype(np.float32)).trees)


def test_scale_plays_no_part():
    x = np.random.default_rng(7).standard_normal((12, 10, 8)).astype(np.float32)
    reference = list(ht.organize_array(x).trees)
    for factor in (1e30, 1e-30, 1e-38):
        assert list(ht.organize_array(x * np.float32(factor)).trees) == reference
    assert list(ht.organize_array(x.astype(np.float64) * 1e300).trees) == reference


def test_views_dtypes_and_kinds_of_array():
    rng = np.random.default_rng(8)
    x = rng.integers(-100, 100, (10, 12, 14))
    reference = list(ht.organize_array(x.astype(np.float64)).trees)
    wide = np.zeros((20, 12, 28))
    wide[::2, :, ::2] = x
    for same in (
        x,
        x.astype(np.int8),
        x.astype(np.float16),
        x.astype(">f8"),
        x.tolist(),
        wide[::2, :, ::2],
        x[:, ::-1].astype(np.float64)[:, ::-1],
        np.asfortranarray(x, dtype=np.float64),
        torch.from_numpy(x),
        torch.from_numpy(x).bfloat16(),
        torch.from_numpy(x).double().requires_grad_(),
    ):
        assert list(ht.organize_array(same).trees) == reference


# -- the result -------------------------------------------------------------------------------------------


def test_history_and_status_say_whether_trees_settled():
    planted = planted_array((24, 20, 16), noise=0.01, rng=0)
    org = ht.organize_array(planted.values, ht.Questionnaire(n_iter=6))
    assert org.status.settled
    assert len(org.history) == 6
    assert np.isnan(org.moved[0, 0])
    np.testing.assert_array_equal(org.moved[-1], 0)
    for before, after in zip(org.history, org.history[1:], strict=False):
        for axis in range(3):
            assert after.moved[axis] == ht.tree_distance(before.trees[axis], after.trees[axis])
    noise = ht.organize_array(np.random.default_rng(0).standard_normal((30, 30, 30)))
    assert not noise.status.settled
    assert "n_iter" in str(noise.status)


@pytest.mark.parametrize("landmarks", [None, 5])
def test_the_bar_ends_with_the_last_step(landmarks, monkeypatch):
    totals, steps = [], []

    @contextmanager
    def counted(_, total):
        totals.append(total)
        yield steps.append

    monkeypatch.setattr(organizing, "progress", counted)
    x = np.random.default_rng(9).random((6, 7, 8))
    ht.organize_array(x, ht.Questionnaire(n_iter=3, landmarks=landmarks))
    assert totals == [len(steps)]


def test_names_reach_everything():
    x = np.random.default_rng(9).random((4, 5, 6))
    org = ht.organize(ht.AttentionTensor.from_array(x))
    assert org.names == ("head", "query", "key")
    assert org.trees.head is org.trees[0] is org.trees["head"] is org.trees[-3]
    assert org.affinities.query.shape == (5, 5)
    assert org.trees[1:] == (org.trees.query, org.trees.key)
    assert "key" in dir(org.trees)
    assert org.order("key") is not None
    assert "4 head × 5 query × 6 key" in repr(org)
    with pytest.raises(AttributeError, match="no axis 'value'"):
        org.trees.value  # noqa: B018
    with pytest.raises(AttributeError):
        org.trees.head = None
    with pytest.raises(IndexError):
        org.trees[3]
    assert ht.organize_array(x, names="abc").trees.b == org.trees.query


def test_order_puts_neighbours_in_the_tree_next_to_each_other():
    planted = planted_array((24, 20, 16), noise=0.01, rng=0)
    org = ht.organize_array(planted.values)
    for axis in range(3):
        position = np.argsort(org.order(axis))
        for level in range(org.trees[axis].n_levels):
            for leaves in org.trees[axis].folders(level):
                assert np.ptp(position[leaves]) == len(leaves) - 1
        first = org.coordinates[axis][:, 0]
        tops = org.trees[axis].folders(1)
        by_position = sorted(tops, key=lambda leaves: position[leaves].min())
        assert [first[leaves].mean() for leaves in by_position] == sorted(
            (first[leaves].mean() for leaves in tops), reverse=True
        )
    np.testing.assert_array_equal(
        org.arrange(planted.values), planted.values[np.ix_(*(org.order(axis) for axis in range(3)))]
    )


def test_distances_and_affinities_are_those_of_the_trees():
    x = np.random.default_rng(10).random((5, 6, 7)) * 100
    org = ht.organize_array(x)
    last = [org.history[-2].trees[1], org.history[-2].trees[2]]
    np.testing.assert_allclose(org.distances[0], ht.tree_emd(x, 0, last), rtol=1e-13)
    np.testing.assert_allclose(org.distances[2], ht.tree_emd(x, 2, [org.trees[0], org.trees[1]]), rtol=1e-13)
    for axis in range(3):
        np.testing.assert_allclose(
            org.affinities[axis], np.exp(-org.distances[axis] / np.median(org.distances[axis])), rtol=1e-12
        )
        assert ht.flexible_tree(org.affinities[axis]) == org.trees[axis]


# -- bad input: an error that says what to do, or a defined answer ---------------------------------------------


@pytest.mark.parametrize(
    ("x", "said"),
    [
        (np.full((3, 4), np.nan), r"12 NaN or infinite entries, the first \(nan\) at index \(0, 0\)"),
        (
            np.where(np.arange(12).reshape(3, 4) == 7, np.inf, 1.0),
            r"1 NaN or infinite entries, .* \(inf\) at index \(1, 3\)",
        ),
        (np.zeros((3, 0)), "must not be empty"),
        (np.zeros((0, 3, 2)), "must not be empty"),
        (np.zeros(5), "at least 2 axes"),
        (np.float64(1), "at least 2 axes"),
        ([[1, 2], [3]], "rectangular"),
        (np.array([[None, 1]]), "real numbers"),
        (torch.eye(3).to_sparse(), "dense"),
    ],
)
def test_arrays_that_cannot_be_organized_are_refused(x, said):
    with pytest.raises(HeadtreeError, match=said):
        ht.organize_array(x)


@pytest.mark.parametrize(
    ("settings_", "said"),
    [
        ({"alpha": float("inf")}, "alpha must be finite"),
        ({"beta": "1"}, "beta must be a number"),
        ({"n_iter": 0}, "n_iter must be at least 1"),
        ({"n_iter": 1.5}, "n_iter must be an integer"),
        ({"tree": "oak"}, "tree must be one of"),
        ({"tree_constant": -1.0}, "tree_constant must be greater than 0"),
        ({"balance": 0.9}, "balance must be at least 1"),
        ({"initial": "euclid"}, "initial must be one of"),
        ({"head_from": "last"}, "head_from must be one of"),
        ({"weights": "all"}, "weights must be one of"),
        ({"initial_axes": (0,)}, "all axes or all but one"),
        ({"initial_axes": (0, 5)}, "axis must be between"),
    ],
)
def test_wrong_settings_are_named(settings_, said):
    with pytest.raises(HeadtreeError, match=said):
        ht.organize_array(np.eye(3)[None], ht.Questionnaire(**settings_))


def test_other_wrong_arguments():
    with pytest.raises(HeadtreeError, match="must be a Questionnaire"):
        ht.organize_array(np.eye(3), {"alpha": 1})
    with pytest.raises(HeadtreeError, match="organize_array"):
        ht.organize(np.zeros((2, 3, 4)))
    with pytest.raises(HeadtreeError, match="names must be 2 different strings"):
        ht.organize_array(np.eye(3), names=("a", "a"))


@pytest.mark.parametrize("shape", [(1, 1), (1, 5), (2, 1, 3), (2, 3), (3, 2, 2), (1, 1, 1, 1)])
def test_axes_of_few_slices_are_organized(shape):
    x = np.random.default_rng(11).random(shape)
    org = ht.organize_array(x)
    assert org.shape == shape
    for axis, n in enumerate(shape):
        assert org.trees[axis].n_leaves == n
        assert sorted(org.order(axis)) == list(range(n))


def test_equal_slices_are_one_flat_folder_and_a_warning():
    row = np.random.default_rng(12).random((1, 8, 6)).astype(np.float32)
    for mask in (None, np.triu(np.ones((8, 6), bool), 1)):
        with pytest.warns(HeadtreeWarning, match=r"all slices along head( that have entries)? are equal") as caught:
            org = ht.organize(ht.AttentionTensor.from_array(np.repeat(row, 20, axis=0), mask=mask))
        assert len(caught) == 1
        assert org.trees.head == PartitionTree.flat(20)
        assert org.trees.query != PartitionTree.flat(8)
        assert any("equal" in note for note in org.status.notes)


def test_a_constant_array_has_flat_trees():
    with pytest.warns(HeadtreeWarning) as caught:
        org = ht.organize_array(np.full((2, 6, 7), 3.0))
    assert list(org.trees) == [PartitionTree.flat(n) for n in (2, 6, 7)]
    assert [f"axis{i}" in str(warning.message) for i, warning in enumerate(caught)] == [True] * 3
    assert {warning.filename for warning in caught} == {__file__}  # not of headtree's own code


def test_slices_that_are_identical_or_constant_stay_together():
    x = np.random.default_rng(13).random((12, 10, 8))
    x[3] = x[9] = x[10]
    x[5] = 0
    org = ht.organize_array(x)
    labels = org.trees[0].labels
    assert any(labels[level][3] == labels[level][9] == labels[level][10] for level in range(1, len(labels)))


def test_a_slice_that_is_wholly_missing_stands_alone():
    rng = np.random.default_rng(14)
    x, mask = rng.random((8, 9, 10)), np.zeros((8, 9, 10), bool)
    mask[:, 4] = True
    x[:, 4] = np.nan
    org = ht.organize_array(x, mask=mask)
    assert np.isinf(org.distances[1][4, :4]).all()
    np.testing.assert_array_equal(org.affinities[1][4], np.eye(9)[4])
    assert any("along axis1, 1 slice entirely missing" in note for note in org.status.notes)
    present = np.delete(x, 4, axis=1)
    np.testing.assert_allclose(
        ht.tree_emd(present, 1, [org.trees[0], org.trees[2]]),
        np.delete(np.delete(ht.tree_emd(x, 1, [org.trees[0], org.trees[2]], mask=mask), 4, 0), 4, 1),
        rtol=1e-12,
    )


@settings(max_examples=80, deadline=None)
@given(
    npst.arrays(
        st.sampled_from([np.float16, np.float32, np.float64, np.int16, np.uint8, np.bool_]),
        npst.array_shapes(min_dims=2, max_dims=4, min_side=1, max_side=7),
        elements={"allow_nan": False, "allow_infinity": False},
    ),
    st.sampled_from(["flexible", "binary"]),
    st.sampled_from(["cosine", "correlation", "gaussian"]),
    st.booleans(),
    st.data(),
)
@pytest.mark.filterwarnings("ignore::headtree.errors.HeadtreeWarning")
def test_any_finite_array_has_an_organization(x, tree, initial, masked, data):
    mask = data.draw(npst.arrays(np.bool_, x.shape)) if masked else None
    settings_ = ht.Questionnaire(tree=tree, initial=initial, n_iter=2)
    if masked and mask.all():
        with pytest.raises(HeadtreeError, match="hides every entry"):
            ht.organize_array(x, settings_, mask=mask)
        return
    org = ht.organize_array(x, settings_, mask=mask)
    assert org.shape == x.shape
    assert list(ht.organize_array(x.copy(), settings_, mask=mask).trees) == list(org.trees)
    for axis in range(x.ndim):
        assert np.isfinite(org.affinities[axis]).all()
        assert np.isfinite(org.coordinates[axis]).all()
        assert sorted(org.order(axis)) == list(range(x.shape[axis]))
