"""The page in a real browser, with real clicks: answers, heads, groups, filters, sharing."""

import csv
import io
import itertools
import re
import time
import xml.etree.ElementTree as ET

import pytest

import headtree as ht
from headtree.errors import HeadtreeError
from headtree.measures.head_coordinates import consensus_coordinates
from headtree.report.words.answers import answers
from headtree.report.words.numbers import number_words
from headtree.report.words.terms import TERMS
from tests.report.conftest import HOSTILE
from tests.report.driver import Driver

SIZE = {"width": 1440, "height": 1000}


@pytest.fixture(scope="module")
def path(run, tmp_path_factory):
    return ht.write_report(run, tmp_path_factory.mktemp("pages") / "report.html")


@pytest.fixture(scope="module")
def context(browser):
    opened = browser.new_context(viewport=SIZE, permissions=["clipboard-read", "clipboard-write"])
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def opened(context, path):
    driver = Driver(context, path)
    yield driver
    driver.tab.close()


@pytest.fixture
def page(opened, path):
    opened.reset()
    yield opened
    assert (opened.errors, opened.requests) == ([], [path.as_uri()])


def family_of(run, i=0):
    return [int(head) for head in run.consensus.families().folders[i]]


# -- safety ----------------------------------------------------------------------------------------------


def test_opens_without_errors_and_without_a_request(page, path):
    policy = page.tab.locator("meta[http-equiv=Content-Security-Policy]").get_attribute("content")
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "script-src 'sha256-" in policy
    assert "style-src 'sha256-" in policy
    for card in ("terms-a", "agreement", "affinity"):
        page.drawn(card)


def test_hostile_text_is_text(page, path):
    assert page.tab.title().startswith("hostile '<b>& ·")
    assert page.tab.locator("h1").inner_text() == "hostile '<b>&"
    page.drawn("as-is-a")
    seen = [page.hover_at("as-is-a", page.cell_place("as-is-a", i, 0)) for i in range(8)]
    assert "<script>window.hurt = 1</script>" in seen[0]
    assert "onerror='window.hurt = 2'" in seen[1]
    assert "⟨U+202E⟩evil" in seen[3]
    assert "🦜👩‍👩‍👧" in seen[4]  # what joins the parts of an emoji stays
    assert "$$\\text{tex}$$ {{parts}}" in seen[5]
    assert max(map(len, seen)) < 400
    passage = page.tab.locator("#tokens .passage").inner_text()
    assert "<script>window.hurt = 1</script>" in passage
    section = page.tab.locator("#part-of-run-depth")
    section.locator("summary").click()
    assert section.locator("h2").inner_text() == f"{HOSTILE[0]} ?"
    assert section.locator("p").all_inner_texts() == list(HOSTILE[:3])
    assert section.locator("td").last.inner_text() == HOSTILE[0]
    assert section.locator("img").count() == 1
    page.tab.fill("#search", HOSTILE[1])
    assert "There is no column" in page.tab.locator("#found").inner_text()
    page.tab.fill("#search", "")
    assert page.js("() => window.hurt") is None
    assert page.js("() => document.querySelectorAll('main script, main iframe, [onload], [onerror]').length") == 0


# -- answers ---------------------------------------------------------------------------------------------


def test_the_answers_come_first_and_select_what_they_speak_of(page, run):
    told = [answer.text for answer in answers(run)]
    shown = [re.sub(r"What they are.*", "", text, flags=re.DOTALL).strip() for text in page.texts("#answers li")]
    assert sorted(shown) == sorted(told)
    page.tab.locator("#answers summary").click()
    line = page.tab.locator("#answers [data-about=family]").first
    line.get_by_role("button").first.click()
    assert page.shows(family_of(run))
    line.get_by_role("button").last.click()
    assert page.shows([int(run.consensus.families().medoid[0])])


def test_the_contents_lead_to_sections_and_keep_the_selection(page):
    page.select(7)
    names = page.tab.locator("#contents a").all_inner_texts()
    assert names[:4] == ["Findings", "Heads", "How heads group", "Scales"]
    page.tab.get_by_role("link", name="How heads group").click()
    page.settled()
    assert page.is_in_view("#groups-title")
    assert page.shows([7])


