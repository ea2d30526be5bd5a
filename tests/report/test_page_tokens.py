"""The page in a real browser: matrices and their colours, the text, the picture, scales."""

import io
import re

import numpy as np
import pytest

import headtree as ht
from headtree.pipeline.make_run import make_run
from headtree.pipeline.sources import TensorSource
from headtree.report.page.coded_matrices import Grain, box_means, coded_matrices
from headtree.report.page.packing import json_ready
from headtree.report.words.numbers import number_words
from headtree.tensor.probabilities import as_probabilities
from tests.prune.networks import texts, tiny
from tests.report.driver import Driver
from tests.runs.examples import QUICK

SIZE = {"width": 1440, "height": 1000}


@pytest.fixture(scope="module")
def context(browser):
    opened = browser.new_context(viewport=SIZE)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def opened(context, run, tmp_path_factory):
    driver = Driver(context, ht.write_report(run, tmp_path_factory.mktemp("pages") / "report.html"))
    yield driver
    driver.tab.close()


@pytest.fixture
def page(opened):
    opened.reset()
    yield opened
    assert opened.errors == []


@pytest.fixture(scope="module")
def pictures(context, images, tmp_path_factory):
    driver = Driver(context, ht.write_report(images, tmp_path_factory.mktemp("pages") / "images.html"))
    yield driver
    assert driver.errors == []
    driver.tab.close()


