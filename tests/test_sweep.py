"""The sweep of model families: its rows, its workers and its page; `make sweep` runs it as a whole."""

import contextlib
import os
import time

import pytest
import torch

import headtree as ht
from tools.sweep import families
from tools.sweep.measure import measured
from tools.sweep.page import page, summary
from tools.sweep.tiny_settings import tiny_settings
from tools.sweep.workers import guarded


def test_a_family_of_the_tests_and_one_that_is_made_small_agree():
    for name, heads in (("gpt2", 12), ("electra", 16)):
        row = measured(name)
        assert row["outcome"] == "agrees"
        assert row["shape"] == f"{heads}×12×12"
        assert row["own"] == "outputs"
        assert max(row["probs"], row["scores"]) < 1e-5
        assert (row["weights"], row["residual"], row["unchanged"]) == ("yes", "yes", "yes")
        assert row["ablated"] == "yes"


def test_every_part_is_compared():
    row = measured("marian")
    assert row["parts"] == "encoder, decoder, cross"
    assert row["shape"] == "16×12×12; 16×7×7; 16×7×12"
    assert row["outcome"] == "agrees"


def test_what_cannot_be_captured_is_told_from_what_has_no_attention():
    assert measured("swin")["outcome"] == "refused"
    assert "windows" in measured("swin")["why"]
    assert measured("resnet")["outcome"] == "no attention"
    assert measured("timm_backbone")["outcome"] == "cannot be built here"


def test_agreement_of_uniform_attention_does_not_count():
    row = measured("xcodec")  # its tiny model has one query and one key
    assert (row["probs"], row["outcome"]) == (0, "not compared")
    assert "uniform" in row["why"]


@pytest.mark.parametrize("kind", ["probs", "scores"])
def test_a_wrong_capture_is_reported(monkeypatch, kind):
    right = ht.ModelView.capture

    def wrong(view, **options):
        atts = right(view, **options)
        if options["kind"] == kind:
            for att in atts:
                att.values[3] = att.values[2].clone()  # one head in the place of another
        return atts

    monkeypatch.setattr(ht.ModelView, "capture", wrong)
    row = measured("electra")
    assert row["outcome"] == "differs"
    assert row[kind] > 1e-2


def test_a_capture_that_changes_the_model_is_reported(monkeypatch):
    right = ht.ModelView.capture

    def careless(view, **options):
        view.model.register_forward_hook(lambda module, args, output: None)
        return right(view, **options)

    monkeypatch.setattr(ht.ModelView, "capture", careless)
    assert measured("electra")["unchanged"] == "no: modules"


def test_a_use_that_fails_is_not_taken_for_a_refusal(monkeypatch):
    def refuse(view, **options):
        raise ht.HeadtreeError("no")

    def fail(view, **options):
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(ht.ModelView, "weights", refuse)
    monkeypatch.setattr(ht.ModelView, "residual", fail)
    row = measured("electra")
    assert (row["outcome"], row["weights"], row["residual"]) == ("agrees", "refused", "fails")
    assert row["why"] == "residual: ZeroDivisionError: division by zero"


def test_an_ablation_without_effect_is_told_from_one_that_lasts(monkeypatch):
    monkeypatch.setattr(ht.ModelView, "ablated", lambda view, heads, part: contextlib.nullcontext())
    assert measured("electra")["ablated"] == "no effect"

    def lasting(view, heads, part):
        with torch.no_grad():
            view.model.encoder.layer[0].attention.output.dense.weight.zero_()
        return contextlib.nullcontext()

    monkeypatch.setattr(ht.ModelView, "ablated", lasting)
    row = measured("electra")
    assert (row["ablated"], row["why"]) == (
        "fails",
        "ablated: RuntimeError: the output is another one after the block",
    )


def behaves(name):
    if name == "dies":
        os._exit(3)
    if name == "sleeps":
        time.sleep(100)
    if name == "raises":
        raise RuntimeError("oh")
    return {"family": name, "outcome": "agrees", "why": ""}


def test_no_family_stops_the_others():
    rows = guarded(behaves, ["one", "dies", "sleeps", "raises", "two"], n_workers=2, limit=2)
    found = {row["family"]: (row["outcome"], row["why"]) for row in rows}
    assert found == {
        "one": ("agrees", ""),
        "two": ("agrees", ""),
        "raises": ("fails", "RuntimeError: oh"),
        "dies": ("fails", "the process ended with exit code 3"),
        "sleeps": ("fails", "takes too long"),
    }


def test_small_settings_reach_inner_configurations():
    from transformers import CLIPConfig

    settings = tiny_settings(CLIPConfig, text_config={"hidden_size": 40})
    assert settings["projection_dim"] == 32
    assert settings["vision_config"]["hidden_size"] == 32
    assert settings["text_config"]["hidden_size"] == 40
    assert settings["text_config"]["vocab_size"] == 64


def test_families_of_the_tests_are_not_written_twice():
    from tests.models import zoo

    assert families.case("bert") is zoo.ALL["bert"]
    assert families.case("deberta-v2") is zoo.ALL["deberta_v2"]
    assert len(families.names()) > 122


def test_the_page_counts_and_lists():
    rows = [
        {"family": "b", "class": "B", "outcome": "agrees", "why": "", "probs": 3e-7, "scores": "refused"},
        {"family": "a", "class": "A", "outcome": "refused", "why": "x | y"},
        {"family": "c", "outcome": "no attention", "why": ""},
        {"family": "d", "outcome": "cannot be built here", "why": "no"},
    ]
    text = page(rows, 90, 2, "2026-01-01")
    assert "| agrees | 1 |" in text
    assert "in 2 model families" in text
    assert text.index("| a | A |") < text.index("| b | B |")
    assert "refused: x \\| y" in text
    assert "| 3e-07 | refused | agrees |" in text
    assert "| d | no |" in text
    assert summary(rows) == "1 agrees, 1 refused, 1 no attention, 1 cannot be built here"
