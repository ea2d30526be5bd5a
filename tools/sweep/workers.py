"""Run a function on many names in processes of their own, each with a time limit; no crash stops the others."""

from __future__ import annotations

import multiprocessing
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any


def guarded(
    function: Callable[[str], dict[str, Any]], names: Sequence[str], n_workers: int, limit: float
) -> Iterator[dict[str, Any]]:
    """Results in the order in which they are ready; a name that crashes or takes too long fails.

    Parameters
    ----------
    function
        Importable, from a name to a row.
    names
        What to run it on.
    n_workers
        Number of processes.
    limit
        Seconds for each name, the imports of a fresh process not counted.
    """
    os.environ["OMP_NUM_THREADS"] = "1"
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
    ready: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    for name in names:
        waiting.put(name)
    for _ in range(n_workers):
        threading.Thread(target=_work_off, args=(function, waiting, ready, limit), daemon=True).start()
    for _ in names:
        yield ready.get()


def _work_off(
    function: Callable[[str], dict[str, Any]],
    waiting: queue.SimpleQueue[str],
    ready: queue.SimpleQueue[dict[str, Any]],
    limit: float,
) -> None:
    worker = None
    while not waiting.empty():
        try:
            name = waiting.get_nowait()
        except queue.Empty:
            break
        worker = worker or _Worker(function)
        row = worker.run(name, limit)
        if row is None:
            row = {"family": name, "outcome": "fails", "why": worker.end()}
            worker = None
        ready.put(row)
    if worker is not None:
        worker.end()


class _Worker:
    """A process that runs the function on one name after another."""

    def __init__(self, function: Callable[[str], dict[str, Any]]) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(function, theirs), daemon=True)
        self.process.start()
        theirs.close()
        self.pipe.recv()  # it has started

    def run(self, name: str, limit: float) -> dict[str, Any] | None:
        """The row of a name; None if the process died or took too long."""
        start = time.monotonic()
        self.pipe.send(name)
        try:
            row: dict[str, Any] | None = self.pipe.recv() if self.pipe.poll(limit) else None
        except EOFError:
            return None
        return None if row is None else {**row, "seconds": round(time.monotonic() - start, 1)}

    def end(self) -> str:
        """End the process, and say how it ended if it did so by itself."""
        self.process.join(0.1)
        code = self.process.exitcode
        self.process.kill()
        self.process.join()
        return "takes too long" if code is None else f"the process ended with exit code {code}"


def _serve(function: Callable[[str], dict[str, Any]], pipe: Any) -> None:
    import torch

    torch.set_num_threads(1)
    pipe.send("ready")
    while True:
        name = pipe.recv()
        try:
            pipe.send(function(name))
        except Exception as error:
            pipe.send({"family": name, "outcome": "fails", "why": f"{type(error).__name__}: {error}"[:100]})