def number_of(text):
    """The value of a number as `number_words` writes it."""
    if text == "–":
        return float("nan")
    mantissa, _, power = text.replace(",", "").rpartition("·") if "·" in text else (text, "", "")
    exponent = power[2:].translate(str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")) or "0"
    return float(mantissa) * 10.0 ** int(exponent)


def value_at(page, card, row, column):
    return float(re.search(r"-?[\d.]+", page.hover_at(card, page.cell_place(card, row, column)))[0])


def pixel(page, card, place):
    """The colour on the screen at a place of a drawing."""
    from PIL import Image

    page.tab.mouse.move(0, 0)
    page.settled()
    x, y = page.on_screen(card, place)
    shot = page.tab.screenshot(clip={"x": round(x), "y": round(y), "width": 1, "height": 1})
    return np.array(Image.open(io.BytesIO(shot)).convert("RGB").getpixel((0, 0)), dtype=int)


# -- matrices --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", [False, True], ids=["after softmax", "before softmax"])
def test_values_are_those_of_the_run_before_and_after_softmax(page, run, before):
    page.select(2)
    page.select(9, shift=True)
    page.tab.select_option("#softmax", "1" if before else "0")
    page.settled()
    page.drawn("as-is-b")
    truth = (run.values[0] if before else as_probabilities(run.attention[0])).values
    extent = float(truth[9].max() - truth[9].min()) if before else float(truth[9].max())
    assert value_at(page, "as-is-b", 9, 3) == pytest.approx(float(truth[9, 9, 3]), abs=extent / 100)
    assert page.hover_at("as-is-b", page.cell_place("as-is-b", 3, 9)).startswith("missing")
    assert "query 9 w1" in page.hover_at("as-is-b", page.cell_place("as-is-b", 9, 3))
    apart = float(truth[2, 9, 3] - truth[9, 9, 3])
    assert value_at(page, "difference", 9, 3) == pytest.approx(apart, abs=extent / 50)


@pytest.mark.parametrize("card", ["as-is-a", "difference"])
@pytest.mark.parametrize("before", [False, True], ids=["after softmax", "before softmax"])
def test_the_colour_of_a_cell_is_that_of_its_value_on_the_bar(page, before, card):
    page.reset(f"#s=2.9&u={int(before)}")
    page.drawn(card)
    for row, column in ((9, 3), (12, 12), (16, 0), (17, 8), (5, 5)):
        value = page.js(
            "([id, i, j]) => HT.plot.cards.find(c => c.id === id).shown().valueAt(i, j)",
            [card, row, column],
        )
        on_bar = page.js(
            """([id, v]) => {
                const {element, scale, inner} = HT.plot.cards.find(c => c.id === id).shown();
                const rects = [...element.querySelectorAll('.bar rect')];
                const top = Math.min(...rects.map(r => Number(r.getAttribute('y'))));
                const down = Math.min(inner.height - 1, Math.max(1, inner.height * (1 - scale.place(v))));
                return [Number(rects[0].getAttribute('x')) + 5, top + down];
            }""",
            [card, value],
        )
        apart = np.abs(pixel(page, card, page.cell_place(card, row, column)) - pixel(page, card, on_bar))
        assert apart.max() <= 14, (row, column, value)  # the bar has 64 steps


def test_numbers_on_the_bar_stand_where_their_colour_is(page):
    page.reset("#s=2")
    page.drawn("as-is-a")
    ticks = page.js(
        """() => {
            const {element, inner, scale} = HT.plot.cards.find(c => c.id === 'as-is-a').shown();
            const bar = element.querySelector('.bar'), y = e => Number(e.getAttribute('y'));
            const top = Math.min(...[...bar.querySelectorAll('rect')].map(y));
            return [...bar.querySelectorAll('text')]
                .map(t => [t.textContent, (top + inner.height - y(t) + 4) / inner.height, scale.high]);
        }"""
    )
    assert len(ticks) >= 3
    for text, place, high in ticks:  # after softmax the square root is even on the bar
        assert place == pytest.approx((number_of(text) / high) ** 0.5, abs=0.01)


def test_dragging_zooms_all_matrices_and_shows_tokens(page):
    page.select(2)
    page.select(9, shift=True)
    page.drawn("as-is-a")
    page.drag("as-is-a", page.cell_place("as-is-a", 8, 2), page.cell_place("as-is-a", 13, 7))
    assert page.state("window") == [8, 14, 2, 8]
    for card in ("as-is-a", "as-is-b", "difference"):
        text = page.tab.locator(f"#{card}-plot").text_content()
        assert "w4" in text
        assert "query 8 w0" in page.hover_at(card, page.cell_place(card, 0, 0))
    page.tab.get_by_role("button", name="Zoom out").click()
    assert page.state("window") == []


def test_a_crosshair_is_shared(page):
    page.select(2)
    page.select(9, shift=True)
    page.drawn("as-is-b")
    page.hover_at("as-is-a", page.cell_place("as-is-a", 9, 3))
    marks = page.tab.locator("#as-is-b-plot .on-screen rect")
    assert marks.count() == 2
    assert page.tab.locator("#tokens .t.query").inner_text() == "w1"
    page.tab.mouse.move(0, 0)
    assert page.tab.locator("#as-is-b-plot .on-screen rect").count() == 0


def test_organized_matrices_are_the_same_permuted(page, run):
    page.reset("#s=6")
    page.drawn("organized-a")
    org = run.organization[0]
    queries, keys = org.order("query"), org.order("key")
    text = page.hover_at("organized-a", page.cell_place("organized-a", 6, 4))
    assert f"query {queries[6]} " in text
    assert f"key {keys[4]} " in text
    page.tab.select_option("#level-key", "0")
    page.tab.select_option("#level-query", "1")
    page.drawn("organized-a")
    lines = page.tab.locator("#organized-a-plot line[stroke='#fff']").count()
    labels = org.trees.query.labels[1][queries]
    assert lines == int((labels[1:] != labels[:-1]).sum())


def test_tables_follow_what_is_chosen(page, run):
    page.select(6)
    page.drawn("as-is-a")
    page.unfold("as-is-a")
    truth = as_probabilities(run.attention[0]).values
    for head in (6, 2):
        page.select(head)
        cells = page.tab.locator("#as-is-a tbody tr").nth(9).locator("td.number").all_inner_texts()
        high = float(truth[head].max())
        assert [number_of(text) for text in cells][:10] == pytest.approx(
            truth[head, 9, :10].tolist(), abs=high / 100
        )


@pytest.mark.parametrize("cell", [1, 3])
@pytest.mark.parametrize("sink", [0.0, 0.3])
def test_coarse_rows_add_up_to_what_they_are(page, cell, sink):
    """In 4 bits a row would add up to anything; each value stays within half a step of its code."""
    rng = np.random.default_rng(3)
    probs = np.exp(3 * rng.standard_normal((2, 30, 30)))
    probs[:, :, 12:] *= 0.01  # many small values, which all are rounded the same way
    probs[0, 5] = np.arange(30) == 4
    probs *= (1 - sink) / probs.sum(axis=2, keepdims=True)
    att = ht.AttentionTensor.from_array(probs, heads_per_layer=2, kind="probs")
    text, arrays = coded_matrices(att, "probs", Grain(cell, 4))
    assert ("sums" in arrays) == (cell > 1 or sink > 0)
    decoded = page.js(
        """([text, arrays]) => {
            const own = Object.fromEntries(Object.entries(arrays).map(([name, values]) =>
                [name, name === 'codes' ? Uint8Array.from(values) : Float32Array.from(values)]));
            return [0, 1].map(head => Array.from(HT.fields.ofHead({text, arrays: own}, head).values));
        }""",
        [json_ready(text), {name: array.ravel().tolist() for name, array in arrays.items()}],
    )
    truth = box_means(probs, np.ones((1, 30, 30), bool), cell)
    found = np.reshape(decoded, truth.shape)
    np.testing.assert_allclose(found.sum(axis=2), truth.sum(axis=2), rtol=1e-4)
    high = truth.max(axis=(1, 2), keepdims=True)
    assert np.abs(np.sqrt(found / high) - np.sqrt(truth / high)).max() <= 1.001 / 14  # both within the same step
    if cell == 1:
        assert found[0, 5, 4] == pytest.approx(1 - sink)


def test_shares_of_a_query_are_at_most_all(page):
    """The first of two queries may attend to the first key only; the mean of the other three is everywhere."""
    field = {"values": [2 / 3], "nColumns": 1, "cell": 2}
    of = "([field, shares]) => Array.from(HT.tokens.weights(field, [0], [[0], [1]], 2, shares))"
    assert page.js(of, [field, True]) == pytest.approx([0.5, 0.5])
    assert page.js(of, [field, False]) == pytest.approx([2 / 3, 2 / 3])


# -- text ------------------------------------------------------------------------------------------------


def shades(page, slot=0):
    """How strongly each token is shaded, by one of the two heads."""
    found = page.tab.eval_on_selector_all("#tokens .passage .t", "all => all.map(e => e.style.background)")
    opacity = []
    for style in found:
        parts = re.findall(r"rgba?\((?:var\(--slot-\d\)|[\d, ]+) ?[/,] ?([\d.]+)\)", style)
        opacity.append(float(parts[slot if slot < len(parts) else -1]) if parts else 0.0)
    return opacity


def test_hovering_a_query_shades_its_keys(page, run):
    page.select(2)
    page.tab.locator("#tokens .t").nth(12).hover()
    truth = as_probabilities(run.attention[0]).values[2, 12].numpy()
    found = np.array(shades(page))
    assert found.argmax() == truth.argmax()
    assert found[13:].max() == 0  # what comes later is not attended to
    expected = 0.75 * (truth / truth.max()) ** 0.6
    assert found == pytest.approx(expected, abs=0.06)
    said = page.tab.locator("#tokens .said").inner_text()
    assert said.startswith("w4 (query 12) attends to")
    assert int(re.search(r"(\d+) %", said)[1]) == pytest.approx(100 * truth.max(), abs=1)  # stored in 8 bits
    page.tab.mouse.move(0, 0)
    page.settled()
    assert page.tab.locator("#tokens .said").inner_text().startswith("Mean over all queries")


def test_a_query_is_pinned_by_click_and_moved_by_keys(page, run):
    page.select(2)
    page.tab.locator("#tokens .t").nth(12).click()
    page.tab.mouse.move(0, 0)
    page.settled()
    assert page.state("pin") == 12
    assert "pinned" in page.tab.locator("#tokens .said").inner_text()
    page.tab.locator("#tokens .passage").focus()
    page.tab.keyboard.press("ArrowRight")
    page.settled()
    assert page.state("pin") == 13
    page.select(9)  # it stays for another head
    truth = as_probabilities(run.attention[0]).values[9, 13].numpy()
    assert np.argmax(shades(page)) == truth.argmax()
    page.tab.get_by_role("button", name="Unpin").click()
    assert page.state("pin") == -1


def test_two_heads_shade_in_two_colours_and_a_family_by_its_mean(page, run):
    truth = as_probabilities(run.attention[0]).values.numpy()
    page.reset("#s=2.9&p=14")
    for slot, head in enumerate((2, 9)):
        assert np.argmax(shades(page, slot)) == truth[head, 14].argmax()
    family = [int(head) for head in run.consensus.families().folders[0]]
    page.tab.locator("#answers summary").click()
    page.tab.locator("#answers [data-about=family]").first.get_by_role("button").first.click()
    page.tab.locator("#mean").click()
    page.settled()
    mean = truth[family, 14].mean(axis=0)
    assert shades(page) == pytest.approx(0.75 * (mean / mean.max()) ** 0.6, abs=0.06)
    page.tab.locator("#answers summary").click()


def test_the_text_goes_on_with_what_was_written(context, tmp_path):
    """The given text and the written one are one passage, and the written tokens are the queries."""
    atts = ht.capture(tiny(), inputs=texts(2, n_tokens=5), generate=7, kind="probs")
    made = make_run(TensorSource(atts), tmp_path / "run", measures=QUICK, draw=False)
    page = Driver(context, ht.write_report(made, tmp_path / "written.html"))
    page.select(3)
    cells = page.tab.locator("#tokens .passage .t")
    assert cells.all_inner_texts() == list(atts[0].keys)
    assert page.tab.locator("#tokens .passage").count() == 1
    assert cells.evaluate_all("all => all.map(one => one.dataset.q ?? null)") == [None] * 5 + [
        str(q) for q in range(7)
    ]
    cells.nth(5 + 2).hover()
    truth = atts[0].values[3, 2].numpy()
    assert shades(page) == pytest.approx(0.75 * (truth / truth.max()) ** 0.6, abs=0.06)
    assert "(query 2) attends to" in page.tab.locator("#tokens .said").inner_text()
    cells.nth(0).click()  # no query: nothing is pinned
    assert page.state("pin") == -1
    cells.nth(11).click()
    assert page.state("pin") == 6
    assert page.errors == []
    page.tab.close()


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        (["[CLS]", "em", "##bed", "##ding", "s", "[SEP]"], [[0], [1, 2, 3], [4], [5]]),
        (["<s>", "Ġem", "bed", "Ġx"], [[0], [1, 2], [3]]),
        (["▁Em", "bed", "▁x", "</s>"], [[0, 1], [2], [3]]),
        (["one", "two"], [[0], [1]]),
    ],
)
def test_pieces_are_joined_to_words(page, tokens, words):
    assert page.js("names => HT.tokens.grouped(names)", tokens) == words


