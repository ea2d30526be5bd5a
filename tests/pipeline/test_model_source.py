import json

import pytest
import torch

import headtree as ht
from headtree.errors import HeadtreeError
from headtree.pipeline.make_run import make_run
from headtree.pipeline.model_source import ModelSource
from headtree.pipeline.sources import TensorSource
from headtree.pipeline.steps import too_few
from headtree.runs.folder import OtherSettingsError
from headtree.runs.record import signed
from tests.runs.examples import QUICK


def made(source, path):
    return make_run(source, path, measures=QUICK, draw=False)


pytestmark = pytest.mark.filterwarnings("ignore::headtree.HeadtreeWarning")


def test_a_text_is_cut_into_windows(folder, text, tmp_path):
    source = ModelSource(model=str(folder), text=text, inputs=3, tokens=12)
    run = made(source, tmp_path / "run")
    assert run.inputs == ("window 0", "window 1", "window 2")
    assert run.attention[1].queries[0] == "[CLS]"
    expected = ht.capture(folder, texts=[text.read_text()], tokens=12, batch_size=1)
    for i in range(3):
        torch.testing.assert_close(run.attention[i].load().values, expected[i].values, rtol=0, atol=0)
    assert len({item["sha256"] for item in run.record.inputs}) == 3
    assert run.info.model.weights_sha256
    assert run.settings.source.model == str(folder)
    with pytest.raises(OtherSettingsError, match=r"source\.tokens is 12 there and 13 here"):
        made(
            ModelSource(model=str(folder), text=text, inputs=3, tokens=13),
            tmp_path / "run",
        )
    again = tmp_path / "words.txt"
    again.write_text(text.read_text() + " w3")
    with pytest.raises(OtherSettingsError, match=r"source\.sha256"):
        made(
            ModelSource(model=str(folder), text=again, inputs=3, tokens=12),
            tmp_path / "run",
        )


def test_inputs_run_alone_unless_a_batch_size_is_given(folder, text, monkeypatch):
    from headtree.models.watching import collect

    batches = []
    run = collect.PreparedInputs._run_batch
    monkeypatch.setattr(
        collect.PreparedInputs,
        "_run_batch",
        lambda self, batch, on_call: batches.append(len(batch)) or run(self, batch, on_call),
    )
    given = {"model": str(folder), "text": text, "inputs": 5, "tokens": 12}
    alone, together = ModelSource(**given).begin(), ModelSource(**given, batch_size=2).begin()
    captured = {
        name: [att for batch in capture.batches() for att in capture.only(batch).tensors()]
        for name, capture in (("alone", alone), ("together", together))
    }
    for expected, found in zip(captured["alone"], captured["together"], strict=True):
        torch.testing.assert_close(found.values, expected.values, rtol=1e-5, atol=1e-6)
    assert sorted(batches) == [1] * 6 + [2] * 2
    last = ModelSource(**given, batch_size=2).begin()
    (again,) = (batch for batch in last.batches() if 3 in batch)
    first_of_batch = last.only(again).tensors()[0]  # in whatever order, as after a stop
    assert torch.equal(first_of_batch.values, captured["together"][again[0]].values)


def test_a_run_made_before_settings_were_renamed_says_so(folder, text, tmp_path):
    source = ModelSource(model=str(folder), text=text, inputs=2, tokens=12)
    path = made(source, tmp_path / "run").path / "run.json"
    record = json.loads(path.read_text())
    settings = record["settings"]["source"]
    settings["batches"] = settings.pop("inputs")
    path.write_text(json.dumps(signed(record)))
    with pytest.raises(OtherSettingsError, match=r"another version.*there: batches; only here: inputs.*--force"):
        made(source, tmp_path / "run")
    assert ht.open_run(tmp_path / "run").n_inputs == 2


def test_diagnostics_of_some_layers_are_those_of_the_whole_network(folder, text, tmp_path):
    given = {"model": str(folder), "text": text, "inputs": 2, "tokens": 12}
    whole = made(ModelSource(**given), tmp_path / "whole").heads.set_index("name")
    some = made(ModelSource(**given, layers=[1, 2], heads=[0, 3]), tmp_path / "some").heads.set_index("name")
    assert list(some.index) == ["L1H0", "L1H3", "L2H0", "L2H3"]
    for column in ("qk_rank", "ov_stable_rank", "qk_eigenvalue_mean"):
        assert some[column].tolist() == whole.loc[some.index, column].tolist()


