from math import comb

import numpy as np
import pytest

from headtree.errors import HeadtreeError
from headtree.report import figures_depth as fd
from tests.report.figure_checks import assert_readable, shown_texts

RNG = np.random.default_rng(0)
LAYERS = np.arange(7)
CURVES = {
    "as it is": np.exp(-0.1 * LAYERS) * RNG.uniform(0.9, 1.1, (4, 7)),
    "attention alone": np.exp(-(3.0 ** (LAYERS - 2))),
    "$x_1$": np.where(LAYERS > 4, 0.0, 1.0),
}


def words(figure):
    return [text.get_text() for text, _ in shown_texts(figure)]


def test_residuals_are_means_on_a_log_axis_with_their_range():
    figure = fd.residual_curves(CURVES, title="a model")
    (axes,) = figure.axes
    np.testing.assert_allclose(axes.lines[0].get_ydata(), CURVES["as it is"].mean(axis=0))
    assert axes.get_yscale() == "log"
    band = axes.collections[0].get_paths()[0].vertices[:, 1]
    assert band.min() == CURVES["as it is"].min()
    assert band.max() == CURVES["as it is"].max()
    assert "$x_1$" in words(figure)
    assert_readable(figure)


def test_what_is_zero_stands_on_the_edge():
    figure = fd.residual_curves({"gone": [1.0, 0.1, 0.0, 0.0]})
    triangles = [line for line in figure.axes[0].lines if line.get_marker() == "v"]
    np.testing.assert_array_equal(triangles[0].get_xdata(), [2, 3])
    assert figure.axes[0].get_ylim()[0] > 0


def test_bound_inside_and_outside_the_picture():
    inside = fd.residual_curves(CURVES, bound=np.exp(-0.2 * LAYERS))
    assert "bound for attention alone" in words(inside)
    outside = fd.residual_curves(CURVES, bound=[50.0, 1e9, np.inf, np.inf, np.inf, np.inf, np.inf])
    assert "bound (above the picture: 50 or more)" in words(outside)
    assert_readable(outside)
    assert "bound (above the picture: not finite or more)" in words(fd.residual_curves(CURVES, bound=[np.inf] * 7))


def test_two_models_side_by_side_with_published_curves():
    published = {"BERT": ([0, 3, 6], [0.687, 0.139, 0.0])}
    figure = fd.residual_curves(CURVES, fresh=CURVES, published=published)
    assert len(figure.axes) == 2
    assert figure.axes[0].get_ylim() == figure.axes[1].get_ylim()
    assert "BERT, published" in words(figure)
    assert_readable(figure)


def test_nothing_but_missing_values_or_zeros():
    assert_readable(fd.residual_curves({"a": [np.nan, np.nan]}))
    assert_readable(fd.residual_curves({"a": [0.0, 0.0]}))


def test_path_lengths():
    counts = [comb(12, k) * 12**k for k in range(13)]
    shares = np.exp(-np.arange(13) / 2.0)
    figure = fd.path_length_bars(shares, counts, 0.5 * shares, spread=[0.9 * shares, 1.1 * shares], title="$m$")
    np.testing.assert_allclose([bar.get_height() for bar in figure.axes[0].patches], 100 * shares)
    np.testing.assert_allclose(figure.axes[1].lines[0].get_ydata(), counts)
    assert figure.axes[0].get_ylim()[0] == 0  # bars begin at nothing
    assert_readable(figure)
    assert len(fd.path_length_bars([1.0], [1]).axes) == 2


def test_tasks():
    columns = {"length": [0, 1, 2], "mean": [0.9, 0.5, 0.1], "low": [0.8, 0.4, 0.0], "high": [1.0, 0.6, 0.2]}
    figure = fd.task_accuracies({"sorting": columns | {"full": 0.95, "chance": 0.1}, "$hull$": columns})
    np.testing.assert_allclose(figure.axes[0].lines[0].get_ydata(), [90, 50, 10])
    assert figure.axes[0].get_ylim() == (0, 103)
    assert {"whole network", "chance", "paths of one length", "$hull$"} <= set(words(figure))
    assert_readable(figure)


def test_circle():
    points = RNG.standard_normal((5, 9, 2))
    figure = fd.circle({"attention alone": points, "with skip": 0.5 * points, "c": points}, target=points[0])
    assert len(figure.axes[0].lines) == 5 + 1 + 2  # steps, target, two axes
    np.testing.assert_allclose(figure.axes[0].lines[0].get_xydata(), points[0])
    assert figure.axes[0].get_xlim() == figure.axes[1].get_xlim()
    assert_readable(figure)
    assert_readable(fd.circle({f"v{i}": points for i in range(6)}))


def test_bad_input_is_refused():
    task = {"length": [0], "mean": [1.0], "low": [1.0], "high": [1.0]}
    for call in (
        lambda: fd.residual_curves({}),
        lambda: fd.residual_curves([1.0]),
        lambda: fd.residual_curves({"a": ["x"]}),
        lambda: fd.residual_curves({"a": [-1.0]}),
        lambda: fd.residual_curves({"a": np.zeros((2, 2, 2))}),
        lambda: fd.residual_curves(CURVES, bound=[[1.0]]),
        lambda: fd.path_length_bars([1.0, 2.0], [1]),
        lambda: fd.path_length_bars([], []),
        lambda: fd.task_accuracies({}),
        lambda: fd.task_accuracies({"a": {"length": [0]}}),
        lambda: fd.task_accuracies({"a": task | {"mean": [1.0, 2.0]}}),
        lambda: fd.circle({}),
        lambda: fd.circle({"a": np.zeros((2, 3, 3))}),
        lambda: fd.circle({"a": "points"}),
    ):
        with pytest.raises(HeadtreeError):
            call()
