"""Find the matrices that make queries, keys and values of heads, and the output projection after them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headtree.errors import InvalidValueError
from headtree.models.graph.attention_calls import TracedSite
from headtree.models.graph.forward_graph import Graph, Node, Ref, aten
from headtree.models.graph.linearize import LinearMap


@dataclass(frozen=True, eq=False)
class OutputProjection:
    """The product with W_O in a traced forward pass."""

    node: Node
    matrix: Float[Tensor, "row width"]  #: for row vectors
    rows: Int[Tensor, "head feature"]  #: the row of `matrix` that each feature of each head multiplies


class ProjectionFinder:
    """Follows the features of heads through a traced forward pass."""

    def __init__(self, graph: Graph, sites: list[TracedSite]) -> None:
        self.graph, self.sites, self.users = graph, sites, graph.users()

    @cached_property
    def input_projections(self) -> frozenset[int]:
        """Nodes that make queries, keys and values; those of them that are products with a single matrix."""
        found: set[int] = set()
        for site in self.sites:
            for ref in (site.query, site.key, site.value):
                try:
                    found.update(node.index for node, _, _ in self.projections_before(ref))
                except InvalidValueError:
                    continue  # `matrices` says why
        return frozenset(found)

    def matrices(self, site: TracedSite) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """W_Q, W_K, W_V and W_O of a call."""
        query = self._input_matrices(site, site.query, "queries")
        key = self._input_matrices(site, site.key, "keys", is_transposed=True)
        value = self._input_matrices(site, site.value, "values")
        return query, key, value, self._output_matrices(site)

    def _input_matrices(
        self, site: TracedSite, target: Ref, what: str, is_transposed: bool = False
    ) -> Float[Tensor, "head width feature"]:
        """The columns of a projection that each head reads."""
        found = self.projections_before(target)
        if not found:
            raise InvalidValueError(
                f"the {what} of {site.module or 'the model'} come from no matrix of real numbers, as in a "
                "quantized layer; load the model without quantization to have its weights"
            )
        if len(found) != 1:
            raise InvalidValueError(
                f"the {what} of {site.module or 'the model'} come from {len(found)} projections, not from a single "
                "matrix; merge adapters into the weights first"
            )
        node, matrix, axis = found[0]
        if not self._can_follow(Ref(node.index), target):
            raise InvalidValueError(
                f"the {what} of {site.module or 'the model'} are written into another tensor piece by piece, as "
                "where all heads share the rotary part of their keys, so no single matrix makes them; weights per "
                "head are not defined for this model, but view.ablated works without them"
            )
        heads = _layout(self.graph, Ref(node.index), axis, target, is_transposed)
        return torch.stack([matrix[:, features] for features in heads])

    def _can_follow(self, source: Ref, target: Ref) -> bool:
        """Whether a value is computed from another one, rather than only put into a tensor made after its shape."""
        with torch.enable_grad():
            start = self.graph.value(source).detach().clone().requires_grad_()
            return self.graph.replay({source: start}, target).requires_grad

    def _output_matrices(self, site: TracedSite) -> Float[Tensor, "head feature width"]:
        """The rows of the output projection that each head multiplies; of the identity if there is none."""
        found = self.output_projection(site)
        if found is not None:
            return found.matrix[found.rows]
        mixed = self.graph.value(Ref(site.mix))
        n_heads, _, n_features = mixed.shape
        return torch.eye(n_heads * n_features).to(mixed).reshape(n_heads, n_features, -1)

    def output_projection(self, site: TracedSite, n_windows: int = 1) -> OutputProjection | None:
        """The projection after probs @ values; None if there is none.

        With several windows per input, their heads follow each other in the product and share rows.
        """
        projection = self.projection_after(site.mix)
        if projection is None:
            return None
        node, matrix = projection
        found, factors = rows_and_factors(self.graph, Ref(site.mix), node)
        by_window = found.unflatten(0, (n_windows, -1))
        rows = by_window[0]
        if (
            not bool((by_window == rows).all())
            or rows.unique().numel() != rows.numel()
            or rows.min() < 0
            or rows.max() >= len(matrix)
        ):
            tokens_choose = bool(((factors == 0).any(dim=1) & (factors != 0).any(dim=1)).any())
            name = site.module or "the model"
            raise InvalidValueError(
                f"in {name} tokens choose by which output projection their heads write, as among experts, so heads "
                "have no W_O of their own; what they write is in view.cache"
                if tokens_choose
                else f"the heads of {name} are mixed before the output projection, so none of its rows belong to a "
                "single head; weights per head are not defined for this model"
            )
        return OutputProjection(node, matrix, rows)

    def _projection(self, node: Node) -> tuple[Tensor, int] | None:
        projection = projection_matrix(self.graph, node)
        sides = self.graph.factors(node)
        if projection is None and sides and not all(self.graph.node(side).is_activation for side in sides):
            raise InvalidValueError(
                "a product on the way to or from the heads multiplies by several different matrices at once, so "
                "the weights of the heads cannot be separated; use one matrix for all heads, as in nn.Linear"
            )
        return projection

    def projections_before(self, target: Ref) -> list[tuple[Node, Tensor, int]]:
        """The nearest projections before a value, each with its matrix and the axis of its features."""
        found, seen, queue = [], {target.node}, [target.node]
        while queue:
            node = self.graph.nodes[queue.pop()]
            projection = self._projection(node)
            if projection is not None:
                found.append((node, *projection))
                continue
            for ref in node.inputs:
                if ref.node not in seen and self.graph.node(ref).is_activation:
                    seen.add(ref.node)
                    queue.append(ref.node)
        return found

    def projection_after(self, mix: int) -> tuple[Node, Tensor] | None:
        """The first projection after a node such as probs @ values; None if it makes queries, keys or values."""
        return next(iter(self.projections_after(mix)), None)

    def projections_after(self, mix: int) -> list[tuple[Node, Tensor]]:
        """The nearest projections after a node, in order; none if the first makes queries, keys or values."""
        seen, queue = {mix}, [mix]
        found = {}
        while queue:
            index = queue.pop()
            projection = self._projection(self.graph.nodes[index])
            if projection is not None:
                found[index] = projection[0]
                continue
            fresh = [user for user in self.users[index] if user not in seen]
            seen.update(fresh)
            queue += fresh
        if not found or min(found) in self.input_projections:
            return []
        return [(self.graph.nodes[index], found[index]) for index in sorted(found)]


def projection_matrix(graph: Graph, node: Node) -> tuple[Float[Tensor, "width feature"], int] | None:
    """The weight matrix (for row vectors) that a node multiplies an activation by, and the result's feature axis.

    None if the node is not such a product, or multiplies by several different matrices.
    """
    sides = graph.factors(node)
    if sides is None and node.op is aten.convolution.default:
        is_pointwise = set(graph.value(node.args[1]).shape[2:]) == {1}
        sides = (node.args[0], node.args[1]) if is_pointwise else None
    if sides is None or len({graph.node(side).is_activation for side in sides}) != 2:
        return None
    is_left = graph.node(sides[0]).is_activation
    source = sides[1] if is_left else sides[0]
    if _are_codes(graph, source):
        raise InvalidValueError(
            "a product on the way to or from the heads multiplies by the integers of a quantized weight and scales "
            "the result, so the weights of the heads cannot be read off; load the model without quantization"
        )
    weight = graph.value(source).detach()
    if graph.factors(node) is None:  # a pointwise convolution
        return weight.flatten(1).T, 1
    if weight.ndim == 3 and not bool((weight == weight[:1]).all()):
        return None  # every head or expert has its own matrix
    weight = weight if weight.ndim == 2 else weight[0]
    return (weight, -1) if is_left else (weight.T, -2)


def _are_codes(graph: Graph, weight: Ref) -> bool:
    """Whether a weight is a tensor of integers that was only moved and converted, not scaled."""
    node = graph.node(weight)
    while len(node.inputs) == 1 and graph.value(Ref(node.index)).is_floating_point():
        node = graph.node(node.inputs[0])
    return not graph.value(Ref(node.index)).is_floating_point()


def rows_and_factors(
    graph: Graph, mix: Ref, projection: Node
) -> tuple[Int[Tensor, "head feature"], Float[Tensor, "head query feature"]]:
    """The row of the output projection that each feature multiplies, and the factor by which it comes there.

    Norms and gates between the two are frozen, so the gradient of Σ_j j·entering[j] over that of Σ_j entering[j] is
    the number of the row, and the latter gradient is the factor. The row is -1 if there is none, or several.
    """
    entering_ref, axis = entering_projection(graph, projection)
    linear = LinearMap(graph, mix, [entering_ref])
    mixed = graph.value(mix).detach().double()
    if not linear.reaches[0]:
        return torch.full(mixed.shape[::2], -1), torch.zeros_like(mixed)
    with torch.enable_grad():
        mixed.requires_grad_()
        entering = linear(mixed)[0].movedim(axis, -1)
        numbers = torch.arange(1, entering.shape[-1] + 1).to(entering)
        (coded,) = torch.autograd.grad((entering * numbers).sum(), mixed, retain_graph=True)
        (factors,) = torch.autograd.grad(entering.sum(), mixed)
    found = (coded / factors)[:, 0].nan_to_num(0.0)
    rows = found.round().long() - 1
    return rows.where((found - found.round()).abs() < 1e-3, torch.full_like(rows, -1)).cpu(), factors


def entering_projection(graph: Graph, projection: Node) -> tuple[Ref, int]:
    """The activation that a projection multiplies by its matrix, and the axis of its features."""
    sides = graph.factors(projection) or projection.args[:2]
    is_left = graph.node(sides[0]).is_activation
    axis = (-1 if is_left else -2) if graph.factors(projection) else 1
    return sides[0] if is_left else sides[1], axis


def _layout(graph: Graph, source: Ref, axis: int, target: Ref, is_transposed: bool) -> list[Tensor]:
    """Which features of a projection's result belong to each head, in the order of the head.

    The gradient of Σ_f f·target[h, 0, f] equals f times a constant at the feature that becomes feature f of head h.
    This holds through rotary position embeddings, which leave position 0 unchanged. Where features are mixed within
    a head (norms of queries), the gradient is nonzero at all of them, and they stay in the order of the projection.
    """
    with torch.enable_grad():
        start = graph.value(source).detach().clone().requires_grad_()
        reached = graph.replay({source: start}, target)
        reached = reached.mT if is_transposed else reached
        codes = torch.arange(1, reached.shape[-1] + 1).to(reached)
        heads = []
        for head in reached[:, 0]:
            (slope,) = torch.autograd.grad((head * codes).sum(), start, retain_graph=True)
            slope = slope.movedim(axis, -1).flatten(0, -2).abs().sum(dim=0)
            features = slope.nonzero()[:, 0]
            order = slope[features].argsort()
            ratio = slope[features][order] / codes[: len(order)] if len(order) <= len(codes) else slope
            is_permutation = torch.allclose(ratio, ratio.mean().expand_as(ratio), rtol=1e-3)
            heads.append(features[order] if is_permutation else features)
    if len({len(features) for features in heads} | {len(codes)}) != 1:
        raise InvalidValueError(
            "heads have different numbers of features in their projection, so their weights cannot be separated"
        )
    return heads
