"""Pages of different runs in a real browser: heads with roles on pieces of words, noise, and a thousand heads."""

import re

import numpy as np
import pytest

import headtree as ht
from headtree.pipeline.make_run import make_run
from headtree.pipeline.sources import TensorSource
from headtree.report.words.answers import answers
from tests.report.driver import Driver
from tests.report.noisy import noisy_run
from tests.runs.examples import QUICK

SIZE = {"width": 1440, "height": 1000}

#: Pieces of words, as a BERT tokenizer writes them.
PIECES = ["[CLS]", "em", "##bed", "##ding", "spaces", "are", "un", "##like", "the", "oth", "##ers", "[SEP]"]
PIECES += [f"word{i}" for i in range(12)]


def with_roles(seed):
    """Twelve heads on 24 tokens: four attend to the previous token, the others to anything."""
    rng = np.random.default_rng(seed)
    n = len(PIECES)
    probs = rng.dirichlet(np.ones(n), (12, n))
    for head, share in enumerate((0.9, 0.8, 0.7, 0.65)):
        probs[head] *= 1 - share
        probs[head, np.arange(n), np.maximum(np.arange(n) - 1, 0)] += share
    return ht.AttentionTensor.from_array(probs, heads_per_layer=4, kind="probs", queries=PIECES, keys=PIECES)


@pytest.fixture(scope="module")
def roles(tmp_path_factory):
    """A run of them on four inputs."""
    folder = tmp_path_factory.mktemp("runs") / "roles"
    return make_run(TensorSource([with_roles(i) for i in range(4)]), folder, measures=QUICK, draw=False)


@pytest.fixture(scope="module")
def noise(tmp_path_factory):
    """A run of twelve heads of noise on ten inputs."""
    rng = np.random.default_rng(5)
    atts = [ht.AttentionTensor.from_array(rng.standard_normal((12, 12, 12)), heads_per_layer=4) for _ in range(10)]
    return make_run(TensorSource(atts), tmp_path_factory.mktemp("runs") / "noise", measures=QUICK, draw=False)


@pytest.fixture(scope="module")
def opened(browser, tmp_path_factory):
    """A function that opens the page of a run, once."""
    context = browser.new_context(viewport=SIZE)
    folder = tmp_path_factory.mktemp("pages")
    known = {}

    def page(name, run, **options):
        if name not in known:
            known[name] = Driver(context, ht.write_report(run, folder / f"{name}.html", **options))
        known[name].reset()
        return known[name]

    yield page
    for driver in known.values():
        assert driver.errors == []
    context.close()


# -- roles and pieces of words ---------------------------------------------------------------------------


def test_roles_are_answered_chosen_and_filtered(opened, roles):
    page = opened("roles", roles)
    having = roles.heads.index[roles.heads["role"] == "previous token"].tolist()
    assert having == [0, 1, 2, 3]
    line = page.tab.locator("#answers [data-about=roles]")
    line.get_by_role("button", name="4 heads", exact=True).click()
    assert page.shows(having)
    line.get_by_role("button", name="L0H0", exact=True).click()  # the strongest
    assert page.shows([0])
    page.tab.locator("#chips").get_by_role("button", name=re.compile("^previous token")).click()
    assert page.js("() => HT.filter.now(HT.network).heads") == having
    assert page.tab.locator("#search").input_value() == "role = previous token"
    page.groups()
    assert page.tab.locator("#map-plot circle[fill=none]:not(.chosen)").count() == 8
    for text in ("role = previous token", "confidence > 0.5", "role previous token", "previous token, layer 0"):
        page.tab.fill("#search", text)
        if text != "role previous token":
            assert page.js("() => HT.filter.now(HT.network).heads") == having
    page.tab.fill("#search", "")


def test_a_head_that_is_shown_first_has_everything(opened, roles):
    page = opened("roles", roles)
    assert page.tab.locator("#head-title").inner_text() == "L0H0"
    assert "previous token" in page.tab.locator("#head .about").inner_text()
    page.drawn("terms-a")
    assert page.tab.locator("#coefficients-a").is_visible()


def test_whole_words_add_up_their_pieces(opened, roles):
    page = opened("roles", roles)
    page.select(0)
    assert page.tab.locator("#tokens .t").count() == len(PIECES)
    page.tab.locator("#whole-words").check()
    page.settled()
    words = page.tab.locator("#tokens .t").all_inner_texts()
    assert words[:6] == ["[CLS]", "embedding", "spaces", "are", "unlike", "the"]
    page.tab.locator("#tokens .t").nth(2).hover()  # spaces: its previous token is the last piece of embedding
    said = page.tab.locator("#tokens .said").inner_text()
    truth = roles.attention[0].load().values[0, 4].numpy()
    assert said.startswith("spaces (query 4) attends to")
    share = int(re.search(r"embedding (\d+) %", said)[1])
    assert share == pytest.approx(100 * float(truth[1:4].sum()), abs=1)
    page.tab.locator("#whole-words").uncheck()


