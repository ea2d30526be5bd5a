import numpy as np
import pytest

import headtree as ht
from headtree.measures.jackknife import Estimate
from headtree.measures.sensitivity import Change, Sensitivity, sensitivity, variants
from tests.study.test_catalogue import tensor


@pytest.fixture(scope="module")
def found():
    return sensitivity([tensor(seed, n=12, n_heads=10) for seed in range(3)], n_resampled=4)


def test_one_setting_at_a_time():
    base = ht.Questionnaire()
    changed = variants(base)
    for name, value, other in changed:
        different = [field for field in vars(base) if getattr(base, field) != getattr(other, field)]
        assert different == [name]
        assert str(getattr(other, name)) == value
    assert {name for name, _, _ in changed} == {
        "initial", "alpha", "beta", "tree_constant", "n_iter", "head_from", "tree", "weights",
    }  # fmt: skip


def test_changes_are_measured_against_the_settings(found):
    by_name = {(change.setting, change.value): change for change in found.changes}
    assert ("precision", "float32") in by_name
    assert ("inputs", "resampled") in by_name
    atts = [tensor(seed, n=12, n_heads=10) for seed in range(3)]
    base = [ht.organize(att) for att in atts]
    other = [ht.organize(att, ht.Questionnaire(tree="binary")) for att in atts]
    distances = [ht.tree_distance(a.trees.query, b.trees.query) for a, b in zip(base, other, strict=True)]
    change = by_name["tree", "binary"]
    assert change.query_tree.number == pytest.approx(np.mean(distances))
    upper = np.triu_indices(10, 1)
    pairs = [(a.affinities.head[upper], b.affinities.head[upper]) for a, b in zip(base, other, strict=True)]
    correlations = [np.corrcoef(a, b)[0, 1] for a, b in pairs]
    assert change.affinity.number == pytest.approx(np.mean(correlations))


def test_precision_does_not_matter_and_something_does(found):
    by_name = {(change.setting, change.value): change for change in found.changes}
    assert found.matters(by_name["precision", "float32"]) == "not at all"
    assert by_name["precision", "float32"].head_tree.number == pytest.approx(0, abs=0.05)
    assert any(change.head_tree.number > 0.01 for change in found.changes)


@pytest.mark.parametrize(
    ("number", "interval", "expected"),
    [
        (1.0, (1.0, 1.0), "not at all"),
        (0.95, (0.92, 0.98), "less"),
        (0.85, (0.7, 0.95), "about as much"),
        (0.5, (0.4, 0.6), "more"),
    ],
)
def test_what_matters_follows_from_the_interval(number, interval, expected):
    def change(value, ends):
        some = Estimate(value, ends, (3,))
        return Change("alpha", "1", some, some, some, affinity=some, ranking=some)

    result = Sensitivity(ht.Questionnaire(), (), change(0.9, (0.8, 1.0)))
    assert result.matters(change(number, interval)) == expected


@pytest.mark.parametrize(
    ("number", "interval", "expected"),
    [
        (0.0, (0.0, 0.0), "not at all"),
        (0.05, (0.02, 0.08), "less"),
        (0.15, (0.05, 0.3), "about as much"),
        (0.5, (0.4, 0.6), "more"),
    ],
)
def test_the_same_for_the_tree_whose_distance_grows(number, interval, expected):
    def change(value, ends):
        tree, other = Estimate(value, ends, (3,)), Estimate(0.9, (0.8, 1.0), (3,))
        return Change("alpha", "1", tree, other, other, affinity=other, ranking=other)

    result = Sensitivity(ht.Questionnaire(), (), change(0.1, (0.0, 0.2)))
    assert result.matters_for_tree(change(number, interval)) == expected


def test_bad_input():
    with pytest.raises(ValueError, match="two or more inputs of one network, got 1"):
        sensitivity([tensor(0)])
