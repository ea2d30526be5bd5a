import json
import math
import shutil

import numpy as np
import pytest
from scipy.stats import wasserstein_distance

import headtree as ht
from headtree.comparison.aspects import aspects_of
from headtree.comparison.compare_networks import compare_profiles
from headtree.runs.record import NotARunError, signed
from tests.comparison.networks import made, profile, reordered, tensors, weights

INPUTS, OTHERS = range(6), range(100, 106)
HEADS = [4, 0, 8, 2, 7, 1, 3, 6, 5]
TOKENS = [3, 9, 0, 5, 1, 8, 2, 7, 4, 6]

NETWORK = profile(tensors(weights(0), INPUTS), "network")
ON_OTHER_INPUTS = profile(tensors(weights(0), OTHERS), "on other inputs")
OTHER_NETWORK = profile(tensors(weights(1, strength=0.4), INPUTS), "other network")
LARGER = profile(tensors(weights(2, n_layers=4), range(5), n_tokens=12), "larger")  # other heads, other tokens


def compared(*profiles, n_permutations=999):
    return compare_profiles(profiles, n_permutations, 0)


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    return made(tensors(weights(0), INPUTS), tmp_path_factory.mktemp("runs") / "network")


def test_heads_in_another_order_are_at_zero_in_everything(network):
    other = made([reordered(att, HEADS) for att in tensors(weights(0), INPUTS)], network.path.parent / "heads")
    found = ht.compare(network, other)
    assert len(found.words) == 13
    assert found.table()["distance"].max() < 1e-6
    assert (found.table()["p_value"] > 0.5).all()
    changes = found.changes[0]
    assert changes.moved.max() < 1e-7
    assert all(np.abs(change).max() < 1e-6 for change in changes.change.values())
    assert not changes.has_moved.any()
    again = ht.compare(network.path, str(other.path))
    assert again.table().equals(found.table())  # the same every time


def test_with_tokens_in_another_order_too_geometry_is_at_zero():
    other = profile([reordered(att, HEADS, TOKENS) for att in tensors(weights(0), INPUTS)], "tokens")
    found = compared(NETWORK, other)
    for aspect in set(found.words) - {"roles"}:
        assert found.distance(aspect)[0, 1] == pytest.approx(0, abs=1e-6), aspect


def test_the_same_network_on_other_inputs_is_nearer_than_another():
    found = compared(NETWORK, ON_OTHER_INPUTS, OTHER_NETWORK)
    for aspect in ("geometry", "rank", "confidence", "shannon_entropy_relative", "compression"):
        distance = found.distance(aspect)
        assert distance[0, 1] < 0.5 * distance[0, 2], aspect
        assert found.between(aspect, 0, 1).p_value > 0.05, aspect
        assert found.between(aspect, 2, 0).p_value <= 0.01, aspect
    assert found.distance()[0, 1] < 2 * found.between("geometry", 0, 1).of_halves


def test_other_heads_and_tokens():
    found = compared(NETWORK, LARGER)
    assert found.couplings[0, 1].shape == (9, 12)
    assert found.changes == ()
    assert "number of tokens" in found.notes[-1]
    table = found.table()
    assert (table["low"] <= table["distance"]).all()
    assert (table["distance"] <= table["high"]).all()
    assert table["p_value"].between(0.001, 1).all()


def test_measures_differ_by_the_wasserstein_distance():
    for aspect in aspects_of([NETWORK, LARGER])[0]:
        if aspect.name in NETWORK.measures:
            a, b = (each.measures[aspect.name][0] for each in (NETWORK, LARGER))
            assert aspect.distance(0, 1, [0], [0]) == pytest.approx(wasserstein_distance(a, b)), aspect.name
            assert aspect.between_inputs((0, 1))[0, 6] == pytest.approx(wasserstein_distance(a, b))


def test_measures_are_those_of_diagnostics():
    known = ht.diagnostics(list(NETWORK.attention)).heads
    for name in ("confidence", "shannon_entropy_relative", "strongest_column_mass", "doubly_stochastic_distance"):
        assert NETWORK.measures[name].mean(axis=0) == pytest.approx(known[name].to_numpy()), name
    assert NETWORK.role == tuple(known["role"])
    assert np.array_equal(NETWORK.distance, ht.head_similarity(list(NETWORK.attention)).distance)


def test_the_head_that_changed_is_found():
    content, near = (array.copy() for array in weights(0))
    content[4] = np.random.default_rng(9).normal(size=content[4].shape) * 3
    found = compared(NETWORK, profile(tensors((content, near), INPUTS), "changed")).changes[0]
    table = found.table()
    assert table["name"][0] == "L1H1"
    assert table["moved_p"][0] <= 0.05
    assert table["moved"][0] > 1.4 * table["moved"][1]  # the others moved too: away from it
    assert table["distance_to_itself"][0] > 0.2
    assert table["distance_to_itself"][1:].max() < 1e-6
    others = [i for i in range(9) if i != 4]
    assert all(np.abs(found.change[name][others]).max() < 1e-6 for name in ("confidence", "strongest_column_mass"))