# -- pictures --------------------------------------------------------------------------------------------


def test_a_patch_shows_where_it_looks(pictures, images):
    pictures.reset("#s=3")
    names = images.attention[0].keys
    q = names.index("r1c3")
    pictures.tab.locator(f"#tokens .cell[data-q='{q}']").hover()
    truth = images.attention[0].load().values[3, q].numpy()
    dark = {
        name: float(re.search(r"[/,] ?([\d.]+)\)", style)[1]) if "/" in style or style.count(",") == 3 else 0.0
        for name, style in zip(
            [n for n in names if n.startswith("r")],
            pictures.tab.eval_on_selector_all("#tokens .cell", "all => all.map(e => e.style.background)"),
            strict=True,
        )
    }
    lightest = min(dark, key=dark.get)
    patches = [i for i, name in enumerate(names) if name.startswith("r")]
    assert lightest == names[max(patches, key=lambda i: truth[i])]
    pictures.tab.locator("#tokens .t", has_text="class").hover()
    assert pictures.tab.locator("#tokens .said").inner_text().startswith("class (query 0) attends to")
    pictures.reset("#s=3.4")
    assert pictures.tab.locator("#tokens .patches").count() == 2


def test_patches_are_shown_on_hover_of_a_matrix(pictures, images):
    from PIL import Image

    pictures.reset("#s=3")
    pictures.drawn("as-is-a")
    names = images.attention[0].keys
    q, k = names.index("r1c3"), names.index("r2c0")
    text = pictures.hover_at("as-is-a", pictures.cell_place("as-is-a", q, k))
    assert "r1c3" in text
    assert pictures.tab.locator("#tooltip .patch").count() == 2
    box = pictures.tab.locator("#tooltip .patch").first.bounding_box()
    shot = pictures.tab.screenshot(clip=box)
    red, green, blue = Image.open(io.BytesIO(shot)).convert("RGB").getpixel((20, 20))
    assert (red, green, blue) == pytest.approx((80, 200, 0), abs=3)  # row 1, column 3 of the thumbnail


