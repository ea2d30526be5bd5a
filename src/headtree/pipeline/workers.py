"""Where the work of a run is done: in this process, or on the workers of a cluster.

A step of a run is a list of calls that do not depend on each other, one for each input. Both kinds of workers make
the same calls and give the results in the same order, so a run has the same bits wherever it was made.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

from headtree._extras import require
from headtree.errors import InvalidValueError
from headtree.tensor.attention_tensor import AttentionTensor

T = TypeVar("T")


class ClusterError(InvalidValueError):
    """The cluster cannot be used, or no longer; the message says why, and what to do."""


_LOCAL = re.compile(r"local:([1-9][0-9]{0,2})")
_ADDRESS = re.compile(r"(tcp|tls)://(\[[0-9a-fA-F:.%]+\]|[\w.-]+):[0-9]{1,5}", re.ASCII)


class Workers(Protocol):
    """What makes the calls of a step."""

    @property
    def n_workers(self) -> int:
        """Number of calls that are made at the same time."""

    def sendable(self, att: AttentionTensor) -> AttentionTensor:
        """The tensor as an argument of a call: with its values, if they must travel."""

    def begin(self, call: Callable[[], T]) -> Callable[[], T]:
        """Begin a call, if another process makes it; its result is what the returned function returns."""

    def each(self, calls: Iterable[Callable[[], T]]) -> Iterator[T]:
        """Make every call and iterate over the results in the order of the calls.

        Calls are drawn from the iterable when there is a worker for them, so arguments that are read from disk need
        not all be in memory. For a cluster they must be `functools.partial` of functions of headtree, with
        arguments that can be sent.
        """


class ThisProcess:
    """Makes one call after the other, here."""

    n_workers = 1

    def sendable(self, att: AttentionTensor) -> AttentionTensor:
        """The tensor as it is: one on disk is read where it is needed."""
        return att

    def begin(self, call: Callable[[], T]) -> Callable[[], T]:
        """Leave the call until its result is asked for."""
        return call

    def each(self, calls: Iterable[Callable[[], T]]) -> Iterator[T]:
        """Make the calls in turn; neither a call nor a result is held while the next call is made."""
        for call in calls:
            found = [call()]
            del call
            yield found.pop()


@contextmanager
def open_workers(dask: str | None) -> Iterator[Workers]:
    """Workers for the block: this process, or those of a Dask cluster.

    Parameters
    ----------
    dask : str, optional
        ``local:N`` starts N worker processes on this machine and stops them in the end; ``tcp://HOST:PORT`` is the
        address of a running scheduler. None starts nothing.
    """
    if dask is None:
        yield ThisProcess()
        return
    local = _LOCAL.fullmatch(dask)
    if local is None and _ADDRESS.fullmatch(dask) is None:
        raise InvalidValueError(
            f"dask must be local:N, for up to 999 processes on this machine, or the address of a scheduler such as "
            f"tcp://10.0.0.1:8786, got {dask!r}"
        )
    require("cluster", "running on a cluster")
    from headtree.pipeline.dask_workers import connected, local_cluster

    if local is None:
        with connected(dask) as workers:
            yield workers
    else:
        with local_cluster(int(local[1])) as address, connected(address) as workers:
            yield workers
