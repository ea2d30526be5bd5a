"""The commands as users give them: what they print, the codes they end with."""

import json
import os
import shutil
import subprocess
import sys
import time
import warnings

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import headtree as ht
from headtree.cli.app import app
from headtree.runs.folder import locked

pytestmark = pytest.mark.filterwarnings("ignore::headtree.HeadtreeWarning")


@pytest.fixture
def headtree(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    def give(*arguments):
        return CliRunner().invoke(app, list(map(str, arguments)))

    return give


def failed(result, code, *words):
    """One line on standard error, nothing on standard output."""
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    assert result.stderr.startswith("headtree ")
    for word in words:
        assert word in result.stderr
    return True


def test_run_says_what_it_found_and_does_nothing_the_second_time(headtree, folder, text, tmp_path):
    command = ("run", folder, "--text", text, "--inputs", 2, "--tokens", 16, "--no-draw", "-o", "runs/small")
    result = headtree(*command)
    assert result.exit_code == 0, result.output
    for word in ("capture", "organize", "measure", "roles", "ranking", "families", "correlation", "runs/small"):
        assert word in result.stdout
    assert result.stdout.count("heads.csv") == 1  # there is no page to look at
    before = (tmp_path / "runs/small/run.json").read_bytes()
    again = headtree(*command, "--json")
    found = json.loads(again.stdout)
    assert (found["heads"], len(found["inputs"])) == (ht.open_run("runs/small").attention[0].shape[0], 2)
    assert again.stderr == ""
    assert (tmp_path / "runs/small/run.json").read_bytes() == before
    assert failed(headtree(*command, "--kind", "probs"), 3, "kind is 'scores' there and 'probs' here", "--force")
    with locked(tmp_path / "runs/small"):
        assert failed(headtree(*command), 3, "in use by another process")


def test_layers_heads_device_type_and_batch_size_reach_the_model(headtree, folder, text):
    chosen = ("--layers", "0-1", "--heads", "L1H3,L0H0, L1H0", "--device", "cpu", "--dtype", "float64")
    command = ("run", folder, "--text", text, "--inputs", 3, "--tokens", 16, "--no-draw", "-o", "runs/some")
    result = headtree(*command, *chosen, "--batch-size", 2, "--depth")
    assert result.exit_code == 0, result.output
    run = ht.open_run("runs/some")
    assert list(run.heads["name"]) == ["L0H0", "L1H0", "L1H3"]
    assert list(run.settings.source.heads) == ["L0H0", "L1H0", "L1H3"]
    assert list(run.layers["layer"]) == [0, 1]
    assert run.layers["residual_as_is"].notna().all()  # of the whole network, for the layers of the run
    options = {"texts": [text.read_text()], "tokens": 16, "layers": [0, 1], "heads": [(0, 0), (1, 0), (1, 3)]}
    expected = ht.ModelView(folder, model_dtype="float64").capture(**options, batch_size=1)
    for att, same in zip(run.attention, expected, strict=False):
        np.testing.assert_allclose(att.load().values, same.values, rtol=1e-12)
    assert failed(headtree(*command, *chosen), 3, "source.batch_size is 2 there and None here")


def test_depth_cuts_texts_to_the_context_of_the_model(headtree, folder, text):
    result = headtree("depth", folder, "--text", text, "--inputs", 1, "--no-fresh", "-o", "short")
    assert result.exit_code == 0, result.output
    assert pd.read_csv("short/layers.csv").notna().all(axis=None)


def test_depth_replaces_its_own_files_only(headtree, folder, text, tmp_path):
    command = ("depth", folder, "--text", text, "--inputs", 1, "--tokens", 8, "--no-fresh")
    foreign = "may not be of this command"
    for name, said in (("run.json", "is a run"), ("figures", foreign), ("residual.csv", foreign)):
        mine = tmp_path / f"with-{name}" / name
        mine.parent.mkdir()
        mine.write_text("mine")
        assert failed(headtree(*command, "-o", mine.parent), 2, said, "--output")
        assert [path.read_text() for path in mine.parent.iterdir()] == ["mine"]
    for _ in range(2):
        assert headtree(*command, "-o", "again").exit_code == 0


def test_depth_takes_the_same_options(headtree, folder, text):
    command = ("depth", folder, "--text", text, "--inputs", 2, "--tokens", 16, "--no-fresh", "-o", "some")
    chosen = ("--layers", "1-2", "--heads", "0,2", "--device", "cpu", "--dtype", "float64", "--batch-size", 1)
    result = headtree(*command, *chosen)
    assert result.exit_code == 0, result.output
    heads, layers = (pd.read_csv(f"some/{name}.csv") for name in ("heads", "layers"))
    assert list(heads["name"]) == ["L1H0", "L1H2", "L2H0", "L2H2"]
    assert list(layers["layer"]) == [1, 2]
    assert headtree(*command, "-o", "all").exit_code == 0
    whole = pd.read_csv("all/heads.csv").set_index("name")["short_path_share"]
    np.testing.assert_allclose(heads["short_path_share"], whole[heads["name"]], rtol=1e-3)
    np.testing.assert_allclose(
        pd.read_csv("all/layers.csv")["short_path_share"], whole.groupby(whole.index.str[:2]).sum(), rtol=1e-6
    )


@pytest.mark.parametrize(("network", "dtype"), [("txl", "bfloat16"), ("vit", "float16")])
def test_the_bundled_networks_take_the_options_too(headtree, network, dtype):
    pytest.importorskip("headtree_networks")
    chosen = ("--inputs", 2, "--layers", "1,3", "--heads", "0-1", "--device", "cpu", "--dtype", dtype)
    chosen = (*chosen, "--tokens", 256)
    result = headtree("run", network, *chosen, "--kind", "probs", "--batch-size", 2, "--no-draw", "--json")
    assert result.exit_code == 0, result.output
    run = ht.open_run(f"runs/{network}")
    assert list(run.heads["name"]) == ["L1H0", "L1H1", "L3H0", "L3H1"]
    bundled = ht.load_bundled(network)
    exact = ht.capture(bundled.model, inputs=bundled.inputs[:1], kind="probs", layers=[1, 3], heads=[0, 1])[0]
    difference = np.abs(run.attention[0].load().values.numpy() - exact.values.numpy()).max()
    assert 0 < difference < 0.1  # the type is less precise


@pytest.mark.parametrize(
    ("option", "said"),
    [
        (("--layers", "first"), "--layers must be numbers and ranges from 0 on, such as 0-3,8, got 'first'"),
        (("--layers", "3-1"), "--layers must be"),
        (("--layers", "0,9"), "layers must be some of 0 to 2, got [9]"),
        (("--heads", "L1H0,2"), "--heads must be names such as L3H5,L4H2"),
        (("--heads", "1.0"), "--heads must be names"),
        (("--heads", "L0H9"), "got (0, 9)"),
        (("--dtype", "int8"), "dtype must be one of float16, bfloat16, float32, float64, got 'int8'"),
        (("--device", "toaster"), "device must be a device of torch such as 'cpu', 'cuda'"),
        (("--device", "cuda:99"), "device 'cuda:99' is not available here"),
        (("--batch-size", "0"), "batch_size must be at least 1, got 0"),
        (("--inputs", "0"), "inputs must be at least 1, got 0"),
        (("--part", "cross"), "part must be left out"),
    ],
)
@pytest.mark.parametrize("command", ["run", "depth"])
def test_options_that_cannot_be_are_named(headtree, folder, text, tmp_path, command, option, said):
    assert failed(headtree(command, folder, "--text", text, "--tokens", 16, *option), 2, said)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def warnings_shown():
    """Warnings as on a terminal; the mark of this module hides them."""
    with warnings.catch_warnings():
        warnings.simplefilter("default", ht.HeadtreeWarning)
        yield


@pytest.mark.parametrize("option", [("--layers", "0-99999999999999999999"), ("--heads", "9" * 5000)])
def test_absurd_numbers_are_no_layers_or_heads(headtree, folder, text, option):
    assert failed(headtree("run", folder, "--text", text, *option), 2, f"{option[0]} must be")


@pytest.mark.usefixtures("warnings_shown")
def test_fewer_inputs_than_asked_for_are_said(headtree, folder, text, pictures, vit_folder, tmp_path):
    said = "5 inputs instead of 20: words.txt is too short for more of 32 tokens"
    few = (
        "5 inputs: fewer than 10 are too few for families of heads to replicate; the default of headtree run is "
        "--inputs 20"
    )
    command = ("run", folder, "--text", text, "--tokens", 32, "--no-draw", "-o", "runs/few")
    result = headtree(*command)
    for note in (said, few):
        assert f"headtree run: note: {note}\n" in result.stderr  # when it happens
        assert f"note                {note}\n" in result.stdout  # in the summary
    assert json.loads((tmp_path / "runs/few/run.json").read_text())["notes"] == [said, few]
    again = headtree(*command, "--json")
    assert json.loads(again.stdout)["notes"] == [said, few]
    short = tmp_path / "short.txt"
    short.write_text("w1 w2 w3 w4")
    result = headtree("run", folder, "--text", short, "--no-draw", "-o", "runs/one")
    assert "note: 1 input of 6 tokens instead of 64: short.txt has no more" in result.stderr
    result = headtree("depth", vit_folder, "--images", pictures, "--no-fresh", "-o", "few")
    assert f"headtree depth: note: 3 inputs instead of 8: {pictures} has no more images" in result.stderr
    assert "too few" not in result.stderr  # depth has no families
    enough = headtree("run", folder, "--text", text, "--tokens", 8, "--inputs", 10, "--no-draw", "-o", "runs/ten")
    assert "note" not in enough.output


def test_a_model_without_its_tokenizer_is_named_before_its_weights_are_read(headtree, folder, text, tmp_path):
    bare = tmp_path / "bare"
    bare.mkdir()
    shutil.copy(folder / "config.json", bare)
    (bare / "model.safetensors").write_bytes(b"not read")
    for command in ("run", "depth"):
        assert failed(headtree(command, bare, "--text", text), 2, "has no tokenizer", "tokenizer.save_pretrained")


def test_organize_any_array(headtree, tmp_path):
    np.save("x.npy", np.random.default_rng(0).standard_normal((6, 8, 5)))
    given = ("--axes", "sensor,time,trial", "--landmarks", 7, "--no-draw")
    result = headtree("organize", "x.npy", *given, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["shape"] == [6, 8, 5]
    assert "organize" in result.stderr  # progress goes where it does not disturb
    org = ht.open_run("runs/x").organization[0]
    assert org.names == ("sensor", "time", "trial")
    assert [own is None for own in org.landmarks] == [True, False, True]
    words = headtree("organize", "x.npy", *given)
    assert "6 sensor × 8 time × 5 trial" in words.stdout
    given = ("--attention", "hqk", "--heads-per-layer", 3, "--landmarks", 4, "-o", "runs/heads", "--no-draw")
    attention = headtree("organize", "x.npy", *given)
    assert ht.open_run("runs/heads").organization[0].settings.landmarks == (None, 4, 4)
    assert "6 heads in 2 layers" in attention.stdout
    assert failed(
        headtree("organize", "x.npy", "--landmarks", 0, "-o", "runs/y"), 2, "landmarks must be at least 2"
    )
    assert failed(headtree("organize", "x.npy"), 3, "axes")
    assert failed(headtree("organize", "y.npy"), 2, "does not exist")
    assert failed(headtree("organize", "x.npy", "--tree", "oak", "-o", "runs/y"), 2, "tree must be one of")


def test_missing_entries_of_attention_are_nan(headtree, tmp_path):
    """Of scores -inf as well; a mask in large numbers is refused before anything is written."""
    hidden = np.triu(np.ones((9, 9), bool), 1)
    x = np.random.default_rng(0).standard_normal((4, 9, 9))
    for name, number in (("nan", np.nan), ("inf", -np.inf), ("large", -1e9)):
        np.save(f"{name}.npy", np.where(hidden, number, x))
    for name in ("nan", "inf"):
        result = headtree("organize", f"{name}.npy", "--attention", "hqk", "--no-draw", "-o", f"runs/{name}")
        assert result.exit_code == 0, result.output
    first, second = (ht.open_run(f"runs/{name}").attention[0] for name in ("nan", "inf"))
    np.testing.assert_array_equal(first.mask, np.broadcast_to(hidden, x.shape))
    np.testing.assert_array_equal(first.mask, second.mask)
    large = headtree("organize", "large.npy", "--attention", "hqk", "-o", "runs/large")
    assert failed(large, 2, "write nan there in a file")
    assert not (tmp_path / "runs" / "large").exists()


@pytest.mark.parametrize(
    "option", [("--kind", "probs"), ("--similarity", "l1"), ("--raw",), ("--heads-per-layer", 2)]
)
def test_options_of_attention_are_refused_for_other_arrays(headtree, tmp_path, option):
    np.save("x.npy", np.eye(4))
    assert failed(headtree("organize", "x.npy", *option), 2, f"{option[0]} is for attention")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.npy"]


def test_names_of_files_need_not_be_utf_8(tmp_path):
    name = b"x\xff".decode("utf-8", "surrogateescape")
    try:
        np.save(tmp_path / f"{name}.npy", np.random.default_rng(0).random((5, 6)))
    except OSError:
        pytest.skip("the file system takes no such names")
    command = [sys.executable, "-m", "headtree", "organize", f"{name}.npy", "--no-draw", "-o", f"{name}-run"]
    for _ in range(2):
        result = subprocess.run(command, cwd=tmp_path, capture_output=True, env=os.environ | {"PYTHONUTF8": "1"})
        assert result.returncode == 0, result.stderr
    assert b"x\\udcff.npy: 5 axis0" in result.stdout
    assert ht.open_run(tmp_path / f"{name}-run").inputs == (f"{name}.npy",)


def test_bad_input_in_one_line_with_the_remedy(headtree, folder, text, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    assert failed(headtree("run", folder, "--text", text, "-o", "full"), 3, "not a run", "another folder")
    assert failed(headtree("run", folder), 2, "--text")
    assert failed(headtree("prune", folder), 2, "--data")
    assert failed(headtree("run", folder, "--text", "none.txt"), 2, "none.txt does not exist")
    assert failed(headtree("run", "no/such", "--text", text), 2, "cannot be reached")
    assert failed(headtree("run", folder, "--text", text, "-o", text / "run"), 4, "cannot be")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["full"]


def test_help_is_quick_and_names_everything():
    times = []
    for _ in range(3):
        start = time.perf_counter()
        result = subprocess.run(
            [sys.executable, "-m", "headtree", "--help"], capture_output=True, text=True, check=False
        )
        times.append(time.perf_counter() - start)
    assert result.returncode == 0
    for word in ("demo", "run", "organize", "train", "Exit codes", "open_run"):
        assert word in result.stdout
    assert "\b" not in result.stdout
    # CPU time is 0.1 s; the wall clock of a busy machine is allowed more than the half second of a quiet one
    assert min(times) < 2


def test_version(headtree):
    assert headtree("--version").stdout == f"headtree {ht.__version__}\n"
