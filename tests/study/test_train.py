"""Training learns, resumes exactly, survives interruptions, and refuses what cannot work."""

from __future__ import annotations

import json
import math
import shutil
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from typer import Typer
from typer.testing import CliRunner

import headtree as ht
from headtree.cli import study_commands as cli
from headtree.study.training import checkpoint as disk
from headtree.study.training import datasets as data
from headtree.study.training import training_config as settings
from headtree.study.training.train import learning_rate, operations, train
from headtree.study.training.training_config import TXL_PAPER, TXL_SMALL, VIT_SMALL, Training


def unigram_entropy(folder) -> float:
    counts = Counter(
        word for line in (folder / "train.txt").read_text().splitlines() for word in [*line.split(), ""]
    )
    shares = np.array(list(counts.values())) / counts.total()
    return float(-(shares * np.log(shares)).sum())


def test_a_tiny_run_learns_far_more_than_frequencies(corpus, tiny_txl, tmp_path):
    settings = replace(tiny_txl, steps=250, batch=8, context=32, evaluations=2, learning_rate=1e-2)
    run = train("txl", settings, data=corpus, output=tmp_path / "run", device="cpu")
    assert run.history[-1]["valid_loss"] < 0.5 * unigram_entropy(corpus)
    assert run.test["perplexity"] == pytest.approx(math.exp(run.test["loss"]))
    assert run.history[-1]["mixed_difference"] > 2 * run.history[0]["mixed_difference"]


def test_a_tiny_vit_learns(cifar, tiny_vit, tmp_path):
    settings = replace(tiny_vit, steps=60, augment=0.0, mix=0.0, batch=20, learning_rate=1e-2, label_smoothing=0.0)
    run = train("vit", settings, data=cifar, output=tmp_path / "run", device="cpu")
    assert run.history[-1]["train_loss"] < 0.5 * math.log(10)


@pytest.mark.parametrize("network", ["txl", "vit"])
def test_resume_continues_exactly(network, corpus, cifar, tiny_txl, tiny_vit, tmp_path):
    settings, folder = (tiny_txl, corpus) if network == "txl" else (tiny_vit, cifar)
    whole = train(network, settings, data=folder, output=tmp_path / "whole", device="cpu")
    stop = settings.steps // 2
    halted = train(network, settings, data=folder, output=tmp_path / "parts", device="cpu", stop_after=stop)
    assert (halted.step, halted.test) == (stop, None)
    torch.rand(5)  # what others draw in between changes nothing
    resumed = train(network, settings, data=folder, output=tmp_path / "parts", device="cpu", resume=True)

    def rows(run):
        return [{name: value for name, value in row.items() if name != "seconds"} for row in run.history]

    assert rows(resumed) == rows(whole)  # bit for bit
    assert resumed.test == whole.test
    paths = [list(disk.checkpoints(tmp_path / name).values())[-1] for name in ("whole", "parts")]
    for name in ("weights.safetensors", "state.safetensors"):
        ours, theirs = (load_file(path / name) for path in paths)
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[key], theirs[key]) for key in ours)


def test_training_leaves_the_global_generator_alone(corpus, tiny_txl, tmp_path):
    before = torch.get_rng_state()
    train("txl", replace(tiny_txl, steps=1), data=corpus, output=tmp_path / "run", device="cpu")
    assert torch.equal(before, torch.get_rng_state())


def test_checkpoints_of_the_stages_are_kept_and_the_others_not(corpus, tiny_txl, tmp_path):
    settings = replace(tiny_txl, evaluations=8)
    train("txl", settings, data=corpus, output=tmp_path / "run", device="cpu")
    assert list(disk.checkpoints(tmp_path / "run")) == [0, 2, 4, 6, 8]
    assert {path.name for path in (tmp_path / "run").iterdir() if not path.name.startswith("checkpoint")} == {
        "history.csv",
        "curve.svg",
        "result.json",
    }