def test_a_selection_keeps_the_colours_of_the_others(opened, roles):
    page = opened("roles", roles)
    page.drawn("map")

    def fills():
        return page.tab.eval_on_selector_all(
            "#map-plot circle:not(.chosen)", "all => all.map(e => e.getAttribute('fill')).sort()"
        )

    before = fills()
    page.click_at("map", page.map_place(7))
    page.drawn("map")
    assert fills() == before


def test_the_same_head_is_compared_over_all_inputs(opened, roles):
    page = opened("roles", roles)
    page.select(1)
    page.drawn("all-inputs")
    assert page.tab.locator("#all-inputs-plot image").count() == 4


# -- noise -----------------------------------------------------------------------------------------------


def test_a_run_of_noise_says_that_nothing_was_found(opened, noise):
    page = opened("noise", noise)
    told = page.tab.locator("#answers").inner_text()
    assert "No head has a role" in told
    assert "No group of heads replicates" in told
    assert told.count("\n") < 9
    assert [answer.text for answer in answers(noise)] == page.texts("#answers > li")
    assert page.tab.locator("#chips").get_by_text("family").count() == 0
    assert page.tab.locator("#grid-view").count() == 0


# -- many tokens, many inputs, many heads ----------------------------------------------------------------


@pytest.fixture(scope="module")
def long():
    """Noise of six heads on 300 tokens and three inputs."""
    return noisy_run(6, 300, 3, 3)


@pytest.fixture(scope="module")
def many():
    """Noise of 1,024 heads; one lies far from all others on the map."""
    run = noisy_run(1024, 8, 2, 32)
    run.heads.loc[2, "coordinate_1"] = 80.0
    return run


def test_what_does_not_fit_is_averaged_and_said(opened, long):
    page = opened("long", long, budget=900_000)
    page.tab.locator("#notes summary").click()
    told = page.tab.locator("#notes").inner_text()
    cells = page.js("() => HT.network.text.grains.probs")
    cell = cells[1]
    assert cells == [1, cell, cell]
    assert cell > 1
    assert f"whole: 0; averaged over boxes of {cell} × {cell} entries: 1-2" in told
    page.tab.locator("#notes summary").click()
    page.select(1)
    assert page.tab.locator("#head .note").is_hidden()
    page.tab.select_option("#input", "1")
    page.settled()
    assert f"Each cell is the mean of {cell} × {cell} entries" in page.tab.locator("#head .note").inner_text()
    assert page.hover_at("as-is-a", page.cell_place("as-is-a", 9, 3)).startswith(f"mean of {cell} × {cell} entries")


def test_coarse_shares_of_a_query_are_at_most_all_and_said_to_be_coarse(opened, long):
    page = opened("long", long, budget=900_000)
    for number in (0, 1):  # whole in 4 bits, and averaged over boxes
        page.tab.select_option("#input", str(number))
        page.select(1)
        for q in (0, 1, 2, 40):
            page.tab.locator("#tokens .t").nth(q).hover()
            said = page.tab.locator("#tokens .said").inner_text()
            assert said.count("≈") == said.count("%") >= 1
            assert sum(int(share) for share in re.findall(r"≈ (\d+) %", said)) <= 101  # each is rounded


def test_long_passages_scroll(opened, long):
    page = opened("long", long, budget=900_000)
    page.select(1)
    passage = page.tab.locator("#tokens .passage")
    assert passage.evaluate("e => e.scrollHeight > e.clientHeight + 50")
    last = page.tab.locator("#tokens .t").last
    last.scroll_into_view_if_needed()
    last.click()
    assert page.state("pin") == 299


def test_one_head_far_away_does_not_crowd_the_others(opened, many):
    page = opened("many", many)
    page.drawn("map")
    assert page.tab.locator("#map-crowd").is_checked()

    def spread():
        xs = [page.map_place(head)[0] for head in range(100) if head != 2]
        return np.quantile(xs, 0.9) - np.quantile(xs, 0.1)

    near = spread()
    assert page.tab.locator("#map-plot path").count() > 0  # those beyond the edge
    page.tab.locator("#map-crowd").uncheck()
    page.settled()
    assert spread() < near / 4
    page.tab.locator("#map-crowd").check()


def test_a_thousand_heads_are_folded_and_read_by_zooming(opened, many):
    page = opened("many", many)
    page.drawn("tree")
    text = page.tab.locator("#tree-plot").text_content()
    folded = sum(int(n) for n in re.findall(r"▸ (\d+) heads", text))
    named = page.tab.locator("#tree-plot [data-name]").count()
    assert folded > 900
    assert folded + named == 1024
    page.tab.select_option("#tree-collapse", "0")
    page.drawn("tree")
    names = page.tab.locator("#tree-plot [data-name]")
    assert names.count() == 1024
    small = float(names.first.get_attribute("font-size"))
    page.tab.locator("#tree-zoom").focus()
    for _ in range(6):
        page.tab.keyboard.press("ArrowRight")
    page.settled()
    assert float(page.tab.locator("#tree-plot [data-name]").first.get_attribute("font-size")) > small
    page.tab.keyboard.press("/")
    page.tab.keyboard.type("L31H7")
    page.tab.keyboard.press("Enter")
    page.settled()
    assert page.state("selected") == [31 * 32 + 7]
    assert page.tab.locator("#head-title").inner_text() == "L31H7"
