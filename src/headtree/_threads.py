"""Compiled loops on several threads: a pool whose threads sleep until there are tasks, and take them one by one.

The threads of numba's own parallel loops keep spinning between calls, which is costly when other programs need the
cores. The threads of this pool sleep. Kernels that run here are compiled with ``nogil=True``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any, TypeVar

import torch

First = TypeVar("First")
Second = TypeVar("Second")


def for_each_task(kernel: Callable[..., Any], n_tasks: int, *arguments: Any) -> None:
    """Call ``kernel(task, *arguments)`` for each ``task`` in ``range(n_tasks)``, on as many threads as torch uses.

    The calling thread takes tasks too. No two tasks may write to the same memory; results then do not depend on
    the number of threads, which is set by ``torch.set_num_threads`` or ``OMP_NUM_THREADS``.
    """
    tasks = iter(range(n_tasks))  # taking the next item of a range iterator is atomic under the interpreter lock

    def work() -> None:
        for task in tasks:
            kernel(task, *arguments)

    n_helpers = min(torch.get_num_threads(), n_tasks) - 1
    helpers = [_pool(torch.get_num_threads()).submit(work) for _ in range(n_helpers)]
    work()
    for helper in helpers:
        if not helper.cancel():  # do not wait for one that never started because other callers keep the pool busy
            helper.result()


def at_once(first: Callable[[], First], second: Callable[[], Second]) -> tuple[First, Second]:
    """Run two functions at the same time and return both results; useful if they release the interpreter lock."""
    found: list[Any] = [None, None]

    def call(task: int) -> None:
        found[task] = (first, second)[task]()

    for_each_task(call, 2)
    return found[0], found[1]


@lru_cache(maxsize=1)
def _pool(n_threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(n_threads, thread_name_prefix="headtree")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # a forked child does not inherit the threads
