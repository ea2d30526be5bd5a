"""What every figure must keep: labels apart and inside, text large enough, axes named, bytes the same."""

from itertools import combinations

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text


def shown_texts(figure):
    """Every text that is drawn, with its box in pixels."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    texts = []
    for axes in figure.findobj(lambda artist: hasattr(artist, "get_xticklabels")):
        for axis in axes._axis_map.values():
            low, high = sorted(axis.get_view_interval())
            for tick in axis.get_major_ticks():
                inside = low - 1e-9 * abs(low) <= tick.get_loc() <= high + 1e-9 * abs(high)
                for label in (tick.label1, tick.label2):
                    label.headtree_shown = inside and axis.get_visible() and axes.axison
            for tick in axis.get_minor_ticks():
                tick.label1.headtree_shown = tick.label2.headtree_shown = False
    for text in figure.findobj(Text):
        is_shown = getattr(text, "headtree_shown", True) and text.get_visible() and text.get_text().strip()
        if is_shown:
            texts.append((text, text.get_window_extent(renderer)))
    return texts


def assert_readable(figure, smallest=7.0):
    """No two texts overlap, none leaves the figure, none is smaller than 7 points."""
    texts = shown_texts(figure)
    assert texts
    width, height = figure.bbox.width, figure.bbox.height
    for text, box in texts:
        assert text.get_fontsize() >= smallest, text
        assert not text.get_parse_math(), text
        # boxes have room for letters that reach lower or higher than those drawn: 3 pixels of 200 dots per inch
        assert min(box.x0, box.y0, width - box.x1, height - box.y1) >= -3, (text, box)
    level = [(text, box) for text, box in texts if min(text.get_rotation() % 90, -text.get_rotation() % 90) < 6]
    for (a, box_a), (b, box_b) in combinations(level, 2):
        dx = min(box_a.x1, box_b.x1) - max(box_a.x0, box_b.x0)
        dy = min(box_a.y1, box_b.y1) - max(box_a.y0, box_b.y0)
        assert dx <= 1.5 or dy <= 3, (a, b)  # pixels: boxes have room above and below their letters