def test_what_readers_need_not_see_is_folded(page):
    assert page.tab.locator("#settings table").is_hidden()
    assert page.tab.locator("#stability table").first.is_hidden()
    assert page.tab.get_by_text(re.compile("support 0 %|no role", re.IGNORECASE)).count() == 0
    page.tab.locator("#settings summary").click()
    names = page.tab.locator("#settings tbody td:first-child").all_inner_texts()
    assert len(names) == len(set(names))
    assert "None" not in page.tab.locator("#settings tbody td:nth-child(2)").all_inner_texts()


def test_words_are_explained(page):
    mark = page.tab.locator("#tree .why")
    page.drawn("tree")
    mark.hover()
    assert "joins heads that are alike" in page.tab.locator("#tooltip").inner_text()
    heading = page.tab.locator("table.heads th button").filter(has_text="Shannon entropy").first
    heading.scroll_into_view_if_needed()
    heading.hover()
    assert "mean over queries" in page.tab.locator("#tooltip").inner_text().lower()
    page.tab.mouse.move(0, 0)
    page.tab.locator("#findings-title .why").focus()
    assert page.tab.locator("#findings-title .why").get_attribute("aria-label").endswith(TERMS["findings"])


def test_every_section_is_explained(page):
    headings = page.tab.locator("main h2")
    assert headings.count() >= 10
    assert page.without_why() == []
    marks = page.tab.locator("#glossary-title .why, #settings-title .why, #section-diagnostics .why")
    assert [mark.get_attribute("aria-label").removeprefix("What is this? ") for mark in marks.all()] == [
        TERMS[word] for word in ("diagnostics", "glossary", "settings")
    ]


# -- heads -----------------------------------------------------------------------------------------------


def test_a_head_is_chosen_everywhere_and_seen_without_scrolling(page):
    page.groups()
    page.js("() => document.getElementById('table').scrollIntoView()")
    page.settled()
    page.select(7)
    before = page.js("() => scrollY")
    assert page.shows([7])
    assert page.is_in_view("#head")
    assert page.is_in_view("#as-is-a-plot")
    assert page.tab.locator("#head-title").inner_text() == "L1H2"
    page.select(12, shift=True)
    assert page.shows([7, 12])
    assert page.js("() => scrollY") == before
    page.tab.click("#clear")
    assert page.shows([])


def test_clicks_that_follow_each_other_at_once_all_count(page):
    page.js("() => document.getElementById('heads').scrollIntoView()")
    page.settled()
    places = [page.on_screen("grid", page.head_place(head)) for head in (1, 13, 14)]
    page.tab.mouse.click(*places[0])
    page.tab.keyboard.down("Shift")
    for place in places[1:]:
        page.tab.mouse.click(*place)
    page.tab.keyboard.up("Shift")
    assert page.shows([1, 13, 14])


def test_dragging_chooses_a_layer_in_the_grid_and_a_crowd_on_the_map(page, run):
    page.js("() => document.getElementById('heads').scrollIntoView()")
    page.settled()
    (left, top), (right, _) = page.head_place(5), page.head_place(9)
    page.drag("grid", (left - 8, top - 5), (right + 5, top + 5))
    assert page.shows([5, 6, 7, 8, 9])
    page.drawn("map")
    places = [page.map_place(head) for head in range(20)]
    x, y = places[3]
    page.drag("map", (x - 30, y - 30), (x + 30, y + 30))
    inside = [i for i, (a, b) in enumerate(places) if abs(a - x) <= 30 and abs(b - y) <= 30]
    assert 3 in inside
    assert page.shows(inside)


def test_every_head_is_reached_by_keyboard(page):
    page.select(0)
    seen = set()
    page.tab.locator(".stop[tabindex='0']").focus()
    for row in range(4):
        for _ in range(4):
            seen.add(page.js("() => Number(document.activeElement.dataset.head)"))
            page.tab.keyboard.press("ArrowRight" if row % 2 == 0 else "ArrowLeft")
        seen.add(page.js("() => Number(document.activeElement.dataset.head)"))
        page.tab.keyboard.press("ArrowDown")
    assert seen == set(range(20))
    page.tab.keyboard.press("ArrowUp")
    page.tab.keyboard.press("Enter")
    first = page.state("selected")
    assert len(first) == 1
    page.tab.keyboard.press("ArrowRight")
    page.tab.keyboard.press("Shift+Enter")
    assert len(page.state("selected")) == 2


