"""The steps of `headtree.consensus`, each in plain loops."""

import itertools

import numpy as np
import pytest

from headtree.geometry.combined_affinity import InputMatrices
from headtree.geometry.linkage import linkage_tree
from headtree.measures import support as support_module
from headtree.measures.support import (
    Chance,
    Transfer,
    _Relabelled,
    as_folder,
    divisions,
    folder_support,
    leaves_of,
)


def affinities_of(x):
    """exp(-distance) of points on a line, for each input."""
    return np.exp(-np.abs(x[:, :, None] - x[:, None, :]))


def inputs_of(x):
    return InputMatrices(np.ascontiguousarray(x)[None], False)


def all_folders(affinity):
    """Every folder of the tree, leaves and root included."""
    tree = linkage_tree(affinity)
    return {frozenset(folder.tolist()) for level in range(tree.n_levels) for folder in tree.folders(level)}


def trees_of(x, weights):
    """For each division, the folders of the trees of both halves."""
    return [
        [all_folders(sum(w * matrix for w, matrix in zip(row, x, strict=True))) for row in sample]
        for sample in weights
    ]


def literal_closeness(trees, mean):
    """1 minus the mean share of the leaves in the smallest common folder; the affinity decides ties."""
    n = len(mean)
    flat = [tree for sample in trees for tree in sample]
    found = np.eye(n)
    for a, b in itertools.combinations(range(n), 2):
        sizes = [min(len(folder) for folder in tree if {a, b} <= folder) for tree in flat]
        found[a, b] = found[b, a] = 1 - np.mean(sizes) / n
    spread = mean.max() - mean.min()
    scaled = (mean - mean.min()) / spread if spread > 0 else np.zeros_like(mean)
    return found + scaled / (2 * len(flat) * n)


def literal_transfers(folder, trees, n):
    """Mean transfer to all trees, and mean over divisions of the smaller of both halves."""

    def transfer(tree):
        return 1 - min(len(folder ^ other) for other in tree) / min(len(folder) - 1, n - len(folder))

    each = [[transfer(tree) for tree in sample] for sample in trees]
    return float(np.mean(each)), float(np.mean([min(pair) for pair in each]))


def literal_tree(x, weights):
    """Inner folders of the consensus tree, and the trees of halves."""
    trees = trees_of(x, weights)
    closeness = literal_closeness(trees, x.mean(axis=0))
    return closeness, [f for f in all_folders(closeness) if 1 < len(f) < x.shape[1]], trees


