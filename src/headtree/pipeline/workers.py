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
_ADDRESS = re.compile(r"(tcp|tls)://(\[[0-9a-fA-F:.%]+\]|[\w.-]+):([0-9]{1,5})", re.ASCII)


class Workers(Protocol):
    """What makes the calls of a step."""

    @property
    def n_workers(self) -> int:
        """Number of calls that are made at the same time."""

    @property
    def sees_files(self) -> bool:
        """Whether calls can read and write the files of this machine; otherwise everything travels with them."""

    def sendable(self, att: AttentionTensor) -> AttentionTensor:
        """The tensor as an argument of a call: with its values, if they must travel."""

    def each(self, calls: Iterable[Callable[[], T]], *, long: bool = False) -> Iterator[T]:
        """Make every call and iterate over the results in the order of the calls.

        Calls are drawn from the iterable when there is a worker for them, so arguments that are read from disk need
        not all be in memory. For a cluster they must be `functools.partial` of functions of headtree, with
        arguments that can be sent. A few are sent ahead, so that no worker waits for its next call; where calls are
        `long`, none is, so that none waits for a worker while another one has nothing to do.
        """


class ThisProcess:
    """Makes one call after the other, here."""

    n_workers = 1
    sees_files = True

    def sendable(self, att: AttentionTensor) -> AttentionTensor:
        """The tensor as it is: one on disk is read where it is needed."""
        return att

    def each(self, calls: Iterable[Callable[[], T]], *, long: bool = False) -> Iterator[T]:
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
    remote = _ADDRESS.fullmatch(dask)
    if local is None and (remote is None or int(remote[3]) > 65535):
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
        with local_cluster(int(local[1])) as address, connected(address, sees_files=True) as workers:
            yield workers
