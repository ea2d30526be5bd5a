"""Runs within a limit of memory: the same files, and a line that says what is too large."""

import numpy as np
import pytest
from typer.testing import CliRunner

import headtree as ht
from headtree.cli.app import app
from headtree.errors import InvalidValueError
from headtree.pipeline import make_run, memory_limit, sources
from headtree.pipeline.memory_limit import limit_in_bytes
from headtree.tensor.centred_scores import centred_by_blocks
from tests.pipeline.interrupted import contents
from tests.runs.examples import QUICK, tensors

pytestmark = pytest.mark.filterwarnings("ignore::headtree.HeadtreeWarning")


@pytest.fixture
def tight(monkeypatch):
    """Only arrays count, so small ones are read by blocks."""
    monkeypatch.setattr(memory_limit, "working_bytes", lambda *given: 0)
    monkeypatch.setattr(memory_limit, "memory_in_use", lambda: 0)
    monkeypatch.setattr(memory_limit, "_OTHER", 0)


def test_a_limited_run_stops_where_it_needs_whole_tensors_and_resumes(tight, tmp_path):
    (att,) = tensors(1)
    att.save(tmp_path / "x.zarr")
    source = sources.TensorSource([ht.AttentionTensor.open(tmp_path / "x.zarr")])
    settings = ht.Questionnaire(samples=8)
    size, done = 4 * int(np.prod(att.shape)), []

    def make(memory):
        return make_run.make_run(
            source,
            tmp_path / "run",
            questionnaire=settings,
            measures=QUICK,
            draw=False,
            memory=memory,
            say=lambda step, seconds: done.append(step),
        )

    with pytest.raises(ht.HeadtreeError, match=r"step measure needs whole tensors, about .* --memory [0-9.]+kB or"):
        make(3 * size - 1)
    assert done == ["capture", "organize", "compare"]
    make("1MB")
    assert done == ["capture", "organize", "compare", "measure", "diagnose"]
    whole = make_run.make_run(source, tmp_path / "whole", questionnaire=settings, measures=QUICK, draw=False)
    assert contents(whole.path) == contents(tmp_path / "run")


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
        memory_limit.room_for_blocks(att, ht.Questionnaire(), 1 << 20)


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