def literal_chance(x, rng, n_sets=None, n_divisions=20, n_exceeding=1):
    """A function from transfer and items inside and outside a folder to what is beyond chance."""
    n_inputs, n = len(x), min(x.shape[1], support_module._MANY)
    n_sets = n_sets or support_module._RELABELLED_SETS
    known = np.argsort(x.mean(axis=(0, 1)))
    drawn = rng.permuted(np.tile(known, (n_sets, 1)), axis=1)[:, :n]
    orders = rng.permuted(np.stack([drawn] * n_inputs, axis=1), axis=2)
    weights = [divisions(n_inputs, n_divisions, rng) for _ in orders]
    sets = []
    for order, of_set in zip(orders, weights, strict=True):
        moved = np.array([[[x[i, a, b] for b in order[i]] for a in order[i]] for i in range(n_inputs)])
        _, folders, trees = literal_tree(moved, of_set)
        sets.append([(len(f), *literal_transfers(f, trees, n)) for f in folders])

    def beyond(mean, smaller, inside, outside):
        few = min(inside, outside, n // 2)
        sizes = range(few, n - few + 1) if inside <= outside else [n - few]

        def few_exceed(which):
            largest = sorted(max([f[which] for f in of_set if f[0] in sizes], default=0.0) for of_set in sets)
            return largest[-1 - n_exceeding]

        if smaller - few_exceed(2) < 0.05 - 1e-9:
            return 0.0
        chance = few_exceed(1)
        return max(0.0, (mean - chance) / (1 - chance)) if chance < 1 else 0.0

    return beyond


@pytest.mark.parametrize(("n", "n_inputs", "many"), [(3, 2, 64), (5, 3, 64), (8, 4, 64), (9, 4, 6)])
def test_chance_is_what_all_relabelled_sets_but_one_have_at_most(n, n_inputs, many, monkeypatch):
    monkeypatch.setattr(support_module, "_MANY", many)
    monkeypatch.setattr(support_module, "_RELABELLED_SETS", 12)
    x = affinities_of(np.random.default_rng(n).standard_normal((n_inputs, n)))
    found = Chance.of(inputs_of(x), np.random.default_rng(1))
    expected = literal_chance(x, np.random.default_rng(1))
    transfers = [(mean, mean * share) for mean in np.linspace(0.1, 1, 10) for share in (0.8, 1.0)]
    for mean, smaller in transfers:
        for k in range(2, n):
            ours = found.beyond(Transfer(np.array(mean), np.array(smaller)), k, n)
            assert ours == pytest.approx(expected(mean, smaller, k, n - k), abs=1e-12)


def test_relabelled_sets_are_the_same_however_many_are_asked_for_at_a_time():
    x = affinities_of(np.random.default_rng(6).standard_normal((4, 6)))
    at_once, step_by_step = (_Relabelled(inputs_of(x), np.random.default_rng(1), 12, 10) for _ in range(2))
    for n_sets in (5, 10, 7, 12):
        found = step_by_step.largest(n_sets)
        for ours, all_sets in zip(found, at_once.largest(12), strict=True):
            np.testing.assert_array_equal(ours, all_sets[:n_sets])
    chance, expected = Chance(*found, 0), literal_chance(x, np.random.default_rng(1), 12, 10, 0)
    for k in range(2, 6):
        ours = chance.beyond(Transfer(np.array(1.0), np.array(1.0)), k, 6)
        assert ours == pytest.approx(expected(1.0, 1.0, k, 6 - k), abs=1e-12)


def chance_of(of_ten, transfer, n_inside, n_outside):
    return of_ten.beyond(Transfer(np.array(transfer), np.array(1.0)), n_inside, n_inside + n_outside)


def test_chance_among_more_items_is_that_of_folders_with_as_few_inside_or_outside():
    """Two sets with the same transfers, from which the one that is asked for can be read."""
    of_ten = Chance(np.tile(np.arange(10) / 10, (2, 1)), np.zeros((2, 10)))
    for n_inside, n_outside, chance in (
        (2, 8, 0.8), (2, 30, 0.8), (5, 5, 0.5), (20, 20, 0.5), (20, 10, 0.5), (9, 1, 0.9), (40, 1, 0.9),
        (7, 3, 0.7), (50, 3, 0.7),
    ):  # fmt: skip
        assert chance_of(of_ten, chance, n_inside, n_outside) == 0
        assert chance_of(of_ten, (chance + 1) / 2, n_inside, n_outside) == pytest.approx(0.5)


def test_both_halves_must_show_more_than_chance():
    """By a twentieth, since chance is known in such steps."""
    chance = Chance(np.full((2, 6), 0.5), np.full((2, 6), 0.3))

    def beyond(mean, smaller):
        return chance.beyond(Transfer(np.array(mean), np.array(smaller)), 3, 6)

    assert beyond(0.75, 0.35) == pytest.approx(0.5)
    assert beyond(1.0, 1.0) == pytest.approx(1)
    assert beyond(0.75, 0.34) == beyond(0.5, 0.9) == beyond(0.4, 0.9) == 0
    always = Chance(np.ones((2, 6)), np.zeros((2, 6)))
    assert always.beyond(Transfer(np.array(1.0), np.array(1.0)), 3, 6) == 0


def gaps(closeness, affinity):
    """Of each folder: mean affinity of the two clusters that form it, less that at which it is joined to others."""
    clusters, made, gap = [frozenset([i]) for i in range(len(closeness))], {}, {}

    def between(a, b, matrix):
        return np.mean([matrix[i, j] for i in a for j in b])

    while len(clusters) > 1:
        pairs = [(a, b) for i, a in enumerate(clusters) for b in clusters[:i]]
        a, b = max(pairs, key=lambda pair: between(*pair, closeness))
        height = between(a, b, affinity)
        gap |= {part: made[part] - height for part in (a, b) if part in made}
        made[a | b] = height
        clusters = [c for c in clusters if c not in (a, b)] + [a | b]
    return gap


def literal_support(x, n_bootstrap, rng):
    n_inputs, n, _ = x.shape
    weights = divisions(n_inputs, n_bootstrap, rng)
    closeness, folders, trees = literal_tree(x, weights)
    transfer = {folder: literal_transfers(folder, trees, n) for folder in folders}
    chance, supported, known = Chance.of(inputs_of(x), rng), {}, {}
    gap = gaps(closeness, x.mean(axis=0))

    def beyond(level, pair, inside, n_items):
        return level.beyond(Transfer(*map(np.array, pair)), inside, n_items)

    values = {folder: beyond(chance, transfer[folder], len(folder), n) for folder in folders}
    for folder in sorted(folders, key=lambda f: (-round(values[f], 1), -len(f) * (values[f] < 0.95), -gap[f])):
        supported[folder], value = 0.0, values[folder]
        if value < 0.2:
            continue
        found = [f for f, s in supported.items() if s > 0]
        frame = min([f for f in found if f > folder] + [frozenset(range(n))], key=len)
        parts = [frozenset([leaf]) for leaf in frame]
        if any(f < folder for f in found):
            blocks = [f for f in found if f < frame and not f > folder]
            blocks = [f for f in blocks if not any(f < other for other in blocks)]
            parts = blocks + [part for part in parts if not any(part < block for block in blocks)]
        if len(parts) < n:
            parts.sort(key=as_folder)
            if frozenset(parts) not in known:
                between = np.array(
                    [[[matrix[np.ix_(list(a), list(b))].mean() for b in parts] for a in parts] for matrix in x]
                )
                null = _Relabelled(inputs_of(between), rng, 100, 10)
                known[frozenset(parts)] = trees_of(between, weights), Chance(*null.largest(100), 0)
            among, level = known[frozenset(parts)]
            inside = frozenset(i for i, part in enumerate(parts) if part <= folder)
            pair = literal_transfers(inside, among, len(parts))
            if beyond(level, pair, len(inside), len(parts)) == 0:
                continue
        supported[folder] = value
    return {folder: pair[0] for folder, pair in transfer.items()}, supported


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("centres", [(0.0, 0.6, 4.0, 5.0), (0.0, 3.0, 6.5, 11.0)])
def test_support_follows_the_definition(centres, seed):
    """Families within families, as points on a line: the larger ones are the clearer in the first case, the smaller
    in the second. Some folders are supported, some are not.
    """
    rng = np.random.default_rng(seed)
    x = affinities_of(np.repeat(centres, [3, 2, 4, 3]) + 0.3 * rng.standard_normal((9, 12)))
    found = folder_support(inputs_of(x), 30, np.random.default_rng(2))
    transfer, support = literal_support(x, 30, np.random.default_rng(2))
    assert {folder: found.transfer[as_folder(folder)] for folder in transfer} == pytest.approx(transfer)
    assert {folder: found.support[as_folder(folder)] for folder in support} == pytest.approx(support)
    assert 0 < sum(value > 0 for value in support.values()) < len(support)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_few_heads(n):
    x = affinities_of(np.random.default_rng(0).standard_normal((3, n)))
    found = folder_support(inputs_of(x), 5, np.random.default_rng(0))
    assert set(found.transfer) == set(found.support)
    assert [folder.bit_count() for folder in found.support] == [2] * (n == 3)


def test_unions_of_families_that_are_equally_far_from_each_other():
    """Two groups of six clear families; affinities between families are equal, but for rounding of their means."""
    rng = np.random.default_rng(1)
    family = np.repeat(np.arange(12), rng.integers(2, 8, 12))
    group = family // 6
    is_within = family[:, None] == family
    level = np.where(is_within, 0.9, np.where(group[:, None] == group, 0.3, 0.1))
    drawn = rng.uniform(-0.05, 0.05, (8, len(family), len(family)))
    x = level + np.where(is_within, drawn + drawn.transpose(0, 2, 1), 0)
    support = folder_support(inputs_of(x), 30, np.random.default_rng(0)).support
    for labels in (family, group):
        assert {support[as_folder(np.flatnonzero(labels == label))] for label in set(labels)} == {1.0}


@pytest.mark.parametrize("n_inputs", [2, 3, 7])
def test_halves_have_no_input_in_common(n_inputs):
    weights = divisions(n_inputs, 50, np.random.default_rng(0))
    assert not (weights[:, 0] * weights[:, 1]).any()
    np.testing.assert_allclose(weights.sum(axis=2), 1)
    assert ((weights > 0).sum(axis=2) <= [n_inputs // 2, n_inputs - n_inputs // 2]).all()
    assert (weights.sum(axis=1) > 0).any(axis=0).all()


def test_folders_are_integers_with_a_bit_for_each_leaf():
    assert as_folder([0, 3, 70]) == 1 + 8 + 2**70
    assert leaves_of(as_folder([70, 3, 0])) == [0, 3, 70]


def test_units_of_kernels_are_as_long_as_their_heads():
    """The mean of unlike heads is short: divided to unit length, a unit of them would draw all others to it."""
    x = np.random.default_rng(1).standard_normal((2, 3, 9, 5))
    inputs = InputMatrices(x @ x.swapaxes(-1, -2), True)
    units = [[0, 1, 2], [3, 4], [5], [7]]
    found = inputs.of_items(units).parts
    for i, a in enumerate(units):
        for j, b in enumerate(units):
            pairs = [(p, p) for p in a] if i == j else itertools.product(a, b)
            expected = np.mean([inputs.parts[:, :, p, q] for p, q in pairs], axis=0)
            np.testing.assert_allclose(found[:, :, i, j], expected)


@pytest.mark.parametrize("seed", range(4))
def test_unions_of_families_of_kernels_are_chance_also_if_some_families_are_large(seed):
    """Without the mean head, small families beside large ones are alike: the mean head is the large ones'."""
    rng = np.random.default_rng(seed)
    family = rng.permutation(np.repeat(np.arange(4), (2, 3, 10, 17)))
    vectors = rng.standard_normal((2, 6, 4, 60))[:, :, family]  # new on every input
    x = vectors + 0.8 * rng.standard_normal(vectors.shape)
    x /= np.linalg.norm(x, axis=-1, keepdims=True)
    support = folder_support(InputMatrices(x @ x.swapaxes(-1, -2), True), 60, np.random.default_rng(seed)).support
    planted = {as_folder(np.flatnonzero(family == i)) for i in range(4)}
    assert {folder for folder, value in support.items() if value > 0} == planted
