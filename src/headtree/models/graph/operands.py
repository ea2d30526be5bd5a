"""Places in a forward pass that are found once, on the probe, and read on any other input."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from jaxtyping import Float, Int
from torch import Tensor

from headtree.errors import InvalidValueError
from headtree.models.graph.forward_graph import Graph, Kept, Node, Position, Ref


class Operand(NamedTuple):
    """A tensor that an operation reads; the same place on any input."""

    position: Position
    argument: int  #: which of its arguments

    @property
    def kept(self) -> Kept:
        """What a trace must keep."""
        return Kept(operands={self.position})

    def ref(self, graph: Graph) -> Ref:
        """The value in the graph of any input."""
        found: Ref = node_at(graph, self.position).args[self.argument]
        return found

    def value(self, graph: Graph) -> Tensor:
        """The tensor in a graph that keeps it."""
        return graph.value(self.ref(graph))


@dataclass(frozen=True, eq=False)
class HeadFeatures:
    """The features of all heads in the result of an operation, which has a row for each token."""

    position: Position
    features: Int[Tensor, "head feature"]  #: index of each feature of each head
    scale: float = 1.0  #: a constant that multiplies the result before it is used

    @property
    def kept(self) -> Kept:
        """What a trace must keep."""
        return Kept(results={self.position})

    def value(self, graph: Graph) -> Float[Tensor, "head token feature"]:
        """The features in a graph that keeps the result, also those of tokens that the model itself appended."""
        return self.of(graph.value(Ref(node_at(graph, self.position).index)))

    def of(self, result: Tensor) -> Float[Tensor, "head token feature"]:
        """The features in the result of the operation."""
        rows = result.reshape(-1, result.shape[-1])
        return rows[:, self.features.to(rows.device)].movedim(0, 1) * self.scale


def node_at(graph: Graph, position: Position) -> Node:
    """The operation at a position that was found on the probe."""
    found = graph.by_position.get(position)
    if found is None:
        raise InvalidValueError(
            f"the model runs different code on this input than on the probe: {position.module or 'it'} has no "
            f"operation {position.op} number {position.nth}; pass inputs that it processes in the same way"
        )
    return found
