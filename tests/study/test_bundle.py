"""Bundles: made from a training, loaded again, and the ones that come with headtree."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import headtree as ht
from headtree.models.bundled import bundle as load
from headtree.models.bundled.word_tokenizer import END
from headtree.study.training.datasets import ImageData, numbered_text, read_cifar10, read_wikitext
from headtree.study.training.export import export, main, read_about
from headtree.study.training.make_bundle import (
    _passages,
    _pictures,
    _plain,
    bundle,
    passage_perplexity,
    plain_paragraphs,
    predicted_labels,
    renew_samples,
    write_card,
)
from headtree.study.training.train import train

BUNDLED = load.networks_folder()


@pytest.fixture(scope="module")
def made(corpus, cifar, tiny_txl, tiny_vit, tmp_path_factory) -> Path:
    """Bundles of two tiny trainings."""
    folder = tmp_path_factory.mktemp("made")
    for network, settings, source, read in (
        ("txl", tiny_txl, corpus, read_wikitext),
        ("vit", tiny_vit, cifar, read_cifar10),
    ):
        run = train(network, settings, data=source, output=folder / "runs" / network, device="cpu")
        bundle(export(run.folder, folder / "exported" / network), read(source), folder)
    write_card(folder)
    return folder


def test_a_made_bundle_gives_what_its_card_says(made):
    txl, vit = (ht.load_bundled(name, folder=made) for name in ("txl", "vit"))
    assert passage_perplexity(txl, 3) == pytest.approx(txl.card["passage_perplexities"][3], rel=1e-3)
    assert predicted_labels(vit) == vit.card["predicted_labels"]
    assert txl.tokenizer.convert_ids_to_tokens(txl.inputs[0]["input_ids"][0].tolist()) == list(txl.tokens[0])
    assert vit.images.dtype == torch.uint8
    text = (made / "README.md").read_text()
    assert "not reached" in text
    assert "from uniform attention" in text


def test_samples_can_be_made_again_without_training(made, corpus, cifar):
    before = {path: path.read_bytes() for path in made.glob("[tv]*/*")}
    assert before
    for data in (read_wikitext(corpus), read_cifar10(cifar)):
        home = renew_samples(data, made)
        assert {path: path.read_bytes() for path in home.iterdir()} == {
            path: content for path, content in before.items() if path.parent == home
        }


def test_passages_are_spread_over_the_text_and_do_not_overlap():
    # a line of ten words each, so that a passage is known by its first word
    words = [word for i in range(2000) for word in (f"w{i}", *["x"] * 9, END)]
    data = numbered_text(words, words, words)
    passages = _passages(data)
    assert passages.shape == (40, 256)
    firsts = [int(data.tokenizer.words[int(passage[0])][1:]) for passage in passages]
    assert firsts[:3] == [1, 200, 400]  # the first ten are a tenth of the text apart
    assert (np.diff(sorted(firsts)) * 11 >= 256).all()
    assert sorted(firsts)[:5] == [1, 50, 100, 150, 200]


def test_pictures_are_the_first_of_every_class_in_turn():
    labels = torch.tensor([2, 0, 1] * 20)
    images = torch.zeros(60, 3, 32, 32, dtype=torch.uint8)
    data = ImageData(images, labels, images, labels, classes=("a", "b", "c"))
    assert _pictures(data)[:6].tolist() == [1, 2, 0, 4, 5, 3]


def test_a_line_of_wikitext_is_written_as_usual():
    line = " The \" big \" one ( 1 @.@ 5 km ) , Stevens ' s , isn 't : a two @-@ hour 7 – 6 win for $ 3 . "
    assert _plain(line) == "The \"big\" one (1.5 km), Stevens' s, isn't: a two-hour 7–6 win for $3."
    words = [*["known"] * 80, END, *["known"] * 10, END, *["known"] * 80, "<unk>", END]
    assert plain_paragraphs(numbered_text(words, words, words)) == " ".join(["known"] * 80) + "\n"


def test_every_stage_of_a_made_bundle_loads_and_is_another(made):
    ids = ht.load_bundled("txl", folder=made).inputs[0]
    logits = [ht.load_bundled("txl", stage, folder=made).model(**ids).logits.detach() for stage in load.STAGES]
    gaps = [float((a - logits[-1]).abs().max()) for a in logits]
    assert all(gap > 0 for gap in gaps[:-1])
    assert gaps[-1] == 0


def test_a_training_can_be_exported_while_it_goes_on(corpus, tiny_txl, tmp_path, capsys):
    options = {"data": corpus, "output": tmp_path / "run", "device": "cpu"}
    with pytest.raises(ht.HeadtreeError, match="no checkpoint"):
        export(tmp_path / "run", tmp_path / "out")
    train("txl", tiny_txl, **options, stop_after=4)
    main([str(tmp_path / "run"), str(tmp_path / "out")])
    assert "step 4 of 8" in capsys.readouterr().out
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "weights.safetensors",
        "early.safetensors",
        "middle.safetensors",
    }
    assert len(read_about(tmp_path / "out")["history"]) == 3
    with pytest.raises(ht.HeadtreeError, match="stopped at step 4 of 8"):
        bundle(tmp_path / "out", read_wikitext(corpus), tmp_path)
    with pytest.raises(ht.HeadtreeError, match="export the run"):
        read_about(tmp_path)


def test_eight_bits_keep_every_row_to_half_a_step():
    weights = {"a": torch.randn(6, 5), "b": torch.randn(4), "c": torch.randn(3, 2, 2)}
    again = load.unpacked(load.packed(weights, 8))
    for name in ("a", "c"):
        step = weights[name].flatten(1).abs().amax(dim=1) / 127
        error = (again[name] - weights[name]).flatten(1).abs().amax(dim=1)
        assert (error <= 0.501 * step).all()
    assert torch.allclose(again["b"], weights["b"], atol=1e-2)


def test_unknown_names_and_missing_files_are_explained(tmp_path):
    with pytest.raises(ht.HeadtreeError, match="name must be one of 'txl', 'vit'"):
        ht.load_bundled("gpt")
    with pytest.raises(ht.HeadtreeError, match="stage must be one of"):
        ht.load_bundled("txl", "final")
    with pytest.raises(ht.HeadtreeError, match="cannot be read"):
        ht.load_bundled("txl", folder=tmp_path)


def test_bundled_txl_reproduces_its_perplexity():
    network = ht.load_bundled("txl")
    assert passage_perplexity(network, 0) == pytest.approx(network.card["passage_perplexities"][0], rel=1e-3)


def test_bundled_vit_names_the_images_as_its_card_says():
    network = ht.load_bundled("vit")
    assert predicted_labels(network) == network.card["predicted_labels"]


@pytest.mark.parametrize(("name", "shape"), [("txl", (128, 256, 256)), ("vit", (144, 197, 197))])
def test_bundled_networks_have_the_papers_shapes(name, shape):
    network = ht.load_bundled(name)
    (att,) = ht.capture(network.model, inputs=[network.inputs[1]], kind="probs", tokenizer=network.tokenizer)
    assert att.shape == shape
    assert np.allclose(att.block().sum(dim=-1), 1, atol=1e-4)
    if name == "txl":
        assert att.queries == network.tokens[1]
        assert np.array_equal(np.asarray(att.mask)[0], np.triu(np.ones((256, 256), dtype=bool), 1))


@pytest.mark.parametrize("name", ["txl", "vit"])
def test_bundled_networks_load_in_a_second(name):
    ht.load_bundled(name)  # imports
    spent = []
    for _ in range(3):  # the best of three: other work on the machine is not the loader's
        start = time.perf_counter()
        ht.load_bundled(name)
        spent.append(time.perf_counter() - start)
    assert min(spent) < 1


def test_bundled_networks_are_small_and_their_structure_is_learned():
    sizes = {path: path.stat().st_size for path in BUNDLED.rglob("*.safetensors")}
    trained = sum(size for path, size in sizes.items() if path.name == "weights.safetensors")
    assert trained < 25e6
    assert sum(sizes.values()) < 60e6
    for name in ("txl", "vit"):
        found = json.loads((BUNDLED / name / "card.json").read_text())["structure"]
        assert found["from_uniform"] > 2 * found["from_uniform_untrained"]
        assert found["from_each_other"] > 2 * found["from_each_other_untrained"]
