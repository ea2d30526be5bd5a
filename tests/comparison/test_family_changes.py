import numpy as np
import pytest

from headtree.comparison.family_changes import family_changes

CASES = {
    "the same": ([0, 0, 0, 1, 1], [0, 0, 0, 1, 1], {("continues", (0,), (0,)), ("continues", (1,), (1,))}),
    "renumbered": ([0, 0, 0, 1, 1], [1, 1, 1, 0, 0], {("continues", (0,), (1,)), ("continues", (1,), (0,))}),
    "one head left": ([0, 0, 0, 0, -1], [0, 0, 0, -1, -1], {("continues", (0,), (0,))}),
    "split": ([0] * 6, [0, 0, 0, 1, 1, 1], {("splits", (0,), (0, 1))}),
    "merge": ([0, 0, 0, 1, 1, 1], [0] * 6, {("merges", (0, 1), (0,))}),
    "appear and dissolve": ([0, 0, -1, -1], [-1, -1, 0, 0], {("dissolves", (0,), ()), ("appears", (), (0,))}),
    "half is not enough": ([0, 0, -1, -1], [0, -1, 0, -1], {("dissolves", (0,), ()), ("appears", (), (0,))}),
    "none": ([-1, -1], [-1, -1], set()),
    "none before": ([-1, -1], [0, 0], {("appears", (), (0,))}),
}


@pytest.mark.parametrize(("before", "after", "expected"), CASES.values(), ids=CASES)
def test_events(before, after, expected):
    found = family_changes(np.array(before), np.array(after))
    assert {(change.event, change.before, change.after) for change in found} == expected


def test_every_family_is_mentioned_and_time_can_be_reversed():
    rng = np.random.default_rng(0)
    reverse = {"splits": "merges", "merges": "splits", "appears": "dissolves", "dissolves": "appears"}
    for _ in range(50):
        before, after = (np.unique(rng.integers(-1, 4, 20), return_inverse=True)[1] - 1 for _ in range(2))
        there, back = family_changes(before, after), family_changes(after, before)
        assert {i for change in there for i in change.before} == set(range(before.max() + 1))
        assert {i for change in there for i in change.after} == set(range(after.max() + 1))
        assert {(reverse.get(c.event, c.event), c.after, c.before) for c in there} == {
            (c.event, c.before, c.after) for c in back
        }
