"""Figures, words and page of a comparison."""

from html.parser import HTMLParser

import matplotlib.pyplot as plt
import numpy as np
import pytest

import headtree as ht
from headtree.comparison.family_changes import FamilyChange
from headtree.report.comparison_page import page_of
from headtree.report.figures.comparison_figures import aligned_maps, comparison_figures, comparison_moved
from headtree.report.words.comparison_words import change_sentence, event_words, pair_sentence
from tests.comparison.networks import compare_profiles, profile, tensors, weights

HOSTILE = "<script>alert(1)</script>\"'&\u202e$x^2$"
FAMILIES = [0, 0, 0, 1, 1, 1, -1, -1, -1]


@pytest.fixture(scope="module")
def story():
    """Three checkpoints of one network, and families of which one dissolves and another appears."""
    strengths = {HOSTILE: 0.2, "middle": 1.0, "trained": 1.5}
    families = [FAMILIES, FAMILIES[::-1], [-1] * 9]
    profiles = [
        profile(tensors(weights(0, strength), range(4)), name, family)
        for (name, strength), family in zip(strengths.items(), families, strict=True)
    ]
    return compare_profiles(profiles, 99, 0)


@pytest.fixture(scope="module")
def unlike():
    """Two networks with other heads and tokens, one of them on a single input."""
    return compare_profiles(
        [
            profile(tensors(weights(0), range(4)), "small"),
            profile(tensors(weights(1, n_layers=4), [9], n_tokens=7), "large"),
        ],
        99,
        0,
    )


class Tags(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.text = set(), set(), ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        self.attributes |= {(tag, name) for name, _ in attributes}

    def handle_data(self, data):
        self.text += data


def test_the_page_has_no_scripts_and_hostile_names_stay_text(story):
    page = page_of(story)
    found = Tags(page)
    assert "script" not in found.tags
    assert not any(name.startswith("on") or name == "href" for _, name in found.attributes)
    assert "default-src 'none'" in page
    assert "<script>alert(1)</script>" in found.text  # as text
    assert "\u202e" not in page
    assert "http" not in page.replace("http-equiv", "")  # figures are encoded


def test_the_page_says_what_changed(story):
    text = Tags(page_of(story)).text
    for words in ("What changed", "Heads from middle to trained", "family 0 dissolves", "distance to itself"):
        assert words in text


def test_the_page_of_unlike_networks(unlike):
    text = Tags(page_of(unlike)).text
    assert "large is a run of one input" in text
    assert "nobody can say what of it inputs explain" in text
    assert "What changed" not in text


def test_pages_are_the_same_every_time(unlike, tmp_path):
    first, second = (ht.write_comparison(unlike, tmp_path / f"{i}.html").read_bytes() for i in range(2))
    assert first == second


def test_bad_input_of_the_page(unlike, tmp_path):
    with pytest.raises(TypeError, match=r"pass what ht\.compare"):
        ht.write_comparison("runs/x", tmp_path / "x.html")
    with pytest.raises(ht.HeadtreeError, match="is a folder"):
        ht.write_comparison(unlike, tmp_path)


def test_every_figure_is_drawn_without_pyplot(story, unlike):
    assert list(comparison_figures(story)) == ["story", "moved", "matrix", "aspects", "maps", "curves"]
    assert list(comparison_figures(unlike)) == ["matrix", "aspects", "maps", "curves"]
    assert plt.get_fignums() == []
    with pytest.raises(ht.HeadtreeError, match="different heads"):
        comparison_moved(unlike)


def test_maps_are_turned_to_match(story):
    """Turning cannot change a map; heads of the same name are nearer than without it."""
    points = aligned_maps(story)
    distance = story.profiles[1].distance.mean(axis=0)
    alone = aligned_maps(compare_profiles([story.profiles[1], story.profiles[0]], 1, 0))[0]
    assert np.linalg.norm(points[1], axis=1) == pytest.approx(np.linalg.norm(alone, axis=1))
    assert points[1].shape == (len(distance), 3)
    assert np.linalg.norm(points[1] - points[0]) <= np.linalg.norm(alone - points[0]) + 1e-9


def test_sentences(story, unlike):
    said = pair_sentence(story, 0, 2)
    assert said.startswith(f"{HOSTILE} and trained: the geometry of heads differs by 0.")
    assert "more than two sets of inputs of one network" in said
    assert "no interval" in pair_sentence(unlike, 0, 1)
    assert "of 9 heads moved farther than inputs explain" in change_sentence(story, story.changes[0])


def test_events_in_words():
    assert event_words(FamilyChange("merges", (0, 1), (2,), 1)) == "families 0 and 1 merge into 2 (1 head)"
    assert event_words(FamilyChange("dissolves", (3,), (), 0)) == "family 3 dissolves"
    assert event_words(FamilyChange("continues", (3,), (1,), 4)) == "family 3 continues as 1 (4 heads)"
