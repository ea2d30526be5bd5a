"""More workers than inputs: blocks of heads go to different workers, and the files of the run are the same."""

from collections import Counter

import numpy as np
import pytest
from distributed.protocol import pickle as wire

import headtree as ht
from headtree.measures import regularity
from headtree.pipeline.divided_inputs import Divided, each_divided, workers_for_each
from headtree.pipeline.make_run import make_run
from headtree.pipeline.sources import TensorSource
from headtree.pipeline.workers import ThisProcess
from headtree.tensor import probabilities
from tests.pipeline.interrupted import contents
from tests.runs.examples import QUICK, tensors

pytestmark = pytest.mark.filterwarnings("ignore::headtree.HeadtreeWarning")


class Several:
    """Makes the calls here, but sends them as a cluster would, and counts them."""

    sees_files = False

    def __init__(self, n_workers):
        self.n_workers, self.called = n_workers, Counter()

    def sendable(self, att):
        return att.load()

    def each(self, calls, *, long=False):
        for call in calls:
            self.called[call.func.__name__] += 1
            yield wire.loads(wire.dumps(call))()


@pytest.mark.parametrize(("kind", "n_inputs", "n_workers"), [("scores", 1, 4), ("probs", 2, 5)])
def test_a_divided_run_has_the_same_files(monkeypatch, tmp_path, kind, n_inputs, n_workers):
    monkeypatch.setattr(regularity, "_ENTRIES_AT_A_TIME", 2 * 18 * 18)
    monkeypatch.setattr(probabilities, "_ENTRIES", 3 * 18 * 18)
    source, several = TensorSource(tensors(n_inputs, kind)), Several(n_workers)
    for name, workers in (("whole", ThisProcess()), ("divided", several)):
        make_run(source, tmp_path / name, measures=QUICK, draw=False, workers=workers)
    assert contents(tmp_path / "whole") == contents(tmp_path / "divided")
    assert several.called["measured"] == several.called["diagnosed"] == 0
    assert several.called["measured_curve"] == 4 * n_inputs
    assert several.called["measured_heads"] > n_inputs < several.called["diagnosed_heads"]


def test_heads_on_which_nothing_is_there_are_divided_too(monkeypatch, tmp_path):
    """A block of heads that is wholly masked, and one without a mask."""
    monkeypatch.setattr(probabilities, "_ENTRIES", 5 * 18 * 18)
    monkeypatch.setattr(regularity, "_ENTRIES_AT_A_TIME", 5 * 18 * 18)
    att = tensors(1, causal=False)[0]
    mask = np.zeros(att.shape, bool)
    mask[6, 3], mask[11, :, 2] = True, True
    masked = ht.AttentionTensor(att.values, att.heads, att.queries, att.keys, mask=mask)
    for name, workers in (("whole", ThisProcess()), ("divided", Several(4))):
        make_run(TensorSource([masked]), tmp_path / name, measures=QUICK, draw=False, workers=workers)
    assert contents(tmp_path / "whole") == contents(tmp_path / "divided")


def test_results_are_joined_in_order():
    items = [Divided(n, [lambda n=n, i=i: (n, i) for i in range(n)], list) for n in (1, 3, 2)]
    assert list(each_divided(ThisProcess(), items)) == [[(1, 0)], [(3, 0), (3, 1), (3, 2)], [(2, 0), (2, 1)]]


@pytest.mark.parametrize(("n_workers", "n_inputs", "n_each"), [(1, 3, 1), (3, 3, 1), (5, 3, 2), (4, 0, 4)])
def test_workers_of_an_input(n_workers, n_inputs, n_each):
    assert workers_for_each(Several(n_workers), n_inputs) == n_each
