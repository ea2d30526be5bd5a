"""How objects show themselves in a notebook."""

import base64
import io
import re

import numpy as np
import pytest
from PIL import Image

import headtree as ht
from headtree import _notebook
from tests.measures.examples import families
from tests.runs.examples import small_run


def pictures(text):
    found = re.findall(r'src="data:image/png;base64,([^"]+)"', text)
    return [np.asarray(Image.open(io.BytesIO(base64.b64decode(content)))) for content in found]


def test_png_is_what_was_painted():
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3)).astype(np.uint8)
    np.testing.assert_array_equal(Image.open(io.BytesIO(_notebook.png(pixels))), pixels)


def test_tensors_show_their_heads(tmp_path):
    att = families(0)
    text = att._repr_html_()
    assert "20 heads in 4 layers" in text
    assert len(pictures(text)) == 12
    assert "L3H4" in text
    att.save(tmp_path / "a.zarr")
    assert pictures(ht.AttentionTensor.open(tmp_path / "a.zarr")._repr_html_())[0].shape == (18, 14, 3)


def test_missing_entries_are_grey():
    att = ht.AttentionTensor.from_array(np.arange(8.0).reshape(2, 2, 2), mask=[[False, True], [False, False]])
    assert pictures(att._repr_html_())[0][0, 1].tolist() == [200, 200, 200]


def test_trees_and_organizations_show_themselves():
    org = ht.organize(families(0), ht.Questionnaire(n_iter=1))
    assert "leaves" in org.trees.head._repr_html_()
    assert pictures(org.trees.head._repr_html_())[0].shape[0] == org.trees.head.n_levels
    text = org._repr_html_()
    assert len(pictures(text)) == 6
    assert "Organization of 20 head" in text
    assert "<" not in re.sub(r"<[^<>]*>", "", text)


def test_runs_show_their_heads(tmp_path):
    run = small_run(tmp_path / "<b>run", 2)
    text = run._repr_html_()
    assert "&lt;b&gt;run" in text
    assert "<b>" not in text
    assert pictures(text)[0].shape == (4, 5, 3)


def test_texts_are_escaped_and_cut():
    text = _notebook.panel("<script>" + "x" * 1000, ["\ud800 \" & '"])
    assert "<script" not in text
    assert len(text) < 900
    text.encode()


@pytest.mark.parametrize(
    "values", [np.full((2, 2), np.nan), np.zeros((1, 1)), np.array([[np.inf, -1e300], [1, 0]])]
)
def test_any_matrix_has_a_picture(values):
    assert len(pictures(_notebook.heatmap(np.array(values), ""))) == 1


def test_large_matrices_are_thinned():
    assert max(pictures(_notebook.heatmap(np.zeros((5000, 300)), ""))[0].shape) <= 160
