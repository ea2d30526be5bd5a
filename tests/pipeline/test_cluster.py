"""Runs on a real cluster of processes: the same bits, also if workers or the scheduler are killed."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from headtree.errors import InvalidValueError
from headtree.pipeline import dask_workers
from headtree.pipeline.make_run import Measures, make_run
from headtree.pipeline.model_source import ModelSource
from headtree.pipeline.sources import TensorSource
from headtree.pipeline.workers import ClusterError, open_workers
from tests.pipeline.interrupted import contents
from tests.runs.examples import QUICK, tensors

pytest.importorskip("distributed")

FEW = Measures(head_functions=20, network_functions=10, bootstrap=5)


@contextmanager
def process(*arguments, **environment):
    """A Python process of Dask that is killed in the end."""
    command = [sys.executable, "-W", "ignore", "-m", *map(str, arguments)]
    started = subprocess.Popen(
        command,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield started
    finally:
        started.kill()
        started.wait()


@contextmanager
def scheduler(folder):
    """A scheduler; yields its process and its address."""
    file = folder / "scheduler.json"
    options = ("--host", "127.0.0.1", "--port", 0, "--no-dashboard", "--scheduler-file", file)
    with process("distributed.cli.dask_scheduler", *options) as started:
        until(lambda: file.exists() and file.read_text().strip().endswith("}"))
        yield started, json.loads(file.read_text())["address"]


def worker(address, folder, *options):
    own = ("--no-nanny", "--nthreads", 1, "--no-dashboard", "--local-directory", folder)
    return process("distributed.cli.dask_worker", address, *own, *options)


def until(is_so, seconds=120):
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end, "it never came to that"
        time.sleep(0.02)


def is_at_work(address, n_workers=1):
    """Whether so many workers have calls to make."""
    from distributed import Client

    with Client(address, set_as_default=False) as client:
        return sum(bool(calls) for calls in client.processing().values()) >= n_workers


@pytest.fixture(scope="module")
def source(folder, text):
    return ModelSource(model=str(folder), text=text, inputs=6, tokens=12, kind="scores")


@pytest.fixture(scope="module")
def plain(source, tmp_path_factory):
    """The files of the run that is made in this process."""
    return contents(make_run(source, tmp_path_factory.mktemp("plain") / "run", measures=FEW, draw=False).path)


@pytest.mark.filterwarnings("ignore::headtree.HeadtreeWarning")
def test_a_local_cluster_gives_the_same_bits(source, plain, tmp_path):
    with open_workers("local:2") as workers:
        assert workers.n_workers == 2
        make_run(source, tmp_path / "run", measures=FEW, draw=False, workers=workers)
        given = {n: TensorSource(tensors(n)) for n in (1, 2)}  # of one, the two workers share the heads
        for n, tensor_source in given.items():
            make_run(tensor_source, tmp_path / f"cluster{n}", measures=QUICK, draw=False, workers=workers)
    assert contents(tmp_path / "run") == plain
    for n, tensor_source in given.items():
        make_run(tensor_source, tmp_path / f"here{n}", measures=QUICK, draw=False)
        assert contents(tmp_path / f"cluster{n}") == contents(tmp_path / f"here{n}")


@pytest.mark.filterwarnings("ignore::headtree.HeadtreeWarning")
def test_a_killed_worker_costs_its_task_only(source, plain, tmp_path):
    with (
        scheduler(tmp_path) as (_, address),
        worker(address, tmp_path) as first,
        worker(address, tmp_path),
        open_workers(address) as workers,
    ):
        until(lambda: workers.n_workers == 2)
        killed = threading.Event()

        def kill():
            until(lambda: is_at_work(address, 2))
            first.send_signal(signal.SIGKILL)
            first.wait()
            killed.set()

        thread = threading.Thread(target=kill)
        thread.start()
        make_run(source, tmp_path / "run", measures=FEW, draw=False, workers=workers)
        thread.join()
        assert killed.is_set()
        assert workers.n_workers == 1
    assert contents(tmp_path / "run") == plain


@pytest.mark.filterwarnings("ignore::headtree.HeadtreeWarning")
def test_after_a_lost_scheduler_the_run_resumes(source, plain, tmp_path, caplog):
    done = []
    with scheduler(tmp_path) as (started, address), worker(address, tmp_path), open_workers(address) as workers:

        def kill_after_organize(step, seconds):
            done.append(step)
            if step == "organize":
                started.send_signal(signal.SIGKILL)

        with pytest.raises(ClusterError, match="run the same command again"):
            make_run(
                source,
                tmp_path / "run",
                measures=FEW,
                draw=False,
                workers=workers,
                say=kill_after_organize,
            )
    assert done == ["capture", "organize"]
    assert not [record for record in caplog.records if record.name.startswith("distributed")]  # the error says it
    make_run(source, tmp_path / "run", measures=FEW, draw=False, say=lambda step, seconds: done.append(step))
    assert done == ["capture", "organize", "compare", "measure", "diagnose"]  # none twice
    assert contents(tmp_path / "run") == plain


def test_a_call_that_a_lost_scheduler_cancelled(tmp_path):
    """Dask raises an error of its own for it, which is not that of a call that waits meanwhile."""
    with scheduler(tmp_path) as (started, address), worker(address, tmp_path), open_workers(address) as workers:
        future = workers._client.submit(time.sleep, 100)
        started.kill()
        until(future.cancelled)
        with pytest.raises(ClusterError, match="run the same command again"):
            workers._result(future)


def test_a_result_that_is_lost_with_the_scheduler(tmp_path):
    from distributed.comm import CommClosedError

    class Lost:
        def result(self):
            raise CommClosedError("Stream is closed")

    with (
        scheduler(tmp_path) as (_, address),
        worker(address, tmp_path),
        open_workers(address) as workers,
        pytest.raises(ClusterError, match=r"scheduler .* is lost"),
    ):
        workers._result(Lost())


def test_a_terminal_interrupts_the_command_and_not_its_workers(source, tmp_path):
    """Ctrl-C reaches all processes of a terminal."""
    words = ["run", source.model, "--text", source.text, "--inputs", 4, "--tokens", 12, "--no-draw"]
    command = [sys.executable, "-m", "headtree", *words, "--dask", "local:2", "-o", tmp_path / "run"]
    started = subprocess.Popen(
        list(map(str, command)),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    kept = (tmp_path / "run").rglob  # an interrupt while modules are imported may end in one of their callbacks
    until(lambda: any(kept("attention-00000.zarr")) or started.poll() is not None)
    os.killpg(started.pid, signal.SIGINT)
    _, said = started.communicate(timeout=60)
    assert started.returncode == 130, said
    assert said.strip().endswith("stopped: finished steps are saved; run the same command to continue")
    assert "Traceback" not in said


@pytest.mark.parametrize("after", [0.0, 1.0])
def test_a_scheduler_that_is_lost_while_calls_are_made(tmp_path, after):
    with scheduler(tmp_path) as (started, address), worker(address, tmp_path), open_workers(address) as workers:
        threading.Timer(after, started.kill).start()
        with pytest.raises(ClusterError, match=r"scheduler .* is lost.* run the same command again"):
            for _ in workers.each(partial(time.sleep, 0.2) for _ in range(1000)):
                pass


@pytest.mark.parametrize(("found", "message"), [(None, "has no headtree"), ("0.0.0", "has headtree 0.0.0")])
def test_workers_must_have_this_version(tmp_path, found, message):
    preload = tmp_path / "preload.py"
    lines = ["import sys", "sys.modules['headtree'] = None"]
    if found is not None:
        lines = ["import headtree._version", f"headtree._version.__version__ = {found!r}"]
    preload.write_text("\n".join([*lines, "def dask_setup(worker): pass"]))
    with (
        scheduler(tmp_path) as (_, address),
        worker(address, tmp_path, "--preload", preload),
        pytest.raises(ClusterError, match=f"{message}.*pip install"),
        open_workers(address),
    ):
        pass


def test_a_cluster_that_does_not_answer():
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        port = silent.getsockname()[1]
        start = time.monotonic()
        with (
            pytest.raises(ClusterError, match=r"no scheduler answers at .* start one"),
            open_workers(f"tcp://127.0.0.1:{port}"),
        ):
            pass
        assert time.monotonic() - start < 10


@pytest.mark.parametrize(
    ("address", "reason"),
    [("127.0.0.1:9", "Connection refused"), ("no-such-host.invalid:8786", "not known|resolution")],
)
def test_why_no_scheduler_answers(address, reason, monkeypatch):
    monkeypatch.setattr(dask_workers, "_ANSWER", 1)
    with (
        pytest.raises(ClusterError, match=rf"no scheduler answers at .* \(.*({reason})"),
        open_workers(f"tcp://{address}"),
    ):
        pass


def test_a_cluster_without_workers(tmp_path, monkeypatch):
    monkeypatch.setattr(dask_workers, "_NO_WORKERS", 2)
    with (
        scheduler(tmp_path) as (_, address),
        pytest.raises(ClusterError, match="has no workers; start some"),
        open_workers(address),
    ):
        pass


@pytest.mark.parametrize(
    "spec", ["", "local", "local:0", "local:two", "tcp://", "host:8786", "tcp://a b:1", "local:-1", "tcp://h:65536"]
)
def test_what_is_not_a_cluster(spec):
    with pytest.raises(InvalidValueError, match="dask must be local:N"), open_workers(spec):
        pass


def test_a_worker_that_cannot_read_the_model(source, tmp_path, monkeypatch):
    """The folder is gone where the worker looks for it."""
    import pickle
    import shutil
    from dataclasses import replace

    from headtree.pipeline import model_capture

    shutil.copytree(source.model, tmp_path / "copy")
    ready = replace(source, model=str(tmp_path / "copy")).begin()
    sent = pickle.dumps(ready.only([1]))
    monkeypatch.setattr(model_capture, "_LOADED", {})
    shutil.rmtree(tmp_path / "copy")
    with pytest.raises(InvalidValueError, match=r"cannot load the model.*readable on every worker"):
        pickle.loads(sent)
    assert Path(source.model).exists()
