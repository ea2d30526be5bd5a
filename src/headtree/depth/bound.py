"""The upper bound of [RC] on the residual of attention alone, and the Lipschitz constants of MLPs in it.

[RC] Dong, Cordonnier, Loukas: Attention is not all you need: pure attention loses rank doubly exponentially with
depth, 2021.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from headtree.depth.norms import composite_norm, one_norm
from headtree.models.graph.forward_graph import Graph, Node, Ref
from headtree.models.graph.head_weights import HeadWeights
from headtree.models.graph.projections import projection_matrix
from headtree.models.graph.read_stream import LocatedStream
from headtree.models.graph.residual_stream import ResidualSum, Term

#: The slope of an activation function is maximized over [-12, 12]; outside, the usual functions are straight.
_SLOPE_RANGE = 12.0


@dataclass(frozen=True)
class Bound:
    """Constants of the bound after L layers, with λ the largest Lipschitz constant of an MLP.

    ``‖res‖ ≤ (4 β H λ / √d)^((3^L - 1) / 2) · ‖res(X⁰)‖^(3^L)``
    """

    beta: float  #: largest ``‖W_QK‖₁ ‖W_V W_O‖`` of any head; the second norm is the composite norm
    n_heads: int
    head_size: int
    lipschitz: tuple[float | None, ...]  #: constant of each layer's MLP; None if it has none (a gate, a router)

    def log_residual(self, log_start: float, depth: int, with_mlps: bool = False) -> float:
        """Natural logarithm of the bound after `depth` layers; infinite if an MLP is not Lipschitz."""
        factor = 4 * self.beta * self.n_heads / math.sqrt(self.head_size)
        if factor == 0:
            return -math.inf if depth else log_start
        log_factor = math.log(factor)
        if with_mlps:
            if None in self.lipschitz:
                return math.inf
            log_factor += math.log(max(1.0, *(constant or 1.0 for constant in self.lipschitz)))
        power = float(3**depth)
        return (power - 1) / 2 * log_factor + power * log_start


def find_bound(located: LocatedStream, weights: list[HeadWeights]) -> Bound:
    """Compute β from the matrices of the heads and λ from the MLPs."""
    beta = max(float((one_norm(layer.qk) * composite_norm(layer.ov)).max()) for layer in weights)
    n_heads, _, head_size = weights[0].query.shape
    constants = tuple(_layer_lipschitz(located.graph, sums) for sums in located.stream.layers)
    return Bound(beta, n_heads, head_size, constants)


def _layer_lipschitz(graph: Graph, sums: tuple[ResidualSum, ...]) -> float | None:
    constant = 1.0
    for each in sums:
        for term in each.terms:
            if term.role == "mlp":
                own = mlp_lipschitz(graph, each, term)
                if own is None:
                    return None
                constant *= own
    return constant


def mlp_lipschitz(graph: Graph, each: ResidualSum, term: Term) -> float | None:
    """A Lipschitz constant, in the composite norm, of an MLP ``x ↦ σ(x W₁) W₂``: ``‖W₁‖ max|σ'| ‖W₂‖``.

    Norms before and after it are ignored, as in the bound. None if its layers are not in sequence: a gate
    multiplies two of them, and then no constant holds everywhere.
    """
    inside = [
        node
        for node in graph.nodes[: term.ref.node + 1]
        if graph.depends(term.ref, node.index) and graph.depends(node.index, each.skip.ref) and node.index
    ]
    products = [node for node in inside if projection_matrix(graph, node) is not None]
    if not products or any(graph.factors(node) and projection_matrix(graph, node) is None for node in inside):
        return None
    constant = 1.0
    for node, following in zip(products, [*products[1:], None], strict=True):
        found = projection_matrix(graph, node)
        if found is None:
            return None
        constant *= float(composite_norm(found[0].double()))
        if following is not None:
            slope = _largest_slope(graph, node, following)
            if slope is None:
                return None
            constant *= slope
    return constant


def _largest_slope(graph: Graph, before: Node, after: Node) -> float | None:
    """The largest slope of the elementwise function between two projections; None if they are not in sequence."""
    sides = graph.factors(after) or after.args[:2]
    entering = next(side for side in sides if graph.node(side).is_activation)
    if not graph.depends(entering, before.index):
        return None
    source = Ref(before.index)
    with torch.enable_grad():
        start = _grid(graph.value(source)).requires_grad_()
        reached = graph.replay({source: start}, entering)
        if reached.numel() != start.numel():
            return None
        (slope,) = torch.autograd.grad(reached.sum(), start)
    return float(slope.abs().max())


def _grid(like: Tensor) -> Float[Tensor, "..."]:
    return torch.linspace(-_SLOPE_RANGE, _SLOPE_RANGE, like.numel()).to(like).reshape(like.shape)
