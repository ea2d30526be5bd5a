"""No barrier that axe-core finds, in light and dark; the page's words are those of the documents."""

from pathlib import Path

import pytest

import headtree as ht
from headtree.report.words.terms import TERMS
from tests.report.driver import Driver

FIGURES = Path(__file__).parents[2] / "docs" / "figures.md"


@pytest.fixture(scope="module")
def path(run, tmp_path_factory):
    return ht.write_report(run, tmp_path_factory.mktemp("pages") / "report.html")


@pytest.mark.parametrize(
    ("scheme", "width"), [("light", 1440), ("dark", 1440), ("light", 390)], ids=["light", "dark", "phone"]
)
def test_axe_finds_no_barrier(browser, path, scheme, width):
    context = browser.new_context(viewport={"width": width, "height": 1000}, color_scheme=scheme)
    page = Driver(context, path, "#s=2.9&p=12")
    for card in ("tree", "map", "affinity", "organized-a", "all-inputs", "agreement"):
        page.drawn(card)
    for fold in page.tab.locator("details:not([open]) > summary").all()[:60]:
        if fold.is_visible():
            fold.click()
    page.settled()
    assert page.barriers() == []
    assert page.errors == []
    context.close()


def test_the_documents_explain_the_same_words():
    text = FIGURES.read_text(encoding="utf-8")
    for word, meaning in TERMS.items():
        assert f"| {word} | {meaning} |" in text
