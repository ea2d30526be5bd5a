"""The section of a model, its figures, its columns, and the command."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from typer.testing import CliRunner

from headtree.cli.app import app
from headtree.depth.model_depth import measure_depth
from headtree.models.given_model import prepare
from headtree.report.figures.depth_figures import depth_residual, draw_depth
from headtree.report.words.depth_section import _fall_words, _size_words, depth_section
from headtree.section import Section, read_section
from tests.depth.conftest import X, network


@pytest.fixture(scope="module")
def content(tmp_path_factory):
    folder = tmp_path_factory.mktemp("depth") / "figures"
    found = measure_depth(prepare(network("pre"), inputs=X, kind="probs"))
    draw_depth(found, folder)
    return found, folder


def test_section_has_the_shape_that_pages_show(content):
    found, folder = content
    section = depth_section(found)
    assert Section.from_dict(json.loads(section.to_json())) == section
    assert [picture.file for picture in section.figures] == [
        "figures/depth_residual.svg",
        "figures/depth_paths.svg",
    ]
    assert all((folder.parent / picture.file).is_file() for picture in section.figures)
    assert "relative residual" in section.text[0]
    assert len(section.tables) == 3


def test_figures_are_svg_with_text_and_repeat(content, tmp_path):
    _, folder = content
    for name in ("depth_residual.svg", "depth_paths.svg"):
        text = (folder / name).read_text(encoding="utf-8")
        ET.fromstring(text)
        assert "path length" in text or "depth (layers)" in text
    draw_depth(measure_depth(prepare(network("pre"), inputs=X, kind="probs")), tmp_path)
    assert (tmp_path / "depth_paths.svg").read_bytes() == (folder / "depth_paths.svg").read_bytes()


@pytest.mark.parametrize(
    ("curve", "said"),
    [
        (
            [1.0, 0.9, 0.5, 0.05, 1e-4],
            "on average by 0.707 up to depth 2, and by 0.0141 from",
        ),
        ([1.0, 0.5, 0.25, 0.125, 0.1, 0.09], "does not accelerate, unlike in [RC]"),
        ([1.0, 0.1, 1e-3, 1e-8, 1e-8], "up to depth 1, and by 0.01 from there to depth 2: the decay accelerates"),
        ([1.0, 1e-2, 1e-7, 1e-7], "too few layers to see"),
        ([0.0, 0.0, 0.0], "too few layers to see"),
        ([1.0, np.nan, np.nan], "too few layers to see"),
    ],
)
def test_how_attention_alone_falls_is_said_from_the_numbers(curve, said):
    assert said in _fall_words(np.array(curve))


def test_sums_that_cancel_are_said_to():
    words = _size_words(np.array([0.9, 0.4, 0.1]))
    assert "No length has a sum larger than the output; the longest paths reach 0.1 of" in words
    words = _size_words(np.array([0.9, 5.0, 700.0, 30.0, 0.2]))
    assert "lengths 1 to 3 are larger than the output itself, up to 700 times at length 2, and cancel" in words
    assert "longest paths reach 0.2" in words


def test_published_values_are_open_marks_as_deep_as_the_network(content):
    found, _ = content
    axes = depth_residual(found.residual).axes[0]
    marks = [line for line in axes.lines if line.get_markerfacecolor() == "none" and len(line.get_xdata())]
    assert [list(line.get_xdata()) for line in marks] == [[0, 1, 2, 3]] * 3
    assert list(marks[0].get_ydata()) == [0.687, 0.676, 0.315, 0.139]


def test_columns_by_layer(content):
    found, _ = content
    layers = found.layer_table()
    assert list(layers["layer"]) == [0, 1, 2]
    np.testing.assert_allclose(layers["residual_as_is"], found.residual.trained[0].mean(axis=0)[1:])
    np.testing.assert_allclose(layers["residual_attention_alone_fresh"], found.residual.fresh[3].mean(axis=0)[1:])
    assert layers["short_path_share"].sum() == pytest.approx(found.paths.share[:, 1].mean(), abs=1e-5)


def test_a_model_without_paths_says_so(tmp_path):
    net = network("pre", 2)
    net[1].heads.register_forward_hook(lambda module, args, output: output.tanh())
    found = measure_depth(prepare(net, inputs=X, kind="probs"), fresh=False)
    draw_depth(found, tmp_path)
    assert found.paths is None
    assert "Paths were not measured: the layer of" in depth_section(found).text[-1]
    assert [picture.file for picture in depth_section(found).figures] == ["figures/depth_residual.svg"]
    assert not (tmp_path / "depth_paths.svg").exists()
    assert "short_path_share" not in found.layer_table()


def test_command_on_a_folder(tmp_path):
    pytest.importorskip("transformers")
    from tests.models import zoo

    model = zoo.ALL["bert"].build()
    model.save_pretrained(tmp_path / "model")
    _tokenizer().save_pretrained(tmp_path / "model")
    text = tmp_path / "text.txt"
    text.write_text(" ".join(f"w{i % 50}" for i in range(60)), encoding="utf-8")
    out = tmp_path / "out"
    options = ["--text", str(text), "--tokens", "16", "--inputs", "2", "-o", str(out)]
    result = CliRunner().invoke(app, ["depth", str(tmp_path / "model"), *options])
    assert result.exit_code == 0, result.output
    section = read_section(out / "sections" / "depth.json")
    assert section.text[0] in result.output
    assert (out / "layers.csv").read_text(encoding="utf-8").startswith("layer,residual_as_is,")
    assert (out / "paths.csv").is_file()
    assert (out / "residual.csv").is_file()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "name a model, or pass --tasks"),
        (["./no-such-model", "--text", "x.txt"], "no"),
        (["txl", "--inputs", "0"], "inputs must be at least 1"),
    ],
)
def test_bad_commands_are_one_line(arguments, said, tmp_path):
    result = CliRunner().invoke(app, ["depth", *arguments, "-o", str(tmp_path)])
    assert result.exit_code == 2
    assert said in result.output
    assert "Traceback" not in result.output


def _tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["[PAD]", "[UNK]", *[f"w{i}" for i in range(60)]]
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]", pad_token="[PAD]")
