"""The page in a real browser, with real clicks."""

import csv
import io
import itertools
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest

import headtree as ht
from headtree.errors import HeadtreeError
from headtree.measures.head_coordinates import consensus_coordinates
from headtree.report.words.answers import answers
from headtree.report.words.numbers import number_words
from tests.report.conftest import HOSTILE
from tests.report.driver import Driver


def card(name):
    """A card of the page, in its own language."""
    return f"HT.plots.cards.find(c => c.id === '{name}')"


@pytest.fixture(scope="module")
def path(run, tmp_path_factory):
    return ht.write_report(run, tmp_path_factory.mktemp("pages") / "report.html")


@pytest.fixture(scope="module")
def context(browser):
    opened = browser.new_context(
        viewport={"width": 1440, "height": 900}, permissions=["clipboard-read", "clipboard-write"]
    )
    yield opened
    opened.close()


@pytest.fixture
def page(context, path):
    driver = Driver(context, path)
    yield driver
    assert driver.errors == []
    driver.tab.close()


def test_opens_without_errors_and_without_a_request(context, path):
    page = Driver(context, path)
    assert (page.errors, page.requests) == ([], [path.as_uri()])
    page.drawn("terms-a")
    page.drawn("agreement")
    assert (page.errors, page.requests) == ([], [path.as_uri()])
    policy = page.tab.locator("meta[http-equiv=Content-Security-Policy]").get_attribute("content")
    assert "default-src 'none'" in policy
    assert "unsafe-eval" not in policy
    assert "script-src 'sha256-" in policy
    page.tab.close()


def test_a_head_chosen_on_the_map_is_chosen_everywhere(page):
    page.map_click(7)
    assert page.shows([7])
    page.map_click(12, shift=True)
    assert page.shows([7, 12])
    page.tab.click("#clear")
    assert page.shows([])


def test_clicks_that_follow_each_other_at_once_all_count(page):
    places = [page.place("grid", head, layer) for layer, head in ((0, 1), (2, 3), (2, 4))]
    page.tab.mouse.click(*places[0])
    page.tab.keyboard.down("Shift")
    for place in places[1:]:
        page.tab.mouse.click(*place)
    page.tab.keyboard.up("Shift")
    assert page.shows([1, 13, 14])


def test_a_click_that_lasts_counts_and_a_drag_does_not(page):
    first, second = page.place("grid", 1, 0), page.place("grid", 3, 2)
    page.tab.mouse.move(*first)
    page.tab.mouse.down()
    page.tab.wait_for_timeout(400)  # longer than what Bokeh takes for a press
    page.tab.mouse.up()
    assert page.shows([1])
    page.tab.mouse.down()
    page.tab.mouse.move(*second, steps=4)
    page.tab.mouse.up()
    assert page.shows([1])


def test_a_head_chosen_in_the_grid_is_chosen_everywhere(page, run):
    layer, head = run.heads.loc[13, ["layer", "head"]]
    page.click("grid", head, layer)
    assert page.shows([13])


@pytest.mark.parametrize("pause", [0, 400], ids=["at once", "after a pause"])
def test_a_box_on_the_grid_chooses_a_layer(page, pause):
    page.drawn("grid")
    page.tab.locator("#grid-plot").get_by_title("Box Select").click()
    start, middle, end = (page.place("grid", *place) for place in ((-0.55, 1.55), (2, 1), (4.55, 0.5)))
    page.tab.mouse.move(*start)
    page.tab.mouse.down()
    page.tab.wait_for_timeout(pause)  # what Bokeh would take for a press
    page.tab.mouse.move(*middle, steps=3)
    page.tab.mouse.move(*end, steps=3)
    page.tab.mouse.up()
    assert page.shows([5, 6, 7, 8, 9])


def test_a_folder_of_the_tree_chooses_its_heads(page, run):
    folder = run.consensus.families().folders[0]
    place = page.folder_place([int(head) for head in folder])
    page.click("tree", *place)
    assert page.shows([int(head) for head in folder])
    page.click("tree", page.tree_place(11) + 0.5, 0.3)
    assert page.shows([11])


