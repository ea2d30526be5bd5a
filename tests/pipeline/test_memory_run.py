"""Runs within a limit of memory: the same files, and a line that says what is too large."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

import headtree as ht
from headtree.cli.app import app
from headtree.errors import InvalidValueError
from headtree.geometry import affinity
from headtree.measures import invariance, regularity
from headtree.pipeline import make_run, memory_limit, sources
from headtree.pipeline.memory_limit import limit_in_bytes
from headtree.tensor import probabilities, store
from headtree.tensor.blocks_on_disk import ReadAhead, Regrouped
from headtree.tensor.centred_scores import centred_by_blocks
from headtree.tensor.stored_array import StoredArray
from tests.pipeline.interrupted import contents
from tests.runs.examples import QUICK, tensors

pytestmark = pytest.mark.filterwarnings("ignore::headtree.HeadtreeWarning")


@pytest.fixture
def tight(monkeypatch):
    """Only arrays count, so small ones are read by blocks; measures have small blocks too."""
    monkeypatch.setattr(memory_limit, "working_bytes", lambda *given: (0, 0))
    monkeypatch.setattr(memory_limit, "memory_in_use", lambda: 0)
    for name in ("_OTHER", "_SCORES_OF_A_HEAD", "_A_HEAD", "_COPIES_TO_ORGANIZE"):
        monkeypatch.setattr(memory_limit, name, 0)
    monkeypatch.setattr(regularity, "_ENTRIES_AT_A_TIME", 2 * 18 * 18)
    monkeypatch.setattr(invariance, "_ENTRIES_AT_A_TIME", 3 * 18 * 18)
    monkeypatch.setattr(probabilities, "_ENTRIES", 3 * 18 * 18)
    monkeypatch.setattr(store, "_CHUNK_BYTES", 4 * 18 * 5)
    monkeypatch.setattr(affinity, "_ENTRIES_AT_A_TIME", 40)


@pytest.fixture
def largest(monkeypatch):
    """The most entries that were read at a time."""
    found = [0]
    read = StoredArray.__getitem__

    def watched(array, index):
        block = read(array, index)
        found[0] = max(found[0], block.size if array.name == "attention" else 0)
        return block

    monkeypatch.setattr(StoredArray, "__getitem__", watched)
    return found


def with_rows_and_heads_missing(att):
    """Also a query of one head without any keys, so that masks differ."""
    mask = att.mask.clone()
    mask[3, 5] = True
    return replace(att, mask=mask)


@pytest.mark.parametrize("kind", ["scores", "raw scores, landmarks", "probs", "masks that differ"])
def test_a_limited_run_has_the_same_files(tight, largest, tmp_path, kind):
    (att,) = tensors(1, kind="probs" if kind == "probs" else "scores")
    att = with_rows_and_heads_missing(att) if kind == "masks that differ" else att
    att.save(tmp_path / "x.zarr")
    source = sources.TensorSource([ht.AttentionTensor.open(tmp_path / "x.zarr")])
    size = 4 * int(np.prod(att.shape))
    runs = {}
    for name, memory in (("whole", None), ("limited", 2 * size)):
        largest[0] = 0
        runs[name] = make_run.make_run(
            source,
            tmp_path / name,
            questionnaire=ht.Questionnaire(samples=8, landmarks=(None, 6, 7) if "landmarks" in kind else None),
            measures=QUICK,
            draw=False,
            raw="raw" in kind,
            memory=memory,
        )
    assert contents(runs["whole"].path) == contents(runs["limited"].path)
    assert 0 < largest[0] < np.prod(att.shape)
    assert not list(tmp_path.rglob("by_axis_*")) + list(tmp_path.rglob("coefficients"))


class Threads:
    """Two workers at once, which see the files of the run."""

    n_workers, sees_files = 2, True

    def sendable(self, att):
        return att

    def each(self, calls, *, long=False):
        with ThreadPoolExecutor(self.n_workers) as pool:
            yield from [future.result() for future in [pool.submit(call) for call in calls]]


@pytest.mark.parametrize("n_inputs", [1, 2])
def test_workers_that_read_blocks_at_the_same_time_do_not_share_files(tight, largest, tmp_path, n_inputs):
    """And an input is not divided between workers, which would read their parts whole."""
    stored = []
    for i, att in enumerate(tensors(n_inputs)):
        att.save(tmp_path / f"{i}.zarr")
        stored.append(ht.AttentionTensor.open(tmp_path / f"{i}.zarr"))
    runs = {}
    for name, memory, workers in (("whole", None, None), ("limited", 8 * int(np.prod(att.shape)), Threads())):
        largest[0] = 0
        runs[name] = make_run.make_run(
            sources.TensorSource(stored),
            tmp_path / name,
            questionnaire=ht.Questionnaire(samples=8),
            measures=QUICK,
            draw=False,
            memory=memory,
            workers=workers,
        )
    assert contents(runs["whole"].path) == contents(runs["limited"].path)
    assert 0 < largest[0] < np.prod(att.shape)


def test_a_tensor_that_fits_no_worker_is_refused(tight):
    att = ht.AttentionTensor.from_array(np.ones((4, 8, 8), np.float32))
    with pytest.raises(InvalidValueError, match=r"a worker needs about .* of memory .* leave --dask out"):
        memory_limit.Limit(100).holds(att)


def test_too_little_for_a_block_is_said_before_anything_is_written(tmp_path):
    ht.AttentionTensor.from_array(np.random.default_rng(0).normal(size=(4, 64, 64))).save(tmp_path / "x.zarr")
    given = [str(tmp_path / "x.zarr"), "--attention", "hqk", "--memory", "1MB", "-o", str(tmp_path / "run")]
    result = CliRunner().invoke(app, ["organize", *given, "--no-draw"])
    assert result.exit_code == 2
    assert "memory must be at least" in result.stderr
    assert "allow that much, or take fewer heads or tokens" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_less_than_the_process_takes_is_refused_before_a_model_is_loaded(tmp_path, text):
    result = CliRunner().invoke(
        app, ["run", "no-such-model", "--text", str(text), "--memory", "1kB", "-o", str(tmp_path / "run")]
    )
    assert result.exit_code == 2
    assert "which this process takes without any tensor, got 1 kB; allow more" in result.stderr
    assert not (tmp_path / "run").exists()


def test_reading_ahead_gives_what_is_there(tmp_path):
    x = np.random.default_rng(0).normal(size=(5, 17, 13)).astype(np.float32)
    ht.AttentionTensor.from_array(x).save(tmp_path / "x.zarr")
    stored = ht.AttentionTensor.open(tmp_path / "x.zarr").values
    for lazy in (ReadAhead(stored, 5 * 13 * 4), Regrouped(stored, tmp_path, (1, 2), 5 * 13 * 4)):
        for index in [
            np.s_[:, 2:3], np.s_[:, 3:5], np.s_[1:3, 3:5], np.s_[:, 16:], np.s_[2:4], np.s_[:, :, 4:9],
        ]:  # fmt: skip
            np.testing.assert_array_equal(lazy[index], x[index])
        np.testing.assert_array_equal(lazy.read((np.array([4, 1]), slice(0, 3), slice(None))), x[[4, 1], :3])
        few, fewer = np.array([3, 9, 16]), np.array([12, 2])
        for index in [
            (slice(None), few, fewer),
            (slice(1, 4), few, slice(None)),
            (slice(None), slice(2, 9), fewer),
        ]:
            picked = np.ix_(*[np.arange(n)[each] for n, each in zip(x.shape, index, strict=True)])
            np.testing.assert_array_equal(lazy.read(index), x[picked])


@pytest.mark.parametrize("n_entries", [1, 2 * 17 * 13, 10_000])
def test_every_head_is_read_once_to_regroup(tmp_path, monkeypatch, n_entries):
    ht.AttentionTensor.from_array(np.ones((5, 17, 13))).save(tmp_path / "x.zarr")
    stored = ht.AttentionTensor.open(tmp_path / "x.zarr").values
    n_read, read = np.zeros(5, int), StoredArray.read

    def watched(array, index, *given):
        n_read[index[0]] += 1
        return read(array, index, *given)

    monkeypatch.setattr(StoredArray, "read", watched)
    Regrouped(stored, tmp_path, (1, 2), n_entries)
    assert n_read.tolist() == [2, 1, 1, 1, 1]  # an entry of the first tells their type


@pytest.mark.parametrize("masked", [False, True])
def test_centred_scores_by_blocks(tmp_path, masked):
    x = 1e3 * np.random.default_rng(0).normal(size=(5, 17, 13)).astype(np.float32)
    mask = np.tri(17, 13, 3) < 1 if masked else np.zeros((17, 13), bool)
    ht.AttentionTensor.from_array(x, mask=mask).save(tmp_path / "x.zarr")
    att = ht.AttentionTensor.open(tmp_path / "x.zarr")
    lazy, whole = centred_by_blocks(att).values, att.centred().block().numpy()
    for index in [(slice(0, 5),) * 3, (slice(1, 3), np.array([9, 2, 4]), slice(0, 4)), (slice(None),) * 3]:
        found, expected, hidden = (
            array[np.ix_(*[np.arange(n)[each] for n, each in zip(x.shape, index, strict=True)])]
            for array in (lazy.read((slice(None),) * 3).numpy(), whole, np.broadcast_to(mask, x.shape))
        )
        np.testing.assert_array_equal(lazy.read(index).numpy(), found)
        np.testing.assert_array_equal(found[~hidden], expected[~hidden])


def test_too_little_for_a_block_says_what_would_fit():
    att = ht.AttentionTensor.from_array(np.zeros((4, 64, 64), np.float32) + np.eye(64, dtype=np.float32))
    with pytest.raises(InvalidValueError, match=r"memory must be at least .* to organize .* got 1.0 MB; allow"):
        memory_limit.Limit(1 << 20).room_to_organize(att, ht.Questionnaire())


def test_landmarks_need_less():
    att = ht.AttentionTensor.from_array(np.zeros((4, 512, 512), np.float32) + np.eye(512, dtype=np.float32))
    all_pairs, landmarks = (
        memory_limit.Limit(1 << 40).room_to_organize(att, ht.Questionnaire(landmarks=m))
        for m in (None, (None, 64, 64))
    )
    assert landmarks - all_pairs > 8 * 512**2
    with pytest.raises(
        InvalidValueError, match=r"landmarks must have None for heads in a run.*pass \(None, n, n\)"
    ):
        make_run.make_run(sources.TensorSource([att]), "nowhere", questionnaire=ht.Questionnaire(landmarks=3))


@pytest.mark.parametrize("wrong", ["2 gigs", "", "GB", -1, 0, True, "nan", "1e400GB"])
def test_what_is_not_a_size(wrong):
    with pytest.raises(InvalidValueError, match="memory must be a size such as '2GB'"):
        limit_in_bytes(wrong)


@pytest.mark.parametrize(("text", "size"), [("2GB", 2 << 30), ("500 mb", 500 << 20), ("1.5GiB", 3 << 29), (99, 99)])
def test_sizes(text, size):
    assert limit_in_bytes(text) == size


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--memory", "much"], "memory must be a size such as '2GB' or '500MB', got 'much'"),
        (["--memory", "1MB"], "takes about"),
    ],
)
def test_bad_limits_are_one_line_and_nothing_is_written(tmp_path, options, message):
    np.save(tmp_path / "x.npy", np.zeros((4, 5, 6)))
    result = CliRunner().invoke(
        app, ["organize", str(tmp_path / "x.npy"), "--no-draw", "-o", str(tmp_path / "run"), *options]
    )
    assert result.exit_code == 2
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "run").exists()
