"""Bad input: an error that names the cause and the remedy, before any long work."""

import os
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from torch import nn

import headtree as ht
from headtree.errors import HeadtreeError
from tests.models import zoo


def refused(match, *args, **kwargs):
    with pytest.raises(HeadtreeError, match=match) as caught:
        ht.capture(*args, **kwargs)
    assert isinstance(caught.value, ValueError | TypeError)


def test_exactly_one_kind_of_input_is_given(bert):
    refused("exactly one of texts, images and inputs must be given, got none of them", bert)
    refused("got texts and inputs", bert, texts=["w1"], inputs=zoo.ALL["bert"].read())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"texts": []}, "texts must not be empty"),
        ({"texts": ["w1", "  "]}, r"texts\[1\] is empty"),
        ({"texts": [3]}, "texts must be a list of strings, got a list of int"),
        ({"texts": ["w1 w2"], "tokens": 30}, r"texts\[0\] is too short: it has 4 tokens.*but tokens is 30"),
        ({"texts": ["w1 w2"], "tokens": 2}, "exceed the 2 special tokens"),
        ({"texts": ["w1 w2"], "tokens": 0}, "tokens must be a whole number"),
        ({"texts": ["w1 w2"], "tokens": 100}, "at most the model's context of 64, got 100"),
        ({"texts": ["w1 " * 70]}, r"texts\[0\] has 72 tokens, but the model's context is 64; .*tokens=64"),
        ({"texts": ["w1"], "kind": "logits"}, "kind must be one of"),
        ({"texts": ["w1"], "layers": [3]}, "layers must be some of 0 to 2"),
        ({"texts": ["w1"], "layers": ["a"]}, "layers must be whole numbers"),
        ({"texts": ["w1"], "heads": [4]}, r"heads must be less than 4.*got \(0, 4\)"),
        ({"texts": ["w1"], "heads": [(5, 0)]}, r"got \(5, 0\)"),
        ({"texts": ["w1"], "window": (3, 1)}, "window must be"),
        ({"texts": ["w1"], "window": (7, 9)}, r"window must lie within the 3 queries of input 0"),
        ({"texts": ["w1"], "part": "encoder"}, "part must be left out"),
        ({"texts": ["w1"], "batch_size": 0}, "batch_size must be"),
        ({"texts": ["w1"], "dtype": "int8"}, "dtype must be one of"),
        ({"texts": ["w1"], "targets": ["w1", "w2"]}, "targets must have one entry per text"),
        ({"inputs": []}, "inputs must be a list of arguments for the model"),
        ({"inputs": [{"input_ids": [1, 2]}]}, r"inputs\[0\] must contain tensors"),
        ({"inputs": {"input_ids": torch.zeros(1, 65).long()}}, "65 tokens, but the model's context is 64"),
        ({"inputs": {"input_ids": torch.full((1, 4), 999)}}, "ids of tokens from 0 to 63, got 999"),
        ({"inputs": {"pixel_values": torch.zeros(1, 4)}}, "fails on the first input.*BertModel.forward"),
        ({"inputs": zoo.ALL["bert"].read(), "tokens": 4}, "tokens applies to texts"),
        ({"inputs": {"input_ids": torch.tensor([1, 2, 3])}}, r"must have a batch axis, got .*shape is \(1, 3\)"),
        ({"inputs": torch.tensor([1, 2, 3])}, r"inputs\[0\].* must have a batch axis.*\(1, 3\)"),
        ({"inputs": {"input_ids": torch.zeros(0, 3, dtype=torch.long)}}, "at least one input, got a batch of 0"),
        ({"texts": ["w1"], "window": 5}, r"window must be \(start, stop\).*got 5"),
        ({"texts": ["w1"], "heads": 5.5}, "heads must be a list of whole numbers"),
        ({"texts": ["w1"], "heads": []}, "heads must name at least one head"),
        ({"texts": ["w1"], "heads": slice(9, 10)}, "heads must name at least one head"),
        ({"texts": ["w1"], "heads": slice("a", "b")}, "heads must be a slice of whole numbers"),
        ({"texts": ["w1"], "heads": [("a", "b")]}, "heads must be whole numbers"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_named(bert, tokenizer, arguments, said):
    refused(said, bert, tokenizer=tokenizer, **arguments)


@pytest.mark.parametrize(
    ("given", "heads"),
    [
        ({"heads": np.int64(1), "layers": np.int64(1)}, ((1, 1),)),
        ({"heads": slice(0, 2), "layers": 2}, ((2, 0), (2, 1))),
        ({"heads": np.array([0, 3]), "layers": slice(1)}, ((0, 0), (0, 3))),
    ],
)
def test_numpy_integers_and_slices_choose(bert, tokenizer, given, heads):
    (att,) = ht.capture(bert, texts=["w1 w2"], tokenizer=tokenizer, **given)
    assert att.heads == heads


def test_texts_are_checked_before_the_tokenizer():
    refused("texts must not be empty", zoo.ALL["bert"].build(), texts=[])
    refused("texts must be a list of strings, got a list of int", zoo.ALL["bert"].build(), texts=[5])


def test_unknown_models(tmp_path):
    refused("there is no folder './nowhere'", "./nowhere", texts=["a"])
    refused("has no config.json", tmp_path, texts=["a"])
    refused("model must be a hub id, a folder or a loaded module, got int", 3, texts=["a"])
    refused("must be a hub id or a folder", "what is this?", texts=["a"])


def test_no_network_is_said_within_seconds(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    start = time.perf_counter()
    refused(
        "not in the local cache, and the hub cannot be reached .*pass a folder", "nobody/such-model", texts=["a"]
    )
    assert time.perf_counter() - start < 10


def test_a_repository_the_hub_does_not_have(monkeypatch):
    import httpx2
    from huggingface_hub import HfApi
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    response = httpx2.Response(404, request=httpx2.Request("GET", "https://huggingface.co"))

    def answer(error):
        def model_info(*args, **kwargs):
            raise error("404", response=response)

        return model_info

    # the variable is read when huggingface_hub is imported, which a test that sets it may have done first
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr(HfApi, "model_info", answer(RepositoryNotFoundError))
    refused("no model 'nobody/such-model' on the hub.*check the spelling", "nobody/such-model", texts=["a"])
    monkeypatch.setattr(HfApi, "model_info", answer(RevisionNotFoundError))
    refused("revision 'v9' of 'nobody/such-model'", "nobody/such-model", texts=["a"], revision="v9")


OFFLINE = """
import sys, headtree as ht
(att,) = ht.capture("some/bert", texts=["w1 w2"])
print(att.provenance["model"], att.provenance["revision"], att.queries)
try:
    ht.capture("some/other", texts=["w1 w2"])
except ht.HeadtreeError as error:
    print(error)
"""


def test_an_earlier_download_is_used_without_a_network(folder, tmp_path):
    """In a process of its own: the hub's client reads its settings when it is imported."""
    cache, commit = tmp_path / "hub" / "models--some--bert", "a" * 40
    shutil.copytree(folder, cache / "snapshots" / commit)
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text(commit)
    settings = {
        **os.environ,
        "HF_HOME": str(tmp_path),
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    result = subprocess.run(
        [sys.executable, "-c", OFFLINE], env=settings, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    captured, refused = result.stdout.splitlines()
    assert captured == f"some/bert {commit} ('[CLS]', 'w1', 'w2', '[SEP]')"
    assert "hub cannot be reached (HF_HUB_OFFLINE is set)" in refused


def test_a_folder_has_no_revisions(folder):
    refused("revision selects a version on the hub", folder, texts=["w1"], revision="main")


def test_missing_tokenizers(folder, bert, tmp_path):
    refused(r"tokenizer must be given.*tokenizer=", bert, texts=["w1"])
    bert.save_pretrained(tmp_path)
    refused("has no tokenizer", tmp_path, texts=["w1"])
    zoo.ALL["llama"].build().save_pretrained(tmp_path / "llama")  # transformers looks for more kinds of files
    refused("has no tokenizer; save it", tmp_path / "llama", texts=["w1"])


def test_a_tokenizer_is_missed_before_weights_are_read(folder, tmp_path):
    shutil.copy(folder / "config.json", tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"not read")
    refused("has no tokenizer.*tokenizer.save_pretrained.*pass tokenizer=", tmp_path, texts=["w1"])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_there_is_named_before_any_work(bert, monkeypatch):
    refused("device 'cuda' is not available here: .*use 'cpu'", bert, inputs=zoo.ALL["bert"].read(), device="cuda")
    refused("device 'cuda:1' is not available", "./nowhere", texts=["w1"], device=torch.device("cuda", 1))


def test_devices_and_types_of_the_model_are_checked(bert, folder):
    refused("device must be a device of torch such as 'cpu'", bert, texts=["w1"], device="toaster")
    refused("device must hold numbers, got 'meta'", bert, texts=["w1"], device="meta")
    refused("model_dtype must be one of float16, bfloat16", folder, texts=["w1"], model_dtype="int8")
    refused("model_dtype must be the name of a type", folder, texts=["w1"], model_dtype=torch.float16)
    refused(r"is loaded already; .*model.to\(torch.float16\)", bert, texts=["w1"], model_dtype="float16")


def test_a_file_that_is_no_model(tmp_path):
    (tmp_path / "model.gguf").write_text("no such thing")
    refused("a GGUF file or a hub id, but .* is a file of another kind", tmp_path / "model.gguf", texts=["w1"])


def test_a_module_whose_folder_is_gone_needs_a_tokenizer(folder, tmp_path):
    from transformers import AutoModel

    shutil.copytree(folder, tmp_path / "copy")
    model = AutoModel.from_pretrained(tmp_path / "copy")
    shutil.rmtree(tmp_path / "copy")
    refused("tokenizer must be given, because the model's origin.*pass tokenizer=", model, texts=["w1"])


def test_a_tokenizer_that_knows_nothing_is_not_believed(bert, tokenizer):
    refused(r"recognizes no token of texts\[0\].*pass tokenizer=", bert, texts=["unheard of"], tokenizer=tokenizer)


@pytest.mark.parametrize("damage", ["cut", "garbage", "gone"])
def test_corrupt_weights(folder, tmp_path, damage):
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    weights = copy / "model.safetensors"
    if damage == "gone":
        weights.unlink()
    else:
        weights.write_bytes(weights.read_bytes()[:5000] if damage == "cut" else b"garbage" * 100)
    refused("cannot be loaded: .*download them again", copy, texts=["w1"])


def test_weights_that_do_not_fit_the_configuration(folder, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    config = (copy / "config.json").read_text().replace('"num_hidden_layers": 3', '"num_hidden_layers": 4')
    (copy / "config.json").write_text(config)
    refused("tensors are missing and would be random", copy, texts=["w1"])


def test_code_of_others_is_not_run_unless_asked_for(tmp_path):
    (tmp_path / "config.json").write_text(
        '{"auto_map": {"AutoModel": "m.M", "AutoConfig": "m.C"}, "model_type": "own"}'
    )
    (tmp_path / "m.py").write_text("raise SystemExit('run!')")
    refused("trust_remote_code=True", tmp_path, inputs=torch.zeros(1, 2, dtype=torch.long))


def test_pickled_weights_are_read_without_running_them(bert, tmp_path):
    bert.config.save_pretrained(tmp_path)
    torch.save(bert.state_dict(), tmp_path / "pytorch_model.bin")
    inputs = zoo.ALL["bert"].read()
    assert torch.equal(ht.capture(tmp_path, inputs=inputs)[0].values, ht.capture(bert, inputs=inputs)[0].values)

    class Evil:
        def __reduce__(self):
            return (exec, ("raise SystemExit('run!')",))

    torch.save({"weight": Evil()}, tmp_path / "pytorch_model.bin")
    refused("cannot be loaded", tmp_path, inputs=inputs)


def test_images_of_the_wrong_shape():
    vit = zoo.ALL["vit"].build()
    refused(
        r"images\[0\] has shape \(3, 16, 16\), but the model expects \(3, 16, 24\); resize",
        vit,
        images=[torch.zeros(3, 16, 16)],
    )
    refused(
        r"images\[0\] must be an array \(3, row, column\), got shape \(1, 16, 24\)",
        vit,
        images=[torch.zeros(1, 16, 24)],
    )
    refused(r"got shape \(16, 24\)", vit, images=[np.zeros((16, 24))])
    refused("images must not be empty", vit, images=[])
    refused("images must be a list of images", vit, images="cat.png")
    refused("processor must be given", vit, images=["cat.png"])


def test_files_that_are_no_images(tmp_path):
    from transformers import ViTImageProcessor

    vit = zoo.ALL["vit"].build()
    (tmp_path / "cat.png").write_text("no image")
    refused(r"images\[0\] cannot be read", vit, images=[tmp_path / "cat.png"], processor=ViTImageProcessor())
    refused(r"images\[0\] cannot be read", vit, images=["nowhere.png"], processor=ViTImageProcessor())


def test_models_without_attention(bert):
    refused("no attention was found in Linear", nn.Linear(4, 4), inputs=torch.zeros(1, 3, 4))
    from transformers import MambaConfig, MambaModel

    mamba = MambaModel(MambaConfig(hidden_size=16, num_hidden_layers=1, vocab_size=64, state_size=4)).eval()
    refused("no attention was found in MambaModel", mamba, inputs={"input_ids": zoo._ids()})