def test_folders_fold_and_unfold(page, run):
    def n_shown():
        page.drawn("tree")
        return page.js(
            "() => HT.plots.cards.find(c => c.id === 'tree').figure.renderers[1].data_source.data.left.length"
        )

    assert n_shown() == 20
    page.tab.select_option("#tree-click", "fold")
    folder = [int(head) for head in run.consensus.families().folders[0]]
    page.click("tree", *page.folder_place(folder))
    page.wait("() => HT.state.get().folded.length === 1")
    assert n_shown() == 20 - len(folder)
    page.tab.go_back()
    page.wait("() => HT.state.get().folded.length === 0")
    assert n_shown() == 20


def test_a_cell_of_the_affinities_chooses_its_two_heads(page):
    page.click("affinity", page.tree_place(3) + 0.5, page.tree_place(17) + 0.5)
    assert page.shows([3, 17])
    page.drawn("organized-b")
    assert page.tab.locator("#slot-a h3").inner_text() == "L3H2"
    assert page.tab.locator("#slot-b h3").inner_text() == "L0H3"


def test_rows_of_the_table_choose_heads_by_keyboard(page):
    box = page.tab.get_by_label("Select L0H4", exact=True)
    box.focus()
    page.tab.keyboard.press("Space")
    page.tab.get_by_label("Select L1H0", exact=True).check()
    assert page.shows([4, 5])
    page.tab.get_by_label("Select L0H4", exact=True).uncheck()
    assert page.shows([5])


def test_folders_in_words_choose_heads(page, run):
    words = page.tab.locator("#folders summary").first.inner_text()
    assert words.startswith("20 heads, layers 0-3")
    inner = page.tab.locator("#folders .inside details summary").first
    n = int(re.match(r"(\d+) heads", inner.inner_text())[1])
    inner.get_by_role("button").click()
    assert len(page.selected()["map"]) == n
    assert page.shows(page.selected()["map"])


def test_search_and_sort(page, run):
    page.tab.fill("#search", "layer 2")
    rows = page.tab.locator("table.heads tbody tr")
    assert rows.count() == 5
    page.tab.get_by_role("button", name="Select all found").click()
    assert page.js("() => HT.state.get().selected") == [10, 11, 12, 13, 14]
    page.tab.fill("#search", "")
    page.tab.locator("table.heads").get_by_role("button", name="structure score", exact=True).click()
    names = page.tab.locator("table.heads tbody th").all_inner_texts()
    assert names == run.heads.sort_values("structure", ascending=False)["name"].tolist()
    assert page.tab.locator("th[aria-sort=descending]").count() == 1


def test_the_map_has_a_choice_of_axes_and_colours(page, run):
    page.tab.select_option("#map-x", "layer")
    page.tab.select_option("#map-y", "structure_1")
    page.tab.select_option("#grid-color", "family")
    page.drawn("map")
    assert page.js("() => Array.from(HT.plots.cards.find(c => c.id === 'map').source.data.y)") == pytest.approx(
        run.heads["structure_1"].tolist()
    )
    n_families = run.heads["family"].nunique()
    assert page.tab.locator("#grid .key").count() == n_families


def test_hover_names_heads_and_their_numbers(page, run):
    text = page.hover("grid", 2, 1)
    assert text.startswith("L1H2\nlayer 1, head 2\n")
    assert f"rank by structure score {run.heads['structure_rank'][7]}" in text
    text = page.hover("affinity", page.tree_place(3) + 0.5, page.tree_place(17) + 0.5)
    assert text.startswith("L3H2 and L0H3\naffinity")
    text = page.hover("tree", 10, page.js("() => 1.5 + Math.log2(20)"))
    assert text.startswith("Folder of 20 heads\n20 heads, layers")


