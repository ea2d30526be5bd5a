"""Heads whose attention is multiplied by several values, each of which goes its own way to an output projection.

In differential attention (DiffLlama) a head multiplies two halves of the values, and two heads share the rows of
the output projection: one is subtracted from the other. In LiLT a head writes words and layout by two projections,
into streams of their own. Either way what a head writes is a sum over its values, with norms on the way frozen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headtree.models.graph.attention_calls import TracedSite
from headtree.models.graph.forward_graph import PRODUCTS, Graph, Kept, Node, Position, Ref
from headtree.models.graph.linearize import LinearMap
from headtree.models.graph.operands import Operand, node_at
from headtree.models.graph.projections import ProjectionFinder, entering_projection, rows_and_factors


@dataclass(frozen=True, eq=False)
class ValuePath:
    """One of the products of probs with values, and the rows of a projection that it enters."""

    product: Position
    value: Operand
    projection: Position
    matrix: Float[Tensor, "head feature width"]  #: rows of the projection times `weights`
    weights: Float[Tensor, "head feature"]  #: factors of heads that share rows, relative to the largest of them
    between: Kept  #: what a trace must keep for the way from the product to the projection

    @property
    def kept(self) -> Kept:
        """What a trace must keep."""
        return self.value.kept | self.between | Kept([self.projection], [self.product])

    def output(self, graph: Graph) -> Float[Tensor, "head query feature"]:
        """What heads hand over: the product times those factors that `matrix` lacks, such as scales of norms."""
        mix, projection = (node_at(graph, position) for position in (self.product, self.projection))
        _, factors = rows_and_factors(graph, Ref(mix.index), projection)
        product = graph.value(Ref(mix.index))
        return (product * factors / self.weights[:, None].to(factors.device)).to(product.dtype)


@dataclass(frozen=True, eq=False)
class SeveralValues:
    """All values of the heads of one attention call, as one: features side by side."""

    paths: tuple[ValuePath, ...]

    @property
    def kept(self) -> Kept:
        """What a trace must keep."""
        kept = Kept()
        for path in self.paths:
            kept |= path.kept
        return kept

    def value(self, graph: Graph) -> Float[Tensor, "head key feature"]:
        """The values on the input of a graph."""
        return torch.cat([path.value.value(graph) for path in self.paths], dim=-1)

    def output(self, graph: Graph) -> Float[Tensor, "head query feature"]:
        """What heads hand over on the input of a graph."""
        return torch.cat([path.output(graph) for path in self.paths], dim=-1)

    @property
    def projections(self) -> list[Position]:
        """The output projections, each once."""
        return list(dict.fromkeys(path.projection for path in self.paths))

    @property
    def matrix(self) -> Float[Tensor, "head feature width"]:
        """W_O of every head; what different projections write stands side by side."""
        widths = {path.projection: path.matrix.shape[-1] for path in self.paths}
        return torch.cat(
            [
                torch.cat(
                    [
                        path.matrix if projection == path.projection else _zeros(path.matrix, width)
                        for projection, width in widths.items()
                    ],
                    dim=-1,
                )
                for path in self.paths
            ],
            dim=1,
        )


def _zeros(like: Tensor, width: int) -> Tensor:
    return like.new_zeros(*like.shape[:-1], width)


def find_several_values(graph: Graph, finder: ProjectionFinder, site: TracedSite) -> SeveralValues | None:
    """The values of a call, in the order of the products; None if what they enter is not rows of a matrix."""
    entered: list[_Entered] = []
    for mix in site.mixes:
        after = finder.projection_after(mix)
        if after is None:
            return None
        entered.append(_Entered(mix, *after, *rows_and_factors(graph, Ref(mix), after[0])))
    weights = _weights(entered)
    return None if weights is None else SeveralValues(tuple(map(partial(_path, graph), entered, weights)))


class _Entered(NamedTuple):
    """A product of probs with values, and where it enters a projection."""

    mix: int
    projection: Node
    matrix: Float[Tensor, "row width"]
    rows: Int[Tensor, "head feature"]
    factors: Float[Tensor, "head query feature"]


def _weights(entered: Sequence[_Entered]) -> list[Float[Tensor, "head feature"]] | None:
    """Factors, by the largest of those that enter the same row of a projection; None if tokens disagree on them.

    What tokens disagree on, the scale of a norm, is common to all heads that share a row, and so divides out.
    """
    n_rows = max(len(each.matrix) for each in entered)
    numbers = torch.cat([(each.projection.index * n_rows + each.rows).flatten() for each in entered])
    factors = torch.cat([each.factors.transpose(1, 2).flatten(0, 1).cpu() for each in entered])
    if any(each.rows.min() < 0 for each in entered) or bool((factors == 0).any()):
        return None
    _, row = numbers.unique(return_inverse=True)
    spread = row[:, None].expand_as(factors)
    largest = torch.zeros_like(factors).scatter_reduce(0, spread, factors.abs(), "amax")
    relative = factors / largest[row]
    if not torch.allclose(relative, relative[:, :1].expand_as(relative), rtol=1e-4):
        return None
    parts = relative[:, 0].split([each.rows.numel() for each in entered])
    return [part.reshape(each.rows.shape) for part, each in zip(parts, entered, strict=True)]


def _path(graph: Graph, entered: _Entered, weights: Float[Tensor, "head feature"]) -> ValuePath:
    product = graph.nodes[entered.mix]
    between = LinearMap(graph, Ref(product.index), [entering_projection(graph, entered.projection)[0]])
    return ValuePath(
        product=product.place,
        value=Operand(product.place, PRODUCTS[product.op][1]),
        projection=entered.projection.place,
        matrix=entered.matrix[entered.rows] * weights[..., None].to(entered.matrix),
        weights=weights,
        between=between.kept,
    )
