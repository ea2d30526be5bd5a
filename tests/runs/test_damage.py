"""A run whose files were changed, cut off, deleted or replaced by links."""

import json
import os
import shutil
import warnings
from contextlib import suppress

import numpy as np
import pytest

import headtree as ht
from headtree.errors import DamagedFileError, HeadtreeError, HeadtreeWarning
from headtree.pipeline.make_run import Measures, make_run
from headtree.pipeline.sources import TensorSource
from headtree.runs.folder import LOCK, WORK
from headtree.runs.record import NotARunError, signed
from tests.runs.examples import QUICK, small_run, tensors
from tests.runs.flips import read_all

#: One of each kind of file that a run has.
KINDS = (
    "run.json",
    "attention.zarr/zarr.json",
    "attention.zarr/mask/zarr.json",
    "attention.zarr/attention/c/0/0/0/0",
    "attention.zarr/mask/c/1/0/0/0",
    "attention.zarr/query_token/c/0/0",
    "organization.zarr/affinity_head/c/0/0/0",
    "organization.zarr/zarr.json",
    "similarity.zarr/attention_affinity/c/0/0",
    "measured/input_00000.json",
    "measures.json",
    "heads.csv",
    "layers.csv",
    "sections/diagnostics.json",
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    run = small_run(tmp_path_factory.mktemp("whole") / "run", n_inputs=2)
    assert set(KINDS) <= {path.relative_to(run.path).as_posix() for path in run.path.rglob("*")}
    return run.path


@pytest.fixture
def copy(whole, tmp_path):
    shutil.copytree(whole, tmp_path / "run")
    return tmp_path / "run"


def again(path, measures=QUICK, **options):
    return make_run(TensorSource(tensors(2)), path, measures=measures, draw=False, **options)


@pytest.mark.parametrize("kind", KINDS)
def test_a_flipped_bit_is_named_and_never_read(kind, whole, copy):
    rng = np.random.default_rng(len(kind))
    file, data = copy / kind, (whole / kind).read_bytes()
    for _ in range(6):
        flipped = bytearray(data)
        flipped[rng.integers(len(data))] ^= 1 << rng.integers(8)
        file.write_bytes(flipped)
        with pytest.raises(HeadtreeError) as caught:
            read_all(copy)
        assert str(file) in str(caught.value) or kind.split("/")[0] in str(caught.value)


@pytest.mark.parametrize("kind", KINDS[1:])
def test_what_is_cut_off_or_gone_is_named_and_made_again(kind, whole, copy):
    file, data = copy / kind, (whole / kind).read_bytes()
    for length in (0, 3, len(data) // 2, len(data) - 1):
        file.write_bytes(data[:length])
        with pytest.raises(HeadtreeError, match=kind.split("/")[0]):
            read_all(copy)
    file.unlink()
    with pytest.raises(DamagedFileError, match=f"{file} is gone"):
        read_all(copy)


def test_what_is_damaged_does_not_keep_the_rest_from_being_read(whole, copy):
    for kind in ("attention.zarr/attention/c/1/0/0/0", "heads.csv"):
        (copy / kind).write_bytes((whole / kind).read_bytes() + b"\0")
    run, expected = ht.open_run(copy), ht.open_run(whole)
    np.testing.assert_array_equal(run.attention[0].values, expected.attention[0].values)
    assert repr(run.measures) == repr(expected.measures)
    with pytest.raises(DamagedFileError, match=r"heads\.csv was changed"):
        run.heads  # noqa: B018
    with pytest.raises(DamagedFileError, match="c/1/0/0/0 is damaged"):
        np.asarray(run.attention[1].values)


@pytest.mark.parametrize("kind", [KINDS[3], "measured/input_00001.json", "heads.csv"])
def test_the_same_command_makes_it_again(kind, whole, copy):
    (copy / kind).write_bytes(b"\0" + (copy / kind).read_bytes())
    with pytest.warns(HeadtreeWarning, match=r"was changed since it was written; made again"):
        again(copy)
    assert read_all(copy) == read_all(whole)
    assert (copy / f"{kind}.changed").exists() == ("zarr" not in kind)
    (copy / kind).unlink()
    with pytest.warns(HeadtreeWarning, match=r"is gone; made again"):
        again(copy)
    assert read_all(copy) == read_all(whole)


def test_a_saved_tensor_is_checked_too(tmp_path):
    path = tmp_path / "att"
    att = ht.AttentionTensor.from_array(np.zeros((2, 3, 4)))
    att.save(path)
    chunk = path / "attention" / "c" / "0" / "0" / "0" / "0"  # of zeros, and there all the same
    data = chunk.read_bytes()
    chunk.unlink()
    with pytest.raises(DamagedFileError, match=f"{chunk} is gone"):
        np.asarray(ht.AttentionTensor.open(path).values)
    chunk.write_bytes(data[:-1])
    with pytest.raises(DamagedFileError, match=f"{chunk} is damaged"):
        np.asarray(ht.AttentionTensor.open(path).values)
    chunk.write_bytes(data)
    np.testing.assert_array_equal(ht.AttentionTensor.open(path).values, 0)
    metadata = path / "attention" / "zarr.json"
    metadata.write_text(metadata.read_text().replace('"fill_value": 0.0', '"fill_value": 1.0'))
    with pytest.raises(DamagedFileError, match=str(metadata)):
        ht.AttentionTensor.open(path)


def test_text_that_is_nested_too_deeply_is_damage(tmp_path, copy):
    """Python's JSON reader stops at that with an error of its own."""
    nested = "[" * 100_000
    path = tmp_path / "att"
    ht.AttentionTensor.from_array(np.zeros((2, 3, 4))).save(path)
    for name in ("attention/zarr.json", "zarr.json"):
        (path / name).write_text(nested)
        with pytest.raises(HeadtreeError, match="att"):
            ht.AttentionTensor.open(path)
    (copy / "run.json").write_text(nested)
    with pytest.raises(HeadtreeError, match=r"run\.json cannot be read"):
        ht.open_run(copy)


# -- links and --force --------------------------------------------------------------------------------------------


@pytest.fixture
def precious(tmp_path):
    (tmp_path / "home").mkdir()
    file = tmp_path / "home" / "precious"
    file.write_text("mine")
    yield file
    assert file.read_text() == "mine"
    assert os.listdir(file.parent) == ["precious"]


def test_a_lock_that_is_a_link_is_refused(copy, precious):
    os.symlink(precious, copy / LOCK)
    with pytest.raises(NotARunError, match="is a link"):
        again(copy)


def test_a_lock_that_becomes_a_link_once_it_is_locked_is_not_written_through(copy, precious, monkeypatch):
    from filelock import FileLock

    acquire = FileLock.acquire

    def acquire_and_replace(self, *args, **options):
        found = acquire(self, *args, **options)
        (copy / LOCK).unlink()
        os.symlink(precious, copy / LOCK)
        return found

    monkeypatch.setattr(FileLock, "acquire", acquire_and_replace)
    again(copy)  # the fixture `precious` looks at the file


@pytest.mark.parametrize("name", [WORK, "measured", "sections", "heads.csv", "attention.zarr"])
def test_nothing_is_written_through_links(name, copy, precious):
    target = copy / name
    shutil.rmtree(target) if target.is_dir() else target.unlink(missing_ok=True)
    os.symlink(precious if name == "heads.csv" else precious.parent, target)
    options = {"measures": Measures(head_functions=61, bootstrap=20), "force": True} if name == "measured" else {}
    with suppress(HeadtreeError), warnings.catch_warnings():
        warnings.simplefilter("ignore", HeadtreeWarning)
        again(copy, **options)


def test_force_removes_only_what_headtree_wrote(copy, precious):
    (copy / "sub").mkdir()
    for name in ("mine.txt", "sub/mine.txt", "figures.txt"):
        (copy / name).write_text("mine")
    record = json.loads((copy / "run.json").read_text())
    for listed in (".", "..", "mine.txt", "sub/mine.txt", "../home/precious", "", "sub"):
        record["steps"]["measure"]["files"].append(listed)
        record["files"][listed] = "0" * 64
    (copy / "run.json").write_text(json.dumps(signed(record)))
    again(copy, measures=Measures(head_functions=61, network_functions=30, bootstrap=20), force=True)
    left = [path for path in copy.rglob("*mine.txt*") if path.is_file()]
    assert len(left) == 2
    assert all(path.read_text() == "mine" for path in left)
    assert (copy / "figures.txt").read_text() == "mine"


def test_force_sets_aside_what_was_edited(copy):
    (copy / "heads.csv").write_text("my own table")
    run = again(copy, measures=Measures(head_functions=61, network_functions=30, bootstrap=20), force=True)
    assert (copy / "heads.csv.changed").read_text() == "my own table"
    assert run.is_complete
    assert len(run.heads) == 20
