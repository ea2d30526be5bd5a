import numpy as np
import pytest

from headtree.errors import HeadtreeError
from headtree.report.figures import statistic_figures as fc
from tests.report.figure_checks import assert_readable, shown_texts

RNG = np.random.default_rng(0)


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
    figure = fc.relation(x, y, "entropy", "variation", heads, note="Spearman 0.7 [0.6, 0.8]", diagonal=True)
    np.testing.assert_allclose(figure.axes[0].collections[0].get_offsets(), np.c_[x, y][[0, 1, 3, 4, 5]])
    assert figure.axes[0].get_xlim() == figure.axes[0].get_ylim()
    assert_readable(figure)
    assert_readable(fc.relation(x, y, "$", "<b>"))


@pytest.mark.parametrize("n", [1, 9, 40])
def test_correlations(n):
    table = np.corrcoef(RNG.standard_normal((n, 60))).reshape(n, n)
    if n > 1:
        table[0, 1] = np.nan
    figure = fc.correlations(table, [f"measure {i}" for i in range(n)])
    np.testing.assert_array_equal(np.ma.filled(figure.axes[0].get_images()[0].get_array(), np.nan), table)
    assert figure.axes[0].get_images()[0].get_clim() == (-1, 1)
    assert_readable(figure)


def test_sensitivity_has_a_row_for_every_change():
    rows = [
        {"setting": s, "value": v, "tree_distance": 0.1 * i, "affinity_correlation": 0.9, "rank_correlation": 0.8,
         "rank_correlation_low": 0.7, "rank_correlation_high": 0.9}
        for i, (s, v) in enumerate([("alpha", 0.5), ("alpha", 1.0), ("$tree$", "binary"), ("x" * 999, "\u202e")])
    ]  # fmt: skip
    figure = fc.sensitivity(rows)
    marks = [line.get_xdata()[0] for line in figure.axes[0].lines if line.get_marker() not in ("", "None")]
    np.testing.assert_allclose(marks, [0, 0.1, 0.2, 0.3])
    assert {"alpha = 0.5", "$tree$ = binary"} <= set(words(figure))
    assert_readable(figure)
    assert_readable(fc.sensitivity([{"setting": "a", "value": 1}] * 30))


def test_estimates_beside_what_was_published():
    rows = [
        {"name": "one", "value": 0.3, "low": 0.2, "high": 0.4, "published": 0.35},
        {"name": "two", "value": 0.5},
    ]
    figure = fc.estimates(rows, "share of heads", reference=0.5)
    assert {"measured", "published", "one", "two"} <= set(words(figure))
    assert_readable(figure)


def test_bad_input_is_refused():
    for call in (
        lambda: fc.distributions({}, "x"),
        lambda: fc.distributions({"a": ["x"]}, "x"),
        lambda: fc.distributions({"a": [[1.0]]}, "x"),
        lambda: fc.relation([1.0], [1.0, 2.0], "x", "y"),
        lambda: fc.relation(None, [1.0], "x", "y"),
        lambda: fc.relation([1.0], [1.0], "x", "y", [(0, 0), (0, 1)]),
        lambda: fc.correlations(np.ones((2, 3)), ["a", "b"]),
        lambda: fc.correlations(np.full((1, 1), 7.0), ["a"]),
        lambda: fc.sensitivity([]),
        lambda: fc.sensitivity({"setting": 1}),
        lambda: fc.sensitivity([{"value": 1}]),
        lambda: fc.estimates([], "x"),
        lambda: fc.estimates([{"name": "a"}], "x"),
    ):
        with pytest.raises(HeadtreeError):
            call()
