"""A run whose every name is hostile, its page, and a real browser to open it in."""

import shutil

import numpy as np
import pytest

import headtree as ht
from headtree._notebook import png
from headtree.pipeline.make_run import make_run
from headtree.pipeline.sources import TensorSource
from headtree.section import Picture, Section, Table
from tests.runs.examples import QUICK, tensors

HOSTILE = (
    "<script>window.hurt = 1</script>",
    "</script><img src=x onerror='window.hurt = 2'>",
    "\"><svg onload=window.hurt=3>'&amp;",
    "\u202eevil\u202c right to left \u200f",
    "🦜👩‍👩‍👧 emoji",
    "$$\\text{tex}$$ {{parts}} {{code}}",
    "x" * 10_000,
    "\n\t \x00",
)

OPTIONS = (
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--no-first-run",
)  # fmt: skip


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    """20 heads in 4 layers on 3 inputs; tokens, names, captions and paragraphs try to break out."""
    folder = tmp_path_factory.mktemp("runs") / "hostile '<b>&"
    atts = []
    for att in tensors(3, n_tokens=(18, 16, 14)):
        n = att.shape[1]
        names = (*HOSTILE, *(f"w{i}" for i in range(n - len(HOSTILE))))
        atts.append(ht.AttentionTensor(att.values, att.heads, names, names, att.kind, att.mask))
    made = make_run(TensorSource(atts, [*HOSTILE[:2], HOSTILE[6]]), folder, measures=QUICK, draw=False)
    (folder / "sections").mkdir(exist_ok=True)
    (folder / "figures").mkdir(exist_ok=True)
    svg = "<svg xmlns='http://www.w3.org/2000/svg' width='40' height='30'><script>parent.hurt = 4</script></svg>"
    (folder / "figures" / "depth.svg").write_text(svg)
    section = Section(
        title=HOSTILE[0],
        text=HOSTILE[:3],
        tables=(Table(HOSTILE[1], ("layer", HOSTILE[2]), ((0, 0.5), (1, HOSTILE[0]))),),
        figures=(Picture("figures/depth.svg", HOSTILE[2]), Picture("../../outside.png", "not in the run")),
    )
    (folder / "sections" / "depth.json").write_text(section.to_json(), encoding="utf-8")
    return ht.open_run(made.path)


@pytest.fixture(scope="session")
def images(tmp_path_factory):
    """A run on two images of 4 × 4 patches, whose thumbnails have a colour of their own in every patch."""
    folder = tmp_path_factory.mktemp("runs") / "images"
    names = ["class", *(f"r{i}c{j}" for i in range(4) for j in range(4))]
    atts = [
        ht.AttentionTensor.from_array(
            att.values, heads_per_layer=5, kind="probs", queries=names, keys=names, mask=att.mask
        )
        for att in tensors(2, "probs", n_tokens=(17,), causal=False)
    ]
    make_run(TensorSource(atts), folder, measures=QUICK, draw=False)
    (folder / "samples").mkdir(exist_ok=True)
    shades = np.zeros((16, 16, 3), np.uint8)
    shades[..., 0] = np.repeat(np.repeat(np.arange(4) * 60 + 20, 4)[:, None], 16, axis=1)
    shades[..., 1] = shades[..., 0].T
    for i in range(2):
        (folder / "samples" / f"input_{i:05d}.png").write_bytes(png(shades))
    return ht.open_run(folder)


@pytest.fixture(scope="session")
def browser():
    playwright = pytest.importorskip("playwright.sync_api")
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        pytest.skip("no Chromium is installed; on Debian: apt-get install chromium")
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=path, args=list(OPTIONS))
        yield opened
        opened.close()
