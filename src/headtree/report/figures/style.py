"""The style of all figures: sizes, colours, searchable text, and files that are the same on every run."""

from __future__ import annotations

import os
import unicodedata
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec

import numpy as np
from jaxtyping import Float, Int

from headtree._extras import require
from headtree._files import atomic
from headtree.errors import InvalidTypeError, InvalidValueError
from headtree.report.words.numbers import number_words

try:
    import matplotlib as mpl
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import FuncNorm, LinearSegmentedColormap, Normalize
    from matplotlib.figure import Figure
    from matplotlib.font_manager import FontProperties, findfont, fontManager, get_font
    from matplotlib.layout_engine import ConstrainedLayoutEngine
    from matplotlib.patches import Patch
    from matplotlib.text import Text
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter
except ImportError:
    require("report", "drawing figures", "matplotlib")
    raise

#: Widths of one and of two journal columns, in inches, and sizes of text, in points.
COLUMN, PAGE = 3.5, 7.0
TEXT, SMALL = 8.0, 7.0

#: Dots per inch of PNG files and of images inside SVG files.
DPI = 200

#: Okabe and Ito's colours, told apart with every common kind of colour blindness; yellow is left out on white.
BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY, BLACK = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#D55E00",
    "#CC79A7",
    "#56B4E9",
    "#000000",
)
CURVES = (BLUE, VERMILION, GREEN, ORANGE, PURPLE, SKY, BLACK)
DASHES = ("-", (0, (5, 1.5)), (0, (1.5, 1)), (0, (5, 1, 1, 1)), (0, (8, 2)), (0, (3, 1, 1, 1, 1, 1)), "-")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
GREY, PALE = "#6b6b6b", "#d4d4d4"

#: Entries that are missing: a grey that neither of the two colour maps has.
MISSING = "#c9c9c9"

#: Fonts for what DejaVu Sans lacks, such as Chinese, Japanese and Korean; those that are installed are used.
_OTHER_FONTS = (
    "Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans SC", "Noto Sans JP", "Source Han Sans SC",
    "WenQuanYi Zen Hei", "WenQuanYi Micro Hei", "PingFang SC", "Hiragino Sans", "Microsoft YaHei", "Yu Gothic",
    "Malgun Gothic", "Arial Unicode MS", "Noto Sans Devanagari", "Noto Sans Thai", "Noto Emoji", "Symbola",
)  # fmt: skip


def _fonts() -> list[str]:
    """DejaVu Sans, which comes with matplotlib, and further fonts for letters that it lacks."""
    installed = {font.name for font in fontManager.ttflist}
    return ["DejaVu Sans", *(name for name in _OTHER_FONTS if name in installed)]


_STYLE: dict[str, Any] = {
    "axes.labelsize": TEXT,
    "axes.linewidth": 0.6,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": TEXT,
    "figure.constrained_layout.h_pad": 0.03,
    "figure.constrained_layout.w_pad": 0.03,
    "font.family": _fonts(),
    "font.size": TEXT,
    "grid.color": PALE,
    "grid.linewidth": 0.5,
    "hatch.linewidth": 0.5,
    "legend.fontsize": SMALL,
    "legend.frameon": False,
    "lines.linewidth": 1.2,
    "lines.markersize": 3.5,
    "svg.fonttype": "none",  # letters stay letters: they can be searched, copied and edited
    "svg.hashsalt": "headtree",
    "text.parse_math": False,  # a token may hold dollars
    "xtick.labelsize": SMALL,
    "xtick.major.width": 0.6,
    "ytick.labelsize": SMALL,
    "ytick.major.width": 0.6,
}
_OF_THE_SESSION = {
    "backend",
    "backend_fallback",
    "interactive",
    "toolbar",
    "timezone",
    "webagg.port",
    "webagg.address",
}
_BASE = {
    name: value
    for name, value in mpl.rcParamsDefault.items()
    if name not in _OF_THE_SESSION and not name.startswith(("keymap.", "tk.", "webagg.", "docstring."))
}

P = ParamSpec("P")


@contextmanager
def style() -> Iterator[None]:
    """Settings of matplotlib for the block: ours, whatever the user's are."""
    with mpl.rc_context(_BASE | _STYLE), warnings.catch_warnings():
        # a script that no font has: SVG keeps the letters, PNG shows boxes and says so
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


class StyledFigure(Figure):
    """A figure that keeps its style wherever it is drawn or saved later."""

    def draw(self, renderer: Any) -> None:
        """Draw in the figure's own style."""
        with style():
            super().draw(renderer)

    def _repr_png_(self) -> bytes:
        from io import BytesIO

        buffer = BytesIO()
        self.savefig(buffer, format="png", dpi=DPI)
        return buffer.getvalue()


def styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Let a function that makes a figure work in our style."""

    @wraps(draw)
    def in_style(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with style():
            return draw(*args, **kwargs)

    return in_style


def new_figure(width: float, height: float, left: float = 0.0, bottom: float = 0.0) -> StyledFigure:
    """An empty figure of this size in inches, laid out when drawn; `left` and `bottom` are shares to leave free."""
    layout = ConstrainedLayoutEngine(rect=(left, bottom, 1 - left, 1 - bottom))
    return StyledFigure(figsize=(width, height), dpi=DPI, layout=layout)


@styled
def with_title(figure: Figure, title: str) -> Figure:
    """The figure with a title above all of its panels."""
    figure.suptitle(plain(title, 80))
    return figure


def save(figure: Figure, folder: str | os.PathLike[str], name: str) -> tuple[Path, Path]:
    """Write ``NAME.svg`` and ``NAME.png`` into a folder, which is made if needed; each whole or not at all.

    The bytes depend on the figure only: no date, no version, the same identifiers on every run.

    Examples
    --------
    >>> from tempfile import mkdtemp
    >>> figure = new_figure(COLUMN, 2)
    >>> [path.name for path in save(figure, mkdtemp(), "empty")]
    ['empty.svg', 'empty.png']
    """
    if not isinstance(figure, Figure):
        raise InvalidTypeError(f"figure must be a matplotlib Figure, got {type(figure).__name__}")
    if name in ("", ".", "..") or Path(name).name != name:
        raise InvalidValueError(f"name must be a file name without folders and ending, got {name!r}")
    svg, png = Path(folder, f"{name}.svg"), Path(folder, f"{name}.png")
    try:
        svg.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidValueError(f"the folder {folder} for figures cannot be made: {error.strerror}") from error
    layout = figure.get_layout_engine()
    try:
        write(figure, svg)
        figure.set_layout_engine("none")  # finding the layout takes longer than drawing; both files have the same
        write(figure, png)
    finally:
        figure.set_layout_engine(layout)
    return svg, png


_METADATA: dict[str, dict[str, Any]] = {
    ".svg": {"Date": None, "Creator": "headtree"},
    ".png": {"Software": "headtree"},
}


def write(figure: Figure, path: Path) -> None:
    """Write one file, SVG or PNG by its name, whole or not at all; a PNG says if it lacks letters."""
    with atomic(path) as draft, style():
        note = None
        if path.suffix == ".png" and lacks_letters(figure):
            look: dict[str, Any] = {"ha": "right", "va": "bottom", "fontsize": 5.5, "color": GREY}
            note = figure.text(
                0.998, 0.002, "boxes are letters that no installed font has; the SVG file has them", **look
            )
            note.set_in_layout(False)
        figure.savefig(draft, format=path.suffix[1:], dpi=DPI, metadata=_METADATA[path.suffix])
        if note is not None:
            note.remove()


def lacks_letters(figure: Figure) -> bool:
    """Whether a figure has letters that none of the fonts has."""
    shown = "".join(item.get_text() for item in figure.findobj(Text) if isinstance(item, Text))
    letters = {character for character in shown if ord(character) > 127}
    for name in _fonts() if letters else ():
        letters -= set(map(chr, get_font(findfont(FontProperties(family=[name]))).get_charmap()))
    return bool(letters)


# -- text ------------------------------------------------------------------------------------------------


def plain(text: object, limit: int = 16) -> str:
    """A label, token or file name as one short line in which every character is visible.

    Control characters become their symbols; characters without a symbol become U+FFFD, also marks that change the
    direction of writing. A blank token becomes ␣, and text longer than `limit` is cut.
    """
    given = str(text)
    shown = [_visible(character) for character in given[: 4 * limit]]
    kept: list[str] = []
    for character in shown:
        if unicodedata.combining(character) and len(kept) > 1 and all(map(unicodedata.combining, kept[-2:])):
            continue  # a heap of accents would grow into the neighbouring labels
        kept.append(character)
    if len(kept) > limit or len(given) > 4 * limit:
        kept = [*kept[: limit - 1], "…"]
    line = "".join(kept)
    return line if line.strip() or not given else "␣"


def _visible(character: str) -> str:
    if character < " ":
        return chr(0x2400 + ord(character))
    if character == "\x7f":
        return "\u2421"
    category = unicodedata.category(character)
    if category in ("Zl", "Zp") or category[0] == "C":
        return "\ufffd"
    return " " if category == "Zs" else character


def thin(n: int, points: float, height: float = SMALL + 1.5) -> list[int]:
    """Which of n labels, spread evenly over this many points, have room: all, or every second, fifth, …."""
    for step in sorted(base * 10**power for base in (1, 2, 5) for power in range(7)):
        if points / n * step >= height:
            return list(range(0, n, step))
    return [0]


def log_axis(axis: Any, n_labels: int = 6) -> None:
    """Make an axis logarithmic, its labels plain text: powers of ten, or 1, 2, 5 where there are few of these."""
    getattr(axis.axes, f"set_{axis.axis_name}scale")("log")
    low, high = sorted(axis.get_view_interval())
    decades = np.log10(high / low)
    axis.set_major_locator(LogLocator(subs=(1.0,) if decades > 1.6 else (1.0, 2.0, 5.0), numticks=n_labels))
    axis.set_major_formatter(FuncFormatter(number_words))
    axis.set_minor_formatter(NullFormatter())


# -- colours ---------------------------------------------------------------------------------------------


def signed_colors() -> Any:
    """Blue through white to red; missing entries grey."""
    return mpl.colormaps["RdBu_r"].with_extremes(bad=MISSING)


def rising_colors() -> Any:
    """From dark to light for attention and affinity; missing entries grey."""
    return mpl.colormaps["viridis"].with_extremes(bad=MISSING)


def head_colors() -> Any:
    """From light to dark orange for layers and numbers of heads; missing entries grey."""
    names = mpl.colormaps["YlOrBr"](np.linspace(0.2, 0.85, 256))  # what is lighter or darker is lost on a page
    return LinearSegmentedColormap.from_list("heads", names).with_extremes(bad=MISSING)


def layer_scale(layers: Sequence[int] | Int[np.ndarray, " head"]) -> tuple[Any, Normalize]:
    """Colours of layers, light (first) to dark (last), and the norm that finds them."""
    low, high = int(np.min(layers)), int(np.max(layers))
    colors = LinearSegmentedColormap.from_list("layers", head_colors()(np.linspace(0, 1, 256)), N=high - low + 1)
    return colors, Normalize(low - 0.5, high + 0.5)


def layer_bar(
    figure: Figure, axes: Any, layers: Sequence[int] | Int[np.ndarray, " head"], n_shown: int = 9, **kwargs: Any
) -> Any:
    """A colour bar that names the layers, at most `n_shown` of them."""
    colors, norm = layer_scale(layers)
    bar = figure.colorbar(ScalarMappable(norm, colors), ax=axes, **kwargs)
    first, last = int(np.min(layers)), int(np.max(layers))
    step = max(1, -(-(last - first + 1) // n_shown))
    bar.locator = FixedLocator(list(range(first, last + 1, step)))
    bar.update_ticks()
    bar.ax.tick_params(length=2)
    bar.outline.set_linewidth(0.5)
    bar.set_label("layer")
    return bar


# -- limits ----------------------------------------------------------------------------------------------


def color_limits(values: Float[np.ndarray, " ..."], *, is_signed: bool) -> tuple[float, float, str]:
    """Lower and upper end of a colour scale, and which ends values reach beyond ("neither", "min", "max", "both").

    A scale ends at the largest absolute value, or at four times the root mean square if that is less than half of
    it: otherwise a few large entries would leave no colour for the rest. Signed scales are symmetric.
    """
    finite = values[np.isfinite(values)]
    most = float(np.abs(finite).max()) if finite.size else 0.0
    if most == 0:
        return (-1.0 if is_signed else 0.0), 1.0, "neither"
    end = 4 * most * float(np.sqrt(np.mean(np.square(finite / most))))
    if end >= most / 2:
        end = most
    below, above = bool(finite.min() < -end), bool(finite.max() > end)
    beyond = {(False, False): "neither", (True, False): "min", (False, True): "max", (True, True): "both"}
    return (-end if is_signed else 0.0), end, beyond[below, above]


def root_norm(low: float, high: float, power: int) -> Any:
    """Colours spaced by a root of the values, which shows small ones, as on the page; on both sides of 0."""

    def forward(values: Any) -> Any:
        return np.sign(values) * np.abs(values) ** (1 / power)

    def back(values: Any) -> Any:
        return np.sign(values) * np.abs(values) ** power

    return FuncNorm((forward, back), vmin=low, vmax=high)


def root_ticks(low: float, high: float, power: int, n: int = 9) -> list[float]:
    """Round values on such a scale, not too near each other."""
    most = max(abs(low), abs(high))
    exponent = int(np.floor(np.log10(most)))
    rising = [digit * 10.0 ** (exponent - down) for down in range(8) for digit in (5, 2, 1)]
    kept: list[float] = [0.0]
    for value in rising:
        place = (value / most) ** (1 / power)
        if value <= most and all(abs(place - (other / most) ** (1 / power)) > 1.4 / n for other in kept):
            kept.append(value)
    ends = [value for value in kept if value <= high]
    return sorted({*ends, *(-value for value in kept if -value >= low)})


def name_missing(axes: Any) -> None:
    """Explain grey above the image, at its right end."""
    axes.legend(
        handles=[Patch(facecolor=MISSING, label="missing")],
        loc="lower right",
        bbox_to_anchor=(1, 1),
        borderaxespad=0.2,
        borderpad=0,
        handlelength=1,
        handletextpad=0.5,
    )
