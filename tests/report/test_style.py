import re
import unicodedata
from importlib.resources import files
from xml.etree import ElementTree as ET

import matplotlib as mpl
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headtree.errors import HeadtreeError
from headtree.report.figures import style


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("word", "word"),
        ("$x_1^2$", "$x_1^2$"),
        ("<script>", "<script>"),
        ("a\nb\tc", "a␊b␉c"),
        ("\x00", "␀"),
        ("\x7f", "␡"),
        ("   ", "␣"),
        ("", ""),
        ("\u202eabc", "\ufffdabc"),
        ("a\u2028b", "a\ufffdb"),
        ("\ud800", "\ufffd"),
        ("a" * 10_000, "a" * 15 + "…"),
        ("中文", "中文"),
        (7, "7"),
    ],
)
def test_plain(text, shown):
    assert style.plain(text) == shown


def test_a_heap_of_accents_is_cut():
    assert style.plain("a" + "\u0301" * 10) == "a" + "\u0301" * 2


@given(st.text(max_size=100), st.integers(2, 30))
def test_plain_is_short_and_fit_for_xml(text, limit):
    shown = style.plain(text, limit)
    assert len(shown) <= limit
    assert not any(unicodedata.category(c) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp") for c in shown)
    assert ET.fromstring(f"<a>{re.sub('[&<>]', '', shown)}</a>") is not None


@given(st.integers(1, 3000), st.floats(20, 2000))
def test_thin_leaves_room(n, points):
    shown = style.thin(n, points)
    assert shown[0] == 0
    steps = set(np.diff(shown))
    assert len(steps) <= 1
    if steps:
        assert points / n * steps.pop() >= 8.5
    if points / n >= 8.5:
        assert len(shown) == n


def test_color_limits():
    assert style.color_limits(np.array([-1.0, 3.0]), is_signed=True) == (-3.0, 3.0, "neither")
    assert style.color_limits(np.array([0.0, 2.0]), is_signed=False) == (0.0, 2.0, "neither")
    assert style.color_limits(np.full(3, np.nan), is_signed=True) == (-1.0, 1.0, "neither")
    assert style.color_limits(np.zeros(3), is_signed=False) == (0.0, 1.0, "neither")
    many = np.append(np.linspace(0, 1, 10_000), 100.0)  # one entry must not take the colours of all others
    low, high, beyond = style.color_limits(many, is_signed=False)
    assert (low, beyond) == (0.0, "max")
    assert high == pytest.approx(4 * np.sqrt(np.mean(many**2)))
    low, high, beyond = style.color_limits(-many, is_signed=True)
    assert (low, beyond) == (-high, "min")
    assert style.color_limits(1e300 * many, is_signed=False)[1] == pytest.approx(1e300 * high)


def test_the_users_settings_play_no_part_and_come_back(tmp_path):
    def picture(name):
        figure = style.styled(make)()
        return [path.read_bytes() for path in style.save(figure, tmp_path, name)]

    def make():
        figure = style.new_figure(2, 2)
        figure.subplots().set_title("$5")
        return figure

    plain = picture("a")
    with mpl.rc_context({"font.size": 20, "text.parse_math": True, "svg.fonttype": "path"}):
        assert picture("b") == plain
        assert mpl.rcParams["font.size"] == 20
    assert b"$5" in plain[0]
    assert b"dc:date" not in plain[0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.png", "a.svg", "b.png", "b.svg"]


def test_a_figure_that_is_saved_by_its_user_keeps_its_style(tmp_path):
    figure = style.styled(lambda: style.new_figure(2, 2))()
    with style.style():
        figure.subplots()
    figure.savefig(tmp_path / "x.svg")
    assert "<text" in (tmp_path / "x.svg").read_text()
    assert figure._repr_png_().startswith(b"\x89PNG")


def test_bad_names_and_figures_are_refused(tmp_path):
    figure = style.new_figure(1, 1)
    for name in ("", "..", "a/b", "/x"):
        with pytest.raises(HeadtreeError, match="name must be a file name"):
            style.save(figure, tmp_path, name)
    with pytest.raises(HeadtreeError, match="Figure"):
        style.save("figure", tmp_path, "x")


def test_a_failed_write_leaves_nothing(tmp_path, monkeypatch):
    figure = style.new_figure(1, 1)
    (tmp_path / "x.svg").write_text("old")
    monkeypatch.setattr(figure, "savefig", lambda path, **_: path.write_text("half") and 1 / 0)
    with pytest.raises(ZeroDivisionError):
        style.save(figure, tmp_path, "x")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("x.svg", "old")]


def test_the_page_has_the_colour_maps_of_the_figures():
    source = (files("headtree.report.page") / "static" / "palettes.js").read_text(encoding="utf-8")
    expected = {
        "viridis": mpl.colormaps["viridis"],
        "signed": style.signed_colors(),
        "heads": style.head_colors(),
    }
    for name, colors in expected.items():
        block = re.search(rf"const {name} = colours\((.*?)\);", source, re.DOTALL)[1]
        text = "".join(re.findall(r'"([0-9a-f]+)"', block))
        found = np.array([[int(text[i + j : i + j + 2], 16) for j in (0, 2, 4)] for i in range(0, len(text), 6)])
        np.testing.assert_allclose(found, 255 * colors(np.linspace(0, 1, 256))[:, :3], atol=1.1)