def test_heads_are_arranged_by_family_with_their_means(page, run):
    page.tab.select_option("#grid-view", "family")
    page.settled()
    text = page.tab.locator("#grid-plot").text_content()
    assert "Family 0: " in text
    family = family_of(run)
    tops = {page.head_place(head)[1] for head in family}
    assert len(tops) == 1
    first = min(family, key=lambda head: page.head_place(head)[0])
    x, y = page.head_place(first)
    page.click_at("grid", (x - 45, y))  # the mean is to the left of its heads
    assert page.shows(family)
    assert page.tab.locator("#head-title").inner_text() == f"Mean of {len(family)} heads"
    values = run.attention[0]
    page.drawn("as-is-a")
    text = page.hover_at("as-is-a", page.cell_place("as-is-a", 9, 3))
    from headtree.tensor.probabilities import as_probabilities

    mean = float(as_probabilities(values).values[family, 9, 3].mean())
    assert float(re.search(r"^[\d.]+", text)[0]) == pytest.approx(mean, abs=0.02)
    page.tab.select_option("#grid-view", "layer")


def test_the_selected_head_has_numbers_family_and_neighbours(page, run):
    page.select(6)
    text = page.tab.locator("#head .about").inner_text()
    assert f"rank by structure score {run.heads['structure_rank'][6]}" in text.replace("\n", " ")
    family = next(i for i, own in enumerate(run.consensus.families().folders) if 6 in own)
    page.tab.locator("#head").get_by_role("button", name=f"family {family}", exact=True).click()
    assert page.shows(family_of(run, family))
    page.select(6)
    affinity = run.consensus.affinity[6].copy()
    affinity[6] = -1
    nearest = run.heads["name"][affinity.argmax()]
    assert page.tab.locator("#head .about .link").nth(1).inner_text() == nearest
    page.tab.get_by_role("button", name="compare with the nearest").click()
    assert page.shows([6, int(affinity.argmax())])
    assert page.tab.locator("#difference-title").inner_text() == f"L1H1 − {nearest}"
    page.tab.fill("#second", "L0H2")
    page.tab.keyboard.press("Enter")
    assert page.shows([6, 2])
    page.tab.fill("#second", "L1H1")  # the same head twice is no comparison
    page.tab.keyboard.press("Enter")
    assert page.shows([6, 2])


# -- groups ----------------------------------------------------------------------------------------------


def test_the_tree_names_every_head_and_its_folders_choose_heads(page, run):
    page.drawn("tree")
    names = page.tab.locator("#tree-plot [data-name]").all_text_contents()
    assert sorted(names) == sorted(run.heads["name"])
    folder = family_of(run)
    page.click_at("tree", page.js("heads => HT.views.tree.placeOf(heads)", folder))
    assert page.shows(folder)
    page.click_at("tree", page.js("head => HT.views.tree.placeOfHead(head)", 11))
    assert page.shows([11])
    page.tab.select_option("#tree-collapse", "4")
    page.drawn("tree")
    text = page.tab.locator("#tree-plot").text_content()
    sizes = [int(n) for n in re.findall(r"▸ (\d+) heads", text)]
    assert sizes
    assert max(sizes) <= 4
    assert page.tab.locator("#tree-plot [data-name]").count() == 20 - sum(sizes)


def test_support_is_on_the_folders(page, run):
    page.drawn("tree")
    shown = {int(n) for n in re.findall(r"(\d+) %", page.tab.locator("#tree-plot").text_content())}
    assert shown
    assert shown <= {round(100 * float(s)) for s in run.consensus.support}
    text = page.hover_at("tree", page.js("heads => HT.views.tree.placeOf(heads)", family_of(run)))
    assert text.startswith(f"{len(family_of(run))} heads, support")


