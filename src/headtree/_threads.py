"""Compiled loops on several threads: a pool of sleeping threads that takes tasks one by one.

numba's own parallel loops keep their threads spinning between calls, which costs much where other programs
want the cores; threads of this pool sleep. Kernels that run here are compiled with ``nogil=True``.
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
    """Call ``kernel(task, *arguments)`` for every task from 0 to `n_tasks`, on as many threads as torch uses.

    The calling thread takes tasks as well. Tasks must not write to the same places: then results do not depend on
    the number of threads, which ``torch.set_num_threads`` and ``OMP_NUM_THREADS`` set.
    """
    tasks = iter(range(n_tasks))  # handing out the next task is one step of the interpreter

    def work() -> None:
        for task in tasks:
            kernel(task, *arguments)

    n_helpers = min(torch.get_num_threads(), n_tasks) - 1
    helpers = [_pool(torch.get_num_threads()).submit(work) for _ in range(n_helpers)]
    work()
    for helper in helpers:
        if not helper.cancel():  # one that never started, since others keep the pool busy, is not waited for
            helper.result()


def at_once(first: Callable[[], First], second: Callable[[], Second]) -> tuple[First, Second]:
    """What two functions return, that spend their time in loops which let go of the interpreter."""
    found: list[Any] = [None, None]

    def call(task: int) -> None:
        found[task] = (first, second)[task]()

    for_each_task(call, 2)
    return found[0], found[1]


@lru_cache(maxsize=1)
def _pool(n_threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(n_threads, thread_name_prefix="headtree")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # threads stay behind in the parent