def test_two_heads_that_swapped_names_are_matched_by_transport():
    content, near = weights(0)
    order = [0, 7, 2, 3, 4, 5, 6, 1, 8]
    found = compared(NETWORK, profile(tensors((content[order], near[order]), INPUTS), "swapped"))
    assert found.distance()[0, 1] == pytest.approx(0, abs=1e-7)  # the same network, with other names
    assert found.changes[0].match.tolist() == order
    assert found.changes[0].match_looks.max() < 1e-6
    assert found.changes[0].looks[[1, 7]].min() > 0.1


def test_heads_are_matched_by_geometry_on_other_inputs():
    found = compared(NETWORK, ON_OTHER_INPUTS).changes[0]
    assert np.isnan(found.looks).all()
    assert (found.match == np.arange(9)).mean() > 0.6
    assert not found.has_moved.any()


def test_changes_do_not_depend_on_the_order_of_heads():
    shuffled = profile([reordered(att, HEADS) for att in tensors(weights(1, strength=0.4), INPUTS)], "shuffled")
    a, b = compared(NETWORK, OTHER_NETWORK).changes[0], compared(NETWORK, shuffled).changes[0]
    assert a.moved == pytest.approx(b.moved, abs=1e-7)
    assert a.looks == pytest.approx(b.looks, abs=1e-7)
    assert a.match.tolist() == b.match.tolist()
    assert a.change["confidence"] == pytest.approx(b.change["confidence"])


def test_heads_of_noise_do_not_move():
    """Of 20 pairs of sets of inputs of one network, few have a head that moved: the level is 5 % for all."""
    everything = tensors(weights(0), range(200, 208))
    n_false = 0
    for seed in range(20):
        order = np.random.default_rng(seed).permutation(8)
        halves = [profile([everything[i] for i in half], "half") for half in (order[:4], order[4:])]
        changes = compared(*halves, n_permutations=69).changes[0]
        n_false += bool(changes.has_moved.any()) + bool(min(p.min() for p in changes.change_p.values()) <= 0.05)
    assert n_false <= 5


def test_one_input_has_neither_interval_nor_p_value():
    found = compared(NETWORK, profile(tensors(weights(1), [0]), "single"))
    assert found.table()[["low", "high", "p_value"]].isna().all(axis=None)
    assert "single is a run of one input" in found.notes[0]
    assert np.isnan(found.changes[0].moved_p).all()
    assert not found.changes[0].has_moved.any()
    assert math.isfinite(found.distance()[0, 1])
    assert len(found.changes[0].table()) == 9


def test_few_inputs_limit_the_p_value():
    found = compared(*(profile(tensors(weights(s), range(3)), f"few {s}") for s in (0, 1)))
    assert "20 ways" in found.notes[0]


# -- bad input ---------------------------------------------------------------------------------------------------


def test_one_run_is_too_few(network):
    with pytest.raises(ht.HeadtreeError, match="two or more, got 1"):
        ht.compare(network)
    with pytest.raises(TypeError, match="one by one"):
        ht.compare([network, network])


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [('"kind": "scores"', '"kind": "probs"', "probabilities"), ('"raw": false', '"raw": true', "raw scores")],
)
def test_runs_of_different_kinds(network, tmp_path, old, new, words):
    with pytest.raises(
        ht.HeadtreeError, match=f"is of centred scores but .* is of {words}; make one of them again"
    ):
        ht.compare(network, copied(network, tmp_path / "other", old, new))


def test_a_folder_that_is_no_run(network, tmp_path):
    with pytest.raises(NotARunError, match=r"run\.json"):
        ht.compare(network, tmp_path)
    with pytest.raises(NotARunError, match="does not exist"):
        ht.compare(network, tmp_path / "nothing")


def copied(run, folder, old, new):
    """The run with something else in its run.json."""
    shutil.copytree(run.path, folder)
    text = (folder / "run.json").read_text()
    assert old in text
    (folder / "run.json").write_text(json.dumps(signed(json.loads(text.replace(old, new)))))
    return folder


def test_an_unfinished_run(network, tmp_path):
    with pytest.raises(ht.HeadtreeError, match="step diagnose is not done"):
        ht.compare(network, copied(network, tmp_path / "half", '"diagnose"', '"later"'))


def test_other_arguments(network):
    other_network = network
    with pytest.raises(ht.HeadtreeError, match="names must have one name for each of the 2 runs"):
        ht.compare(network, other_network, names=["a"])
    with pytest.raises(ht.HeadtreeError, match="n_permutations must be at least 1"):
        ht.compare(network, other_network, n_permutations=0)
    with pytest.raises(ht.HeadtreeError, match="rng must be an integer"):
        ht.compare(network, other_network, rng="a")
    found = ht.compare(network, other_network, names=["a", "b"], n_permutations=19)
    assert found.names == ("a", "b")
    with pytest.raises(ht.HeadtreeError, match="aspect must be one of geometry"):
        found.distance("size")