def test_a_cell_of_the_affinities_chooses_its_two_heads(page):
    page.drawn("affinity")
    text = page.hover_at("affinity", page.js("() => HT.views.affinity.place(3, 17)"))
    assert text.startswith("L0H3 and L3H2\naffinity")
    page.click_at("affinity", page.js("() => HT.views.affinity.place(3, 17)"))
    assert page.shows([3, 17])
    assert page.tab.locator("#head-title").inner_text() == "L0H3 and L3H2"


def test_a_point_of_the_map_is_a_head(page):
    page.drawn("map")
    page.click_at("map", page.map_place(7))
    assert page.shows([7])
    page.tab.select_option("#map-x", "layer")
    page.drawn("map")
    xs = [page.map_place(head)[0] for head in range(20)]
    assert len(set(xs)) == 4
    page.tab.select_option("#map-x", "coordinate_1")


def test_one_control_colours_every_view(page, run):
    page.groups()

    def fills(view, selector):
        return page.tab.eval_on_selector_all(
            f"#{view}-plot {selector}", "all => all.map(e => e.getAttribute('fill'))"
        )

    seen = {}
    for column in ("layer", "family"):
        page.tab.select_option("#colour", column)
        page.groups()
        expected = page.js("name => HT.colours.ofColumn(HT.network, name).colours", column)
        for view, selector in (("grid", "rect"), ("map", "circle"), ("tree", "rect"), ("affinity", "rect")):
            assert set(expected) <= set(fills(view, selector))
        seen[column] = expected
    assert seen["layer"] != seen["family"]
    n = run.heads["family"].nunique()
    assert page.tab.locator("#legend .key").count() == n


def test_map_tree_and_affinity_switch_between_similarities(page, run):
    choices = page.tab.locator("#basis option").all_inner_texts()
    assert choices[:2] == ["looks alike", "questionnaire of centred scores"]
    for kind, joint in run.similarities.items():
        page.tab.select_option("#basis", kind)
        page.groups()
        points = consensus_coordinates(joint)
        assert page.js("() => Array.from(HT.network.tree().order)") == joint.tree.order(points[:, 0]).tolist()
        assert page.js("() => Array.from(HT.network.axis('coordinate_1'))") == pytest.approx(
            points[:, 0].tolist(), rel=1e-5, abs=1e-7
        )  # float32
        title = {"attention": "looks alike", "questionnaire": "questionnaire of centred scores"}[kind]
        for name, what in (("map", "Map"), ("tree", "Tree"), ("affinity", "Affinity")):
            assert page.tab.locator(f"#{name} h3").inner_text() == f"{what} of heads: {title}"
    page.tab.select_option("#basis", "input")
    page.tab.select_option("#input", "2")
    page.groups()
    assert page.js("() => Array.from(HT.network.tree().order)") == run.organization[2].order(0).tolist()


def test_groups_in_words_choose_heads(page):
    page.tab.locator("#folders > details > summary").click()
    page.tab.locator(".folder-list summary").first.wait_for()
    assert page.tab.locator(".folder-list summary").first.inner_text().startswith("20 heads, layers 0-3")
    inner = page.tab.locator(".folder-list .inside > details").first
    n = int(re.match(r"(\d+) heads", inner.inner_text())[1])
    inner.get_by_role("button", name=f"Select these {n} heads").first.click()
    assert len(page.state("selected")) == n
    page.settled()
    assert page.is_in_view("#heads-title")


