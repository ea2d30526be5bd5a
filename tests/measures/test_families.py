"""Families of heads: the best choice of folders, their medoids, and whether other inputs show them again."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

import headtree as ht
from headtree.geometry.combined_affinity import InputMatrices
from headtree.geometry.linkage import linkage_tree
from headtree.measures import families as families_module
from headtree.measures.comparisons import adjusted_rand_index
from headtree.measures.consensus import consensus_of, of_one_input
from headtree.measures.families import likeness_of, replication_of_families
from headtree.measures.support import Chance
from tests.measures.examples import families, noise


def random_consensus(seed, n=10):
    rng = np.random.default_rng(seed)
    x = rng.random((n, n))
    affinity = (x + x.T) / 2
    np.fill_diagonal(affinity, 1)
    tree = linkage_tree(affinity)
    n_folders = len(tree.distinct) - n - 1
    support = rng.random(n_folders) * (rng.random(n_folders) < 0.7)
    return ht.Consensus("attention", tree, affinity, support, support, None, (), n_inputs=3, n_bootstrap=10)


def literal_families(found, at_most, exponent):
    """The set of disjoint folders with the largest sum, and that sum."""
    n = found.tree.n_leaves
    worth = [
        (len(f) / n) ** exponent * (1 - len(f) / n) * 2 * s
        for f, s in zip(found.folders, found.support, strict=True)
    ]
    best, best_chosen = 0.0, ()
    for count in range(1, at_most + 1):
        for chosen in itertools.combinations(np.flatnonzero(worth), count):
            leaves = np.concatenate([found.folders[i] for i in chosen])
            total = sum(worth[i] for i in chosen)
            if len(set(leaves.tolist())) == len(leaves) and total > best:
                best, best_chosen = total, chosen
    return best, best_chosen


def literal_exponent(found):
    """1 if eight families then have 85 % of the heads, otherwise 2."""
    _, chosen = literal_families(found, 8, 1)
    return 1 if sum(len(found.folders[i]) for i in chosen) >= 0.85 * found.tree.n_leaves else 2


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("at_most", [1, 2, 3, 5])
def test_families_are_the_best_of_all_choices(seed, at_most):
    found = random_consensus(seed)
    main = found.families(at_most)
    n_of = np.array([len(folder) for folder in main.folders])
    assert len(main) <= at_most
    assert (np.diff(n_of) <= 0).all()
    assert main.support.min() > 0
    exponent = literal_exponent(found)
    total = ((n_of / 10) ** exponent * (1 - n_of / 10) * 2 * main.support).sum()
    assert total == pytest.approx(literal_families(found, at_most, exponent)[0])
    support = {tuple(leaves.tolist()): value for leaves, value in zip(found.folders, found.support, strict=True)}
    for i, folder in enumerate(main.folders):
        np.testing.assert_array_equal(np.flatnonzero(main.of_leaf == i), folder)
        assert support[tuple(folder.tolist())] == main.support[i]
        assert found.tree.nodes[found.tree.levels[main.node[i]]][folder[0]] == main.node[i]
    assert (main.of_leaf == -1).sum() == 10 - n_of.sum()
    assert main.coverage == n_of.sum() / 10


@pytest.mark.parametrize("seed", range(6))
def test_the_medoid_is_most_alike_to_the_rest_of_its_family(seed):
    found = random_consensus(seed)
    main = found.families()
    for leaves, medoid in zip(main.folders, main.medoid, strict=True):
        to_others = {a: sum(found.affinity[a, b] for b in leaves if b != a) for a in leaves}
        assert max(leaves, key=to_others.get) == medoid


def test_no_support_means_no_families():
    found = random_consensus(0)
    none = ht.Consensus(
        "attention",
        found.tree,
        found.affinity,
        found.transfer,
        0 * found.support,
        None,
        (),
        n_inputs=3,
        n_bootstrap=10,
    )
    main = none.families()
    assert len(main) == len(main.medoid) == len(main.node) == 0
    assert main.coverage == 0
    np.testing.assert_array_equal(main.of_leaf, -1)
    alone = of_one_input("attention", found.tree, found.affinity)
    assert np.isnan(alone.support).all()
    assert len(alone.families()) == 0


@pytest.mark.parametrize("seed", range(30))
def test_the_adjusted_rand_index_is_that_of_scikit_learn(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 20))
    a, b = (rng.integers(0, rng.integers(1, 8), n) for _ in range(2))
    assert adjusted_rand_index(a, b) == pytest.approx(adjusted_rand_score(a, b))
    assert adjusted_rand_index(a, 7 - a) == 1


def test_labels_that_say_nothing():
    """All heads alone twice, all together twice, and one of each, which chance gives as well."""
    alone, together = np.arange(6), np.zeros(6, int)
    assert adjusted_rand_index(alone, alone) == adjusted_rand_index(together, together) == 1
    assert adjusted_rand_index(alone, together) == adjusted_rand_score(alone, together) == 0


def planted(n_inputs):
    return ht.head_similarity([families(seed) for seed in range(n_inputs)])


def test_planted_families_are_found_and_replicate():
    found = ht.consensus(planted(10), n_bootstrap=40)
    main = found.families()
    assert [leaves.tolist() for leaves in main.folders] == np.arange(20).reshape(4, 5).tolist()
    assert main.support.min() >= 0.95
    assert main.coverage == 1
    assert main.replication == found.replication
    assert found.replication.rand_index > 0.95
    assert found.replication.low <= found.replication.rand_index <= found.replication.high <= 1
    assert found.families(at_most=3).replication is None  # it is of the default number


def test_noise_has_no_family_and_does_not_replicate():
    found = ht.consensus(ht.head_similarity([noise(seed) for seed in range(10)]), n_bootstrap=40)
    assert len(found.families()) == 0
    assert found.families().coverage == 0
    assert found.replication is None
    assert found.growth == ()


def test_growth_ends_with_the_families_that_are_returned():
    """Twelve clear families, of which eight are chosen: large chance folders have no part in it."""
    rng = np.random.default_rng(0)
    inputs = [
        ht.AttentionTensor.from_array(
            np.repeat(rng.normal(size=(12, 8, 8)), 3, axis=0) + rng.normal(size=(36, 8, 8)) / 2
        )
        for _ in range(16)
    ]
    found = ht.consensus(ht.head_similarity(inputs), n_bootstrap=40)
    families = found.families()
    assert [step.n_inputs for step in found.growth] == [4, 8, 16]
    assert found.growth[-1].support == pytest.approx(np.average(families.support, weights=[3] * 8))
    assert found.growth[-1].coverage == pytest.approx(families.coverage)
    supports = [step.support for step in found.growth]
    assert 0.5 < supports[0] <= supports[1] + 0.05 <= supports[2] + 0.1


@pytest.mark.parametrize(("n_inputs", "is_known"), [(2, False), (3, False), (4, True)])
def test_replication_needs_two_inputs_in_each_half(n_inputs, is_known):
    assert (ht.consensus(planted(n_inputs), n_bootstrap=5).replication is not None) == is_known


def test_replication_is_of_random_halves(monkeypatch):
    """The families of half of the inputs are asked for twice in each division, without an input in common."""
    seen = []

    def found_in(inputs, halves, chance, at_most, exponent):
        assert exponent == 2  # that of all inputs
        seen.extend(inputs.of_inputs(half.inputs.tolist()).parts[0, :, 0, 1].tolist() for half in halves)
        return [np.arange(4) // (1 + i % 2) for i in range(len(halves))]  # single heads, or pairs

    monkeypatch.setattr(families_module, "_quick_families", found_in)
    parts = np.broadcast_to(np.arange(5.0)[None, :, None, None], (1, 5, 4, 4)).copy()
    inputs = InputMatrices(parts, False)
    found = replication_of_families(inputs, Chance(*np.zeros((2, 1, 4))), 8, 2.0, np.random.default_rng(0))
    for a, b in zip(seen[::2], seen[1::2], strict=True):
        assert sorted(a + b) == [0, 1, 2, 3, 4]
        assert {len(a), len(b)} == {2, 3}
    assert len({tuple(sorted(a)) for a in seen}) > 5
    assert found.rand_index == found.low == found.high == adjusted_rand_score([0, 0, 1, 1], [0, 1, 2, 3])


def test_support_and_families_move_with_the_heads():
    atts = [families(seed) for seed in range(8)]
    order = np.random.default_rng(0).permutation(20)
    there = ht.consensus(ht.head_similarity(atts), n_bootstrap=20)
    moved = ht.consensus(ht.head_similarity([att.take(order) for att in atts]), n_bootstrap=20)

    def table(found, names):
        rows = zip(found.folders, found.support, found.transfer, strict=True)
        return {tuple(sorted(names[leaves].tolist())): (round(s, 9), round(t, 9)) for leaves, s, t in rows}

    assert table(moved, order) == table(there, np.arange(20))
    ours, theirs = there.families(), moved.families()
    medoids = [(*sorted(order[f].tolist()), order[m]) for f, m in zip(theirs.folders, theirs.medoid, strict=True)]
    assert set(medoids) == {(*f.tolist(), m) for f, m in zip(ours.folders, ours.medoid, strict=True)}
    assert there.replication.rand_index == pytest.approx(moved.replication.rand_index)


def kernels_with_families(seed=0, n_inputs=10):
    """12 heads: 0-5 look alike, of which only 0 and 1 write alike; 6-11 look and write alike."""
    rng = np.random.default_rng(seed)
    looks, writes = np.repeat([0, 1], 6), np.array([0, 0, 2, 3, 4, 5] + [1] * 6)

    def cosines(groups, noise):
        shared = np.eye(6)[groups] + noise * rng.normal(size=(n_inputs, 12, 6))
        features = np.concatenate([shared, rng.normal(size=(n_inputs, 12, 40)) / 20], axis=2)
        scaled = features / np.linalg.norm(features, axis=2, keepdims=True)
        return scaled @ scaled.swapaxes(1, 2)

    return InputMatrices(np.ascontiguousarray([cosines(looks, 0.1), cosines(writes, 0.1)]), True)


def test_heads_that_look_alike_but_write_otherwise_are_no_functional_family():
    inputs = kernels_with_families()
    found = consensus_of(inputs, "function", n_bootstrap=50, rng=0)
    families_found = [set(leaves.tolist()) for leaves in found.families().folders]
    assert families_found == [set(range(6, 12)), {0, 1}]
    by_leaves = {tuple(f.tolist()): value for f, value in zip(found.folders, found.likeness, strict=True)}
    assert {0, 1, 2, 3, 4, 5} in [set(leaves.tolist()) for leaves in found.supported(0.2)]
    assert by_leaves[tuple(range(6))] < 0.15 < by_leaves[(0, 1)]


def test_likeness_is_the_smaller_mean_cosine_of_the_pairs_of_a_folder():
    inputs = kernels_with_families(1)
    folders = [np.array([0, 1, 4]), np.array([7, 9])]
    centring = np.eye(12) - 1 / 12
    expected = []
    for folder in folders:
        means = []
        for part in inputs.parts:
            centred = centring @ part.mean(axis=0) @ centring
            unit = np.sqrt(np.diag(centred))
            pairs = [centred[a, b] / unit[a] / unit[b] for a, b in itertools.combinations(folder, 2)]
            means.append(np.mean(pairs))
        expected.append(min(means))
    np.testing.assert_allclose(likeness_of(inputs, folders), expected)
    assert likeness_of(InputMatrices(inputs.parts[:1], False), folders) is None


def test_families_of_heads_that_do_alike_are_more_of_them():
    """They are small: up to twelve by default, and eight of heads that look alike."""
    rng = np.random.default_rng(0)
    x = np.repeat(np.eye(60)[:14], 2, axis=0) + 0.05 * rng.standard_normal((2, 8, 28, 60))
    x /= np.linalg.norm(x, axis=-1, keepdims=True)
    kernels = x @ x.swapaxes(-1, -2)
    found = consensus_of(InputMatrices(kernels, True), "function", n_bootstrap=30, rng=0)
    assert len(found.families()) == 12
    assert found.families().replication is found.replication is not None
    assert found.families(8).replication is None
    assert found.growth[-1].coverage == pytest.approx(24 / 28)
    looks = consensus_of(InputMatrices(kernels[:1], False), "attention", n_bootstrap=30, rng=0)
    assert len(looks.families()) == 8


@pytest.mark.parametrize("seed", range(4))
def test_functional_families_are_the_best_of_all_choices(seed):
    found = random_consensus(seed)
    likeness = np.random.default_rng(seed).random(len(found.folders)) / 2
    found = replace(found, kind="function", likeness=likeness)
    size = np.array([len(f) for f in found.folders])
    worth = size * (size - 1) / 2 * np.maximum(likeness - 0.12, 0) * 2 * found.support
    best = 0.0
    for count in range(1, 4):
        for chosen in itertools.combinations(range(len(worth)), count):
            leaves = np.concatenate([found.folders[i] for i in chosen])
            if len(set(leaves.tolist())) == len(leaves):
                best = max(best, worth[list(chosen)].sum())
    index = {tuple(f.tolist()): i for i, f in enumerate(found.folders)}
    main = found.families(3)
    assert sum(worth[index[tuple(f.tolist())]] for f in main.folders) == pytest.approx(best)
