"""Laws of all similarities of heads: what they must not see, and what they must do."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headtree as ht
from headtree.measures.similarity import from_organizations
from headtree.similarity.head_similarity import affinity_of
from tests.similarity.examples import cases, own_masks, scores, tensor

KINDS = ("attention", "cosine", "jensen-shannon", "l1", "questionnaire")
QUICK = ht.Questionnaire(n_iter=2)


def similarity(atts, kind):
    return ht.head_similarity(atts, kind, settings=QUICK if kind == "questionnaire" else None)


def in_sixteenths(x):
    """Numbers to which integers can be added without rounding, in float32 as well."""
    return np.round(16 * x) / 16


def shifted(x, seed, largest=1000):
    """Scores with an integer added to each row of each head."""
    return x + np.random.default_rng(seed).integers(-largest, largest, (*x.shape[:2], 1)).astype(x.dtype)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, max_examples=8)
@given(seed=st.integers(0, 99), form=st.sampled_from(["plain", "causal", "own masks"]))
def test_constants_of_rows_change_nothing(kind, dtype, seed, form):
    x = in_sixteenths(scores(6, 7, 8, seed)).astype(dtype)
    mask = {"plain": None, "causal": np.triu(np.ones((7, 8), bool), 2), "own masks": own_masks(6, 7, 8, seed)}[form]
    before, after = (similarity(tensor(each, mask), kind) for each in (x, shifted(x, seed)))
    tolerance = 1e-9 if dtype == np.float64 else 1e-5
    np.testing.assert_allclose(after.distance, before.distance, atol=tolerance)
    np.testing.assert_allclose(after.affinity, before.affinity, atol=tolerance)


@pytest.mark.parametrize("kind", KINDS)
def test_constants_of_rows_change_nothing_on_disk(kind, tmp_path):
    x = in_sixteenths(scores(6, 7, 7)).astype(np.float32)
    mask = np.triu(np.ones((7, 7), bool), 1)
    tensor(shifted(x, 1), mask).save(tmp_path / "a.zarr")
    stored = ht.AttentionTensor.open(tmp_path / "a.zarr")
    expected = similarity(tensor(x, mask), kind)
    np.testing.assert_allclose(similarity(stored, kind).distance, expected.distance, atol=1e-5)


def test_families_do_not_see_constants_of_rows():
    rng = np.random.default_rng(0)
    base = in_sixteenths(2 * np.repeat(rng.standard_normal((3, 8, 8)), 4, axis=0))
    arrays = [base + in_sixteenths(rng.standard_normal(base.shape)) for _ in range(6)]
    plain, moved = (
        ht.consensus(ht.head_similarity([tensor(x) for x in given]), n_bootstrap=20)
        for given in (arrays, [shifted(x, i) for i, x in enumerate(arrays)])
    )
    np.testing.assert_array_equal(plain.families().of_leaf, moved.families().of_leaf)
    np.testing.assert_array_equal(plain.support, moved.support)
    assert len(plain.families()) == 3


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, max_examples=6)
@given(seed=st.integers(0, 99))
def test_relabelling_heads_relabels_distances(kind, seed):
    att = tensor(scores(6, 7, 8, seed), own_masks(6, 7, 8, seed))
    order = np.random.default_rng(seed).permutation(6)
    found, moved = similarity(att, kind), similarity(att.take(order), kind)
    assert moved.heads == tuple(found.heads[i] for i in order)
    for name in ("distance", "affinity"):
        there = getattr(found, name)[0]
        np.testing.assert_allclose(getattr(moved, name)[0], there[np.ix_(order, order)], atol=1e-9)
        np.testing.assert_allclose(there, there.T, atol=0)
    np.testing.assert_array_equal(np.diag(found.distance[0]), 0)
    np.testing.assert_array_equal(np.diag(found.affinity[0]), 1)


@pytest.mark.parametrize("kind", KINDS)
def test_each_input_is_compared_by_itself_and_one_hot_weights_return_it(kind):
    atts = [tensor(scores(5, 6, n, seed)) for seed, n in enumerate((7, 8, 9))]
    found = similarity(atts, kind)
    assert (found.kind, found.n_inputs, found.heads) == (kind, 3, atts[0].heads)
    for i, att in enumerate(atts):
        alone = similarity(att, kind)
        np.testing.assert_array_equal(found.distance[i], alone.distance[0])
        np.testing.assert_array_equal(found.combine(np.eye(3)[i]), found.affinity[i])
    np.testing.assert_allclose(found.combine([3, 1, 0]), (3 * found.affinity[0] + found.affinity[1]) / 4)
    np.testing.assert_allclose(found.combine(), found.affinity.mean(axis=0))


@pytest.mark.parametrize("kind", KINDS[:-1])
@pytest.mark.parametrize("name", tuple(cases()))
def test_affinities_are_those_of_the_definition(kind, name):
    found = ht.head_similarity(cases()[name], kind)
    distance = found.distance[0]
    median = np.median([distance[a, b] for a, b in np.ndindex(5, 5) if a != b])
    np.testing.assert_allclose(found.affinity[0], np.exp(-distance / median))


def test_the_width_is_a_distance_that_is_not_0():
    """If most heads are equal, the median is 0: then it is that of the others."""
    distance = np.zeros((5, 5))
    distance[4, :4] = distance[:4, 4] = [1, 2, 3, 4]
    np.testing.assert_allclose(affinity_of(distance)[4], np.exp(-distance[4] / 2.5))
    np.testing.assert_array_equal(affinity_of(np.zeros((3, 3))), 1)
    np.testing.assert_array_equal(affinity_of(np.zeros((1, 1))), 1)


@pytest.mark.parametrize("kind", KINDS[:-1])
def test_equal_heads_are_one_flat_folder(kind):
    """Nothing is made of rounding errors, and consensus takes it."""
    x = np.repeat(scores(1, 7, 8), 6, axis=0)
    atts = [tensor(x), tensor(x + 1), tensor(2 * x)]
    found = ht.head_similarity(atts, kind)
    np.testing.assert_array_equal(found.distance, 0)
    np.testing.assert_array_equal(found.affinity, 1)
    agreed = ht.consensus(found, n_bootstrap=3)
    assert agreed.tree == ht.PartitionTree.flat(6)
    assert len(agreed.families()) == 0
    assert found.notes == ("all 6 heads are equal on every input, so there is nothing to tell them apart by",)


@pytest.mark.parametrize("kind", KINDS)
def test_some_equal_heads_are_named_if_they_are_equal_on_every_input(kind):
    x, y = scores(6, 7, 8), scores(6, 7, 8) ** 2
    x[4], y[4] = x[1], y[1]
    x[3], y[5] = x[0], y[0]  # on one input each
    assert ht.head_similarity([tensor(x), tensor(y)], kind).notes == (
        "some heads are equal on every input: L0H1, L0H4",
    )
    assert ht.head_similarity(tensor(x), kind).notes == (
        "some heads are equal on every input: L0H0, L0H3; L0H1, L0H4",
    )


def test_the_questionnaire_is_of_centred_scores_or_of_probabilities():
    att = tensor(scores(6, 7, 8), own_masks(6, 7, 8))
    expected = from_organizations([ht.organize(att.centred(), QUICK)], att.heads)
    np.testing.assert_array_equal(similarity(att, "questionnaire").distance, expected.distance)
    probs = tensor(np.random.default_rng(0).dirichlet(np.ones(8), (6, 7)), kind="probs")
    expected = from_organizations([ht.organize(probs, QUICK)], probs.heads)
    np.testing.assert_array_equal(similarity(probs, "questionnaire").affinity, expected.affinity)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 99), is_masked=st.booleans())
def test_centred_scores_have_the_same_softmax_and_are_centred_once(dtype, seed, is_masked):
    from headtree.tensor.probabilities import as_probabilities

    x = shifted(in_sixteenths(scores(4, 5, 6, seed)).astype(dtype), seed)
    mask = own_masks(4, 5, 6, seed) if is_masked else np.zeros(x.shape, bool)
    att = tensor(np.where(mask, np.nan, x), mask)
    found = att.centred()
    values = found.block().numpy()
    assert values.dtype == dtype
    for head, query in np.ndindex(4, 5):
        allowed = ~mask[head, query]
        row = x[head, query][allowed].astype(np.float64)
        if allowed.any():
            np.testing.assert_allclose(values[head, query][allowed], row - row.mean(), atol=1e-5)
        np.testing.assert_array_equal(values[head, query][~allowed], 0)
    np.testing.assert_allclose(as_probabilities(found).values, as_probabilities(att).values, atol=1e-6)
    assert found.centred() is found
    again = ht.AttentionTensor(values, found.heads, found.queries, found.keys, mask=mask)
    np.testing.assert_allclose(again.centred().block(), values, atol=1e-6)
    assert found.provenance["centred"] is True


def test_centring_drops_sinks_and_refuses_probabilities(tmp_path):
    sinks = tensor(scores(), sinks=np.zeros(5))
    assert sinks.centred().sinks is None
    assert sinks.sinks is not None
    with pytest.raises(ht.HeadtreeError, match=r"centred needs scores .* free of constants already"):
        tensor(np.full((2, 3, 3), 1 / 3), kind="probs").centred()
    sinks.save(tmp_path / "a.zarr")
    np.testing.assert_allclose(
        ht.AttentionTensor.open(tmp_path / "a.zarr").centred().block(), sinks.centred().block()
    )


ATT = tensor(scores())
CALLS = {
    "heads that differ": (
        lambda: ht.head_similarity([ATT, ATT.take([0, 1])]),
        r"on every input, got 5 heads \(L0H0 to L0H4\) in input 0 and 2 heads \(L0H0 to L0H1\) in input 1; capture",
    ),
    "a head that is masked everywhere, for a questionnaire": (
        lambda: ht.head_similarity(tensor(scores(), mask=np.arange(5)[:, None, None] == 2), "questionnaire"),
        r"head L0H2 is masked on every query of an input, .* leave it out with att\.take",
    ),
    "no input": (lambda: ht.head_similarity([]), "at least one AttentionTensor, got none"),
    "arrays": (lambda: ht.head_similarity([scores()]), r"wrap an array with AttentionTensor\.from_array"),
    "a kind that is unknown": (lambda: ht.head_similarity(ATT, "hellinger"), r"kind must be one of \('attention'"),
    "values that tensors lack": (
        lambda: ht.head_similarity(ATT, "function"),
        r"tensors hold no values; pass the model: ht\.ModelView\(model\)\.head_similarity\(texts=",
    ),
    "settings of another kind": (
        lambda: ht.head_similarity(ATT, settings=QUICK),
        "settings are for kind='questionnaire' only, got kind='attention'; leave them out",
    ),
    "weights of other inputs": (lambda: ht.head_similarity(ATT).combine([1, 2]), "weights must be 1 numbers"),
    "negative weights": (lambda: ht.head_similarity([ATT, ATT]).combine([2, -1]), "not negative and not all 0"),
    "weights of 0": (lambda: ht.head_similarity([ATT, ATT]).combine([0, 0]), "not all 0, got"),
    "weights that are nan": (lambda: ht.head_similarity([ATT, ATT]).combine([1, np.nan]), "finite"),
    "weights in words": (lambda: ht.head_similarity([ATT, ATT]).combine("ab"), "weights must be 2 numbers"),
    "numbers that are nan": (lambda: ht.head_similarity(tensor(scores() / 0)), "finite unless masked"),
}  # fmt: skip


@pytest.mark.parametrize(("call", "message"), CALLS.values(), ids=CALLS)
@pytest.mark.filterwarnings("ignore:divide by zero")
def test_bad_input(call, message):
    with pytest.raises(ht.HeadtreeError, match=message):
        call()


def test_one_input_has_a_similarity_but_no_consensus():
    found = ht.head_similarity(ATT)
    assert repr(found) == "HeadSimilarity('attention', 5 heads, 1 input)"
    with pytest.raises(ht.HeadtreeError, match="two or more, got 1; support comes from resampling inputs"):
        ht.consensus(found)


def test_one_head_has_a_similarity():
    found = ht.head_similarity([ATT.take([0])] * 2)
    np.testing.assert_array_equal(found.affinity, 1)
    assert len(ht.consensus(found, n_bootstrap=2).families()) == 0


def test_weights_of_any_size():
    """Their sum may be out of range."""
    found = ht.head_similarity([tensor(scores(4, 6, 6)), tensor(scores(4, 6, 6) ** 2)])
    for weight in (1e308, 1e-310):
        np.testing.assert_allclose(found.combine([weight, weight]), found.combine(), rtol=1e-14)


@pytest.mark.parametrize(
    ("dtype", "size"), [(np.float32, 3e38), (np.float32, 2.0**-140), (np.float64, 1e308), (np.float64, 2.0**-1060)]
)
@pytest.mark.parametrize("kind", ["weighted", "signed"])
def test_attention_of_any_size(kind, dtype, size):
    """Sums of rows would overflow, or count as nothing."""
    x = np.random.default_rng(0).integers(0, 3, (5, 6, 6)) / 2
    x[:, :, 0] = 1
    near = ht.head_similarity(ht.AttentionTensor.from_array(x.astype(dtype), kind=kind))
    far = ht.head_similarity(ht.AttentionTensor.from_array((x * dtype(size)).astype(dtype), kind=kind))
    np.testing.assert_allclose(far.distance, near.distance, rtol=1e-3, atol=1e-6)
