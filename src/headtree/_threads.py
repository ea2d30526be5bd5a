"""Compiled loops on several threads: a pool whose threads sleep until there are tasks, and take them one by one.

The threads of numba's own parallel loops keep spinning between calls, which is costly when other programs need the
cores. The threads of this pool sleep. Kernels that run here are compiled with ``nogil=True``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from threading import Barrier, Lock, local
from typing import Any, TypeVar

import torch
from torch import Tensor

#: Rows of a matrix that a thread multiplies at a time.
_ROWS_AT_A_TIME = 128

First = TypeVar("First")
Second = TypeVar("Second")


def for_each_task(kernel: Callable[..., Any], n_tasks: int, *arguments: Any) -> None:
    """Call ``kernel(task, *arguments)`` for each ``task`` in ``range(n_tasks)``, on as many threads as torch uses.

    The calling thread takes tasks too. No two tasks may write to the same memory; results then do not depend on
    the number of threads, which is set by ``torch.set_num_threads`` or ``OMP_NUM_THREADS``.
    """
    n_threads = _Resting.n_threads if _Resting.n_blocks else torch.get_num_threads()
    tasks = iter(range(n_tasks))  # taking the next item of a range iterator is atomic under the interpreter lock

    def work() -> None:
        for task in tasks:
            kernel(task, *arguments)

    helpers = [_pool(n_threads).submit(work) for _ in range(min(n_threads, n_tasks) - 1)]
    try:
        work()
    finally:
        for helper in helpers:
            if (
                not helper.cancel()
            ):  # do not wait for one that never started because other callers keep the pool busy
                helper.result()


def product_by_rows(left: Tensor, right: Tensor) -> Tensor:
    """``left @ right.T``, with the rows of `left` divided between the threads."""
    result = torch.empty(len(left), len(right), dtype=left.dtype)

    def multiply(band: int) -> None:
        rows = slice(band * _ROWS_AT_A_TIME, (band + 1) * _ROWS_AT_A_TIME)
        torch.mm(left[rows], right.T, out=result[rows])

    with sleeping_threads():  # the order of a sum must not depend on how many threads torch would divide it between
        for_each_task(multiply, -(-len(left) // _ROWS_AT_A_TIME))
    return result


def at_once(first: Callable[[], First], second: Callable[[], Second]) -> tuple[First, Second]:
    """Run two functions at the same time and return both results; useful if they release the interpreter lock."""
    found: list[Any] = [None, None]

    def call(task: int) -> None:
        found[task] = (first, second)[task]()

    for_each_task(call, 2)
    return found[0], found[1]


class _Resting:
    """How many blocks of `sleeping_threads` run, in any thread, and the number of threads before the first."""

    lock = Lock()
    n_blocks = 0
    n_threads = 1
    others: Any = None  #: gives numpy's and scipy's threads back


class _Own(local):
    """What a Python thread has for itself: how many blocks it is in, and torch's number of threads after them."""

    n_blocks = 0
    n_threads = 1
    n_in_pool: int | None = None  #: in a thread of the pool, the number of its threads


_OWN = _Own()


@lru_cache(maxsize=1)
def _other_libraries() -> Any:
    """The threads of numpy's and scipy's libraries of linear algebra."""
    import scipy.linalg  # noqa: F401  (loads its own library)
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController().select(user_api="blas")


@contextmanager
def sleeping_threads() -> Iterator[None]:
    """Let torch, numpy and scipy use one thread in this block, but `for_each_task` as many as before.

    Their own threads spin while they wait for each other. On a machine that is busy with other programs, small
    problems then take many times as long. Blocks may overlap, in several Python threads, and contain each other.
    """
    with _Resting.lock:
        n_threads = torch.get_num_threads()
        if _Resting.n_blocks == 0:
            _Resting.n_threads = _OWN.n_in_pool or n_threads
            _Resting.others = _other_libraries().limit(limits=1)
        if _OWN.n_blocks == 0:
            # a thread that is started while others are in a block begins with one, which nobody has chosen
            inherits = n_threads == 1 and _OWN.n_in_pool is None
            _OWN.n_threads = _Resting.n_threads if inherits else n_threads
        _Resting.n_blocks += 1
        _OWN.n_blocks += 1
        torch.set_num_threads(1)
    try:
        yield
    finally:
        with _Resting.lock:
            _Resting.n_blocks -= 1
            if _Resting.n_blocks == 0:
                _Resting.others.restore_original_limits()
            _OWN.n_blocks -= 1
            if _OWN.n_blocks == 0:
                torch.set_num_threads(_OWN.n_threads)  # of this thread: OpenMP counts them for each Python thread


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread in this block: for many small problems, whose threads would wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _use_one_thread(n_in_pool: int) -> None:
    """Let torch use one thread in the calling thread of the pool, for good."""
    _OWN.n_in_pool = n_in_pool
    torch.set_num_threads(1)
    torch.get_num_threads()  # settles it: until a thread has asked, it takes the number of others


@lru_cache(maxsize=1)
def _pool(n_threads: int) -> ThreadPoolExecutor:
    """A pool in whose threads torch does not start threads of its own."""
    before, started = torch.get_num_threads(), Barrier(n_threads + 1)
    pool = ThreadPoolExecutor(n_threads, "headtree", _use_one_thread, (n_threads,))
    for _ in range(n_threads):
        pool.submit(started.wait)
    started.wait()
    torch.set_num_threads(before)  # the number is also what threads that are started later begin with
    return pool


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # a forked child does not inherit the threads
