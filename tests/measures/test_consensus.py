import itertools

import numpy as np
import pytest
from scipy.spatial.distance import pdist, squareform
from scipy.special import softmax
from scipy.stats import binom

import headtree as ht
from headtree.geometry.combined_affinity import InputMatrices
from headtree.geometry.linkage import linkage_tree
from headtree.geometry.resampled_trees import ResampledTrees
from headtree.measures import support as support_module
from headtree.measures.support import divisions, tree_closeness
from headtree.questionnaire.organization import PerAxis, Status
from tests.measures.examples import families, noise


@pytest.fixture(scope="module")
def organizations():
    return [ht.organize(families(seed)) for seed in range(8)]


def support_of(found):
    return {tuple(leaves.tolist()): value for leaves, value in zip(found.folders, found.support, strict=True)}


def with_affinity(x):
    """An organization with this affinity of heads, which is all that a consensus reads of it."""
    names = ("head", "query", "key")
    nothing = PerAxis(names, [np.empty((0, 0))] * 3)
    return ht.Organization(
        trees=PerAxis(names, [ht.PartitionTree.flat(len(x)) for _ in names]),
        affinities=PerAxis(names, [x, x, x]),
        distances=nothing,
        coordinates=nothing,
        initial_trees=PerAxis(names, [None] * 3),
        history=(),
        status=Status(True, "made for a test"),
        settings=ht.Questionnaire(),
    )


def of_distances(x):
    """An organization with the affinity of section 3 of ALGORITHMS, of plain L1 distances between heads."""
    distances = squareform(pdist(x.reshape(len(x), -1), "cityblock"))
    return with_affinity(np.exp(-distances / np.median(distances)))


def planted(sizes, n_inputs, noise, seed, organize=of_distances, shape=(18, 14), is_base_kept=True):
    """Organizations of heads in shuffled families of these sizes, and the families.

    Each family has a pattern of its own, the same in all inputs or, with `is_base_kept` false, a new one in each.
    """
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    bases = rng.standard_normal((n_inputs, len(sizes), *shape))
    if is_base_kept:
        bases[:] = bases[0]
    arrays = [base[labels] + noise * rng.standard_normal((len(labels), *shape)) for base in bases]
    folders = [tuple(np.flatnonzero(labels == family).tolist()) for family in range(len(sizes))]
    return [organize(x) for x in arrays], sorted(folders, key=lambda f: (-len(f), f))


@pytest.mark.parametrize(
    ("sizes", "n_inputs", "noise"),
    [
        ((10, 10, 10, 10), 2, 0.6),
        ((5, 5, 5, 5), 3, 1.0),
        ((5, 5, 5, 5), 8, 1.5),
        ((2, 2, 2, 2, 2, 2), 8, 1.0),
        ((3, 5, 9, 13), 4, 1.0),
        ((2, 3, 10, 17), 6, 0.8),
        ((6, 10, 20, 30), 10, 1.0),
    ],
)
def test_planted_families_have_support_near_one(sizes, n_inputs, noise):
    for seed in range(2 if sum(sizes) < 50 else 1):
        organizations, expected = planted(sizes, n_inputs, noise, seed)
        assert_recovered(ht.consensus(organizations, n_bootstrap=40), expected)


def assert_recovered(found, expected):
    support = support_of(found)
    assert min(support.get(family, 0.0) for family in expected) >= 0.95
    main = found.families(at_most=len(expected))
    assert [tuple(folder.tolist()) for folder in main.folders] == expected
    assert main.support.min() >= 0.95


@pytest.mark.parametrize(("sizes", "n_inputs", "noise"), [((3, 5, 9, 13), 4, 1.0)])
def test_planted_families_are_found_by_the_questionnaire(sizes, n_inputs, noise):
    organizations, expected = planted(sizes, n_inputs, noise, 0, ht.organize_array)
    assert_recovered(ht.consensus(organizations, n_bootstrap=40), expected)


def gaussian_scores(rng, n_heads):
    return rng.standard_normal((n_heads, 10, 9))


def causal_attention(rng, n_heads):
    """Peaked softmax of noise, each query over the keys up to its own."""
    scores = np.where(np.tri(12, dtype=bool), 3 * rng.standard_normal((n_heads, 12, 12)), -np.inf)
    return softmax(scores, axis=-1)


@pytest.mark.parametrize("kind", [gaussian_scores, causal_attention])
def test_noise_has_no_support(kind):
    """Chance is meant to be exceeded in 2 of 201 networks for folders of one size.

    The number allowed here is the one that an event of three times that probability, for several sizes, exceeds
    once in a thousand tests.
    """
    draws = [*itertools.product([8, 16], [4, 6, 10, 20])] * 2 + [(24, 6)]
    largest = []
    for draw, (n_heads, n_inputs) in enumerate(draws):
        rng = np.random.default_rng([n_inputs, draw])
        found = ht.consensus([of_distances(kind(rng, n_heads)) for _ in range(n_inputs)], n_bootstrap=60)
        assert len(found.families()) == sum(found.families().support > 0)
        largest.append(found.support.max())
    assert np.sum(np.array(largest) > 0) <= binom.ppf(0.999, len(draws), 0.03)


