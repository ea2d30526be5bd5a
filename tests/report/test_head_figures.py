import numpy as np
import pytest

import headtree as ht
from headtree.errors import HeadtreeError
from headtree.report.figures import head_figures as fh
from headtree.report.figures.tree_figures import head_tree
from tests.report.figure_checks import assert_readable, shown_texts

RNG = np.random.default_rng(0)


def heads(n, per_layer):
    return [divmod(i, per_layer) for i in range(n)]


def affinity(n):
    points = np.sort(RNG.random(n))
    return np.exp(-10 * np.abs(np.subtract.outer(points, points)))


def names_shown(figure):
    return {text.get_text() for text, _ in shown_texts(figure)}


def test_map_draws_every_head_where_it_is():
    points = RNG.standard_normal((24, 5))
    figure = fh.head_map(points, heads(24, 6))
    flat, other = figure.axes[:2]
    np.testing.assert_allclose(flat.collections[0].get_offsets(), points[:, [0, 1]])
    np.testing.assert_allclose(other.collections[0].get_offsets(), points[:, [0, 2]])
    colors = flat.collections[0].get_facecolors()
    assert len(np.unique(colors, axis=0)) == 4  # layers
    assert_readable(figure)


@pytest.mark.parametrize("n_components", [0, 1, 2])
def test_map_of_few_coordinates(n_components):
    figure = fh.head_map(RNG.standard_normal((5, n_components)), heads(5, 5))
    assert not figure.axes[1].collections[0].get_offsets()[:, 1].any()


@pytest.mark.parametrize(("n", "per_layer"), [(1, 1), (2, 1), (72, 12), (144, 12), (1024, 32)])
def test_many_heads_stay_readable(n, per_layer):
    g = affinity(n)
    tree = ht.flexible_tree(g) if n > 1 else ht.PartitionTree.flat(1)
    figure = fh.head_affinity(g, tree, heads(n, per_layer))
    assert_readable(figure)
    if n < 512:  # above, cells are means over blocks
        np.testing.assert_allclose(
            figure.axes[0].get_images()[0].get_array(), g[np.ix_(tree.order(), tree.order())]
        )
    assert_readable(fh.head_map(RNG.standard_normal((n, 3)), heads(n, per_layer)))
    assert_readable(head_tree(tree, heads(n, per_layer)))


def test_affinity_names_follow_the_order():
    tree = ht.PartitionTree([[0] * 6, [0, 1, 0, 1, 0, 1], [0, 1, 2, 3, 4, 5]])
    figure = fh.head_affinity(np.eye(6) + 0.1, tree, heads(6, 3))
    picture = figure.axes[0]
    assert not picture.lines
    (strip,) = picture.child_axes
    assert [label.get_text() for label in strip.get_yticklabels()] == [
        "L0H0",
        "L0H2",
        "L1H1",
        "L0H1",
        "L1H0",
        "L1H2",
    ]


def test_grid_puts_every_number_in_its_place():
    figure = fh.head_grid([1.0, 2.0, 3.0, np.nan], [(2, 0), (2, 1), (4, 0), (4, 1)], "structure score")
    drawn = figure.axes[0].get_images()[0].get_array()
    np.testing.assert_array_equal(np.ma.filled(drawn, np.nan), [[1, 2], [np.nan] * 2, [3, np.nan]])
    assert figure.axes[0].get_images()[0].get_extent() == [-0.5, 1.5, 4.5, 1.5]
    assert "missing" in names_shown(figure)
    assert_readable(figure)
    signed = fh.head_grid([-1.0, 3.0], heads(2, 2), "correlation", is_signed=True, title="x" * 1000)
    assert signed.axes[0].get_images()[0].get_clim() == (-3.0, 3.0)
    assert_readable(signed)
    assert_readable(fh.head_grid([np.nan, np.inf], heads(2, 2), "nothing"))


def test_tree_has_a_line_for_every_folder_and_a_name_for_every_head():
    tree = ht.PartitionTree([[0] * 5, [0, 0, 0, 1, 1], [0, 0, 1, 2, 3], [0, 1, 2, 3, 4]])
    figure = head_tree(tree, heads(5, 2))
    (branches,) = (c for c in figure.axes[0].collections if type(c).__name__ == "LineCollection")
    n_inner, n_edges = (
        4 - 1,
        len(tree.distinct) - 1,
    )  # root, {0,1,2}, {0,1}, {3,4} have arcs; all but the root an edge
    assert len(branches.get_segments()) == n_inner + 1 + n_edges
    assert {"L0H0", "L0H1", "L1H0", "L1H1", "L2H0"} <= names_shown(figure)
    # leaves end on the unit circle, the root is in the middle
    ends = np.linalg.norm([segment[-1] for segment in branches.get_segments()], axis=1)
    assert np.isclose(ends, 1).sum() == 5
    assert_readable(figure)


def test_tree_goes_clockwise_in_the_order_asked_for():
    tree = ht.PartitionTree([[0] * 4, [0, 0, 1, 1], [0, 1, 2, 3]])
    figure = head_tree(tree, heads(4, 4), order=[3, 2, 0, 1])
    placed = {text.get_text(): text.get_position() for text in figure.axes[0].texts}
    angles = [np.arctan2(*placed[name]) % (2 * np.pi) for name in ("L0H3", "L0H2", "L0H0", "L0H1")]  # from the top
    assert angles == sorted(angles)


