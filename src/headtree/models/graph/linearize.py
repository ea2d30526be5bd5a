"""The linear map between two values of a traced forward pass, with everything nonlinear frozen.

Attention probabilities, scales of norms and gates are frozen at their traced values. What remains between one value
and another is linear up to constants (biases), and can be applied to any other value of the same shape. Activation
functions count as constants, or are frozen too: as the ratio of their result to their argument.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from headtree.models.graph.forward_graph import PRODUCTS, SAME_NUMBERS, Graph, Kept, Node, Ref, aten
from headtree.models.graph.live_nodes import (
    ADDITIONS,
    JOINT,
    NORMS,
    find_live,
    functional,
    is_square,
    needed_nodes,
    ratio,
)


class LinearMap:
    """The map from one value of a graph to others, with nonlinear operations frozen.

    Parameters
    ----------
    graph : Graph
        Graph of the run whose probabilities and scales are frozen.
    start : Ref
        The argument of the map.
    targets : list of Ref
        The results of the map.
    frozen : collection of int, optional
        More nodes to freeze, whatever they compute.
    activations : bool
        Whether to freeze activation functions as ratios of result to argument, and of a product of two values that
        both depend on `start` the one that went through more of them, such as the gate of an MLP. If not, what they
        compute is a constant.

    Attributes
    ----------
    adds_nonlinear : bool
        Whether the constants contain something that depends on `start`, such as what an MLP makes of it.
    """

    def __init__(
        self,
        graph: Graph,
        start: Ref,
        targets: Sequence[Ref],
        frozen: Collection[int] = frozenset(),
        activations: bool = False,
    ) -> None:
        self.start, self.targets = start, tuple(targets)
        self.live = find_live(graph, start, frozen, activations)
        self.reaches = tuple(ref == start or ref.node in self.live for ref in targets)
        needed = needed_nodes(graph, start, [ref for ref in targets if ref != start], self.live)
        self.nodes = [graph.nodes[index] for index in sorted(needed)]
        carried = {start.node, *needed}
        self.constants = {
            ref: graph.value(ref).detach()
            for node in self.nodes
            for ref in node.inputs
            if ref != start and (ref.node not in carried or self.live.is_held(node, ref))
        }
        self.factors = {
            node.index: graph.value(node.args[0]).detach() for node in self.nodes if is_square(node)
        }  # of a square one factor is frozen
        self.ratios = {
            node.index: ratio(node, graph.value(node.args[0])) for node in self.nodes if self.live.is_ratio(node)
        }
        self.unused_after = _last_uses(self.nodes, self.targets)
        self.scales = {
            node.index: node.values[-1].detach() for node in self.nodes if node.op in NORMS
        }  # 1 / standard deviation of every token
        self.converted: dict[Ref, Tensor] = {}  # constants in the dtype of the argument
        self.adds_nonlinear = self._adds_any(_depending(graph, start))

    def __call__(
        self, x: Tensor, affine: bool = False, change: dict[int, Callable[[Tensor], Tensor]] | None = None
    ) -> list[Tensor]:
        """Apply the map.

        Parameters
        ----------
        x : tensor
            In the shape of `start`.
        affine : bool
            Whether to add the constants.
        change : mapping, optional
            Functions to apply to the values of some nodes on the way.
        """
        known: dict[Ref, Tensor] = {self.start: x}
        for node in self.nodes:
            result = self._apply(node, known, affine)
            if change is not None and node.index in change:
                result = change[node.index](result)
            for i, value in enumerate(result if isinstance(result, tuple | list) else (result,)):
                known[Ref(node.index, i)] = value
            for ref in self.unused_after[node.index]:
                known.pop(ref, None)
        return [known[ref] for ref in self.targets]

    @property
    def kept(self) -> Kept:
        """What the trace of another input must keep for the same map to be made there."""
        positions = {node.index: node.position for node in self.nodes if node.position is not None}
        return Kept(set(positions.values()), {positions[index] for index in self.scales})

    @property
    def only_adds(self) -> bool:
        """Whether the map changes no number, except that it adds constants if `affine`."""
        return all(node.op in SAME_NUMBERS or self._adds_a_constant(node) for node in self.nodes)

    def _adds_any(self, nodes: Collection[int]) -> bool:
        """Whether a constant that comes from one of some nodes is added on the way, or is itself a target."""
        added = [side for node in self.nodes if node.op in ADDITIONS for side in node.args[:2]]
        return any(side in self.constants and side.node in nodes for side in added if isinstance(side, Ref)) or any(
            ref.node in nodes for ref, is_reached in zip(self.targets, self.reaches, strict=True) if not is_reached
        )

    def _adds_a_constant(self, node: Node) -> bool:
        is_sum = node.op in (aten.add.Tensor, aten.add_.Tensor) and node.kwargs.get("alpha", 1) == 1
        return is_sum and any(side in self.constants or not isinstance(side, Ref) for side in node.args[:2])

    @property
    def peak_bytes(self) -> int:
        """Most bytes of values that are held at a time while the map is applied to one value of its own type."""
        sizes: dict[Ref, int] = {}
        peak = 0
        for node in self.nodes:
            for i, value in enumerate(node.values):
                if isinstance(value, Tensor):
                    sizes[Ref(node.index, i)] = value.numel() * value.element_size()
            peak = max(peak, sum(sizes.values()))
            for ref in self.unused_after[node.index]:
                sizes.pop(ref, None)
        return peak

    def release(self) -> None:
        """Free the cached copies of constants."""
        self.converted.clear()

    def _constant(self, ref: Ref, like: Tensor) -> Tensor:
        value = self.constants[ref]
        if not value.is_floating_point() or value.dtype == like.dtype:
            return value
        if ref not in self.converted:
            self.converted[ref] = value.to(like.dtype)
        return self.converted[ref]

    def _apply(self, node: Node, known: dict[Ref, Tensor], affine: bool) -> Any:
        live = [ref for ref in node.inputs if ref in known and not self.live.is_held(node, ref)]
        like = known[live[0]]

        def value(ref: Ref) -> Tensor:
            return known[ref] if ref in live else self._constant(ref, like)

        if node.index in self.ratios:
            return known[node.args[0]] * self.ratios[node.index].to(like.dtype)
        if node.op in NORMS:
            return _frozen_norm(node, value, self.scales[node.index].to(like.dtype), affine)
        if node.op is aten._to_copy.default:
            return known[node.args[0]]
        if node.op in PRODUCTS:
            left, right = (value(node.args[i]) for i in PRODUCTS[node.op])
            product = left @ right
            has_bias = PRODUCTS[node.op] == (1, 2)
            return product + value(node.args[0]) if has_bias and (affine or node.args[0] in known) else product
        if node.op is aten._grouped_mm.default:
            return _grouped_product(*map(value, node.args[:3]))
        if node.op in ADDITIONS:
            return _sum(node, value, live, affine)
        if node.op is aten.convolution.default and not affine:
            return node.op(value(node.args[0]), value(node.args[1]), None, *node.args[3:])
        if node.op is aten.masked_fill.Scalar:
            return node.op(value(node.args[0]), value(node.args[1]), node.args[2] if affine else 0)
        if node.index in self.factors:
            return known[node.args[0]] * self.factors[node.index].to(like.dtype)
        args, kwargs = tree_map_only(Ref, value, (node.args, node.kwargs))
        if node.op in JOINT and not affine:
            linear = tree_map_only(
                Ref, lambda ref: value(ref) if ref in live else torch.zeros_like(value(ref)), node.args
            )
            args = tuple(linear[i] if i in JOINT[node.op] else args[i] for i in range(len(args)))
        return functional(node.op)(*args, **kwargs)


def _depending(graph: Graph, start: Ref) -> set[int]:
    """The nodes that depend on a value in any way."""
    found: set[int] = set()
    for node in graph.nodes[start.node + 1 :]:
        if any(ref == start or ref.node in found for ref in node.inputs):
            found.add(node.index)
    return found


def _frozen_norm(node: Node, value: Callable[[Ref], Tensor], scale: Tensor, affine: bool) -> tuple[Tensor, ...]:
    """A norm with a frozen scale: subtract each token's mean (LayerNorm only), then multiply."""
    x, axes = value(node.args[0]), tuple(range(-len(node.args[1]), 0))
    is_centred = node.op is aten.native_layer_norm.default
    y = (x - x.mean(dim=axes, keepdim=True) if is_centred else x) * scale
    if isinstance(node.args[2], Ref):
        y = y * value(node.args[2])
    if affine and is_centred and isinstance(node.args[3], Ref):
        y = y + value(node.args[3])
    return (y,)