# -- filters ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "heads"),
    [
        ("L3H2, L0H1", [1, 17]),
        ("l3h2 L0H1", None),
        ("layer 2", [10, 11, 12, 13, 14]),
        ("layers 2-3, L3H2", [17]),
        ("layer 1 and head = 2", [7]),
        ("layer=1, layer = 2 and head > 3", [9, 14]),
        ("structure rank <= 2", "rank"),
        ("family = 1", "family"),
        ("nonsense", None),
        ("nocolumn > 3", None),
        ("layer > many", None),
    ],
)
def test_filters_are_read_as_people_type_them(page, run, text, heads):
    page.tab.keyboard.press("/")
    page.tab.keyboard.type(text)
    page.settled()
    found = page.js("() => HT.filter.now(HT.network)")
    if heads is None:
        assert found["problem"]
        assert page.tab.locator("#found").inner_text() == found["problem"]
        assert page.tab.locator("#select-found").is_disabled()
        page.tab.keyboard.press("Enter")
        assert page.state("selected") == []
        return
    rank = run.heads.index[run.heads["structure_rank"] <= 2].tolist()
    expected = {"rank": rank, "family": family_of(run, 1)}.get(heads, heads) if isinstance(heads, str) else heads
    assert found["heads"] == sorted(expected)
    page.tab.keyboard.press("Enter")
    assert page.state("selected") == sorted(expected)


def test_chips_filter_every_view(page, run):
    page.groups()
    chip = page.tab.locator("#chips").get_by_role("button", name=re.compile("^2$"))
    chip.click()
    page.js("() => document.getElementById('table').scrollIntoView()")
    page.settled()
    assert chip.get_attribute("aria-pressed") == "true"
    assert page.tab.locator("table.heads tbody tr").count() == 5
    assert page.tab.locator("#map-plot circle[fill=none]:not(.chosen)").count() == 15
    assert page.tab.locator("#grid-plot rect[fill-opacity]").count() == 15
    faint = page.js("() => HT.colours.theme('dim')")
    assert page.tab.locator(f"#tree-plot [data-name][fill='{faint}']").count() == 15
    page.tab.click("#select-found")
    assert page.state("selected") == [10, 11, 12, 13, 14]
    chip.click()
    page.settled()
    assert page.state("filter") == ""
    assert page.tab.locator("#grid-plot rect[fill-opacity]").count() == 0


def test_the_table_sorts_and_its_rows_choose_heads(page, run):
    page.js("() => document.getElementById('table').scrollIntoView()")
    page.settled()
    page.tab.get_by_label("Select L0H4", exact=True).focus()
    page.tab.keyboard.press("Space")
    page.tab.get_by_label("Select L1H0", exact=True).check()
    assert page.shows([4, 5])
    page.tab.locator("tr[data-head='6'] td.number").nth(3).click()  # anywhere in a row
    assert page.shows([6])
    page.tab.locator("table.heads").get_by_role("button", name="structure score", exact=True).click()
    page.settled()
    names = page.tab.locator("table.heads tbody th").all_inner_texts()
    assert names == run.heads.sort_values("structure", ascending=False)["name"].tolist()
    assert page.tab.locator("th[aria-sort=descending]").count() == 1
    page.js("() => { document.querySelector('#table .scroll').scrollLeft = 4000; }")
    box = page.tab.get_by_label("Select L1H0", exact=True).bounding_box()  # still there, at the left
    assert box["x"] < 80


# -- sharing ---------------------------------------------------------------------------------------------


def test_the_selection_and_the_link_can_be_taken_away(page, run):
    page.select(3)
    page.select(1, shift=True)
    page.tab.click("#copy")
    page.tab.get_by_role("button", name="Copied").wait_for()
    listed = page.js("() => navigator.clipboard.readText()")
    assert listed == "L0H3, L0H1"
    page.tab.fill("#search", listed)  # what was copied can be searched for
    assert page.js("() => HT.filter.now(HT.network).heads") == [1, 3]
    page.tab.fill("#search", "")
    page.tab.click("#link")
    page.tab.locator("#link", has_text="Copied").wait_for()
    assert page.js("() => navigator.clipboard.readText()").endswith("#s=3.1")
    with page.tab.expect_download() as waiting:
        page.tab.click("#csv")
    assert waiting.value.suggested_filename == "hostile-b-heads.csv"
    rows = list(csv.DictReader(io.StringIO(waiting.value.path().read_text(encoding="utf-8"))))
    assert [row["name"] for row in rows] == ["L0H3", "L0H1"]
    assert list(rows[0]) == list(run.heads.columns)
    assert float(rows[1]["structure"]) == run.heads["structure"][1]