# -- inputs and scales -----------------------------------------------------------------------------------


def test_one_head_on_all_inputs(page):
    page.select(2)
    page.drawn("all-inputs")
    assert page.tab.locator("#all-inputs-plot image").count() == 3
    assert page.tab.locator("#all-inputs h3").inner_text() == "L0H2 on all inputs"
    page.click_at("all-inputs", (146 + 40, 60))
    assert page.state("input") == 1
    page.drawn("as-is-a")
    assert page.js("() => HT.plot.cards.find(c => c.id === 'as-is-a').shown().orders[0].length") == 16


def test_coefficients_terms_and_scores_are_shown(page, run):
    page.reset("#s=6")
    page.drawn("structures")
    page.unfold("structures")
    cells = page.tab.locator("#structures td.number").all_inner_texts()
    assert cells == [number_words(run.heads[f"structure_{i}"][6]) for i in range(3)]
    page.drawn("terms-a")
    assert "logarithm" not in page.tab.locator("#terms-a").inner_text()
    page.unfold("terms-a")
    shares = page.tab.locator("#terms-a td.number").all_inner_texts()
    from headtree.report.page.details import details

    expected = details(run.values[0], run.organization[0], [6])
    assert [number_of(s) for s in shares] == pytest.approx(expected.shares[0].tolist(), rel=6e-3)  # 3 digits
    page.unfold("coefficients-a")
    cells = page.tab.locator("#coefficients-a tbody td").all_inner_texts()
    basis = ht.TensorHaarBasis(tuple(run.organization[0].trees)[1:])
    coarsest = basis.top(len(cells) // 2)
    found = np.abs(basis.analyze(run.values[0].filled().values)[6].numpy()[coarsest[:, 0], coarsest[:, 1]])
    assert int(cells[0]) == 18 * 18
    largest = int(found.argmax())  # rows of centred scores sum to 0, so the first is 0
    assert number_of(cells[2 * largest + 1]) == pytest.approx(found[largest], rel=0.03)  # half a step of 254


def test_stability_is_told(page):
    page.drawn("agreement")
    text = page.tab.locator("#stability").inner_text()
    assert "mean rank correlation" in text
    assert "random divisions" in text
    names = page.tab.locator("#stability .link")
    assert names.count() >= 5
    name = names.first.inner_text()
    names.first.click()
    assert page.tab.locator("#selection").inner_text() == f"1 head selected: {name}"
