"""The steps of `headtree.consensus`, each in plain loops."""

import numpy as np
import pytest

from headtree.geometry.linkage import linkage_tree
from headtree.measures import support as support_module
from headtree.measures.support import _between, _Chance, as_folder, folder_support


def affinities_of(x):
    """exp(-distance) of points on a line, for each input."""
    return np.exp(-np.abs(x[:, :, None] - x[:, None, :]))


def folders_of(affinity):
    """Folders of more than one leaf."""
    tree = linkage_tree(affinity)
    levels = [frozenset(folder.tolist()) for level in range(tree.n_levels) for folder in tree.folders(level)]
    return {folder for folder in levels if len(folder) > 1}


def literal_shares(x, weights):
    """Share of the samples in which all trees have each folder of the mean."""
    everything = frozenset(range(x.shape[1]))
    counts = dict.fromkeys(folders_of(x.mean(axis=0)) - {everything}, 0)
    for sample in weights:
        trees = [folders_of(sum(w * matrix for w, matrix in zip(row, x, strict=True))) for row in sample]
        for folder in counts:
            counts[folder] += all(folder in tree for tree in trees)
    return {folder: count / len(weights) for folder, count in counts.items()}


def literal_chance(x, rng):
    """(items inside, outside a folder) -> second largest over relabelled sets of the largest share in each."""
    n_inputs, n = len(x), min(x.shape[1], support_module._MANY)
    known = np.argsort(x.mean(axis=(0, 1)))
    drawn = rng.permuted(np.tile(known, (200, 1)), axis=1)[:, :n]
    orders = rng.permuted(np.stack([drawn] * n_inputs, axis=1), axis=2)
    weights = [support_module._divisions(n_inputs, 20, rng) for _ in orders]
    sets = []
    for order, of_set in zip(orders, weights, strict=True):
        moved = np.array([[[x[i, a, b] for b in order[i]] for a in order[i]] for i in range(n_inputs)])
        sets.append([(len(folder), share) for folder, share in literal_shares(moved, of_set).items()])

    def of_size(inside, outside):
        few = min(inside, outside, n // 2)
        sizes = range(few, n - few + 1) if inside <= outside else [n - few]
        return sorted(max([share for size, share in of_set if size in sizes], default=0.0) for of_set in sets)[-2]

    return of_size


@pytest.mark.parametrize(("n", "n_inputs", "many"), [(3, 2, 64), (5, 3, 64), (8, 4, 64), (9, 4, 6)])
def test_chance_is_what_all_relabelled_sets_but_one_have_at_most(n, n_inputs, many, monkeypatch):
    monkeypatch.setattr(support_module, "_MANY", many)
    x = affinities_of(np.random.default_rng(n).standard_normal((n_inputs, n)))
    found, expected = _Chance.of(x, np.random.default_rng(1)), literal_chance(x, np.random.default_rng(1))
    assert [found.of_size(k, n - k) for k in range(2, n)] == [expected(k, n - k) for k in range(2, n)]


def test_chance_among_more_items_is_that_of_folders_with_as_few_inside_or_outside():
    """Two sets with the same shares, from which the one that is asked for can be read."""
    of_ten = _Chance(np.tile(np.arange(10) / 10, (2, 1)))
    assert of_ten.of_size(2, 8) == of_ten.of_size(2, 30) == 0.8
    assert of_ten.of_size(5, 5) == of_ten.of_size(20, 20) == of_ten.of_size(20, 10) == 0.5
    assert of_ten.of_size(9, 1) == of_ten.of_size(40, 1) == 0.9
    assert of_ten.of_size(7, 3) == of_ten.of_size(50, 3) == 0.7


def test_a_share_that_chance_cannot_be_told_from_is_not_beyond():
    """Chance is known in steps of a twentieth."""
    assert support_module._beyond(1.0, 0.95) == pytest.approx(1.0)
    assert support_module._beyond(0.5, 0.45) == pytest.approx(0.05 / 0.55)
    assert (
        support_module._beyond(0.04, 0.0)
        == support_module._beyond(0.9, 0.9)
        == support_module._beyond(1.0, 1.0)
        == 0
    )


def gaps(mean):
    """Of each folder: smallest mean affinity within, less the mean affinity at which it is joined to others."""
    clusters, made, gap = [frozenset([i]) for i in range(len(mean))], {}, {}
    while len(clusters) > 1:
        pairs = [(a, b) for i, a in enumerate(clusters) for b in clusters[:i]]
        a, b = max(pairs, key=lambda pair: np.mean([mean[i, j] for i in pair[0] for j in pair[1]]))
        height = np.mean([mean[i, j] for i in a for j in b])
        gap |= {part: made[part] - height for part in (a, b) if part in made}
        made[a | b] = height
        clusters = [c for c in clusters if c not in (a, b)] + [a | b]
    return gap


def literal_support(x, n_bootstrap, rng):
    n_inputs, n, _ = x.shape
    share = literal_shares(x, support_module._bootstrap(n_inputs, n_bootstrap, rng))
    twice = literal_shares(x, support_module._divisions(n_inputs, n_bootstrap, rng))
    chance, supported, known = _Chance.of(x, rng), {}, {}
    gap = gaps(x.mean(axis=0))
    for folder in sorted(twice, key=lambda f: -gap[f]):
        supported[folder] = 0.0
        if twice[folder] < chance.of_size(len(folder), n - len(folder)) + 0.05 - 1e-9:
            continue
        found = [f for f, value in supported.items() if value > 0]
        frame = min([f for f in found if f > folder] + [frozenset(range(n))], key=len)
        parts = [frozenset([leaf]) for leaf in frame]
        if any(f < folder for f in found):
            blocks = [f for f in found if f < frame and not f > folder]
            blocks = [f for f in blocks if not any(f < other for other in blocks)]
            parts = blocks + [part for part in parts if not any(part < block for block in blocks)]
        if frozenset(parts) not in known:
            between = [[[matrix[np.ix_(list(a), list(b))].mean() for b in parts] for a in parts] for matrix in x]
            known[frozenset(parts)] = chance if len(parts) == n else _Chance.of(np.array(between), rng)
        of_size = known[frozenset(parts)].of_size
        c = of_size(sum(part <= folder for part in parts), sum(not part <= folder for part in parts))
        supported[folder] = (twice[folder] - c) / (1 - c) if twice[folder] >= c + 0.05 - 1e-9 else 0.0
    return share, supported


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("centres", [(0.0, 0.6, 4.0, 5.0), (0.0, 3.0, 6.5, 11.0)])
def test_support_follows_the_definition(centres, seed):
    """Families within families, as points on a line: the larger ones are the clearer in the first case, the smaller
    in the second. Some folders are supported, some are not.
    """
    rng = np.random.default_rng(seed)
    x = affinities_of(np.repeat(centres, [3, 2, 4, 3]) + 0.3 * rng.standard_normal((9, 12)))
    found = folder_support(x, 30, np.random.default_rng(2))
    share, support = literal_support(x, 30, np.random.default_rng(2))
    assert {folder: found.share[as_folder(folder)] for folder in share} == share
    assert {folder: found.support[as_folder(folder)] for folder in support} == pytest.approx(support)
    assert 0 < sum(value > 0 for value in support.values()) < len(support)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_few_heads(n):
    x = affinities_of(np.random.default_rng(0).standard_normal((3, n)))
    found = folder_support(x, 5, np.random.default_rng(0))
    assert set(found.share) == set(found.support) == {as_folder(folder) for folder in folders_of(x.mean(axis=0))}


def test_affinity_of_items_is_their_mean_and_exactly_symmetric():
    """Chains of nearest neighbours end only if affinities are the same both ways, to the last bit."""
    labels = np.repeat(np.arange(12), [2, 3, 5, 7, 6, 3, 7, 3, 5, 6, 7, 5])
    x = np.where(labels[:, None] == labels, 0.9, np.where(labels[:, None] // 6 == labels // 6, 0.3, 0.1))[None]
    items = [np.flatnonzero(labels == item) for item in range(12)]
    found = _between([as_folder(item) for item in items], x)
    expected = [[x[0][np.ix_(a, b)].mean() for b in items] for a in items]
    np.testing.assert_allclose(found[0], expected, rtol=1e-14)
    np.testing.assert_array_equal(found, found.transpose(0, 2, 1))


def test_unions_of_families_that_are_equally_far_from_each_other():
    """Two groups of six clear families; affinities between families are equal, but for rounding of their means."""
    rng = np.random.default_rng(1)
    family = np.repeat(np.arange(12), rng.integers(2, 8, 12))
    group = family // 6
    is_within = family[:, None] == family
    level = np.where(is_within, 0.9, np.where(group[:, None] == group, 0.3, 0.1))
    drawn = rng.uniform(-0.05, 0.05, (8, len(family), len(family)))
    x = level + np.where(is_within, drawn + drawn.transpose(0, 2, 1), 0)
    support = folder_support(x, 30, np.random.default_rng(0)).support
    for labels in (family, group):
        assert {support[as_folder(np.flatnonzero(labels == label))] for label in set(labels)} == {1.0}


@pytest.mark.parametrize("n_inputs", [2, 3, 7])
def test_halves_have_no_input_in_common(n_inputs):
    weights = support_module._divisions(n_inputs, 50, np.random.default_rng(0))
    assert not (weights[:, 0] * weights[:, 1]).any()
    np.testing.assert_allclose(weights.sum(axis=2), 1)
    assert ((weights > 0).sum(axis=2) <= [n_inputs // 2, n_inputs - n_inputs // 2]).all()
    assert (weights.sum(axis=1) > 0).any(axis=0).all()
