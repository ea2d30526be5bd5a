import warnings

import numpy as np
import pytest

import headtree as ht
from headtree.errors import HeadtreeError
from headtree.report.figures import matrix_figures as fm
from tests.measures.examples import blocks
from tests.report.figure_checks import assert_readable

RNG = np.random.default_rng(0)


def images(figure):
    return [image for axes in figure.axes for image in axes.get_images()]


@pytest.fixture(scope="module")
def organized():
    att = blocks(n=20)
    return att, ht.organize(att)


def test_what_is_drawn_is_the_head_in_both_orders(organized):
    att, org = organized
    figure = fm.organized_head(att, org, 2)
    left, right = images(figure)[:2]
    np.testing.assert_array_equal(left.get_array(), att.values[2])
    np.testing.assert_array_equal(right.get_array(), att.values[2][np.ix_(org.order("query"), org.order("key"))])
    low, high = left.get_clim()
    assert low == -high == -np.abs(att.values[2]).max()
    assert right.get_clim() == (low, high)
    assert_readable(figure)


def test_folder_lines_part_the_found_folders(organized):
    att, org = organized
    figure = fm.organized_head(att, org, 0)
    lines = [
        line.get_ydata()[0] + 0.5 for line in figure.axes[1].lines if line.get_ydata()[0] == line.get_ydata()[1]
    ]
    level = np.flatnonzero(org.trees.query.n_folders <= 12)[-1]
    labels = org.trees.query.labels[level][org.order("query")]
    assert sorted(lines) == [i for i in range(1, len(labels)) if labels[i] != labels[i - 1]]


def test_heads_by_name_pair_and_place(organized):
    att, org = organized
    drawn = [images(fm.organized_head(att, org, head))[0].get_array() for head in (3, "L0H3", (0, 3), -3)]
    for other in drawn[1:]:
        np.testing.assert_array_equal(drawn[0], other)


def test_missing_entries_are_grey_and_named():
    mask = np.triu(np.ones((16, 16), bool), 1)
    att = ht.AttentionTensor.from_array(RNG.standard_normal((3, 16, 16)), mask=mask)
    figure = fm.organized_head(att, ht.organize(att), 0)
    np.testing.assert_array_equal(np.ma.getmaskarray(images(figure)[0].get_array()), mask)
    assert [text.get_text() for text in figure.axes[1].get_legend().get_texts()] == ["missing"]
    assert_readable(figure)


def test_probabilities_start_at_zero():
    att = ht.AttentionTensor.from_array(RNG.dirichlet(np.ones(9), (4, 12)), kind="probs")
    figure = fm.organized_head(att, ht.organize(att), 1)
    image = images(figure)[0]
    assert image.get_clim() == (0, pytest.approx(float(att.values[1].max())))
    assert image.norm(image.get_clim()[1] / 4) == pytest.approx(0.5)  # spaced by the square root, as on the page


def test_hostile_tokens_stay_text():
    tokens = ["$x_1$", "$", "<script>", "\u202eabc", "a" * 10_000, "\x00", "", " ", "{", "\\frac", "&amp;", "中"]
    att = ht.AttentionTensor.from_array(RNG.standard_normal((3, 12, 12)), queries=tokens, keys=tokens)
    figure = fm.organized_head(att, ht.organize(att), 0)
    assert_readable(figure)
    shown = {label.get_text() for label in figure.axes[0].get_yticklabels()}
    assert {"$x_1$", "$", "<script>", "aaaaaaaaa…", "␀", "␣", "\\frac", "&amp;", "中"} <= shown


def test_long_sequences_show_positions_and_block_means():
    att = ht.AttentionTensor.from_array(RNG.standard_normal((1, 521, 6)))
    org = ht.organize_array(att.values[0])
    figure = fm.organized_head(att, org, 0)
    drawn = images(figure)[0].get_array()
    assert drawn.shape == (261, 6)
    np.testing.assert_allclose(drawn[0, 5], att.values[0, :2, 5].mean())
    np.testing.assert_allclose(drawn[-1, 5], att.values[0, 520, 5])
    assert any("mean of 2×1" in axes.get_ylabel() for axes in figure.axes)
    assert_readable(figure)


def test_any_matrix():
    x = RNG.standard_normal((14, 30))
    x[0, 0] = np.nan
    org = ht.organize_array(np.nan_to_num(x), names=("sensor", "time"))
    figure = fm.organized_matrix(x, org, title="measurement", unit="volts")
    assert np.ma.getmaskarray(images(figure)[0].get_array())[0, 0]
    assert figure.axes[0].get_ylabel() == "sensor, position"
    assert_readable(figure)