def _grouped_product(x: Tensor, matrices: Tensor, ends: Tensor) -> Tensor:
    """Groups of rows, each times its matrix: torch cannot batch its own kernel for this."""
    stops = ends.tolist()
    groups = zip([0, *stops[:-1]], stops, matrices, strict=True)
    return torch.cat([x[start:stop] @ matrix for start, stop, matrix in groups])


def _sum(node: Node, value: Callable[[Ref], Tensor], live: list[Ref], affine: bool) -> Tensor:
    first, second = node.args[:2]
    sign = (-1 if node.op in (aten.sub.Tensor, aten.sub_.Tensor) else 1) * node.kwargs.get("alpha", 1)
    counts = [affine or side in live for side in (first, second)]
    left = value(first) if isinstance(first, Ref) else first
    right = value(second) if isinstance(second, Ref) else second
    if counts == [True, True]:
        total: Tensor = left + sign * right
        return total
    result: Tensor = left if counts[0] else sign * right
    return result.expand(torch.broadcast_shapes(left.shape, getattr(right, "shape", ())))


def _last_uses(nodes: Sequence[Node], targets: Collection[Ref]) -> dict[int, list[Ref]]:
    """For every node, the values that nothing needs after it."""
    unused: dict[int, list[Ref]] = {node.index: [] for node in nodes}
    seen = set(targets)
    for node in reversed(nodes):
        for ref in [*node.inputs, *(Ref(node.index, i) for i in range(len(node.values)))]:
            if ref not in seen:
                seen.add(ref)
                unused[node.index].append(ref)
    return unused
