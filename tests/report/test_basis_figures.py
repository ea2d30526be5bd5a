import numpy as np
import pytest

import headtree as ht
from headtree.errors import HeadtreeError
from headtree.report.figures import basis_figures as fb
from tests.measures.examples import families
from tests.report.figure_checks import assert_readable, shown_texts

RNG = np.random.default_rng(0)


@pytest.fixture(scope="module")
def organized():
    att = families(0)
    return att, ht.organize(att)


def heads(n, per_layer):
    return [divmod(i, per_layer) for i in range(n)]


def test_haar_basis_shows_what_each_function_compares(organized):
    att, org = organized
    order = org.order("head")
    figure = fb.haar_basis(org.trees.head, att.heads, order, n_functions=5)
    drawn = np.asarray(figure.axes[0].get_images()[0].get_array())
    matrix = np.sign(ht.HaarBasis(org.trees.head).matrix()[order]).T
    sides = np.minimum((matrix > 0).sum(axis=1), (matrix < 0).sum(axis=1))
    assert len(drawn) == 5
    assert (drawn[0] == 2).all()
    for row in drawn[1:]:
        assert (matrix == row).all(axis=1).any()
    assert sorted(np.minimum((drawn[1:] > 0).sum(axis=1), (drawn[1:] < 0).sum(axis=1))) == sorted(sides)[-4:]
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert labels[1:] == [f"{(row > 0).sum()} vs {(row < 0).sum()}" for row in drawn[1:]]
    assert f"{len(att.heads) - 5} further functions" in figure.axes[1].get_xlabel()
    assert_readable(figure)


@pytest.mark.parametrize("n", [1, 2, 144, 1024])
def test_haar_basis_of_any_number_of_heads(n):
    assert_readable(fb.haar_basis(ht.PartitionTree.halving(n), heads(n, 1)))


def test_rms_lines_are_those_of_the_coefficients(organized):
    att, org = organized
    figure = fb.coefficients_by_support(att, org, [0, "L1H2"])
    basis = ht.TensorHaarBasis([org.trees.query, org.trees.key])
    coefficients = basis.analyze(att.values[0]).ravel()
    support = np.multiply.outer(*basis.supports).ravel()
    line = figure.axes[0].lines[0].get_ydata()
    octaves = sorted({int(np.log2(s)) for s in support})
    expected = [
        np.sqrt(np.mean([c**2 for c, s in zip(coefficients, support, strict=True) if int(np.log2(s)) == octave]))
        for octave in octaves
    ]
    np.testing.assert_allclose(line, expected)
    counts = figure.axes[0].collections[0].get_array()
    assert counts.sum() == len(coefficients)  # every coefficient is in some cell
    assert len(figure.axes[2].lines) == len(att.heads)
    low, high = figure.axes[0].get_xlim()
    assert low > high  # support falls to the right
    assert_readable(figure)


def test_coefficients_of_nothing_but_zeros():
    att = ht.AttentionTensor.from_array(np.zeros((2, 4, 4)))
    tree = ht.PartitionTree.halving(4)
    org = ht.organize_array(RNG.random((2, 4, 4)))
    assert tree.n_leaves == 4
    assert_readable(fb.coefficients_by_support(att, org, [0]))


def test_scores_show_mean_and_range():
    table = RNG.random((3, 12)) + 1
    figure = fb.scores_over_heads(table, heads(12, 4), ["a", "$b$", "\u202e" + "c" * 999])
    above, below = figure.axes[:2]
    np.testing.assert_allclose(above.lines[0].get_ydata(), table.mean(axis=0))
    np.testing.assert_array_equal(below.get_images()[0].get_array(), table)
    ranges = [path.vertices[:, 1] for path in above.collections[0].get_paths()]
    np.testing.assert_array_equal([min(each) for each in ranges], table.min(axis=0))
    np.testing.assert_array_equal([max(each) for each in ranges], table.max(axis=0))
    words = {text.get_text() for text, _ in shown_texts(figure)}
    assert f"L{table.mean(axis=0).argmax() // 4}H{table.mean(axis=0).argmax() % 4}" in words
    assert {"layer", "1", "2", "$b$"} <= words
    assert_readable(figure)


@pytest.mark.parametrize(("n_inputs", "n", "per_layer"), [(1, 1, 1), (1, 2, 1), (6, 144, 12), (40, 1024, 32)])
def test_scores_of_any_size(n_inputs, n, per_layer):
    table = RNG.random((n_inputs, n))
    table[0, 0] = np.nan if n > 1 else 0.5
    assert_readable(fb.scores_over_heads(table, heads(n, per_layer)))


def test_compression_draws_the_curves(organized):
    sparse = ht.sparsity(*organized)
    figure = fb.compression(sparse)
    left, right = figure.axes
    curve = sparse.by_order["organized"]
    np.testing.assert_allclose(left.lines[0].get_ydata(), 100 * curve.largest)
    np.testing.assert_allclose(right.lines[0].get_ydata(), 100 * curve.coarsest)
    np.testing.assert_allclose(left.lines[0].get_xdata(), 100 * curve.counts / curve.n_coefficients)
    assert [text.get_text() for text in left.get_legend().get_texts()] == [
        "learned trees", "original order", "random order", "learned trees, leaves shuffled",
    ]  # fmt: skip
    assert_readable(figure)
    assert_readable(fb.compression({"$own$": curve}))


def test_tri_haar_draws_moduli_and_sums():
    values, support = RNG.standard_normal((5, 100)), np.tile(np.arange(100, 0, -1), (5, 1))
    figure = fb.tri_haar_coefficients(values, support, ["a", "b", "c", "d", "$e$"])
    np.testing.assert_allclose(figure.axes[0].lines[1].get_ydata(), np.abs(values[1]))
    labels = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert labels[4] == f"$e$: {np.abs(values[4]).sum():.3g}"
    assert_readable(figure)
    assert_readable(fb.tri_haar_coefficients(np.zeros((1, 1)), np.ones((1, 1))))


def test_bad_input_is_refused(organized):
    att, org = organized
    for call in (
        lambda: fb.haar_basis("tree", att.heads),
        lambda: fb.haar_basis(org.trees.head, att.heads[:3]),
        lambda: fb.coefficients_by_support(att, org, []),
        lambda: fb.coefficients_by_support(att, "org", [0]),
        lambda: fb.coefficients_by_support(att, org, ["L99H0"]),
        lambda: fb.scores_over_heads([1.0, 2.0], heads(2, 2)),
        lambda: fb.scores_over_heads([[1.0, 2.0], [1.0]], heads(2, 2)),
        lambda: fb.scores_over_heads([["a", "b"]], heads(2, 2)),
        lambda: fb.scores_over_heads([[1.0, 2.0]], heads(3, 3)),
        lambda: fb.scores_over_heads([[1.0, 2.0]], heads(2, 2), ["a", "b"]),
        lambda: fb.compression("sparsity"),
        lambda: fb.compression({"a": 1}),
        lambda: fb.tri_haar_coefficients([[1.0]], [[1.0, 2.0]]),
        lambda: fb.tri_haar_coefficients([], []),
    ):
        with pytest.raises(HeadtreeError):
            call()