def test_drawings_download_with_title_legend_and_twice_the_pixels(page):
    from PIL import Image

    page.tab.select_option("#colour", "family")
    for name in (
        "grid",
        "as-is-a",
        "tree",
        "map",
        "affinity",
        "organized-a",
        "terms-a",
        "coefficients-a",
        "structures",
    ):
        page.drawn(name)
        width = page.js("id => HT.plot.cards.find(c => c.id === id).drawing.viewBox.baseVal.width", name)
        with page.tab.expect_download() as waiting:
            page.tab.locator(f"#{name}").get_by_role("button", name="SVG").first.click()
        assert waiting.value.suggested_filename == f"hostile-b-{name}.svg"
        root = ET.fromstring(waiting.value.path().read_bytes())
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
        assert texts[0] == page.tab.locator(f"#{name}-title").inner_text()
        assert texts[1] == "hostile '<b>&"
        assert ("family 0" in texts) == (name in ("grid", "tree", "map", "affinity"))
        with page.tab.expect_download() as waiting:
            page.tab.locator(f"#{name}").get_by_role("button", name="PNG").first.click()
        picture = Image.open(waiting.value.path()).convert("RGB")
        assert picture.width == pytest.approx(2 * width, abs=2)
        assert len(picture.getcolors(10**7)) > 5


def test_a_link_restores_the_view_and_the_history_goes_back_and_forward(context, path):
    first = Driver(context, path)
    first.select(7)
    first.tab.select_option("#colour", "layer")
    first.tab.select_option("#input", "1")
    address = first.js("() => location.href")
    second = Driver(context, path, "#" + address.split("#")[1])
    assert second.shows([7])
    assert (second.tab.input_value("#colour"), second.tab.input_value("#input")) == ("layer", "1")
    first.tab.go_back()
    first.tab.go_back()
    first.wait("() => HT.state.get().color !== 'layer'")
    assert first.shows([7])
    first.tab.go_back()
    first.wait("() => HT.state.get().selected.length === 0")
    first.tab.go_forward()
    first.wait("() => HT.state.get().selected.length === 1")
    assert first.shows([7])
    first.js("() => scrollTo(0, 0)")
    first.tab.locator("#skip").focus()
    first.tab.keyboard.press("Enter")
    first.settled()
    assert first.is_in_view("#table-title")
    assert first.shows([7])
    for page in (first, second):
        assert page.errors == []
        page.tab.close()


def test_a_fragment_that_makes_no_sense_is_ignored(page):
    page.reset("#i=99&s=-4.2-1.foo.5-1e9.19&x=<script>&c=constructor&q=-1&z=7.700000-9&b=evil&p=-3&v=x&f=%00")
    state = page.js("() => HT.state.get()")
    assert (state["input"], state["x"], state["basis"], state["window"]) == (0, "coordinate_1", "attention", [])
    assert all(0 <= head < 20 for head in state["selected"])


def test_in_the_width_of_a_notebook_the_head_is_beside_the_grid(page):
    size = page.tab.viewport_size
    page.tab.set_viewport_size({"width": 948, "height": 800})
    page.js("() => document.getElementById('heads').scrollIntoView()")
    page.settled()
    assert page.js("() => document.documentElement.scrollWidth") == 948
    grid, head = (page.tab.locator(name).bounding_box() for name in ("#grid", "#head"))
    assert head["x"] >= grid["x"] + grid["width"]
    assert abs(head["y"] - grid["y"]) < 2
    page.tab.set_viewport_size(size)


def test_a_notebook_shows_the_page_of_the_run_and_its_theme(context, run, path, tmp_path):
    for background, expected in (("#111", "dark"), ("#fff", "light")):
        outer = tmp_path / f"{expected}.html"
        shown = ht.show(run, height=700)._repr_html_()
        outer.write_text(f"<!doctype html><body style='background:{background}'>{shown}</body>", encoding="utf-8")
        tab = context.new_page()
        errors = []
        tab.on("pageerror", lambda error, errors=errors: errors.append(str(error)))
        tab.set_viewport_size({"width": 800, "height": 900})
        tab.goto(outer.as_uri())
        frame = tab.frame_locator("iframe")
        frame.locator(f"html[data-ready][data-theme={expected}]").wait_for(state="attached", timeout=60_000)
        frame.locator(".stop[data-head='4']").focus()
        tab.keyboard.press("Enter")
        assert frame.locator("#selection").inner_text().startswith("1 head selected: L0H4")
        wide = frame.locator("html").evaluate("e => e.scrollWidth - e.clientWidth")
        assert wide == 0
        assert errors == []
        tab.close()


