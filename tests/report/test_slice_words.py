"""Token tensors: where others have heads they have depths, in every word that people read."""

import re

import numpy as np
import pytest

import headtree as ht
from headtree.pipeline.make_run import make_run
from headtree.pipeline.sources import TensorSource
from headtree.report.figures.run_figures import name_slices, network_figures
from headtree.report.words.summary import in_words, summarized
from tests.prune.networks import texts, tiny
from tests.report.driver import Driver
from tests.runs.examples import QUICK

HEAD = re.compile(r"\bheads?\b|\bL\d+H\d+\b", re.IGNORECASE)


@pytest.fixture(scope="module")
def depths(tmp_path_factory):
    """A run of three token tensors; one of their tokens is called "head"."""
    view = ht.ModelView(tiny(n_layers=5))
    atts = []
    for found in view.token_tensor(inputs=texts(3)):
        att = found.reduce("norm")
        names = ("head", *att.queries[1:])
        atts.append(ht.AttentionTensor(att.values, att.heads, names, names, att.kind, att.mask, att.provenance))
    return make_run(TensorSource(atts), tmp_path_factory.mktemp("runs") / "tokens", measures=QUICK, draw=False)


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


def test_the_page_speaks_of_depths_and_leaves_tokens_alone(browser, depths, tmp_path):
    opened = browser.new_context(viewport={"width": 1440, "height": 1000})
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
    opened.close()
    assert np.isfinite(depths.heads["structure"]).all()
