"""What may be written where: other settings, other folders, other processes, a system that refuses."""

import errno
import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

import headtree as ht
from headtree.errors import HeadtreeError, InvalidValueError
from headtree.pipeline.make_run import Measures, make_run
from headtree.pipeline.sources import TensorCapture, TensorSource
from headtree.runs.folder import WORK, OtherSettingsError, RunInUseError, SystemRefusedError, locked, writing_run
from headtree.runs.record import NotARunError, signed
from tests.runs.examples import QUICK, small_run, tensors


def snapshot(folder):
    return {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in sorted(folder.rglob("*"))}


def again(path, measures=QUICK, **options):
    return make_run(TensorSource(tensors(2)), path, measures=measures, draw=False, **options)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return small_run(tmp_path_factory.mktemp("made") / "run", n_inputs=2)


@pytest.fixture
def finished(made, tmp_path):
    return ht.open_run(shutil.copytree(made.path, tmp_path / "run"))


def test_the_second_time_there_is_nothing_to_do(finished):
    before = snapshot(finished.path)
    told = []
    make_run(
        TensorSource(tensors(2)), finished.path, measures=QUICK, draw=False, say=lambda *args: told.append(args)
    )
    assert told == []
    assert snapshot(finished.path) == before


def test_other_settings_are_named_and_refused(finished):
    before = snapshot(finished.path)
    other = Measures(head_functions=61, network_functions=30, bootstrap=20)
    with pytest.raises(OtherSettingsError, match=r"measures\.head_functions is 60 there and 61 here"):
        again(finished.path, measures=other)
    with pytest.raises(OtherSettingsError, match=r"source\.sha256"):
        make_run(TensorSource(tensors(2, seed=1)), finished.path, measures=QUICK, draw=False)
    with pytest.raises(OtherSettingsError, match=r"questionnaire\.alpha"):
        make_run(
            TensorSource(tensors(2)),
            finished.path,
            measures=QUICK,
            draw=False,
            questionnaire=ht.Questionnaire(alpha=1),
        )
    assert snapshot(finished.path) == before


def test_force_replaces_the_run_and_nothing_else(finished):
    own = finished.path / "notes.txt"
    own.write_text("mine")
    (finished.path / "figures").mkdir(exist_ok=True)
    (finished.path / "figures" / "mine.svg").write_text("mine")
    other = Measures(head_functions=61, network_functions=30, bootstrap=20)
    run = again(finished.path, measures=other, force=True)
    assert run.settings.measures.head_functions == 61
    assert own.read_text() == "mine"
    assert (finished.path / "figures" / "mine.svg").read_text() == "mine"


def test_a_run_of_another_version_is_refused(finished):
    path = finished.path / "run.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps(signed(record | {"headtree": "0.0.1"})))
    with pytest.raises(OtherSettingsError, match=r"made by headtree 0\.0\.1, and this is"):
        again(finished.path)
    assert ht.open_run(finished.path).n_inputs == 2  # which can be read all the same
    path.write_text(json.dumps(record | {"format": "headtree.run/9"}))
    with pytest.raises(NotARunError, match="another version"):
        again(finished.path)
    path.write_text(json.dumps(record | {"format": "headtree.run/1"}))
    with pytest.raises(NotARunError, match=r"^[^\n]*made by an older format \(headtree\.run/1\); run again[^\n]*$"):
        again(finished.path)
    assert again(finished.path, force=True).is_complete


@pytest.mark.parametrize("force", [False, True])
def test_a_folder_that_is_no_run_is_left_alone(tmp_path, force):
    (tmp_path / "thesis.tex").write_text("mine")
    before = snapshot(tmp_path)
    with pytest.raises(NotARunError, match=r"holds 'thesis\.tex' and no run\.json"):
        make_run(TensorSource(tensors(1)), tmp_path, force=force)
    assert snapshot(tmp_path) == before
    with pytest.raises(NotARunError, match="is a file"):
        make_run(TensorSource(tensors(1)), tmp_path / "thesis.tex", force=force)
    with pytest.raises(HeadtreeError, match="cannot be"):
        make_run(TensorSource(tensors(1)), tmp_path / "thesis.tex" / "run", force=force)
    assert snapshot(tmp_path) == before


def test_a_source_that_fails_leaves_no_trace(tmp_path):
    class Broken(TensorSource):
        def begin(self):
            raise HeadtreeError("no such model")

    with pytest.raises(HeadtreeError, match="no such model"):
        make_run(Broken(tensors(1)), tmp_path / "new" / "run")
    assert list(tmp_path.iterdir()) == []