def test_without_tokens_the_window_is_the_context_or_the_text(folder, text, tmp_path):
    whole = ModelSource(model=str(folder), text=text).begin()
    context = whole.prepared.items[0].length()
    assert context == 64
    assert len(whole.inputs) == 152 // 64 or len(whole.inputs) == 150 // 62
    short = tmp_path / "short.txt"
    short.write_text("w1 w2 w3")
    (item,) = ModelSource(model=str(folder), text=short).begin().prepared.items
    assert item.length() == 5
    with pytest.raises(HeadtreeError, match="is too short"):
        ModelSource(model=str(folder), text=short, tokens=12).begin()


def test_samples_are_cut_to_the_tokens_asked_for():
    whole = ht.load_bundled("txl").inputs
    ready = ModelSource(model="txl").begin()
    assert [item.length() for item in ready.prepared.items] == [64] * 20
    assert ready.notes == ()
    for tokens in (7, 256):
        ready = ModelSource(model="txl", inputs=2, tokens=tokens).begin()
        for item, expected in zip(ready.prepared.items, whole[:2], strict=True):
            assert torch.equal(item.kwargs["input_ids"], expected["input_ids"][:, :tokens])
    ready = ModelSource(model="txl", inputs=41, tokens=300).begin()
    assert [item.length() for item in ready.prepared.items] == [256] * 40
    assert ready.notes == (
        "40 inputs instead of 41: txl has no more samples",
        "256 tokens per input instead of 300: the samples of txl have no more",
    )


@pytest.mark.parametrize(("n", "few"), [(9, True), (10, False)])
def test_few_inputs_are_said_to_be_few(folder, text, n, few):
    said = (
        "9 inputs: fewer than 10 are too few for families of heads to replicate; the default of headtree run is "
        "--inputs 20"
    )
    ready = ModelSource(model=str(folder), text=text, inputs=n, tokens=8).begin()
    assert too_few(ready) == ((said,) if few else ())


def test_images_keep_their_names_and_small_pictures(vit_folder, pictures, tmp_path):
    run = made(
        ModelSource(model=str(vit_folder), images=pictures, kind="probs"),
        tmp_path / "r",
    )
    assert run.inputs == ("a.jpg", "b.png", "c.png")
    assert run.attention[0].queries[:2] == ("class", "r0c0")
    assert [path.name for path in run.samples] == [f"input_{i:05d}.png" for i in range(3)]
    from PIL import Image

    with Image.open(run.samples[2]) as image:
        assert image.size == (96, 48)