def test_two_heads_side_by_side(page, run):
    page.tab.select_option("#head-a", "2")
    page.tab.select_option("#head-b", "9")
    assert page.shows([2, 9])
    page.drawn("organized-b")
    assert [page.tab.locator(f"#slot-{s} h3").inner_text() for s in "ab"] == ["L0H2", "L1H4"]
    text = page.hover("as-is-b", 3.5, 9.5)
    att = run.values[0]
    value = float(re.search(r"^[-\d.]+", text)[0])
    extent = float(att.values[9].max() - att.values[9].min())
    assert value == pytest.approx(float(att.values[9, 9, 3]), abs=extent / 254)  # a step of the 8-bit scale
    assert "query 9 w1" in text
    text = page.hover("as-is-b", 9.5, 3.5)
    assert text.startswith("missing")
    page.tab.select_option("#head-b", "")
    assert page.shows([2])
    assert page.tab.locator("#slot-b").is_hidden()


def test_organized_matrices_follow_their_trees(page, run):
    page.tab.select_option("#head-a", "6")
    page.drawn("organized-a")
    org = run.organization[0]
    queries, keys = org.order("query"), org.order("key")
    text = page.hover("organized-a", 4.5, 6.5)
    assert f"query {queries[6]} " in text
    assert f"key {keys[4]} " in text
    page.tab.select_option("#level-key", "0")
    page.tab.select_option("#level-query", "1")
    page.drawn("organized-a")
    lines = page.js("""() => Array.from(HT.plots.cards.find(c => c.id === 'organized-a')
        .figure.renderers[1].data_source.data.y0)""")
    labels = org.trees.query.labels[1][queries]
    assert lines == [i for i in range(1, len(labels)) if labels[i] != labels[i - 1]]


