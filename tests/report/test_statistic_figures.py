import numpy as np
import pytest

from headtree.errors import HeadtreeError
from headtree.measures.jackknife import Estimate
from headtree.measures.sensitivity import Change
from headtree.report.figures import statistic_figures as fc
from tests.report.figure_checks import assert_readable, shown_texts

RNG = np.random.default_rng(0)


def alone(number):
    """A number without an interval."""
    return Estimate(number, (np.nan, np.nan), (1,))


def change(setting, value, distance, ranking):
    tree = alone(distance)
    return Change(setting, value, tree, tree, tree, affinity=alone(0.9), ranking=ranking)


def words(figure):
    return [text.get_text() for text, _ in shown_texts(figure)]


def test_distributions_draw_every_value_and_the_quartiles():
    values = RNG.standard_normal(50)
    figure = fc.distributions({"given": values, "$o$": [1.0, np.nan]}, "exponent", reference=0, title="txl")
    dots, box, middle = figure.axes[0].lines[:3]
    np.testing.assert_array_equal(np.sort(dots.get_xdata()), np.sort(values))
    np.testing.assert_allclose(box.get_xdata(), np.quantile(values, (0.25, 0.75)))
    assert middle.get_xdata()[0] == pytest.approx(np.median(values))
    assert {"given (50)", "$o$ (1)"} <= set(words(figure))
    assert_readable(figure)
    assert_readable(fc.distributions({"empty": [np.nan]}, "x"))


def test_relation_leaves_out_what_is_missing():
    x, y = RNG.random(6), RNG.random(6)
    x[2] = np.nan
    heads = [divmod(i, 3) for i in range(6)]
    figure = fc.relation(x, y, "Haar entropy", "variation", heads, note="Spearman 0.7 [0.6, 0.8]", diagonal=True)
    np.testing.assert_allclose(figure.axes[0].collections[0].get_offsets(), np.c_[x, y][[0, 1, 3, 4, 5]])
    assert figure.axes[0].get_xlim() == figure.axes[0].get_ylim()
    assert_readable(figure)
    assert_readable(fc.relation(x, y, "$", "<b>"))


def test_sensitivity_has_a_row_for_every_change():
    settings = [("alpha", "0.5"), ("alpha", "1.0"), ("$tree$", "binary"), ("x" * 999, "\u202e")]
    changes = [change(s, v, 0.1 * i, Estimate(0.8, (0.7, 0.9), (3,))) for i, (s, v) in enumerate(settings)]
    figure = fc.sensitivity_intervals(changes)
    marks = [line.get_xdata()[0] for line in figure.axes[0].lines if line.get_marker() not in ("", "None")]
    np.testing.assert_allclose(marks, [0, 0.1, 0.2, 0.3])
    assert {"alpha = 0.5", "$tree$ = binary"} <= set(words(figure))
    assert_readable(figure)
    assert_readable(fc.sensitivity_intervals([change("a", "1", np.nan, alone(np.nan))] * 30))


def test_bad_input_is_refused():
    for call in (
        lambda: fc.distributions({}, "x"),
        lambda: fc.distributions({"a": ["x"]}, "x"),
        lambda: fc.distributions({"a": [[1.0]]}, "x"),
        lambda: fc.relation([1.0], [1.0, 2.0], "x", "y"),
        lambda: fc.relation(None, [1.0], "x", "y"),
        lambda: fc.relation([1.0], [1.0], "x", "y", [(0, 0), (0, 1)]),
        lambda: fc.sensitivity_intervals([]),
        lambda: fc.sensitivity_intervals({"setting": 1}),
        lambda: fc.sensitivity_intervals([{"value": 1}]),
    ):
        with pytest.raises(HeadtreeError):
            call()
