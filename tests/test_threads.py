import os
import threading

import numba
import numpy as np
import pytest
import torch

from headtree import _threads
from headtree._threads import at_once, for_each_task, sleeping_threads


@pytest.fixture(params=[1, 2, 3])
def n_threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@numba.njit(nogil=True)
def square(task, values, out):
    out[task] = values[task] ** 2


@pytest.mark.parametrize("n_tasks", [0, 1, 2, 100])
def test_every_task_is_done_once(n_threads, n_tasks):
    values, out = np.arange(100.0), np.zeros(100)
    for_each_task(square, n_tasks, values, out)
    np.testing.assert_array_equal(out, np.where(np.arange(100) < n_tasks, values**2, 0))
    done = []
    for_each_task(lambda task: done.append((task, threading.get_ident())), n_tasks)
    assert sorted(task for task, _ in done) == list(range(n_tasks))
    assert len({thread for _, thread in done}) <= n_threads


def test_tasks_run_at_the_same_time():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        together = threading.Barrier(2, timeout=30)
        for_each_task(lambda task: together.wait(), 2)  # each task waits for the other
    finally:
        torch.set_num_threads(before)


def test_an_error_in_a_task_reaches_the_caller(n_threads):
    def fail(task):
        if task == 7:
            raise RuntimeError("task 7")

    with pytest.raises(RuntimeError, match="task 7"):
        for_each_task(fail, 8)


def test_callers_on_several_threads_share_the_pool(n_threads):
    outs = [np.zeros(50) for _ in range(6)]
    callers = [threading.Thread(target=for_each_task, args=(square, 50, np.arange(50.0), out)) for out in outs]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(timeout=30)
        assert not caller.is_alive()
    for out in outs:
        np.testing.assert_array_equal(out, np.arange(50.0) ** 2)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_process_has_threads_of_its_own():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for_each_task(lambda task: None, 4)
        child = os.fork()
        if child == 0:
            done = []
            together = threading.Barrier(2, timeout=30)
            for_each_task(lambda task: done.append(together.wait()), 2)
            os._exit(0 if len(done) == 2 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        torch.set_num_threads(before)


def test_two_functions_run_at_once_and_their_results_keep_their_places(n_threads):
    assert at_once(lambda: 1, lambda: "two") == (1, "two")
    with pytest.raises(RuntimeError, match="second"):
        at_once(lambda: 1, lambda: fail_with("second"))
    if n_threads > 1:
        together = threading.Barrier(2, timeout=30)
        at_once(together.wait, together.wait)  # each waits for the other


def fail_with(words):
    raise RuntimeError(words)


def test_blocks_of_sleeping_threads_may_overlap():
    """One Python thread enters, another enters, the first leaves, the second leaves: all is as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    entered, may_leave = threading.Event(), threading.Event()

    def other():
        with sleeping_threads():
            entered.set()
            may_leave.wait(30)

    thread = threading.Thread(target=other)
    try:
        with sleeping_threads():
            thread.start()
            assert entered.wait(30)
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
        may_leave.set()
        thread.join()
        with sleeping_threads():
            assert _threads._Resting.n_threads == 2
        assert torch.get_num_threads() == 2
    finally:
        may_leave.set()
        torch.set_num_threads(before)


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
def test_blocks_of_sleeping_threads_may_contain_each_other():
    """The inner block must not wake the threads that the outer one has put to sleep."""
    with sleeping_threads():
        with sleeping_threads():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("first", ["pool", "caller"])
def test_threads_of_the_pool_stay_alone_after_a_block_and_the_caller_does_not(first):
    both, entered, found = threading.Barrier(2), threading.Event(), {}

    def task(_):
        name = "pool" if threading.current_thread().name.startswith("headtree") else "caller"
        both.wait()  # each thread has one of the tasks
        if name != first:
            entered.wait()
        with sleeping_threads():
            entered.set()
        found[name] = torch.get_num_threads()

    for_each_task(task, 2)
    assert found == {"pool": 1, "caller": 2}


@pytest.mark.usefixtures("two_threads")
def test_a_thread_keeps_the_number_that_it_has_chosen():
    ready, done = threading.Event(), threading.Event()

    def other():
        torch.set_num_threads(1)
        with sleeping_threads():
            ready.set()
            done.wait()

    thread = threading.Thread(target=other)
    thread.start()
    ready.wait()
    with sleeping_threads():
        pass
    done.set()
    thread.join()
    assert torch.get_num_threads() == 2
