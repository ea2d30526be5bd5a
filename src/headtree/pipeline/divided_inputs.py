"""One input divided between workers, by blocks of heads and by measures, where there are more workers than inputs.

Blocks are those in which the heads would be measured anyway, so the result has the same bits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Generic, TypeVar

import numpy as np

from headtree.measures.heads.diagnostics import InputTables, of_parts
from headtree.measures.orders import ORDERS
from headtree.measures.per_input import MeasuredInput, joined, ranges_of_heads, sampled_heads
from headtree.measures.whole_network import network_of
from headtree.pipeline import input_tasks as tasks
from headtree.pipeline.sources import Capture
from headtree.pipeline.workers import Workers
from headtree.questionnaire.organization import Organization
from headtree.tensor.attention_tensor import AttentionTensor
from headtree.tensor.probabilities import heads_in_a_block

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Divided(Generic[T]):
    """Calls whose results make one result together."""

    n_calls: int
    calls: Iterable[Callable[[], Any]]  #: drawn when there is a worker
    join: Callable[[list[Any]], T]

    @classmethod
    def whole(cls, call: Callable[[], T]) -> Divided[T]:
        """A call that is not divided."""
        return cls(1, (call,), lambda found: found.pop())


def each_divided(workers: Workers, items: Iterable[Divided[T]]) -> Iterator[T]:
    """Make the calls of all items on the workers and iterate over the results of the items, in order."""
    sent: deque[Divided[T]] = deque()

    def calls() -> Iterator[Callable[[], Any]]:
        for item in items:
            sent.append(item)
            yield from item.calls

    found = workers.each(calls())
    for first in found:
        item = sent.popleft()
        yield item.join([first, *islice(found, item.n_calls - 1)])


def workers_for_each(workers: Workers, n_inputs: int, memory: int | None = None) -> int:
    """Number of parts of each input that keep all workers busy; 1 where memory is limited: parts are read whole."""
    return 1 if memory is not None else -(-workers.n_workers // max(1, n_inputs))


def measures(
    att: AttentionTensor, org: Organization, is_raw: bool, settings: dict[str, Any], workers: Workers, n_parts: int
) -> Divided[MeasuredInput]:
    """The measures of an input, in about so many blocks of heads, and those of all heads one by one."""
    ranges = ranges_of_heads(att.shape, -(-int(np.prod(att.shape)) // n_parts))

    def calls() -> Iterator[Callable[[], Any]]:
        for order in ORDERS:
            yield partial(tasks.measured_curve, workers.sendable(att), org, is_raw, settings, order)
        yield partial(tasks.measured_network, workers.sendable(att), org, is_raw, settings)
        yield partial(tasks.measured_invariance, att.take(sampled_heads(att)), org, is_raw)
        for some in ranges:
            yield partial(tasks.measured_heads, att.take(some), org, is_raw, settings)

    def join(found: list[Any]) -> MeasuredInput:
        curves, entropy, invariance, *heads = found[: len(ORDERS)], *found[len(ORDERS) :]
        network = network_of(att.kind, att.shape, entropy, dict(zip(ORDERS, curves, strict=True)))
        return joined(heads, network, invariance)

    return Divided(len(ORDERS) + 2 + len(ranges), calls(), join)


def diagnostics(att: AttentionTensor, ready: Capture, workers: Workers, n_parts: int) -> Divided[InputTables]:
    """The diagnostics of an input, the only one of `ready`: in so many blocks of heads, and those of its layers."""
    n_blocks = -(-att.shape[0] // heads_in_a_block(att.shape))
    step = -(-n_blocks // n_parts) * heads_in_a_block(att.shape)
    starts = range(0, att.shape[0], step)

    def calls() -> Iterator[Callable[[], Any]]:
        yield partial(tasks.diagnosed_layers, workers.sendable(att), ready)
        for start in starts:
            yield partial(tasks.diagnosed_heads, att.take(range(start, min(start + step, att.shape[0]))))

    return Divided(1 + len(starts), calls(), lambda found: of_parts(found[0], found[1:]))
