"""Softmax ignores a constant added to a row of scores; so does everything that a run says about heads."""

import numpy as np
import pytest
import torch

import headtree as ht
from headtree.pipeline.make_run import make_run
from headtree.pipeline.model_source import ModelSource
from headtree.pipeline.sources import TensorSource
from headtree.report.page.page_data import page_data
from headtree.report.words.summary import in_words, summarized
from tests.models import zoo
from tests.report.test_page_data import unpacked
from tests.runs.examples import QUICK, tensors

N_INPUTS = 10  # enough for families
FEW = 4  # where families do not matter


def shifted(att, rng):
    """The same attention: every row of every head has another constant."""
    values = np.asarray(att.values, dtype=np.float64) + 20 * rng.standard_normal((*att.shape[:2], 1))
    return ht.AttentionTensor(values, att.heads, att.queries, att.keys, att.kind, att.mask)


def wide(att):
    """In float64, so that constants leave no rounding behind."""
    values = np.asarray(att.values, dtype=np.float64)
    return ht.AttentionTensor(values, att.heads, att.queries, att.keys, att.kind, att.mask)


@pytest.fixture(scope="module")
def pair():
    given = [wide(att) for att in tensors(N_INPUTS)]
    rng = np.random.default_rng(0)
    return given, [shifted(att, rng) for att in given]


@pytest.fixture(scope="module")
def runs(pair, tmp_path_factory):
    folder = tmp_path_factory.mktemp("gauge")
    return [
        make_run(TensorSource(atts), folder / name / "run", measures=QUICK, draw=False)
        for name, atts in zip(("given", "shifted"), pair, strict=True)
    ]


def assert_same_table(first, second, tolerance):
    assert list(first) == list(second)
    for name in first:
        if first[name].dtype.kind in "fiu":
            np.testing.assert_allclose(second[name], first[name], rtol=tolerance, atol=tolerance, err_msg=name)
        else:
            assert first[name].fillna("").tolist() == second[name].fillna("").tolist(), name


def test_tables_and_families_are_the_same(runs):
    assert_same_table(*(run.heads for run in runs), 1e-6)
    for kind, found in runs[0].similarities.items():
        assert found.tree == runs[1].similarities[kind].tree
        np.testing.assert_allclose(runs[1].similarities[kind].support, found.support, atol=1e-6)
    families = [run.consensus.families().of_leaf.tolist() for run in runs]
    assert families[0] == families[1]
    assert max(families[0]) >= 0


def test_the_summary_is_the_same(runs):
    first, second = (in_words(summarized(run)).replace(str(run.path), "") for run in runs)
    assert first == second


def same(a, b):
    """Whether two texts of a page are the same but for rounding."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    return a == (pytest.approx(b, rel=1e-6, abs=1e-9) if isinstance(b, float) else b)


def test_the_page_is_the_same(runs):
    parts = [{name: unpacked(part) for name, part in page_data(run, 8_000_000).parts.items()} for run in runs]
    first, second = parts
    assert list(first) == list(second)
    for name, (text, arrays) in first.items():
        other_text, other_arrays = second[name]
        for key, value in text.items():
            if key != "settings":  # these have the folder and the hashes of the inputs
                assert same(other_text[key], value), (name, key)
        for key, array in arrays.items():
            if array.dtype.kind == "u":  # codes in 8 bits, or differences of them: rounding moves each by one
                apart = (array.astype(int) - other_arrays[key].astype(int) + 128) % 256 - 128
                assert np.abs(apart).max(initial=0) <= 2, (name, key)
            else:
                np.testing.assert_allclose(other_arrays[key], array, rtol=1e-5, atol=1e-6, err_msg=f"{name} {key}")


def test_raw_scores_may_differ_and_say_so(pair, tmp_path):
    runs = [
        make_run(TensorSource(atts), tmp_path / f"{i}" / "run", measures=QUICK, draw=False, raw=True)
        for i, atts in enumerate((pair[0][:FEW], pair[1][:FEW]))
    ]
    assert not np.allclose(runs[0].heads["haar_entropy"], runs[1].heads["haar_entropy"], rtol=0.1)
    for run in runs:
        words = " ".join(in_words(summarized(run)).split())
        assert f"raw scores on {FEW} inputs" in words
        assert "energy of the raw scores" in words
        assert "on trees of raw scores" in words
        text, _ = unpacked(page_data(run, 8_000_000).parts["core"])
        assert text["values"] == "raw scores"
        assert [each["title"] for each in text["similarities"]] == ["looks alike", "questionnaire of raw scores"]
        assert any("Haar entropy of raw scores" in part for part in run.sections.diagnostics.text)
        assert set(run.heads["organized"]) == set(run.layers["organized"]) == {"raw scores"}
        for column in ("norm", "haar_entropy", "structure_rank"):
            assert "txl" not in text["glossary"][column]
            assert "how well it then ranks heads was not measured" in text["glossary"][column]
        assert "txl" in text["glossary"]["confidence"]
    looks = [run.consensus.families().of_leaf.tolist() for run in runs]
    assert looks[0] == looks[1]  # families do not look at raw scores


def with_key_biases(model, rng):
    """The same function: a bias b of the keys adds q·b, one number, to each row of scores."""
    with torch.no_grad():
        for block in model.transformer.h:
            width = block.attn.embed_dim
            block.attn.c_attn.bias[width : 2 * width] += torch.from_numpy(3 * rng.standard_normal(width)).float()
    return model


@pytest.mark.filterwarnings("ignore:4 inputs. fewer than 10:headtree.HeadtreeWarning")
def test_biases_of_keys_change_nothing_that_a_run_of_a_model_says(tokenizer, text, tmp_path):
    """All columns, those that need weights, gradients and ablation too, and what is said of them."""
    runs, scores = [], []
    for name in ("plain", "biased"):
        model = zoo.Case("GPT2LMHeadModel", "GPT2Config", zoo.ALL["gpt2"].settings).build()
        if name == "biased":
            model = with_key_biases(model, np.random.default_rng(0))
        folder = tmp_path / name / "model"
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        source = ModelSource(model=str(folder), text=text, inputs=FEW, tokens=12, kind="scores")
        run = make_run(source, tmp_path / name / "run", measures=QUICK, effects=True, draw=False)
        runs.append(run)
        scores.append(run.attention[0].block().numpy())
    assert np.abs(scores[0] - scores[1]).max() > 1
    first, second = (run.heads for run in runs)
    assert {"effect", "qk_stable_rank", "haar_entropy", "structure", "norm"} <= set(first)
    assert_same_table(first, second, 2e-3)
    words = [in_words(summarized(run)).replace(str(run.path), "").split("\n", 1)[1] for run in runs]
    assert words[0] == words[1]
