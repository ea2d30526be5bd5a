"""The page of a plain array in a real browser: its axes, their slices, trees and affinities, with real clicks."""

import base64
import json
import re
import zlib

import numpy as np
import pytest

import headtree as ht
from headtree.pipeline.array_run import ArrayFile
from headtree.pipeline.make_run import make_array_run
from headtree.report.page.array_data import array_data
from headtree.report.words.array_answers import array_answers
from headtree.report.words.summary import in_words, summarized
from headtree.runs.containers import attr_tree
from tests.report.driver import Driver

SIZE = {"width": 1440, "height": 1000}


def unpacked(part):
    """The text of a part of the page."""
    data = zlib.decompress(base64.b64decode(part))
    return json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["text"]


def blocks(shape, noise, seed=0):
    """Slices in three groups on every axis."""
    rng = np.random.default_rng(seed)
    groups = [rng.integers(0, 3, n) for n in shape]
    return rng.standard_normal((3,) * len(shape))[np.ix_(*groups)] + noise * rng.standard_normal(shape)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Arrays of two, three and four axes, and one of noise."""
    folder = tmp_path_factory.mktemp("arrays")
    arrays = {
        "matrix": (blocks((14, 20), 0.3), ("gene", "cell")),
        "cube": (blocks((9, 12, 15), 0.3), ("sensor", "time", "trial")),
        "many": (10 + np.abs(blocks((4, 5, 6, 7), 0.1)), ("a", "b", "c", "d")),
        "noise": (np.random.default_rng(1).standard_normal((10, 12, 14)), ("x", "y", "z")),
    }
    arrays["matrix"][0][2, 3:6] = np.nan
    made = {}
    for name, (values, axes) in arrays.items():
        np.save(folder / f"{name}.npy", values)
        made[name] = make_array_run(ArrayFile(folder / f"{name}.npy", axes=axes), folder / name, draw=False)
    return made


@pytest.fixture(scope="module")
def opened(browser, runs, tmp_path_factory):
    """One tab for each array."""
    context = browser.new_context(viewport=SIZE)
    folder = tmp_path_factory.mktemp("pages")
    tabs = {name: Driver(context, ht.write_report(run, folder / f"{name}.html")) for name, run in runs.items()}
    yield tabs
    context.close()


@pytest.fixture
def page(opened):
    """A function that returns the page of an array as it opens."""

    def of(name, fragment=""):
        opened[name].reset(fragment)
        return opened[name]

    yield of
    for tab in opened.values():
        assert (tab.errors, tab.requests) == ([], [tab.path.as_uri()])


def test_findings_are_those_of_the_summary_and_noise_has_none(page, runs):
    for name, run in runs.items():
        told = [answer.text for answer in array_answers(run)]
        assert page(name).texts("#answers li") == told
        printed = re.sub(r"\s+", " ", in_words(summarized(run)))
        assert all(text in printed for text in told)
        assert told[0].startswith("Nothing was found" if name == "noise" else "Slices group")


def test_groups_of_noise_are_not_listed(page, runs):
    run = runs["noise"]
    told = [answer.text for answer in array_answers(run)]
    assert len(told) == 1
    assert "group" not in told[0] + in_words(summarized(run))
    assert "folders" not in in_words(summarized(run))
    noise, cube = page("noise"), page("cube")
    assert (noise.tab.locator("#chips .chip").count(), cube.tab.locator("#chips .chip").count() > 0) == (0, True)
    assert [tab.tab.locator("#colour").input_value() for tab in (noise, cube)] == ["place_in_tree", "folder_1"]
    assert [tab.tab.locator("#groups-title").inner_text() for tab in (noise, cube)] == [
        "Tree, map and affinities of x",
        "How slices of sensor group",
    ]
    assert "their groups mean nothing" in noise.tab.locator("#groups-note").inner_text()
    assert "their groups mean nothing" not in cube.tab.locator("#groups-note").inner_text()
    assert not re.search(r"\bgroup\b", noise.tab.locator("#contents").inner_text())


def test_groups_and_small_shares_are_said_as_people_do(runs, monkeypatch):
    run = runs["cube"]
    monkeypatch.setitem(
        run.__dict__,
        "measures",
        attr_tree({**dict(run.measures), "effort": {"found": 0.004, "noise": 1.0}}, "measure"),
    )
    told = [answer.text for answer in array_answers(run)]
    assert "need less than 1 % of the Haar coefficients" in told[0]
    assert re.search(r"groups at the coarsest level, of [\d, ]+ and \d+", " ".join(told[1:4]))


def test_every_section_is_explained(page):
    cube = page("cube", "#i=1")
    assert cube.without_why() == []
    marks = cube.tab.locator("main h2 .why, .section-head .why")
    assert "undefined" not in " ".join(mark.get_attribute("aria-label") for mark in marks.all())


def test_nothing_is_called_a_head(page):
    for name in ("matrix", "cube", "many"):
        for axis in range(2):
            tab = page(name, f"#i={axis}&s=1").tab
            assert not re.search(r"\bheads?\b", tab.locator("body").inner_text(), re.IGNORECASE)


def test_an_axis_is_chosen_and_its_slices_are_seen(page, runs):
    cube = page("cube")
    values = np.asarray(runs["cube"].array)
    cube.tab.select_option("#input", "1")
    cube.settled()
    assert cube.tab.locator("#heads-title").inner_text() == "Slices of time"
    cube.select(4)
    assert cube.tab.locator("#selection").inner_text() == "1 slice selected: 4"
    cube.drawn("as-is-a")
    text = cube.hover_at("as-is-a", cube.cell_place("as-is-a", 3, 7))
    assert "sensor 3" in text
    assert "trial 7" in text
    assert float(re.search(r"-?[\d.]+", text)[0]) == pytest.approx(
        values[3, 4, 7], abs=np.abs(values[:, 4]).max() / 60
    )
    org = runs["cube"].organization[0]
    cube.drawn("organized-a")
    text = cube.hover_at("organized-a", cube.cell_place("organized-a", 2, 5))
    assert f"sensor {org.order('sensor')[2]}" in text
    assert f"trial {org.order('trial')[5]}" in text
    cube.select(6, shift=True)
    assert cube.tab.locator("#difference-title").inner_text() == "time 4 − time 6"
    cube.tab.go_back()
    cube.tab.go_back()
    cube.tab.go_back()
    cube.settled()
    assert cube.tab.locator("#heads-title").inner_text() == "Slices of sensor"


def test_trees_and_affinities_of_every_axis(page, runs):
    cube, org = page("cube"), runs["cube"].organization[0]
    for axis, name in enumerate(org.names):
        cube.tab.select_option("#input", str(axis))
        cube.settled()
        cube.groups()
        assert cube.tab.locator("#tree h3").inner_text() == f"Tree of slices: {name}"
        assert cube.js("() => Array.from(HT.network.tree().order)") == org.order(axis).tolist()
        assert cube.tab.locator("#tree-plot [data-name]").count() == org.shape[axis]
        text = cube.hover_at("affinity", cube.js("() => HT.views.affinity.place(1, 3)"))
        assert text.startswith("1 and 3\naffinity")
        cube.click_at("affinity", cube.js("() => HT.views.affinity.place(1, 3)"))
        assert cube.state("selected") == [1, 3]
        cube.drawn("tree")
        cube.click_at("tree", cube.js("head => HT.views.tree.placeOfHead(head)", 2))
        cube.drawn("map")
        cube.click_at("map", cube.js("() => HT.views.map.place(0)"), shift=True)
        assert cube.state("selected") == [2, 0]


def test_a_group_in_the_findings_chooses_its_axis_and_slices(page, runs):
    cube = page("cube")
    cube.tab.locator("#answers [data-about=trial] button").first.click()
    cube.settled()
    tree = runs["cube"].organization[0].trees["trial"]
    labels = next(own for own in tree.labels if len(set(own.tolist())) > 1)
    largest = max((np.flatnonzero(labels == label).tolist() for label in set(labels.tolist())), key=len)
    assert (cube.state("input"), sorted(cube.state("selected"))) == (2, largest)


def test_slices_of_a_matrix_are_its_rows_and_columns(page, runs):
    matrix = page("matrix")
    assert matrix.tab.locator("#grid-slot").is_hidden()
    matrix.drawn("tree")
    matrix.click_at("tree", matrix.js("head => HT.views.tree.placeOfHead(head)", 5))
    matrix.drawn("as-is-a")
    assert matrix.tab.locator("#as-is-a-plot .chosen-line").count() == 1
    assert matrix.hover_at("as-is-a", matrix.cell_place("as-is-a", 2, 4)).startswith("missing\ngene 2\ncell 4")
    rows = matrix.tab.locator("#organized-a-plot .row-label").all_text_contents()
    assert rows == [str(i) for i in runs["matrix"].organization[0].order("gene")]
    columns = matrix.tab.locator("#organized-a-plot .column-label").all_text_contents()
    assert columns == [str(i) for i in runs["matrix"].organization[0].order("cell")]


def test_of_more_axes_the_mean_is_shown_and_said(page, runs):
    many = page("many", "#i=2&s=3")
    assert "b down, d across, the mean over a" in many.tab.locator("#grid .sentence").inner_text()
    values = np.asarray(runs["many"].array)[:, :, 3].mean(axis=0)
    many.drawn("as-is-a")
    text = many.hover_at("as-is-a", many.cell_place("as-is-a", 1, 6))
    assert float(re.search(r"-?[\d.]+", text)[0]) == pytest.approx(values[1, 6], abs=0.06)  # three digits are shown


def test_slices_are_found_sorted_and_filtered(page):
    cube = page("cube", "#i=1")
    cube.tab.keyboard.press("/")
    cube.tab.keyboard.type("3, 5")
    cube.settled()
    assert cube.tab.locator("#found").inner_text() == "2 of 12 slices"
    cube.tab.keyboard.press("Enter")
    assert cube.state("selected") == [3, 5]
    cube.tab.fill("#search", "nonsense")
    assert cube.tab.locator("#found").inner_text().startswith("Nothing is called")
    cube.tab.fill("#search", "")
    cube.js("() => document.getElementById('table').scrollIntoView()")
    cube.settled()
    cube.tab.locator("table.heads").get_by_role("button", name="place in tree", exact=True).click()
    cube.settled()
    assert cube.tab.locator("th[aria-sort=descending]").count() == 1


def test_a_large_array_keeps_to_the_budget_and_says_so(runs):
    whole = array_data(runs["cube"], 10_000_000)
    small = array_data(runs["cube"], sum(map(len, whole.values())) - 3000)
    assert sum(map(len, small.values())) <= sum(map(len, whole.values())) - 3000
    assert "averaged over boxes of 2 × 2" in unpacked(small["core"])["left_out"][0]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_barrier(browser, opened, scheme):
    context = browser.new_context(viewport=SIZE, color_scheme=scheme)
    for name in ("cube", "matrix"):
        page = Driver(context, opened[name].path, "#i=1&s=2.3")
        page.groups()
        assert page.barriers() == []
    context.close()


def test_show_and_the_run_itself(runs):
    assert "headtree-page" in ht.show(runs["cube"], height=300)._repr_html_()
