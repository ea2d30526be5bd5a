"""The workers of a Dask cluster.

Arguments travel with their call, and results come back: workers elsewhere need no file system in common with this
machine. Those that were started here read tensors from its files, and write what is to be kept of their work. The
scheduler gives the call of a worker that died to another one.
"""

from __future__ import annotations

import asyncio
import logging
import math
import signal
import socket
import tempfile
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import resource_tracker
from threading import Lock
from typing import Any, TypeVar

import dask
import torch
from distributed import CancelledError, Client, Future, KilledWorker, LocalCluster, Security, get_worker, rpc, wait
from distributed.comm import CommClosedError, get_address_host_port
from distributed.gc import disable_gc_diagnosis
from distributed.protocol import pickle as wire

from headtree._version import __version__
from headtree.errors import HeadtreeError, HeadtreeWarning, first_line
from headtree.pipeline.workers import ClusterError
from headtree.progress import progress
from headtree.tensor.attention_tensor import AttentionTensor

T = TypeVar("T")

#: Seconds within which a scheduler must answer.
_ANSWER = 6
#: Seconds to wait for a first worker, or for another one if all are gone.
_NO_WORKERS = 60
#: Calls that are sent ahead for each worker: it need not wait for the next one.
_AHEAD = 3
#: Results for each worker that may wait for that of an earlier call, which takes longer.
_WAITING = 24

#: What is raised when a scheduler is lost: by Dask, by the event loop that waited for it, or by the connection.
_LOST = (CancelledError, asyncio.CancelledError, CommClosedError)

_AGAIN = "finished work is saved; run the same command again to continue"