def test_paraproduct_terms_are_those_of_the_product(organized):
    att, org = organized
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        product = ht.paraproduct(att.values[0], org.trees.query, org.trees.key, "softmax")
    rows, columns = org.order("query"), org.order("key")
    figure = fm.paraproduct_terms(product, rows, columns, name="L0H0")
    drawn = [np.asarray(image.get_array()) for image in images(figure)[:7]]
    value, complete, printed, residual, boundary, first, second = drawn
    np.testing.assert_array_equal(value, product.value[np.ix_(rows, columns)])
    np.testing.assert_allclose(complete + residual, value, atol=1e-12)
    np.testing.assert_allclose(printed, first + second, atol=1e-12)
    np.testing.assert_allclose(complete, boundary + printed, atol=1e-12)
    limits = {image.get_clim() for image in images(figure)[:7]}
    assert len(limits) == 1
    bars = [bar.get_width() for bar in figure.axes[7].patches]
    np.testing.assert_allclose(bars[3], 100 * float(product.relative_error))
    assert_readable(figure)


def test_bad_input_is_refused(organized):
    att, org = organized
    other = ht.organize_array(RNG.standard_normal((5, 6)))
    product = ht.paraproduct(0.01 * att.values[:2], org.trees.query, org.trees.key, "exp")
    for call in (
        lambda: fm.organized_head(att.values, org, 0),
        lambda: fm.organized_head(att, "org", 0),
        lambda: fm.organized_head(att, other, 0),
        lambda: fm.organized_head(att, org, 99),
        lambda: fm.organized_head(att, org, "L9H9"),
        lambda: fm.organized_head(att, org, None),
        lambda: fm.organized_matrix(np.zeros((2, 2, 2)), org),
        lambda: fm.organized_matrix(np.zeros((3, 3)), org),
        lambda: fm.paraproduct_terms(product),
        lambda: fm.paraproduct_terms("product"),
        lambda: fm.paraproduct_terms(
            ht.paraproduct(0.01 * att.values[0], org.trees.query, org.trees.key), np.arange(3)
        ),
    ):
        with pytest.raises(HeadtreeError):
            call()


def test_the_text_is_written_below_and_shaded_by_the_attention_it_receives():
    tokens = ["[CLS]", "em", "##bed", "the", "cat", "中文", *(f"word{i}" for i in range(20))]
    n = len(tokens)
    values = np.full((1, n, n), -5.0)
    values[:, :, 4] = 5.0  # all look at the cat
    att = ht.AttentionTensor.from_array(values + 0.01 * RNG.standard_normal((1, n, n)), queries=tokens, keys=tokens)
    figure = fm.organized_head(att, ht.organize_array(att.values[0]), 0, text=True)
    below = next(
        axes for axes in figure.axes if axes.texts and axes.texts[0].get_text().startswith("Where it looks")
    )
    words = [text.get_text() for text in below.texts]
    assert words[1:6] == ["[CLS]", "em", "bed", "the", "cat"]
    opacity = [patch.get_alpha() for patch in below.patches]
    assert int(np.argmax(opacity)) == 4
    assert sorted(opacity)[-2] < 0.1
    assert_readable(figure)


def test_the_picture_is_drawn_beside_and_light_where_the_head_looks():
    names = ["class", *(f"r{i}c{j}" for i in range(3) for j in range(4))]
    values = np.full((1, 13, 13), 0.01)
    values[:, :, names.index("r1c2")] = 1 - 0.12
    att = ht.AttentionTensor.from_array(values, kind="probs", queries=names, keys=names)
    picture = RNG.random((30, 40, 3))
    figure = fm.organized_head(att, ht.organize_array(RNG.random((13, 13))), 0, picture=picture)
    shown = next(axes for axes in figure.axes if axes.get_title() == "where it looks")
    np.testing.assert_array_equal(shown.get_images()[0].get_array(), picture)
    shade = np.asarray(shown.get_images()[1].get_alpha())
    assert np.unravel_index(shade.argmin(), shade.shape) == (1, 2)
    assert shade.min() == 0
    assert "class 1 %" in shown.get_xlabel()


def test_a_png_says_which_letters_it_lacks(tmp_path):
    from headtree.report.figures.style import lacks_letters, save

    latin = fm.organized_matrix(RNG.random((3, 3)), ht.organize_array(RNG.random((3, 3))), title="é ∑ →")
    assert not lacks_letters(latin)
    odd = fm.organized_matrix(RNG.random((3, 3)), ht.organize_array(RNG.random((3, 3))), title="\U00013000")
    assert lacks_letters(odd)  # a hieroglyph
    save(odd, tmp_path, "odd")
    assert [text.get_text() for text in odd.texts] == []
