"""Kill the making of a run at its writes, then finish it: ``python -m tests.pipeline.interrupted N [--draw]``.

With ``--draw``, figures and the page are drawn too.

Everything heavy is imported once and each trial is a forked child, which no kernel has run in before. A child that
is to be killed counts what it writes in the run's folder through Python's audit events and sends itself SIGKILL at
one of them, which no handler and no `finally` survives.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pandas  # noqa: F401, ICN001
import zarr  # noqa: F401

from tests.runs.examples import small_run

#: Without os.mkdir: threads that write chunks side by side try to make the same folder, a varying number of times.
_WRITING = {"os.remove", "os.rename", "os.rmdir", "os.truncate", "shutil.rmtree"}


def is_write(event: str, arguments: tuple, folder: str) -> bool:
    """Whether an audit event is a change of something in the folder."""
    if event == "open":
        path, mode, flags = arguments
        if not (flags & (os.O_WRONLY | os.O_RDWR) or (isinstance(mode, str) and set(mode) & set("wax+"))):
            return False
        return isinstance(path, str | bytes | os.PathLike) and os.fsdecode(path).startswith(folder)
    return event in _WRITING and any(
        isinstance(item, str | bytes | os.PathLike) and os.fsdecode(item).startswith(folder) for item in arguments
    )


def in_child(action) -> int:
    """Run the action in a forked child; returns how it ended, negative for a signal."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            action()
            code = 0
        except BaseException:
            traceback.print_exc()
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def make(folder: Path, draw: bool, kill_at: int | None = None, count: Path | None = None) -> None:
    """Make or finish the run; die at a write, or tell how many there were."""
    seen = 0

    def watch(event: str, arguments: tuple) -> None:
        nonlocal seen
        if is_write(event, arguments, str(folder)):
            seen += 1
            if seen == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)
    small_run(folder, draw=draw)
    if count is not None:
        count.write_text(str(seen))


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a run but run.json, which knows how long each step took."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != "run.json"
    }


def kill(where: Path, seed: int, n: int, draw: bool, jobs: int = 1) -> str:
    """Kill `n` runs, each at its own moment, some at a time; returns a line of figures."""
    if in_child(lambda: make(where / "whole" / "run", draw, count=where / "count")) != 0:
        raise SystemExit("the uninterrupted run failed")
    n_writes = int((where / "count").read_text())
    expected = contents(where / "whole" / "run")
    # spread evenly with a random offset, so that every step is hit
    offsets = np.random.default_rng(seed).random(n)
    places = [1 + int((i + offset) * n_writes / n) for i, offset in enumerate(offsets)]

    def problem(trial: int) -> str | None:
        place, folder = places[trial], where / f"trial{trial}" / "run"  # the page has the name of the folder
        ended = in_child(lambda: make(folder, draw, kill_at=place))
        if ended != -signal.SIGKILL:
            return f"ended with {ended}"
        again = in_child(lambda: make(folder, draw, kill_at=40))  # and once more while it goes on
        if again not in (0, -signal.SIGKILL) or in_child(lambda: make(folder, draw)) != 0:
            return "cannot be finished"
        found = contents(folder)
        if found != expected:
            names = sorted(name for name in {*found, *expected} if found.get(name) != expected.get(name))
            return f"{len(names)} files differ: {names[:5]}"
        shutil.rmtree(folder)
        return None

    with ThreadPoolExecutor(jobs) as pool:  # each thread waits for its child
        for place, said in zip(places, pool.map(problem, range(n)), strict=True):
            if said is not None:
                pool.shutdown(cancel_futures=True)
                raise SystemExit(f"killed at write {place} of {n_writes}: {said}")
    return f"{n} runs killed at writes {places[0]} to {places[-1]} of {n_writes} were finished bit for bit"


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("n", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--draw", action="store_true")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    given = parser.parse_args()
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        said = kill(Path(folder), given.seed, given.n, given.draw, given.jobs)
    print(f"{said}; {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