def test_a_late_worker_does_not_make_a_removed_run_again(tmp_path, finished):
    org = finished.organization[0]
    with writing_run(tmp_path / "late", "scores", {"a": 1}) as writer:
        piece = writer.kept("organization-00000.npz")
        piece.organization(org)
        assert writer.kept("organization-00000.npz").part.exists()
        shutil.rmtree(writer.path)
        with pytest.raises(InvalidValueError, match="is gone: the run was removed"):
            piece.organization(org)
        assert not writer.path.exists()
        writer.save(writer.record)  # the block ends in a folder


def test_pieces_of_other_settings_are_not_taken(tmp_path):
    places = []
    for value in (1, 2):
        with writing_run(tmp_path / str(value), "scores", {"a": value}) as writer:
            places.append(writer.kept("organization-00000.npz").part.relative_to(writer.path))
    assert places[0] != places[1]


def test_pieces_are_not_written_through_links(tmp_path):
    with writing_run(tmp_path / "run", "scores", {}) as writer:
        part = writer.kept("organization-00000.npz").part
        part.symlink_to(tmp_path / "elsewhere.npz")
        with pytest.raises(NotARunError, match="is a link"):
            writer.kept("organization-00000.npz")
    assert not (tmp_path / "elsewhere.npz").exists()


def test_a_run_in_use_is_refused_and_a_killed_owner_is_not_waited_for(tmp_path):
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom headtree.runs.folder import locked\n"
        f"with locked(Path({str(tmp_path)!r})):\n    print('locked', flush=True)\n    time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "locked\n"
        with pytest.raises(RunInUseError, match=f"process ID {other.pid}"), writing_run(tmp_path, "scores", {}):
            pass
        other.kill()
        other.wait()
    assert (tmp_path / ".headtree-lock").exists()  # it could not clean up
    with writing_run(tmp_path, "scores", {}) as place:
        assert place.is_new
    with locked(tmp_path):
        pass
    assert not (tmp_path / ".headtree-lock").exists()


@pytest.mark.parametrize(("code", "remedy"), [(errno.ENOSPC, "free some space"), (errno.EACCES, "fix the cause")])
def test_a_system_that_refuses_to_write(tmp_path, monkeypatch, code, remedy):
    """A full disk in the middle of a step: an error of ours; once there is space, the same command finishes."""
    whole, calls = small_run(tmp_path / "whole", n_inputs=2), 0
    replace = os.replace

    def refusing(source, target):
        nonlocal calls
        calls += 1
        if calls > 60:
            raise OSError(code, os.strerror(code), str(target))
        return replace(source, target)

    monkeypatch.setattr(os, "replace", refusing)
    with pytest.raises(SystemRefusedError, match=remedy):
        small_run(tmp_path / "run", n_inputs=2)
    monkeypatch.undo()
    assert not ht.open_run(tmp_path / "run").is_complete
    finished = small_run(tmp_path / "run", n_inputs=2)
    assert (finished.path / "heads.csv").read_bytes() == (whole.path / "heads.csv").read_bytes()
    assert not (finished.path / WORK).exists()
    np.testing.assert_array_equal(finished.organization[1].affinities.key, whole.organization[1].affinities.key)


def test_ctrl_c_keeps_what_is_done(tmp_path):
    class Interrupted(TensorCapture):
        def tensors(self):
            raise KeyboardInterrupt

    class Stopping(TensorCapture):
        def only(self, numbers):
            some = super().only(numbers)
            return Interrupted(some.model, some.inputs, some.own) if 1 in numbers else some

    class Impatient(TensorSource):
        def begin(self):
            ready = super().begin()
            return Stopping(ready.model, ready.inputs, ready.own)

    with pytest.raises(KeyboardInterrupt):
        make_run(Impatient(tensors(2)), tmp_path / "run", measures=QUICK, draw=False)
    parts = [path.name for path in (tmp_path / "run" / WORK / "parts").glob("*/*")]
    assert parts == ["attention-00000.zarr"]
    assert small_run(tmp_path / "run", n_inputs=2).is_complete


def test_paths_that_cannot_be(tmp_path):
    for path, message in (
        ("", "must end in the name"),
        ("..", "must end in the name"),
        ("a\0b", "null characters"),
    ):
        with pytest.raises(HeadtreeError, match=message):
            make_run(TensorSource(tensors(1)), path)
    with pytest.raises(HeadtreeError, match="one or more AttentionTensors"):
        TensorSource([])