def test_support_of_a_consensus_is_on_its_folders():
    orgs = [ht.organize_array(RNG.standard_normal((8, 6, 5)) + 3 * np.arange(8)[:, None, None]) for _ in range(3)]
    agreed = ht.consensus(orgs, n_bootstrap=10)
    figure = head_tree(agreed, heads(8, 4))
    (dots,) = (c for c in figure.axes[0].collections if type(c).__name__ == "PathCollection")
    np.testing.assert_allclose(np.sort(dots.get_array()), np.sort(100 * agreed.support))
    assert dots.get_clim() == (0, 100)
    assert {f"{100 * share:.0f}" for share in agreed.support if share > 0} <= names_shown(figure)
    assert_readable(figure)


def test_unknown_support_is_not_drawn():
    tree = ht.PartitionTree([[0] * 4, [0, 0, 1, 1], [0, 1, 2, 3]])
    figure = head_tree(tree, heads(4, 4), support={1: np.nan, 2: np.nan})
    assert not [c for c in figure.axes[0].collections if type(c).__name__ == "PathCollection"]


def test_slices_that_are_no_heads_have_names_and_no_layers():
    g = affinity(6)
    tree = ht.flexible_tree(g)
    names = ["$a$", "<b>", "\u202ec", "d" * 10_000, "e", "f"]
    for figure in (
        fh.head_map(RNG.random((6, 3)), names),
        fh.head_affinity(g, tree, names),
        head_tree(tree, names),
    ):
        assert_readable(figure)
        assert "layer" not in names_shown(figure)


def test_bad_input_is_refused():
    g = affinity(6)
    tree, six = ht.flexible_tree(g), heads(6, 3)
    for call in (
        lambda: fh.head_map(RNG.random((6, 3)), heads(5, 5)),
        lambda: fh.head_map(RNG.random(6), six),
        lambda: fh.head_map(np.full((6, 3), np.nan), six),
        lambda: fh.head_map(RNG.random((6, 3)), [1, 2, 3, 4, 5, 6]),
        lambda: fh.head_map(RNG.random((6, 3)), None),
        lambda: fh.head_affinity(RNG.random((6, 6)), tree, six),
        lambda: fh.head_affinity(g, "tree", six),
        lambda: fh.head_affinity(g, ht.PartitionTree.flat(5), six),
        lambda: fh.head_affinity(g, tree, six, order=[0, 0, 1, 2, 3, 4]),
        lambda: fh.head_affinity(
            g, ht.PartitionTree([[0] * 6, [0, 0, 0, 1, 1, 1], list(range(6))]), six, [0, 3, 1, 4, 2, 5]
        ),
        lambda: fh.head_grid([1.0], six, "x"),
        lambda: fh.head_grid(["a"] * 6, six, "x"),
        lambda: fh.head_grid([1.0] * 6, ["a"] * 6, "x"),
        lambda: head_tree("tree", six),
        lambda: head_tree(tree, six, support=[1]),
        lambda: head_tree(tree, six, support={999: 0.5}),
        lambda: head_tree(tree, six, support={1: 2.0}),
    ):
        with pytest.raises(HeadtreeError):
            call()


@pytest.mark.parametrize("seed", [1, 2, 3, 6, 8])  # names that grew into each other once
def test_names_on_the_map_do_not_overlap(seed):
    points = np.random.default_rng(seed).standard_normal((100, 3)) ** (3 if seed % 3 == 0 else 1)
    assert_readable(fh.head_map(points, heads(100, 10)))


@pytest.mark.parametrize("seed", range(4))
def test_names_on_the_map_cover_no_other_head(seed):
    rng = np.random.default_rng(seed)
    points = np.concatenate([0.2 * rng.standard_normal((90, 3)), rng.standard_normal((10, 3))])
    figure = fh.head_map(points, heads(100, 10))
    named = 0
    for text, box in shown_texts(figure):
        if text.get_text().startswith("L") and text.axes in figure.axes[:2]:
            other = 1 if text.axes is figure.axes[0] else 2
            dots = text.axes.transData.transform(points[:, [0, other]])
            inside = (dots >= (box.x0 + 2, box.y0 + 4)) & (dots <= (box.x1 - 2, box.y1 - 4))
            assert not inside.all(axis=1).any(), text
            named += 1
    assert named >= 4


def test_folders_that_do_not_recur_have_a_dot_and_no_number():
    tree = ht.PartitionTree([[0] * 4, [0, 0, 1, 1], [0, 1, 2, 3]])
    figure = head_tree(tree, heads(4, 4), support={1: 0.005, 2: 0.3})
    (dots,) = (c for c in figure.axes[0].collections if type(c).__name__ == "PathCollection")
    np.testing.assert_allclose(np.sort(dots.get_array()), [0.5, 30])
    numbers = [text.get_text() for text in figure.axes[0].texts if text.get_text().isdigit()]
    assert numbers == ["30"]
