"""With samples="auto", as many folders are drawn as the error asks for."""

import numpy as np
import pytest
import torch

import headtree as ht
from headtree.geometry.affinity import distance_affinity, perturbed
from headtree.questionnaire import organize as organizing
from headtree.questionnaire import settings

SHAPE = 12, 96, 80


def peaked(rng):
    """Attention whose rows have a few large entries at random places, so that the mean of few draws is far off."""
    scores = 12 * rng.normal(size=SHAPE)
    odds = np.exp(scores - scores.max(axis=2, keepdims=True))
    return odds / odds.sum(axis=2, keepdims=True)


@pytest.fixture(autouse=True)
def always_sampled(monkeypatch):
    monkeypatch.setattr(settings, "EXACT_DIFFERENCES", 0)


def largest_error(x, **options):
    return max(ht.organize_array(x, ht.Questionnaire(**options)).status.relative_errors.values())


def test_more_is_drawn_until_the_error_is_small():
    x = peaked(np.random.default_rng(0))
    assert largest_error(x, samples=256) > 0.02
    assert largest_error(x) <= 0.02


def test_no_more_is_drawn_than_the_error_asks_for():
    x = np.random.default_rng(1).normal(size=SHAPE)
    given, chosen = (ht.organize_array(x, ht.Questionnaire(samples=n)) for n in (256, "auto"))
    assert max(given.status.relative_errors.values()) <= 0.02
    assert list(chosen.trees) == list(given.trees)
    for a, b in zip(chosen.affinities, given.affinities, strict=True):
        assert np.array_equal(a, b)


def test_no_more_is_drawn_than_allowed(monkeypatch):
    drawn, original = [], organizing.sampled_emd
    monkeypatch.setattr(organizing, "sampled_emd", lambda *a, **k: drawn.append(k["samples"]) or original(*a, **k))
    monkeypatch.setattr(organizing, "MOST_SAMPLES", 1024)
    monkeypatch.setattr(organizing, "LARGEST_ERROR", 0.0)
    ht.organize_array(np.random.default_rng(1).normal(size=SHAPE), ht.Questionnaire(n_iter=1))
    assert drawn == [256, 1024] * 3


def test_a_tree_that_the_error_may_move_is_noted():
    org = ht.organize_array(np.random.default_rng(1).normal(size=SHAPE), ht.Questionnaire(n_iter=1, samples=64))
    for axis, (name, error) in enumerate(org.status.relative_errors.items()):
        changed = perturbed(torch.from_numpy(org.distances[axis]), error, np.random.default_rng(0))
        moved = ht.tree_distance(org.trees[axis], ht.flexible_tree(distance_affinity(changed)))
        note = f"error of {error:.2g} alone may move the tree of {name}, by a tree distance of about {moved:.2g}"
        assert moved > 0
        assert note in str(org.status)


def test_a_tree_that_the_error_does_not_move_is_not_noted():
    family = np.arange(8) % 3
    status = ht.organize_array(np.eye(3)[family][:, family], ht.Questionnaire(n_iter=1, samples=4)).status
    assert max(status.relative_errors.values()) > 0.1
    assert "may move" not in str(status)


def test_trees_of_another_kind_are_not_compared():
    x = np.random.default_rng(1).normal(size=SHAPE)
    status = ht.organize_array(x, ht.Questionnaire(n_iter=1, samples=64, tree="binary")).status
    assert min(status.relative_errors.values()) > 0
    assert "may move" not in str(status)


def test_other_slices_join_landmarks_by_as_many_draws():
    x = peaked(np.random.default_rng(2))
    few, enough = (
        ht.organize_array(x, ht.Questionnaire(samples=n, landmarks=(None, 40, 40))).status for n in (256, "auto")
    )
    assert max(few.relative_errors.values()) > 0.02 >= max(enough.relative_errors.values())


def test_landmarks_with_exact_distances_are_joined_by_sampled_ones(monkeypatch):
    monkeypatch.setattr(settings, "EXACT_DIFFERENCES", 4 * 10**6)
    x = np.random.default_rng(3).normal(size=SHAPE)
    status = ht.organize_array(x, ht.Questionnaire(n_iter=1, landmarks=(None, 40, None))).status
    assert "axis1" not in status.relative_errors
    assert any(
        "axis1: 40 landmarks of 96" in note and "sampled with a relative error" in note for note in status.notes
    )