@pytest.mark.parametrize("broken", ["save_file", "replace"])
def test_an_interrupted_save_leaves_the_old_checkpoint(broken, corpus, tiny_txl, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    train("txl", tiny_txl, data=corpus, output=folder, device="cpu", stop_after=2)
    before = disk.load(disk.checkpoints(folder)[2])

    def fail(*args, **kwargs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("safetensors.torch.save_file" if broken == "save_file" else "os.replace", fail)
        with pytest.raises(KeyboardInterrupt):
            train("txl", tiny_txl, data=corpus, output=folder, device="cpu", resume=True)
    assert list(disk.checkpoints(folder)) == [0, 2]
    assert not list(folder.glob(".*"))
    after = disk.load(disk.checkpoints(folder)[2])
    assert all(torch.equal(before.weights[key], after.weights[key]) for key in before.weights)
    assert train("txl", tiny_txl, data=corpus, output=folder, device="cpu", resume=True).step == 8


def test_a_checkpoint_without_all_its_files_is_none(tmp_path):
    (tmp_path / "checkpoint-0000005").mkdir()
    (tmp_path / "checkpoint-0000005" / "checkpoint.json").write_text("{}")
    assert disk.checkpoints(tmp_path) == {}


def test_bad_input_is_refused_and_nothing_lost(corpus, tiny_txl, tmp_path):
    def attempt(match, settings=tiny_txl, **options):
        options = {"data": corpus, "output": tmp_path / "run", "device": "cpu", **options}
        with pytest.raises(ht.HeadtreeError, match=match):
            train("txl", settings, **options)

    attempt("does not exist", data=tmp_path / "nowhere")
    attempt(r"no train\.txt", data=tmp_path)
    attempt("data must be given", data=None)
    attempt("no checkpoint to resume", resume=True)
    attempt("'small' or 'paper'", settings="huge")
    attempt("config must be", settings=3)
    attempt("is for the network", settings=VIT_SMALL)
    attempt("at least .* words", settings=replace(tiny_txl, batch=100_000))
    assert not (tmp_path / "run").exists()
    train("txl", tiny_txl, data=corpus, output=tmp_path / "run", device="cpu", stop_after=2)
    attempt("already holds a training")
    attempt("another configuration: learning_rate", settings=replace(tiny_txl, learning_rate=0.1), resume=True)
    attempt("another configuration: .*seed", seed=5, resume=True)
    (tmp_path / "run" / "checkpoint-0000002" / "weights.safetensors").write_bytes(b"torn")
    attempt("cannot be read .* remove that folder", resume=True)
    shutil.rmtree(tmp_path / "run" / "checkpoint-0000002")
    assert train("txl", tiny_txl, data=corpus, output=tmp_path / "run", device="cpu", resume=True).step == 8
    with pytest.raises(ht.HeadtreeError, match="network must be one of"):
        train("bert", output=tmp_path)


def test_a_loss_that_is_no_number_stops_with_the_checkpoint_kept(corpus, tiny_txl, tmp_path):
    settings = replace(tiny_txl, learning_rate=1e30, clip=1e30)
    with pytest.raises(ht.HeadtreeError, match="training loss is"):
        train("txl", settings, data=corpus, output=tmp_path / "run", device="cpu")
    assert 0 in disk.checkpoints(tmp_path / "run")


@pytest.mark.parametrize("network", ["txl", "vit"])
def test_paper_without_a_gpu_says_how_long_it_would_take(network, tmp_path):
    with pytest.raises(ht.HeadtreeError, match=r"needs a GPU.*(years|days|hours|minutes) at the .*measured"):
        train(network, "paper", output=tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()


def test_paper_is_the_papers(tmp_path):
    sizes = TXL_PAPER.sizes
    assert (sizes["n_layers"], sizes["n_heads"], sizes["width"], sizes["head_size"], sizes["inner"]) == (
        16,
        8,
        410,
        128,
        2048,
    )
    assert (TXL_PAPER.learning_rate, TXL_PAPER.context, sizes["memory"]) == (2.5e-4, 256, 150)
    assert operations(TXL_PAPER) > 100 * operations(TXL_SMALL) / 50


def test_operations_count_the_matrix_products(tiny_txl):
    one = operations(replace(tiny_txl, steps=1, sizes=TXL_SMALL.sizes, batch=1))
    layer = 5 * 128 * 128 + 2 * 128 * 512 + 3 * 128 * (16 + 150)
    assert one == 6 * 16 * (16 * layer + 33278 * 64)


def test_one_cycle_rises_and_falls():
    settings = Training("txl", steps=100, batch=1, learning_rate=2.0)
    rates = [learning_rate(settings, step) for step in range(101)]
    assert max(rates) == rates[10] == 2.0
    assert rates[:11] == sorted(rates[:11])
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[100] == pytest.approx(0)
    assert learning_rate(replace(settings, schedule="constant"), 77) == 2.0


def test_cifar_of_the_npm_package_is_read_row_by_row(tmp_path):
    image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(1)
    pictures = rng.integers(0, 256, (6, 2, 32, 32, 3), dtype=np.uint8)
    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    for name, rows in zip(names, pictures, strict=True):
        image.fromarray(rows.reshape(2, 1024, 3)).save(tmp_path / f"{name}.png")
    (tmp_path / "train_lables.json").write_text(json.dumps(list(range(10))))
    (tmp_path / "test_lables.json").write_text("[3, 4]")
    found = data.read_cifar10(tmp_path)
    assert found.images.shape == (10, 3, 32, 32)
    assert np.array_equal(found.images[3].permute(1, 2, 0), pictures[1, 1])
    assert found.test_labels.tolist() == [3, 4]


def test_pickled_cifar_is_not_read(tmp_path):
    (tmp_path / "test_batch").write_bytes(b"")
    with pytest.raises(ht.HeadtreeError, match="a pickle"):
        data.read_cifar10(tmp_path)


def test_words_are_numbered_by_frequency_and_unknown_ones_known_as_such(corpus):
    found = data.read_wikitext(corpus)
    assert found.tokenizer.words[0] == "the"
    ids = found.tokenizer("the platypus\nsees")["input_ids"]
    assert found.tokenizer.convert_ids_to_tokens(ids) == ["the", "<unk>", "<eos>", "sees"]
    assert int(found.train.max()) < len(found.tokenizer)


def test_the_command_trains_and_explains_itself(corpus, tiny_txl, tmp_path, monkeypatch):
    monkeypatch.setitem(settings.CONFIGS, ("txl", "small"), tiny_txl)
    app = Typer()
    app.command()(cli.train)
    folder = str(tmp_path / "run")
    arguments = ["txl", "--data", str(corpus), "--output", folder, "--device", "cpu"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "test perplexity" in result.output
    again = CliRunner().invoke(app, arguments)
    assert again.exit_code == 2
    assert "--resume" in again.output