def test_the_plain_transfer_of_noise_is_high():
    """Why there is a support beside the transfer."""
    rng = np.random.default_rng(0)
    found = [
        ht.consensus([of_distances(gaussian_scores(rng, 16)) for _ in range(6)], n_bootstrap=60) for _ in range(6)
    ]
    assert np.mean([x.transfer.max() for x in found]) > 0.3
    assert np.mean([x.support.max() for x in found]) < 0.05


def test_without_correction_noise_would_have_support(monkeypatch):
    """What `test_noise_has_no_support` is worth: both halves agree often enough without it."""
    monkeypatch.setattr(support_module.Chance, "_exceeded_by_few", lambda self, largest: 0.0)
    rng = np.random.default_rng(0)
    found = [
        ht.consensus([of_distances(gaussian_scores(rng, 16)) for _ in range(6)], n_bootstrap=60) for _ in range(6)
    ]
    assert np.mean([x.support.max() > 0 for x in found]) >= 0.5


def test_noise_through_the_questionnaire_has_no_support():
    found = ht.consensus([ht.organize(noise(seed)) for seed in range(12)])
    assert found.support.max() < 0.1
    assert found.supported(0.1) == []


@pytest.mark.parametrize("draw", range(4))
def test_pairs_of_two_inputs_have_no_support(draw):
    """Two unrelated trees of 24 heads have a pair in common in one of three cases: no evidence."""
    rng = np.random.default_rng(draw)
    found = ht.consensus([of_distances(gaussian_scores(rng, 24)) for _ in range(2)])
    pairs = [support for leaves, support in zip(found.folders, found.support, strict=True) if len(leaves) == 2]
    assert max(pairs) == 0


def false_support(found, is_true):
    """Support of the folders that are chance."""
    return [value for folder, value in support_of(found).items() if not is_true(set(folder))]


@pytest.mark.parametrize(("sizes", "n_inputs"), [((4,) * 6, 4), ((5,) * 4, 8)])
def test_chance_within_families_gets_no_support(sizes, n_inputs):
    """Folders inside a family whose heads differ by noise alone."""
    inside = []
    for seed in range(4):
        organizations, expected = planted(sizes, n_inputs, 0.8, seed)
        wholes = [set(family) for family in expected]
        found = ht.consensus(organizations, n_bootstrap=60)
        inside += false_support(found, lambda folder, wholes=wholes: not any(folder < whole for whole in wholes))
    assert len(inside) >= 40
    assert np.mean(np.array(inside) > 0) <= binom.ppf(0.999, len(inside), 0.01) / len(inside)


@pytest.mark.parametrize(("sizes", "n_inputs"), [((4,) * 6, 6), ((3, 5, 9, 13), 6)])
def test_chance_unions_of_families_get_no_support(sizes, n_inputs):
    """The same families in every input, but nothing that any two of them have in common."""
    unions = []
    for seed in range(4):
        organizations, expected = planted(sizes, n_inputs, 0.8, seed, is_base_kept=False)
        wholes = [set(family) for family in expected]
        found = ht.consensus(organizations, n_bootstrap=60)
        assert min(support_of(found).get(family, 0.0) for family in expected) >= 0.95
        unions += false_support(found, lambda folder, wholes=wholes: any(folder <= whole for whole in wholes))
    assert np.mean(np.array(unions) > 0) <= binom.ppf(0.999, len(unions), 0.01) / len(unions)