def test_a_run_of_value_weighted_attention_has_everything(vit_folder, pictures, tmp_path):
    source = ModelSource(model=str(vit_folder), images=pictures, kind="weighted", inputs=2)
    run = make_run(source, tmp_path / "r", measures=QUICK)
    assert run.kind == run.attention[0].kind == "weighted"
    expected = ht.capture(vit_folder, images=[str(pictures / "a.jpg")], kind="weighted")[0]
    torch.testing.assert_close(run.attention[0].load().values, expected.values)
    page = (tmp_path / "r" / "report.html").read_text(encoding="utf-8")
    assert "value-weighted attention" in page
    assert run.heads["shannon_entropy"].notna().all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "name a text file with --text or a folder with --images"),
        ({"text": "words", "images": "pictures"}, "not several of them"),
        ({"text": "words", "generate": 3}, "generate needs a text to go on from; give one with --prompt"),
        ({"prompts": ["w1 w2"], "generate": 3}, "has no head that predicts the next token"),
        ({"prompts": ["w1 w2"], "generate": 0}, "generate must be at least 1"),
        ({"prompts": ["w1 w2"], "tokens": 8}, "leave --tokens out with --prompt"),
        ({"text": "nothing.txt"}, "does not exist"),
        ({"text": "."}, "cannot be read"),
        ({"images": "nowhere"}, "is not a folder; check the path"),
        ({"images": "."}, "holds no images"),
        ({"text": "words", "inputs": 0}, "inputs must be at least 1"),
        ({"text": "words", "kind": "logits"}, "kind must be one of scores, probs, weighted"),
        ({"text": "latin.txt"}, "UTF-8"),
        ({"text": "empty.txt"}, "is empty"),
        ({"text": "words", "model": "no-such/model-here"}, "is not a local folder"),
    ],
)
def test_what_cannot_be_read_is_named(options, message, folder, text, pictures, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "latin.txt").write_bytes("é".encode("latin-1") * 3)
    (tmp_path / "empty.txt").write_text(" \n")
    places = {"words": text, "pictures": pictures}
    given = {
        key: places.get(value, tmp_path / value) if key in ("text", "images") else value
        for key, value in options.items()
    }
    with pytest.raises(HeadtreeError, match=message):
        made(ModelSource(**{"model": str(folder), **given}), tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_run_probes_and_hashes_its_model_once(folder, text, tmp_path, monkeypatch):
    from headtree.models import model_files as source
    from headtree.models import view

    calls = []
    for owner, name in ((view, "make_plan"), (source, "weights_hash")):
        function = getattr(owner, name)
        monkeypatch.setattr(
            owner, name, lambda *args, name=name, function=function: calls.append(name) or function(*args)
        )
    model = ModelSource(model=str(folder), text=text, inputs=2, tokens=12)
    make_run(model, tmp_path / "run", measures=QUICK, depth=True, draw=False)
    assert sorted(calls) == ["make_plan", "weights_hash"]


def test_a_folder_of_a_run_is_not_taken_for_a_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "txl").mkdir()
    (tmp_path / "txl" / "run.json").write_text("{}")
    source = ModelSource(model="txl")
    assert source.is_bundled
    assert source.settings["fingerprint"] is None
    (tmp_path / "txl" / "config.json").write_text("{}")
    assert not ModelSource(model="txl", text=tmp_path / "txl" / "config.json").is_bundled


@pytest.fixture(scope="module")
def writer(tmp_path_factory, tokenizer):
    """A folder with a small model that writes."""
    from tests.models.test_generation import headed

    path = tmp_path_factory.mktemp("models") / "writer"
    headed("gpt2").save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def test_a_run_of_what_a_model_writes_has_everything(writer, tmp_path):
    source = ModelSource(model=str(writer), prompts=["w1 w2 w3 w4", "w5 w6 w7 w8 w9"], generate=6)
    run = make_run(source, tmp_path / "run", measures=QUICK, draw=True, depth=True)
    first, second = run.attention
    assert first.shape == (12, 6, 12)
    assert second.shape == (12, 6, 13)
    assert run.record.notes[0].endswith("give --prompt again for each further input")
    assert first.queries == first.keys[6:]
    assert first.provenance["generated"]["prompt"] == "[CLS] w1 w2 w3 w4 [SEP]"
    assert len(first.provenance["generated"]["ids"]) == 6
    assert run.record.settings["source"]["generate"] == 6
    assert (tmp_path / "run" / "report.html").is_file()
    assert run.tables["heads"]["relevance"].notna().all()
    before = (tmp_path / "run" / "run.json").read_bytes()
    make_run(source, tmp_path / "run", measures=QUICK, draw=True, depth=True)
    assert (tmp_path / "run" / "run.json").read_bytes() == before


def test_prompts_alone_are_read(writer, tmp_path):
    run = make_run(
        ModelSource(model=str(writer), prompts=["w1 w2 w3 w4"]), tmp_path / "run", measures=QUICK, draw=False
    )
    assert run.attention[0].shape == (12, 6, 6)


def test_token_tensors_make_a_run_with_figures_and_a_page(writer, tmp_path):
    view = ht.ModelView(str(writer))
    tensors = view.token_tensor(texts=["w1 w2 w3 w4 w5 w6", "w5 w6 w7 w8 w9 w1"])
    for by in ("norm", "projection"):
        source = TensorSource([tensor.reduce(by) for tensor in tensors])
        run = make_run(source, tmp_path / by, measures=QUICK, draw=by == "norm")
        assert run.attention[0].shape == (3, 8, 8)
        assert run.attention[0].provenance["token_tensor"] == {"by": by}
    assert (tmp_path / "norm" / "report.html").is_file()