def test_coefficients_terms_and_scores_are_shown(page, run):
    page.tab.select_option("#head-a", "6")
    page.drawn("structures")
    page.open_table("structures")
    cells = page.tab.locator("#structures td.number").all_inner_texts()
    assert cells == [number_words(run.heads[f"structure_{i}"][6]) for i in range(3)]
    page.drawn("terms-a")
    assert "logarithm" not in page.tab.locator("#terms-a").inner_text()
    page.open_table("terms-a")
    shares = page.tab.locator("#terms-a details").first.locator("td.number").all_inner_texts()
    page.tab.locator("#terms-a summary").last.click()
    page.tab.locator("#terms-a caption").nth(5).wait_for()
    from headtree.report.page.details import details

    expected = details(run.values[0], run.organization[0], [6])
    assert [_number(s) for s in shares] == pytest.approx(expected.shares[0].tolist(), rel=6e-3)  # 3 digits
    page.open_table("coefficients-a")
    cells = page.tab.locator("#coefficients-a tbody td").all_inner_texts()
    basis = ht.TensorHaarBasis(tuple(run.organization[0].trees)[1:])
    coarsest = basis.top(len(cells) // 2)
    found = np.abs(basis.analyze(run.values[0].filled().values)[6].numpy()[coarsest[:, 0], coarsest[:, 1]])
    assert int(cells[0]) == 18 * 18
    largest = int(found.argmax())  # rows of centred scores sum to 0, so the first is 0
    assert _number(cells[2 * largest + 1]) == pytest.approx(found[largest], rel=0.03)  # half a step of 254


def test_the_input_switch_changes_matrices_and_trees(page, run):
    page.tab.select_option("#head-a", "2")
    page.tab.select_option("#input", "2")
    page.drawn("as-is-a")
    assert page.js("() => HT.plots.cards.find(c => c.id === 'as-is-a').figure.x_range.end") == 14
    page.tab.select_option("#basis", "input")
    page.settled()
    order = page.js("() => Array.from(HT.network.tree().order)")
    assert order == run.organization[2].order(0).tolist()
    xs = page.js("() => Array.from(HT.plots.cards.find(c => c.id === 'map').source.data.x)")
    assert xs == pytest.approx(run.organization[2].coordinates[0][:, 0].tolist(), rel=1e-6)  # float32


def test_stability_is_told(page):
    text = page.tab.locator("#stability").inner_text()
    assert "mean rank correlation" in text
    assert "random divisions" in text
    assert page.tab.locator("#stability tbody tr").count() == 5 + 3


def test_the_selection_can_be_taken_away(page, run):
    page.tab.get_by_label("Select L0H3", exact=True).check()
    page.tab.get_by_label("Select L0H1", exact=True).check()
    page.tab.click("#copy")
    page.tab.get_by_role("button", name="Copied").wait_for()
    assert page.js("() => navigator.clipboard.readText()") == "L0H3, L0H1"
    with page.tab.expect_download() as waiting:
        page.tab.click("#csv")
    assert waiting.value.suggested_filename == "heads.csv"
    rows = list(csv.DictReader(io.StringIO(waiting.value.path().read_text(encoding="utf-8"))))
    assert [row["name"] for row in rows] == ["L0H3", "L0H1"]
    assert list(rows[0]) == list(run.heads.columns)
    assert float(rows[1]["structure"]) == run.heads["structure"][1]


def test_figures_download_as_svg_and_png(page):
    for name in ("map", "grid", "tree", "affinity", "organized-a", "terms-a", "coefficients-a", "structures"):
        page.drawn(name)
        for kind, check in (("SVG", _is_svg), ("PNG", _is_png)):
            with page.tab.expect_download() as waiting:
                page.tab.locator(f"#{name}").get_by_role("button", name=kind).click()
            assert waiting.value.suggested_filename == f"{name}.{kind.lower()}"
            check(waiting.value.path().read_bytes())


def _is_svg(content):
    root = ET.fromstring(content)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert len(list(root.iter())) > 20


def _is_png(content):
    assert content.startswith(b"\x89PNG")
    assert len(content) > 2000


def test_a_link_restores_the_view_and_the_history_goes_back_and_forward(context, path):
    first = Driver(context, path)
    first.map_click(7)
    first.tab.select_option("#grid-color", "layer")
    first.tab.select_option("#input", "1")
    address = first.js("() => location.href")
    second = Driver(context, path, "#" + address.split("#")[1])
    assert second.shows([7])
    assert (second.tab.input_value("#grid-color"), second.tab.input_value("#input")) == ("layer", "1")
    first.tab.go_back()
    first.tab.go_back()
    first.wait("() => HT.state.get().color === 'family'")
    assert first.shows([7])
    first.tab.go_back()
    first.wait("() => HT.state.get().selected.length === 0")
    assert first.shows([])
    first.tab.go_forward()
    first.wait("() => HT.state.get().selected.length === 1")
    assert first.shows([7])
    for page in (first, second):
        assert page.errors == []
        page.tab.close()


def test_a_fragment_that_makes_no_sense_is_ignored(context, path):
    page = Driver(context, path, "#i=99&s=-4.2-1.foo.5-1e9.19&x=<script>&c=constructor&q=-1&z=7.700000-9&b=evil")
    state = page.js("() => HT.state.get()")
    assert (state["input"], state["x"], state["color"], state["basis"]) == (
        0,
        "coordinate_1",
        "family",
        "attention",
    )
    assert all(0 <= head < 20 for head in state["selected"])
    assert page.errors == []
    page.tab.close()


def test_hostile_text_is_text(context, path):
    page = Driver(context, path)
    assert page.tab.title().startswith("hostile '<b>& ·")
    assert page.tab.locator("h1").inner_text() == "hostile '<b>&"
    page.drawn("as-is-a")
    seen = [page.hover("as-is-a", 0.5, i + 0.5) for i in range(8)]
    assert "<script>window.hurt = 1</script>" in seen[0]
    assert "onerror='window.hurt = 2'" in seen[1]
    assert "⟨U+202E⟩evil" in seen[3]
    assert "🦜" in seen[4]
    assert "$$\\text{tex}$$ {{parts}}" in seen[5]
    assert max(map(len, seen)) < 400
    page.tab.locator("#as-is-a summary").click()
    page.tab.select_option("#input", "1")
    section = page.tab.locator("#part-of-run-depth")
    assert section.locator("h2").inner_text() == HOSTILE[0]
    assert section.locator("p").all_inner_texts() == list(HOSTILE[:3])
    assert section.locator("td").last.inner_text() == HOSTILE[0]
    assert section.locator("img").count() == 1
    page.drawn("as-is-a")
    assert page.js("() => window.hurt") is None
    assert (
        page.js("() => document.querySelectorAll('main script, main svg, main iframe, [onload], [onerror]').length")
        == 0
    )
    assert (page.errors, page.requests) == ([], [path.as_uri()])
    page.tab.close()


def test_image_patches_are_shown_on_hover(context, images, tmp_path):
    page = Driver(context, ht.write_report(images, tmp_path / "images.html"))
    assert "what softmax is taken of is their logarithm" in page.tab.locator("#terms-a").text_content()
    page.drawn("as-is-a")
    names = images.attention[0].keys
    q, k = names.index("r1c3"), names.index("r2c0")
    text = page.hover("as-is-a", k + 0.5, q + 0.5)
    assert "r1c3" in text
    assert page.tab.locator("#tooltip .patch").count() == 2
    box = page.tab.locator("#tooltip .patch").first.bounding_box()
    shot = page.tab.screenshot(clip=box)
    from PIL import Image

    red, green, blue = Image.open(io.BytesIO(shot)).convert("RGB").getpixel((20, 20))
    assert (red, green, blue) == pytest.approx((80, 200, 0), abs=3)  # row 1, column 3 of the thumbnail
    assert page.errors == []
    page.tab.close()


def test_phone_width_and_dark(browser, path):
    context = browser.new_context(viewport={"width": 390, "height": 844}, color_scheme="dark", has_touch=True)
    page = Driver(context, path)
    page.tab.touchscreen.tap(*page.place("grid", 2, 1))
    assert page.shows([7])
    assert page.tab.locator("#tooltip").inner_text().startswith("L1H2")
    page.tab.touchscreen.tap(5, 400)
    assert page.tab.locator("#tooltip").is_hidden()
    page.drawn("organized-a")
    assert page.js("() => document.documentElement.scrollWidth") <= 390
    assert page.js("() => getComputedStyle(document.body).backgroundColor") == "rgb(18, 22, 28)"
    page.tab.locator("#theme").click()
    assert page.js("() => getComputedStyle(document.body).backgroundColor") == "rgb(246, 247, 249)"
    page.settled()
    assert page.js("() => HT.plots.cards[0].figure.background_fill_color") == "#ffffff"
    assert page.errors == []
    context.close()


def test_what_plots_show_can_be_read_without_seeing_them(page):
    page.drawn("organized-a")
    for name in page.js("() => HT.plots.cards.filter(c => c.figure).map(c => c.id)"):
        label = page.tab.locator(f"#{name}-plot")
        assert label.get_attribute("role") == "img"
        assert label.get_attribute("aria-label")
    unnamed = page.js(
        """() => Array.from(document.querySelectorAll("button, select, input"))
            .filter(e => !(e.textContent.trim() || e.getAttribute("aria-label") || e.labels?.length)).length"""
    )
    assert unnamed == 0
    levels = page.js("() => Array.from(document.querySelectorAll('h1,h2,h3,h4'), h => Number(h.tagName[1]))")
    assert levels[0] == 1
    assert all(b <= a + 1 for a, b in itertools.pairwise(levels))
    page.open_table("organized-a")
    assert page.tab.locator("#organized-a tbody tr").count() == 18


def test_tables_follow_what_is_chosen(page, run):
    page.tab.select_option("#head-a", "6")
    page.drawn("as-is-a")
    page.open_table("as-is-a")
    for head in (6, 2):
        page.tab.select_option("#head-a", str(head))
        page.drawn("as-is-a")
        shown = [
            _number(text)
            for text in page.tab.locator("#as-is-a tbody tr").nth(9).locator("td.number").all_inner_texts()
        ]
        values = run.values[0].values[head]
        step = float(values.max() - values.min()) / 254
        assert shown[:10] == pytest.approx(values[9, :10].tolist(), abs=step)
    page.open_table("map")
    page.tab.select_option("#basis", "input")
    page.settled()
    places = [
        _number(text) for text in page.tab.locator("#map tbody tr").nth(4).locator("td.number").all_inner_texts()
    ]
    assert places == pytest.approx(run.organization[0].coordinates[0][4, :2].tolist(), rel=5e-3)


def _number(text):
    """The value of a number as `number_words` writes it."""
    if text == "–":
        return float("nan")
    mantissa, _, power = text.replace(",", "").rpartition("·") if "·" in text else (text, "", "")
    exponent = power[2:].translate(str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")) or "0"
    return float(mantissa) * 10.0 ** int(exponent)


def test_numbers_are_written_as_everywhere_else(page):
    values = [0, -0.5, 0.05123, 12, 999.6, 1500.2, 99_999, 123_456, 2e6, 1e-3, 9.99e-4, 1e-4, -3.21e-7, None]
    shown = page.js("values => values.map(HT.dom.number)", values)
    assert shown == [number_words(float("nan") if value is None else value) for value in values]


def test_a_notebook_shows_the_page_in_a_frame(context, run, tmp_path):
    outer = tmp_path / "notebook.html"
    outer.write_text(f"<!doctype html><body>{ht.show(run, height=700)._repr_html_()}</body>", encoding="utf-8")
    tab = context.new_page()
    errors = []
    tab.on("pageerror", lambda error: errors.append(str(error)))
    tab.goto(outer.as_uri())
    frame = tab.frame_locator("iframe")
    frame.locator("html[data-ready]").wait_for(state="attached", timeout=60_000)
    frame.get_by_label("Select L0H4", exact=True).check()
    assert frame.locator("#selection").inner_text().startswith("1 head selected: L0H4")
    assert errors == []
    tab.close()


def test_bad_arguments_are_named(run, tmp_path):
    with pytest.raises(HeadtreeError, match="run must be a run of a network"):
        ht.write_report("runs/x", tmp_path / "r.html")
    with pytest.raises(HeadtreeError, match="path must name a file"):
        ht.write_report(run, tmp_path)
    with pytest.raises(HeadtreeError, match="budget"):
        ht.write_report(run, tmp_path / "r.html", budget=0)
    with pytest.raises(HeadtreeError, match="height"):
        ht.show(run, height=0)
    assert list(tmp_path.iterdir()) == []


def test_the_answers_come_first_and_select_what_they_speak_of(page, run):
    lines = page.tab.locator("#answers li")
    told = [answer.text for answer in answers(run)]
    shown = [text.split("\n")[0] for text in lines.all_inner_texts()]
    assert sorted(shown) == sorted(told)
    assert "main families" not in page.tab.locator("#summary").inner_text()
    family = run.consensus.families().folders[0]
    page.tab.locator("#answers [data-about=family]").first.get_by_role("button").first.click()
    assert page.shows([int(head) for head in family])
    medoid = int(run.consensus.families().medoid[0])
    page.tab.locator("#answers [data-about=family]").first.get_by_role("button").last.click()
    assert page.shows([medoid])


def test_map_tree_and_affinity_switch_between_similarities(page, run):
    choices = page.tab.locator("#basis option").all_inner_texts()
    assert choices[:2] == ["looks alike", "questionnaire of centred scores"]
    for kind, joint in run.similarities.items():
        page.tab.select_option("#basis", kind)
        page.settled()
        points = consensus_coordinates(joint)
        assert page.js("() => Array.from(HT.network.tree().order)") == joint.tree.order(points[:, 0]).tolist()
        xs = page.js("() => Array.from(HT.plots.cards.find(c => c.id === 'map').source.data.x)")
        assert xs == pytest.approx(points[:, 0].tolist(), rel=1e-5, abs=1e-7)  # float32
        title = {"attention": "looks alike", "questionnaire": "questionnaire of centred scores"}[kind]
        for name, what in (("map", "Map"), ("tree", "Tree"), ("affinity", "Affinity")):
            assert page.tab.locator(f"#{name} h3").inner_text() == f"{what} of heads: {title}"
            assert "Heads are close if" in page.tab.locator(f"#{name} .sentence").first.inner_text()
    page.tab.locator("#grid-color").select_option("family")
    families = run.consensus.families().of_leaf
    assert run.heads["family"].tolist() == families.tolist()


def test_columns_are_explained(page):
    heading = page.tab.locator("table.heads th").filter(has_text="Shannon entropy").first
    assert "Rank correlation with the effects of heads" in heading.get_attribute("title")
    page.tab.select_option("#grid-color", "structure")
    assert "l1 entropy of Haar coefficients" in page.tab.locator("#grid").inner_text()
    assert page.tab.get_by_text(re.compile("support 0 %", re.IGNORECASE)).count() == 0