def test_families_within_families_are_all_found():
    """Two halves of the heads, each of two families of five: three true divisions, on two scales."""
    recovered = []
    for seed in range(2):
        rng = np.random.default_rng(seed)
        halves, quarters = rng.standard_normal((2, 18, 14)), rng.standard_normal((4, 18, 14))
        labels = rng.permutation(np.repeat(np.arange(4), 5))
        base = 1.5 * halves[labels // 2] + quarters[labels]
        arrays = [base + 0.8 * rng.standard_normal(base.shape) for _ in range(8)]
        support = support_of(ht.consensus([of_distances(x) for x in arrays], n_bootstrap=60))
        true = [np.isin(labels, group) for group in ([0, 1], [2, 3], [0], [1], [2], [3])]
        recovered += [support.get(tuple(np.flatnonzero(leaves).tolist()), 0.0) for leaves in true]
        assert len(support) - sum(value > 0 for value in support.values()) >= len(support) - 7
    assert np.min(recovered) >= 0.95


def test_the_tree_is_what_the_trees_of_halves_agree_on(organizations):
    found = ht.consensus(organizations, n_bootstrap=2)
    inputs = InputMatrices(np.stack([org.affinities.head for org in organizations])[None], False)
    trees = ResampledTrees.grow(inputs, divisions(8, 2, np.random.default_rng(0)))
    assert found.tree == linkage_tree(tree_closeness(inputs, trees))
    np.testing.assert_allclose(found.affinity, inputs.parts[0].mean(axis=0))
    for leaves, node in zip(found.folders, found.node, strict=True):
        level = found.tree.levels[node]
        np.testing.assert_array_equal(np.flatnonzero(found.tree.nodes[level] == node), leaves)
        assert 1 < len(leaves) < 20
    members = np.array([np.isin(np.arange(20), leaves) for leaves in found.folders])
    np.testing.assert_allclose(found.transfer, trees.transfer(members).mean(axis=0))
    assert len(set(map(tuple, found.folders))) == len(found.folders) == len(found.support)
    assert found.to_dict()["size"] == [len(leaves) for leaves in found.folders]
    assert any(np.array_equal(leaves, np.arange(5)) for leaves in found.supported(0.9))
    assert [len(leaves) for leaves in found.supported(0.0)] == sorted(map(len, found.folders), reverse=True)
    assert (found.kind, found.n_inputs, found.n_bootstrap) == ("questionnaire", 8, 2)


def test_equal_inputs_agree_on_everything(organizations):
    found = ht.consensus([organizations[0]] * 9, n_bootstrap=5)
    np.testing.assert_array_equal(found.transfer, 1)
    assert set(found.support) <= {0, 1}  # 0 where chance puts together as few heads or families as there are
    small = np.array([len(leaves) < 6 for leaves in found.folders])
    assert found.support[small].mean() > 0.8


def test_equal_heads_are_one_flat_folder():
    found = ht.consensus([with_affinity(np.ones((6, 6)))] * 3, n_bootstrap=5)
    assert found.tree == ht.PartitionTree.flat(6)
    assert len(found.support) == len(found.folders) == len(found.families()) == 0
    np.testing.assert_array_equal(found.families().of_leaf, -1)


def test_support_is_the_same_on_every_run_and_moves_with_the_heads(organizations):
    a, b = (ht.consensus(organizations, n_bootstrap=10, rng=1) for _ in range(2))
    np.testing.assert_array_equal(a.support, b.support)
    order = np.random.default_rng(0).permutation(20)
    moved = ht.consensus(
        [with_affinity(org.affinities.head[np.ix_(order, order)]) for org in organizations], n_bootstrap=10, rng=1
    )
    expected = {tuple(sorted(order[list(leaves)].tolist())): s for leaves, s in support_of(moved).items()}
    assert expected == support_of(a)


def test_other_axes():
    settings = ht.Questionnaire(tree="binary", n_iter=1)
    found = ht.consensus([ht.organize(families(seed), settings) for seed in range(3)], "query", n_bootstrap=3)
    assert found.tree.n_leaves == 18
    assert found.n_inputs == 3


def test_bad_input(organizations):
    one = ht.head_similarity(families(0))
    with pytest.raises(ValueError, match="two or more, got 1; support comes from resampling inputs, and one input"):
        ht.consensus(one)
    with pytest.raises(ValueError, match="two or more, got 1; support comes from resampling"):
        ht.consensus(organizations[:1])
    with pytest.raises(TypeError, match="HeadSimilarity or a list of Organization objects, got int"):
        ht.consensus([1, 2])
    with pytest.raises(ValueError, match="same number of leaves along axis 0"):
        ht.consensus([organizations[0], ht.organize(noise(0, (7, 18, 14)))])
    for wrong, rule in ((np.full((20, 20), np.nan), "finite"), (np.tri(20), "symmetric")):
        with pytest.raises(ValueError, match=f"affinity must be {rule}"):
            ht.consensus([organizations[0], with_affinity(wrong)])
    with pytest.raises(ValueError, match="n_bootstrap must be at least 1"):
        ht.consensus(organizations, n_bootstrap=0)
    with pytest.raises(ValueError, match="at_most must be at least 1"):
        ht.consensus(organizations, n_bootstrap=1).families(0)
    with pytest.raises(TypeError, match="least must be a number, got None"):
        ht.consensus(organizations, n_bootstrap=1).supported(None)


def test_a_consensus_says_in_a_line_what_it_is():
    inputs = [ht.AttentionTensor.from_array(np.random.default_rng(i).normal(size=(5, 6, 6))) for i in range(4)]
    found = ht.consensus(ht.head_similarity(inputs), n_bootstrap=10)
    assert (
        repr(found) == f"Consensus('attention', {len(found.folders)} folders of 5 leaves, 0 with support, 4 inputs)"
    )
