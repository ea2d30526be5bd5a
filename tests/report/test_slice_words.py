"""Token tensors: where others have heads they have depths, in every word that people read."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch

import headtree as ht
from headtree.errors import InvalidValueError
from headtree.pipeline.make_run import make_run
from headtree.pipeline.sources import TensorSource
from headtree.report.figures.run_figures import name_slices, network_figures
from headtree.report.figures.style import signed_colors
from headtree.report.words.summary import in_words, summarized
from headtree.tensor.probabilities import as_probabilities, head_blocks
from tests.prune.networks import texts, tiny
from tests.report.driver import Driver
from tests.runs.examples import QUICK

HEAD = re.compile(r"\bheads?\b|\bL\d+H\d+\b", re.IGNORECASE)


@pytest.fixture(scope="module")
def tokens():
    """Three token tensors of a tiny model."""
    return ht.ModelView(tiny(n_layers=5)).token_tensor(inputs=texts(3))


def run_of(tokens, by, folder, n=3):
    """A run of token tensors; one of their tokens is called "head"."""
    atts = []
    for found in tokens[:n]:
        att = found.reduce(by)
        names = ("head", *att.queries[1:])
        atts.append(replace(att, queries=names, keys=names))
    return make_run(TensorSource(atts), folder / "tokens", measures=QUICK, draw=False)


@pytest.fixture(scope="module")
def depths(tokens, tmp_path_factory):
    """Reduced to norms."""
    return run_of(tokens, "norm", tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def signed(tokens, tmp_path_factory):
    """Reduced to shares of the final residual stream, which have both signs."""
    return run_of(tokens, "projection", tmp_path_factory.mktemp("runs"), n=2)


@pytest.fixture(scope="module")
def opened(browser):
    context = browser.new_context(viewport={"width": 1440, "height": 1000})
    yield context
    context.close()


def test_a_reduced_token_tensor_has_depths(depths):
    assert repr(depths.attention[0]).startswith("AttentionTensor(5 depths × 12 queries × 12 keys, weighted")
    assert depths.slices == "depth"


def test_the_summary_speaks_of_depths(depths):
    said = in_words(summarized(depths))
    first = said.splitlines()[0]
    assert "5 depths, norms of what comes from each token on 3 inputs" in first
    assert not HEAD.search(said.replace("heads.csv", "").replace("head_", ""))


def test_a_run_of_heads_speaks_of_heads(run):
    assert run.slices == "head"
    assert "20 heads in 4 layers" in in_words(summarized(run))


@pytest.mark.parametrize("name", ["map", "tree", "structure", "grid"])
def test_figures_speak_of_depths(depths, name):
    from matplotlib.text import Text

    figure = name_slices(network_figures(depths)[name](), depths.slices)
    figure.canvas.draw()
    said = [text.get_text() for text in figure.findobj(Text)]
    assert not [text for text in said if HEAD.search(text)]
    assert any("depth" in text.lower() or text in {"L0", "L4"} for text in said)


def test_the_page_speaks_of_depths_and_leaves_tokens_alone(opened, depths, tmp_path):
    page = Driver(opened, ht.write_report(depths, tmp_path / "page.html"))
    page.js("() => { for (const fold of document.querySelectorAll('details')) fold.open = true; }")
    page.settled()
    said = page.js(
        """() => [...document.querySelectorAll("body *")].flatMap(own => [
            ...[...own.childNodes].filter(node => node.nodeType === 3).map(node => node.data),
            own.getAttribute("aria-label") ?? "", own.getAttribute("title") ?? ""]
            .filter(text => !own.closest("script, style, bdi, .t, th, option") &&
                !(own.closest("svg") && text === "head")))"""  # the token, on the axes of matrices
    )
    assert [text for text in said if HEAD.search(text)] == []
    assert any("Tree of depths" in text for text in said)
    assert "5 depths, 3 inputs" in page.js("() => document.getElementById('summary').textContent")
    cells = page.js("() => [...document.querySelectorAll('.token-body .t')].map(own => own.textContent)")
    assert "head" in cells
    assert page.errors == []
    assert np.isfinite(depths.heads["structure"]).all()


# -- numbers of both signs -------------------------------------------------------------------------------


def test_shares_of_keys_are_those_of_absolute_values(signed):
    att = signed.attention[0].load()
    assert (att.kind, float(att.values.min()) < 0) == ("signed", True)
    (block,) = head_blocks(att)
    sizes = att.values.abs().masked_fill(torch.as_tensor(att.mask), 0) if att.mask is not None else att.values.abs()
    assert torch.allclose(block.probs, sizes / sizes.sum(dim=2, keepdim=True))
    assert torch.allclose(as_probabilities(att).values, block.probs)
    assert torch.equal(signed.values[0].values, att.values)  # not centred: softmax has nothing to do with it


def test_a_capture_is_never_of_signed_numbers():
    with pytest.raises(InvalidValueError, match="kind must be one of"):
        ht.capture(tiny(n_layers=2), inputs=texts(1), kind="signed")


def test_summary_and_figures_say_what_signed_numbers_are(signed):
    from matplotlib.text import Text

    assert "5 depths, shares of the final residual stream on 2 inputs" in in_words(summarized(signed))
    top, terms = (network_figures(signed)[name]() for name in ("head_top", "paraproduct"))
    assert "share of the final residual stream" in [text.get_text() for text in top.findobj(Text)]
    assert any("log of the absolute values" in text.get_text() for text in terms.findobj(Text))
    image = top.axes[0].images[0]
    assert (image.get_cmap().name, image.norm.vmin) == (signed_colors().name, -image.norm.vmax)


def test_the_page_shows_signed_numbers_as_they_are(opened, signed, tmp_path):
    page = Driver(opened, ht.write_report(signed, tmp_path / "page.html"))
    assert page.tab.locator("#softmax").is_hidden()
    assert "shares of the final residual stream" in page.tab.locator("#summary").inner_text()
    values = signed.attention[1].load().values[2].double().numpy()
    page.tab.select_option("#input", "1")
    page.select(2)
    row, column = np.unravel_index(int(values.argmin()), values.shape)
    told = page.hover_at("as-is-a", page.cell_place("as-is-a", int(row), int(column)))
    assert float(told.split()[0].replace("−", "-")) == pytest.approx(values.min(), abs=0.01 * np.abs(values).max())
    scale = page.js("() => HT.plot.cards.find(c => c.id === 'as-is-a').shown().scale")
    assert (scale["low"], scale["signed"]) == (-scale["high"], True)
    page.tab.locator("#tokens .t").nth(int(row)).hover()
    said = page.tab.locator("#tokens .said").inner_text()
    assert f"(query {row}) is made of" in said
    largest = values[row][np.abs(values[row]).argmax()]
    assert float(said.split("L2: ")[1].split(",")[0].split()[-1]) == pytest.approx(largest, rel=0.05)
    assert page.errors == []