@contextmanager
def local_cluster(n: int) -> Iterator[str]:
    """Start `n` worker processes on this machine, which share its threads; yields the scheduler's address."""
    settings = {
        # calls wait at the scheduler: behind a long one on a worker they would wait while others are idle
        "distributed.scheduler.worker-saturation": 1.0,
        # nobody looks at these, and threads that wake up often hold up those that compute
        "distributed.worker.profile.enabled": False,
        "distributed.admin.tick.interval": "1s",
        "distributed.admin.system-monitor.interval": "5s",
        "distributed.worker.memory.monitor-interval": "500ms",
        "distributed.nanny.pre-spawn-environ": _environment(),
    }
    with _quiet(), dask.config.set(settings), ExitStack() as stack:
        folder = tempfile.TemporaryDirectory(prefix="headtree-dask-", ignore_cleanup_errors=True)
        scratch = stack.enter_context(folder)
        with _interrupts_later():
            cluster = LocalCluster(
                n_workers=n,
                threads_per_worker=max(1, torch.get_num_threads() // n),
                processes=True,
                dashboard_address=None,
                # any free port: another cluster may have 8787
                scheduler_kwargs={"dashboard_address": "127.0.0.1:0"},
                local_directory=scratch,
                silence_logs=logging.CRITICAL,
            )
            stack.enter_context(cluster)
            disable_gc_diagnosis(force=True)  # a callback of every garbage collection, in which Ctrl-C gets lost
        yield str(cluster.scheduler_address)


def _environment() -> dict[str, Any]:
    """Variables of worker processes, as Dask has them but for one.

    With MALLOC_TRIM_THRESHOLD_ the C library gives every array of 128 kB or more back to the system and asks for
    the next one anew, which costs small problems a third of their time.
    """
    usual = dask.config.get("distributed.nanny.pre-spawn-environ") or {}
    return {name: value for name, value in usual.items() if name != "MALLOC_TRIM_THRESHOLD_"}


@contextmanager
def connected(address: str, *, sees_files: bool = False) -> Iterator[DaskWorkers]:
    """The workers of a running scheduler, once each is known to have this version of headtree."""
    with _quiet():
        try:
            with ThreadPoolExecutor(1) as aside:  # this thread may have an event loop already
                aside.submit(asyncio.run, _answer(address)).result()
            client = Client(address, timeout=_ANSWER, set_as_default=False)
        except Exception as error:  # whatever another kind of server may answer
            raise ClusterError(
                f"no scheduler answers at {address} within {_ANSWER} seconds ({_reason(address, error)}); start "
                "one with dask scheduler, or check the address and the firewall"
            ) from error
        try:
            workers = DaskWorkers(client, address, sees_files)
            workers.check()
            yield workers
        finally:
            with suppress(Exception):  # a lost scheduler cannot be taken leave of
                client.close(timeout=2)


def _reason(address: str, error: Exception) -> str:
    """Why no scheduler answers: what a plain connection says, or that something else is there."""
    try:
        host, port = get_address_host_port(address)
        socket.create_connection((host, port), timeout=1).close()
    except (OSError, OverflowError, ValueError) as refused:
        return getattr(refused, "strerror", None) or first_line(refused)
    if isinstance(error, TimeoutError):
        return "something accepts connections there and says nothing"
    if isinstance(error, (CommClosedError, MemoryError)):  # what it says was taken for the length of a message
        return "something else answers there"
    return first_line(error)


async def _answer(address: str) -> None:
    """Return once a scheduler has answered; a client alone would wait for ever for a server that says nothing."""

    async def identity() -> Any:
        async with rpc(address, connection_args=Security().get_connection_args("client")) as scheduler:
            return await scheduler.identity()

    found = await asyncio.wait_for(identity(), _ANSWER)
    if found.get("type") != "Scheduler":
        raise ValueError(f"a {found.get('type')} answers there")


class DaskWorkers:
    """Workers that a scheduler knows; they may come and go."""

    def __init__(self, client: Client, address: str, sees_files: bool) -> None:
        self._client, self._address, self.sees_files = client, address, sees_files
        self._counted = -math.inf, 0  # when workers were counted last, and how many there were

    @property
    def n_workers(self) -> int:
        """Number of workers, counted in the last second: to ask the scheduler takes longer than to send a call."""
        now = time.monotonic()
        if now > self._counted[0] + 1:
            self._counted = now, len(self._client.nthreads())
        return self._counted[1]

    def sendable(self, att: AttentionTensor) -> AttentionTensor:
        """The tensor; with its values, if workers may not see this machine's files."""
        return att if self.sees_files else att.load()

    def check(self) -> None:
        """Raise an error unless there are workers, all with this version of headtree."""
        try:
            with progress(f"waiting for workers of {self._address}", 1):
                self._client.wait_for_workers(1, timeout=_NO_WORKERS)
        except TimeoutError:
            raise self._no_workers() from None

        def version() -> str | None:  # a nested function is sent as code: the worker may not have headtree
            try:
                from headtree._version import __version__
            except ImportError:
                return None
            return __version__

        for worker, found in self._client.run(version).items():
            if found != __version__:
                raise _unlike(worker, found)

    def each(self, calls: Iterable[Callable[[], T]], *, long: bool = False) -> Iterator[T]:
        """Make the calls on the workers; unless they are long, a few more at a time than there are workers."""
        remaining = iter(calls)
        pending: deque[Future[Any]] = deque()
        at_once = 1 if long else _AHEAD
        try:
            while True:
                self._send(remaining, pending, at_once)
                if not pending:
                    return
                self._wait(remaining, pending, at_once)
                yield self._result(pending.popleft())
        finally:
            if pending:
                with suppress(Exception):
                    self._client.cancel(list(pending), asynchronous=False)

    def _send(self, remaining: Iterator[Callable[[], Any]], pending: deque[Future[Any]], at_once: int) -> None:
        try:
            n_workers = max(1, self.n_workers)
            n_sent = sum(not future.done() for future in pending)
            while n_sent < at_once * n_workers and len(pending) < _WAITING * n_workers:
                call = next(remaining, None)
                if call is None:
                    return
                with warnings.catch_warnings():
                    warnings.filterwarnings("ignore", message="Sending large graph")  # on purpose: see above
                    pending.append(self._client.submit(_sent(), wire.dumps(call), __version__, pure=False))
                n_sent += 1
        except (OSError, *_LOST) as error:
            if isinstance(error, HeadtreeError):
                raise
            raise self._lost() from error

    def _wait(self, remaining: Iterator[Callable[[], Any]], pending: deque[Future[Any]], at_once: int) -> None:
        """Wait for the first of the pending calls, and send others as long as some are done before it."""
        alone_since: float | None = None
        with self._client.as_current():
            while not pending[0].done():
                try:
                    wait([pending[0], *(each for each in pending if not each.done())], 1, "FIRST_COMPLETED")
                    self._send(remaining, pending, at_once)
                except TimeoutError:
                    alone_since = self._checked_health(alone_since)
                except _LOST as error:
                    raise self._lost() from error

    def _result(self, future: Future[Any]) -> Any:
        """The result of a call that is done; the warnings that it gave are given here."""
        try:
            found, notes = future.result()
        except KilledWorker as error:
            raise ClusterError(
                f"four workers of {self._address} died one after the other at the same work, most likely for lack "
                f"of memory; give each more memory or fewer threads; {_AGAIN}"
            ) from error
        except _LOST as error:
            raise self._lost() from error
        except ModuleNotFoundError as error:
            raise ClusterError(
                f"a worker of {self._address} lacks the module {error.name}; install headtree {__version__} with "
                f"the same extras on every worker; {_AGAIN}"
            ) from error
        for note in notes:
            warnings.warn(note, HeadtreeWarning, stacklevel=3)
        return found

    def _checked_health(self, alone_since: float | None) -> float | None:
        """Raise an error if the scheduler is lost or long without workers; returns since when it has none."""
        if self._client.status != "running":
            raise self._lost()
        try:
            if self.n_workers:
                return None
        except (OSError, *_LOST) as error:
            raise self._lost() from error
        alone_since = time.monotonic() if alone_since is None else alone_since
        if time.monotonic() - alone_since > _NO_WORKERS:
            raise self._no_workers()
        return alone_since

    def _lost(self) -> ClusterError:
        return ClusterError(f"the connection to the scheduler at {self._address} is lost; start it again; {_AGAIN}")

    def _no_workers(self) -> ClusterError:
        return ClusterError(
            f"the scheduler at {self._address} has no workers; start some with: dask worker {self._address}"
        )


#: Models are watched while they run: a worker process makes one call at a time, whatever its number of threads.
_ONE_AT_A_TIME = Lock()


def _sent() -> Callable[[bytes, str], Any]:
    """`_make_call` as a nested function, which is sent as code.

    Everything slow, importing headtree and loading the model of a call, then happens in the thread that makes the
    call. The worker can answer the scheduler meanwhile, which would otherwise give it up.
    """

    def make(call: bytes, version: str) -> Any:
        from headtree.pipeline.dask_workers import _make_call

        return _make_call(call, version)

    return make


def _make_call(call: bytes, version: str) -> tuple[Any, list[str]]:
    """Make a call on a worker, with the threads of the worker; returns its result and headtree's warnings."""
    worker = get_worker()
    if version != __version__:
        raise _unlike(worker.address, __version__, version)
    with _ONE_AT_A_TIME, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", HeadtreeWarning)
        torch.set_num_threads(worker.state.nthreads)
        found = wire.loads(call)()
    return found, [str(item.message) for item in caught if issubclass(item.category, HeadtreeWarning)]


def _unlike(worker: str, found: str | None, wanted: str = __version__) -> ClusterError:
    problem = "has no headtree" if found is None else f"has headtree {found}"
    return ClusterError(
        f"the worker {worker} {problem}, but this is version {wanted}; install the same version on every worker: "
        f"pip install 'headtree[cluster]=={wanted}'"
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """No log messages of Dask: what matters is raised as an error."""
    names = ("distributed", *(name for name in logging.root.manager.loggerDict if name.startswith("distributed.")))
    loggers = [logging.getLogger(name) for name in names]  # Dask gives some of them levels of their own
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)


@contextmanager
def _interrupts_later() -> Iterator[None]:
    """Hold back Ctrl-C until the end of the block, and for ever in the threads and processes that it starts.

    A terminal interrupts worker processes too, which would say so with a traceback each; the command stops them.
    """
    if not hasattr(signal, "pthread_sigmask"):  # on Windows
        yield
        return
    resource_tracker.ensure_running()  # to start it with the first process would let interrupts through
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
