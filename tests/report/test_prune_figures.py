"""Figures and sentences of pruning: names that fit, and a look of its own for every criterion."""

import numpy as np
import pytest

from headtree.prune.curve import PruneCurve
from headtree.report.figures.prune_figures import prune_curves
from headtree.report.words.prune_section import CALLED, prune_section
from tests.report.figure_checks import assert_readable, shown_texts

CHANGE = "squared change of the output, relative to its square"


def curves(objective, names=tuple(CALLED), at_first=0.0):
    rng = np.random.default_rng(0)
    losses = {name: at_first + np.cumsum(rng.random((2, 4, 9)) * [[[0], [1], [1], [1]]], axis=1) for name in names}
    right = {name: rng.integers(2, size=(2, 4, 9)).astype(float) for name in names}
    return PruneCurve(
        np.array([0, 4, 6, 11]), 12, losses, right, np.ones(9), {}, objective, 3, 0, False, {}
    )  # fmt: skip


@pytest.mark.parametrize("accuracy", [False, True])
@pytest.mark.parametrize("objective", [CHANGE, "cross entropy of the next token"])
def test_long_names_fit_beside_the_axis(objective, accuracy):
    assert_readable(prune_curves(curves(objective), accuracy=accuracy))


def test_a_change_of_output_is_no_increase():
    def name_of(found):
        axes = prune_curves(found).axes[0]
        return " ".join(axes.get_ylabel().split())

    assert name_of(curves(CHANGE)) == CHANGE
    assert name_of(curves("cross entropy of labels", at_first=2.0)) == "increase of the cross entropy of labels"


def test_no_two_criteria_look_alike_and_each_looks_the_same_in_every_figure():
    def looks(names):
        lines = prune_curves(curves(CHANGE, names)).axes[0].lines
        return {line.get_label(): (line.get_color(), line.get_marker()) for line in lines}

    every = looks(tuple(CALLED))
    assert len(set(every.values())) == len(CALLED)
    some = looks(("family", "random", "effect"))
    assert some == {name: every[name] for name in some}


def test_the_legend_names_the_best_criterion_first():
    found = curves(CHANGE)
    figure = prune_curves(found)
    best = min(found.losses, key=lambda name: found.loss(name)[found.step_at(0.5)])
    named = [text for text in shown_texts(figure) if text[0].get_text() in CALLED.values()]
    assert named[0][0].get_text() == CALLED[best]
    assert len(named) == len(CALLED)
    assert min(box.x0 for _, box in named) > figure.axes[0].bbox.x1  # beside the curves, not on them


def test_few_criteria_are_named_among_the_curves():
    figure = prune_curves(curves(CHANGE, ("effect", "random")))
    assert len(figure.axes[0].get_legend().get_texts()) == 2
    assert_readable(figure)


def test_differences_are_as_precise_as_their_errors():
    rise = np.array([0.0, 0.02, 0.04])
    losses = {"confidence": np.zeros((1, 2, 3)), "shannon": np.stack([np.zeros(3), 1 / 3 + rise])[None]}
    missing = {"gradient": "it has none"}
    found = PruneCurve(np.array([0, 6]), 12, losses, {}, np.ones(3), {}, CHANGE, 3, 0, False, missing)
    text = prune_section(found).text
    assert "Shannon entropy (by 0.353 ± 0.012)" in text[2]  # 0.35333 and 0.01155
    assert text[-1] == "Not measured: gradient E|g|, because it has none."
