"""The linear map between two values of a traced forward pass, with everything nonlinear frozen.

Attention probabilities, scales of norms and gates are frozen at their traced values. What remains between one value
and another is linear up to constants (biases), and can be applied to any other value of the same shape.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from headtree.models.graph.forward_graph import PRODUCTS, SAME_NUMBERS, Graph, Kept, Node, Ref, aten

#: Operations that are linear in their first argument, whatever the others are.
_MOVES = frozenset(
    {aten.view.default, aten._unsafe_view.default, aten.alias.default, aten.detach.default, aten.clone.default}
    | {aten.t.default, aten.transpose.int, aten.permute.default, aten.unsqueeze.default, aten.expand.default}
    | {aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims, aten.slice.Tensor, aten.select.int}
    | {aten.split.Tensor, aten.split_with_sizes.default, aten.unbind.int, aten.unfold.default, aten.repeat.default}
    | {aten.index.Tensor, aten.index_select.default, aten.gather.default, aten.roll.default, aten.flip.default}
    | {aten.mean.dim, aten.sum.dim_IntList, aten.neg.default, aten.mul.Scalar, aten.div.Scalar}
)
_ADDITIONS = (aten.add.Tensor, aten.add_.Tensor, aten.sub.Tensor, aten.sub_.Tensor)
_FACTORS = (aten.mul.Tensor, aten.mul_.Tensor)
_JOINS = (aten.cat.default, aten.stack.default)


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
    """

    def __init__(
        self, graph: Graph, start: Ref, targets: Sequence[Ref], frozen: Collection[int] = frozenset()
    ) -> None:
        self.start, self.targets = start, tuple(targets)
        live = _live_nodes(graph, start, frozen)
        self.reaches = tuple(ref == start or ref.node in live for ref in targets)
        needed = _needed(graph, start, [ref for ref in targets if ref != start], live)
        self.nodes = [graph.nodes[index] for index in sorted(needed)]
        refs = {ref for node in self.nodes for ref in node.inputs}
        carried = {start.node, *needed}
        self.constants = {
            ref: graph.value(ref).detach() for ref in refs if ref != start and ref.node not in carried
        }
        self.scales = {
            node.index: node.values[-1].detach() for node in self.nodes if node.op in _NORMS
        }  # 1 / standard deviation of every token
        self.converted: dict[Ref, Tensor] = {}  # constants in the dtype of the argument

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

    def _adds_a_constant(self, node: Node) -> bool:
        is_sum = node.op in (aten.add.Tensor, aten.add_.Tensor) and node.kwargs.get("alpha", 1) == 1
        return is_sum and any(side in self.constants or not isinstance(side, Ref) for side in node.args[:2])

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
        like = known[self.start]
        live = [ref for ref in node.inputs if ref in known]

        def value(ref: Ref) -> Tensor:
            return known[ref] if ref in known else self._constant(ref, like)

        if node.op in _NORMS:
            return _frozen_norm(node, value, self.scales[node.index].to(like.dtype), affine)
        if node.op is aten._to_copy.default:
            return known[node.args[0]]
        if node.op in PRODUCTS:
            left, right = (value(node.args[i]) for i in PRODUCTS[node.op])
            product = left @ right
            has_bias = PRODUCTS[node.op] == (1, 2)
            return product + value(node.args[0]) if has_bias and (affine or node.args[0] in known) else product
        if node.op in _ADDITIONS:
            return _sum(node, value, live, affine)
        if node.op is aten.convolution.default and not affine:
            return node.op(value(node.args[0]), value(node.args[1]), None, *node.args[3:])
        if node.op is aten.masked_fill.Scalar:
            return node.op(value(node.args[0]), value(node.args[1]), node.args[2] if affine else 0)
        args, kwargs = tree_map_only(Ref, value, (node.args, node.kwargs))
        if node.op in _JOINS and not affine:
            args = ([value(ref) if ref in known else 0 * value(ref) for ref in node.args[0]], *args[1:])
        return _FUNCTIONAL.get(node.op, node.op)(*args, **kwargs)


_NORMS = tuple(
    getattr(aten, name).default for name in ("native_layer_norm", "_fused_rms_norm") if hasattr(aten, name)
)
_FUNCTIONAL: dict[Any, Any] = {aten.mul_.Tensor: aten.mul.Tensor, aten.div_.Tensor: aten.div.Tensor}


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


def _live_nodes(graph: Graph, start: Ref, frozen: Collection[int]) -> set[int]:
    """The nodes that depend on `start` linearly; a node that depends on it in another way counts as a constant."""
    live: set[int] = {start.node}
    for node in graph.nodes[start.node + 1 :]:
        inputs = [ref for ref in node.inputs if ref == start or (ref.node in live and ref.node != start.node)]
        if inputs and node.index not in frozen and _is_linear(node, inputs):
            live.add(node.index)
    return live


def _is_linear(node: Node, live: list[Ref]) -> bool:
    op = node.op
    if op in _ADDITIONS or op in _JOINS:
        return True
    if op in _MOVES or op in _NORMS or op is aten._to_copy.default or op is aten.masked_fill.Scalar:
        return live == [node.args[0]]
    if op in _FACTORS or op in (aten.bmm.default, aten.mm.default):
        return len(live) == 1
    if op in (aten.div.Tensor, aten.div_.Tensor, aten.convolution.default):
        return live == [node.args[0]]
    if op in PRODUCTS:  # a product plus a bias
        return sum(side in live for side in (node.args[i] for i in PRODUCTS[op])) == 1
    return False


def _needed(graph: Graph, start: Ref, targets: Sequence[Ref], live: set[int]) -> set[int]:
    """The live nodes that the targets depend on."""
    needed: set[int] = set()
    queue = [ref.node for ref in targets if ref.node in live]
    while queue:
        index = queue.pop()
        if index == start.node or index in needed:
            continue
        needed.add(index)
        queue += [ref.node for ref in graph.nodes[index].inputs if ref.node in live]
    return needed
