"""The tasks in small: labels are right, networks learn, paths answer, findings follow the numbers."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from headtree.errors import HeadtreeError
from headtree.section import Section
from headtree.study.collapse.circle import CIRCLES, CircleRuns, _verdict, arcs, circle_runs
from headtree.study.collapse.path_tasks import TASKS, TaskPaths, mean_interval, task_paths, train_task


def test_labels_of_sorting():
    numbers, labels = TASKS["sorting"]().draw(np.random.default_rng(0), 3)
    assert labels.tolist() == [sorted(row) for row in numbers.tolist()]
    assert numbers.shape == (3, 8)


def test_labels_of_the_hull_by_hand():
    """A point is a corner if it is in no triangle of three others."""
    import itertools

    points, labels = TASKS["convex hull"]().draw(np.random.default_rng(0), 4)

    def side(a, b, p):
        return np.sign((b[0] - a[0]) * (p[1] - a[1]) - (b[1] - a[1]) * (p[0] - a[0]))

    for cloud, found in zip(points.double().numpy(), labels.numpy(), strict=True):
        for i, p in enumerate(cloud):
            others = [q for j, q in enumerate(cloud) if j != i]
            inside = any(
                len({side(a, b, p), side(b, c, p), side(c, a, p)}) == 1
                for a, b, c in itertools.combinations(others, 3)
            )
            assert found[i] == (not inside)


def test_memorisation_labels_belong_to_places_not_to_words():
    task = TASKS["memorisation"]()
    words, labels = task.draw(np.random.default_rng(0), 1000)
    again, same = task.draw(np.random.default_rng(1), 1000)
    by_text = {tuple(row): tuple(label) for row, label in zip(words.tolist(), labels.tolist(), strict=True)}
    assert all(
        by_text[tuple(row)] == tuple(label) for row, label in zip(again.tolist(), same.tolist(), strict=True)
    )
    seen = {}
    for word, label in zip(words.flatten().tolist(), labels.flatten().tolist(), strict=True):
        seen.setdefault(word, set()).add(label)
    assert max(map(len, seen.values())) > 1


def test_a_short_training_learns_and_its_paths_answer():
    found = task_paths("sorting", n_seeds=2, n_test=4, n_steps=60)
    assert found.accuracy.shape == (2, 7)
    assert found.n_paths == (1, 12, 60, 160, 240, 192, 64)
    assert (found.network > 1.5 * found.chance).all()
    again = task_paths("sorting", n_seeds=2, n_test=4, n_steps=60)
    assert np.array_equal(found.accuracy, again.accuracy)
    assert list(found.table()["length"]) == list(range(7))


def test_training_leaves_the_global_generator_alone():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    train_task(TASKS["sorting"](), 0, 1)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("mean", "said", "not_said"),
    [
        ([0.3, 0.9, 0.2, 0.1, 0.1], ["length 1 alone", "as in [RC]", "3, 4 are not above chance"], ["unlike"]),
        ([0.1, 0.1, 0.2, 0.3, 0.9], ["long paths carry", "unlike [RC]", "3, 4 are still above"], ["not above"]),
        ([0.08, 0.1, 0.1, 0.1, 0.1], ["no length by itself does better than chance, unlike"], ["carry"]),
        ([0.1, 0.13, 0.1, 0.1, 0.1], ["these seeds cannot tell it from chance, unlike"], ["carry", "no length"]),
    ],
)
def test_findings_follow_the_numbers(mean, said, not_said):
    rows = np.array([mean, mean]) + np.array([[0.001], [-0.001]])
    words = " ".join(TaskPaths("sorting", rows, np.array([1.0, 1.0]), 0.125, (1, 2, 3, 4, 5)).findings())
    assert all(piece in words for piece in said)
    assert not any(piece in words for piece in not_said)


def test_interval_is_students():
    from scipy import stats

    values = np.random.default_rng(0).normal(size=(5, 3))
    mean, half = mean_interval(values)
    for column in range(3):
        low, high = stats.t.interval(0.95, 4, values[:, column].mean(), stats.sem(values[:, column]))
        assert (mean[column] - half[column], mean[column] + half[column]) == pytest.approx((low, high))
    assert mean_interval(values[:1])[1].tolist() == [0, 0, 0]


def test_arcs_are_opposite_halves_of_a_circle():
    truth = arcs(50)
    torch.testing.assert_close(truth[:, 0], -truth[:, 1])
    torch.testing.assert_close(truth.norm(dim=-1), torch.full((50, 2), 0.3))
    torch.testing.assert_close(truth[0], torch.tensor([[-0.3, 0.0], [0.3, 0.0]]))
    assert truth[1, 1, 1] > 0  # counter-clockwise
    torch.testing.assert_close(truth[-1], -truth[0], atol=1e-6, rtol=0)


def test_circle_runs_and_distances():
    found = circle_runs(n_seeds=1, n_points=8, n_steps=3)
    assert set(found.runs) == set(CIRCLES)
    assert all(run.shape == (1, 8, 2, 2) for run in found.runs.values())
    right = CircleRuns(found.truth, {"right": found.truth[None], "one": 0 * found.truth[None]})
    np.testing.assert_allclose(right.distances("right"), 1, rtol=1e-6)
    assert right.distances("one").max() == 0
    assert right.ends("right") == {"collapsed": 0, "apart": 1, "ran away": 0}
    assert right.ends("one") == {"collapsed": 1, "apart": 0, "ran away": 0}
    with np.errstate(invalid="ignore"):
        wild = CircleRuns(found.truth, {"wild": found.truth[None] * np.inf})
    assert wild.ends("wild") == {"collapsed": 0, "apart": 0, "ran away": 1}
    assert "of 1 seeds 0 collapsed, 1 apart, 0 ran away; as in [RC], none collapses." in right.findings()[0]


@pytest.mark.parametrize(
    ("is_alone", "ends", "said"),
    [
        (True, (3, 0, 0), "as in [RC], all collapse"),
        (True, (0, 2, 1), "unlike [RC], none collapses"),
        (True, (1, 0, 2), "in part as in [RC]: not all collapse"),
        (False, (0, 3, 0), "as in [RC], none collapses."),
        (False, (0, 1, 2), "as in [RC], none collapses, but not all stay"),
        (False, (1, 2, 0), "unlike [RC], this does not always keep"),
    ],
)
def test_verdicts_on_the_circle(is_alone, ends, said):
    assert said in _verdict(is_alone, dict(zip(("collapsed", "apart", "ran away"), ends, strict=True)))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: task_paths("chess"), "name must be one of"),
        (lambda: task_paths("sorting", n_seeds=0), "n_seeds must be at least 1"),
        (lambda: circle_runs(n_points=0), "n_points must be at least 1"),
    ],
)
def test_bad_requests(call, said):
    with pytest.raises(HeadtreeError, match=said):
        call()


def test_section_of_the_tasks(tmp_path):
    from headtree.study.collapse.collapse_section import collapse_section, draw_collapse

    tasks = [
        TaskPaths(name, np.random.default_rng(0).random((3, 7)), np.ones(3), 0.1, (1, 12, 60, 160, 240, 192, 64))
        for name in TASKS
    ]
    circle = circle_runs(n_seeds=2, n_points=8, n_steps=2)
    section = collapse_section(tasks, circle)
    assert Section.from_dict(json.loads(section.to_json())) == section
    draw_collapse(tasks, circle, tmp_path / "figures")
    assert all((tmp_path / picture.file).is_file() for picture in section.figures)
    assert {path.name for path in (tmp_path / "figures").iterdir()} == {
        f"{name}.{kind}" for name in ("depth_tasks", "depth_circle") for kind in ("svg", "png")
    }
