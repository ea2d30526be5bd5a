"""How much memory the trace of an input needs, estimated from the trace of the probe."""

from __future__ import annotations

from torch import Tensor

from headtree.models.graph.forward_graph import Graph
from headtree.models.graph.read_stream import LocatedStream
from headtree.models.inputs import ModelInput


def growth_of(located: LocatedStream, item: ModelInput) -> float:
    """How many times as long as the probe an input is."""
    return item.size() / max(1, located.prepared.plan.probe.size())


def trace_bytes(located: LocatedStream, growth: float) -> int:
    """Bytes of all activations of an input that is `growth` times as long as the probe."""
    n_tokens = located.graph.value(located.sites[0].query).shape[-2]
    linear = square = 0
    for node in located.graph.nodes:
        for value in node.values:
            if isinstance(value, Tensor) and node.is_activation:
                is_square = value.ndim >= 2 and value.shape[-1] == value.shape[-2] == n_tokens
                n_bytes = value.numel() * value.element_size()
                square, linear = square + n_bytes * is_square, linear + n_bytes * (not is_square)
    return int(linear * growth + square * growth**2)


def held_bytes(graph: Graph) -> int:
    """Bytes of all activations that a graph holds."""
    values = (value for node in graph.nodes if node.is_activation for value in node.values)
    return sum(value.numel() * value.element_size() for value in values if isinstance(value, Tensor))