def test_a_page_that_lies_in_the_run_is_shown_as_it_is(tmp_path):
    from tests.runs.examples import small_run

    run = small_run(tmp_path / "run", 2, draw=True)
    text = (run.path / "report.html").read_text(encoding="utf-8")
    start = time.process_time()
    shown = ht.show(run)
    shown._repr_html_()
    assert time.process_time() - start < 1
    assert shown.text == text
    run.page.write_text(text.replace("a", "e", 1), encoding="utf-8")
    with pytest.raises(HeadtreeError, match=r"report.html was changed since it was written"):
        ht.show(ht.open_run(run.path))


# -- widths and themes -----------------------------------------------------------------------------------


def test_phone_width_and_dark(browser, path):
    context = browser.new_context(viewport={"width": 390, "height": 844}, color_scheme="dark", has_touch=True)
    page = Driver(context, path)
    page.js("() => document.getElementById('grid').scrollIntoView()")
    page.settled()
    page.tab.touchscreen.tap(*page.on_screen("grid", page.head_place(7)))
    assert page.shows([7])
    assert page.tab.locator("#tooltip").inner_text().startswith("L1H2")
    page.tab.touchscreen.tap(5, 500)
    assert page.tab.locator("#tooltip").is_hidden()
    page.drawn("tree")
    assert page.is_in_view("#selection")  # the header stays
    assert page.js("() => document.documentElement.scrollWidth") <= 390
    assert page.js("() => getComputedStyle(document.body).backgroundColor") == "rgb(18, 22, 28)"
    page.tab.locator("#theme").click()
    assert page.js("() => getComputedStyle(document.body).backgroundColor") == "rgb(246, 247, 249)"
    assert page.errors == []
    context.close()


def test_a_wide_screen_is_used(browser, path):
    context = browser.new_context(viewport={"width": 3840, "height": 2000})
    page = Driver(context, path)
    page.drawn("affinity")
    right = page.js("() => document.getElementById('affinity').getBoundingClientRect().right")
    assert right > 3700
    assert page.js("() => document.documentElement.scrollWidth") <= 3840
    context.close()


def test_what_drawings_show_can_be_read_without_seeing_them(page):
    page.drawn("organized-a")
    unnamed = page.js(
        """() => Array.from(document.querySelectorAll("button, select, input"))
            .filter(e => !(e.textContent.trim() || e.getAttribute("aria-label") || e.labels?.length)).length"""
    )
    assert unnamed == 0
    levels = page.js("() => Array.from(document.querySelectorAll('h1,h2,h3,h4'), h => Number(h.tagName[1]))")
    assert levels[0] == 1
    assert all(b <= a + 1 for a, b in itertools.pairwise(levels))
    page.unfold("organized-a")
    assert page.tab.locator("#organized-a tbody tr").count() == 18


def test_numbers_are_written_as_everywhere_else(page):
    values = [0, -0.5, 0.05123, 12, 999.6, 1500.2, 99_999, 123_456, 2e6, 1e-3, 9.99e-4, 1e-4, -3.21e-7, None]
    shown = page.js("values => values.map(HT.dom.number)", values)
    assert shown == [number_words(float("nan") if value is None else value) for value in values]


def test_bad_arguments_are_named(run, tmp_path):
    with pytest.raises(HeadtreeError, match="run must be a run, as open_run returns it"):
        ht.write_report("runs/x", tmp_path / "r.html")
    with pytest.raises(HeadtreeError, match="path must name a file"):
        ht.write_report(run, tmp_path)
    with pytest.raises(HeadtreeError, match="budget"):
        ht.write_report(run, tmp_path / "r.html", budget=0)
    with pytest.raises(HeadtreeError, match="height"):
        ht.show(run, height=0)
    assert list(tmp_path.iterdir()) == []
