"""Which values of a traced forward pass depend on one of them linearly, if everything nonlinear is frozen."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor

from headtree.models.graph.forward_graph import PRODUCTS, SOFTMAX, Graph, Node, Ref, aten


def _operations(*names: str) -> frozenset[Any]:
    """Operations by name, such as "view.default", those that this version of torch has."""
    pairs = [name.split(".") for name in names]
    return frozenset(getattr(getattr(aten, op), over) for op, over in pairs if hasattr(aten, op))


#: Operations that are linear in their first argument, whatever the others are.
_MOVES = _operations(
    *(f"{name}.default" for name in ("view", "_unsafe_view", "alias", "detach", "clone", "t", "permute", "expand")),
    *(f"{name}.default" for name in ("unsqueeze", "squeeze", "split_with_sizes", "unfold", "repeat", "gather")),
    *(f"{name}.default" for name in ("index_select", "roll", "flip", "neg", "tril", "triu", "cumsum")),
    *("transpose.int", "squeeze.dim", "squeeze.dims", "slice.Tensor", "select.int", "split.Tensor", "unbind.int"),
    *("index.Tensor", "mean.dim", "sum.dim_IntList", "mul.Scalar", "div.Scalar", "_grouped_mm.default"),
)
#: Operations that only read the shape of their argument.
_SHAPES = _operations(
    *(f"{name}.default" for name in ("new_zeros", "new_empty", "new_ones", "new_full")),
    *(f"{name}.default" for name in ("zeros_like", "ones_like", "empty_like", "full_like")),
)
#: Operations that choose experts; what belongs to a chosen expert, such as its bias, has no tokens.
_ROUTING = _operations("topk.default", "sort.default", "argmax.default")
#: Operations that are linear in several arguments together, and which these are.
JOINT: dict[Any, tuple[int, ...]] = {
    aten.cat.default: (0,),
    aten.stack.default: (0,),
    aten.where.self: (1, 2),
    aten.copy_.default: (1,),
    aten.slice_scatter.default: (0, 1),
    aten.select_scatter.default: (0, 1),
    **dict.fromkeys((aten.index_add.default, aten.index_add_.default), (0, 3)),
    **dict.fromkeys((aten.scatter.src, aten.scatter_.src), (0, 3)),
    **dict.fromkeys((aten.scatter_add.default, aten.scatter_add_.default), (0, 3)),
    **dict.fromkeys((aten.index_put.default, aten.index_put_.default), (0, 2)),
}
ADDITIONS = (aten.add.Tensor, aten.add_.Tensor, aten.sub.Tensor, aten.sub_.Tensor)
FACTORS = (aten.mul.Tensor, aten.mul_.Tensor)
NORMS = tuple(
    getattr(aten, name).default for name in ("native_layer_norm", "_fused_rms_norm") if hasattr(aten, name)
)
_QUOTIENTS = (aten.div.Tensor, aten.div_.Tensor)

#: Functions of single numbers; those with the value 0 at 0 can be frozen as the ratio of result to argument.
_ACTIVATIONS = _operations(
    *(
        f"{name}{end}.default"
        for name in ("gelu", "silu", "relu", "tanh", "leaky_relu", "elu", "hardswish", "mish", "erf", "hardtanh")
        for end in ("", "_")
        if hasattr(aten, f"{name}{end}")
    ),
    *("pow.Tensor_Scalar", "clamp.default", "clamp_.default", "clamp_min.default", "clamp_max.default"),
)


@dataclass(frozen=True, eq=False)
class LiveNodes:
    """The nodes of a graph that depend linearly on a value, given what is frozen."""

    activations: bool
    live: set[int]
    held: dict[int, int] = field(default_factory=dict)  #: node → the argument that is frozen although it is live
    counts: dict[int, int] = field(default_factory=dict)  #: activation functions on the way to each node

    def __contains__(self, node: int) -> bool:
        return node in self.live

    def is_held(self, node: Node, ref: Ref) -> bool:
        """Whether an operation reads a value as a frozen factor, and in no other way."""
        at = self.held.get(node.index)
        return at is not None and node.args[at] == ref and node.args[1 - at] != ref

    def is_ratio(self, node: Node) -> bool:
        """Whether a live node is an activation function."""
        return self.activations and node.op in _ACTIVATIONS


def find_live(graph: Graph, start: Ref, frozen: Collection[int], activations: bool) -> LiveNodes:
    """The nodes that depend on `start` linearly; a node that depends on it in another way counts as a constant."""
    found = LiveNodes(activations, {start.node})
    for node in graph.nodes[start.node + 1 :]:
        inputs = [ref for ref in node.inputs if ref == start or (ref.node in found.live and ref.node != start.node)]
        if inputs and node.index not in frozen and (_is_linear(node, inputs) or _can_freeze(found, node, inputs)):
            found.live.add(node.index)
            if activations:
                found.counts[node.index] = _count(graph, found, node, inputs, start)
    return found


def _is_linear(node: Node, live: list[Ref]) -> bool:
    op = node.op
    if op in ADDITIONS:
        return True
    if op in JOINT:
        together = [ref for i in JOINT[op] for ref in _refs(node.args[i])]
        return all(ref in together for ref in live)
    if op in _MOVES or op in NORMS or op is aten._to_copy.default or op is aten.masked_fill.Scalar:
        return live == [node.args[0]]
    if op in FACTORS or op in (aten.bmm.default, aten.mm.default):
        return len(live) == 1
    if op in _QUOTIENTS or op is aten.convolution.default:
        return live == [node.args[0]]
    if op in PRODUCTS:  # a product plus a bias
        return sum(side in live for side in (node.args[i] for i in PRODUCTS[op])) == 1
    return False


def _can_freeze(found: LiveNodes, node: Node, live: list[Ref]) -> bool:
    """Whether an activation function, or a product of two live values, becomes linear by freezing one of them."""
    if not found.activations:
        return False
    if node.op in _ACTIVATIONS:
        return live == [node.args[0]] and _at_zero(node)[0] == 0
    if node.op in FACTORS and len(live) == 2:
        first, second = (found.counts.get(side.node, 0) for side in node.args[:2])
        found.held[node.index] = 0 if first >= second else 1
        return True
    if node.op in _QUOTIENTS and node.args[0] in live:
        found.held[node.index] = 1
        return True
    return False


def is_square(node: Node) -> bool:
    """Whether a value is multiplied by itself."""
    return node.op in FACTORS and node.args[0] == node.args[1]


def _count(graph: Graph, found: LiveNodes, node: Node, live: list[Ref], start: Ref) -> int:
    """Most activation functions on the way to a node; a factor that is computed from `start` makes one too."""
    before = max(found.counts.get(ref.node, 0) for ref in live)
    is_gated = node.op in FACTORS and all(
        isinstance(side, Ref) and graph.depends(side, start) for side in node.args[:2]
    )
    return before + (found.is_ratio(node) or is_gated)


def _at_zero(node: Node) -> tuple[float, float]:
    """Value and slope at 0 of a function of single numbers."""
    with torch.enable_grad():
        zero = torch.zeros(1, dtype=torch.float64, requires_grad=True)
        value = functional(node.op)(zero, *node.args[1:], **node.kwargs)
        (slope,) = torch.autograd.grad(value.sum(), zero)
    return float(value.detach()), float(slope)


def ratio(node: Node, argument: Tensor) -> Tensor:
    """The result of an activation function over its argument; where that is 0, the slope."""
    result = node.values[0].detach()
    is_zero = argument == 0
    return torch.where(is_zero, _at_zero(node)[1], result / torch.where(is_zero, 1, argument))


@cache
def functional(op: Any) -> Any:
    """An operation that changes no argument, for one that may."""
    if not op._schema.is_mutable:
        return op
    name = op._schema.name.removeprefix("aten::").removesuffix("_")
    return getattr(getattr(aten, name), op._overloadname)


def needed_nodes(graph: Graph, start: Ref, targets: Sequence[Ref], live: LiveNodes) -> set[int]:
    """The live nodes that the targets depend on."""
    needed: set[int] = set()
    queue = [ref.node for ref in targets if ref.node in live]
    while queue:
        index = queue.pop()
        if index == start.node or index in needed:
            continue
        needed.add(index)
        node = graph.nodes[index]
        queue += [ref.node for ref in node.inputs if ref.node in live and not live.is_held(node, ref)]
    return needed


def never_linear(graph: Graph, start: Ref, nodes: Sequence[Node], live: LiveNodes) -> Node | None:
    """An operation that cannot be frozen; None if there is none.

    A frozen value may scale what is linear: a gate, a norm, attention. If it is added instead, it carries tokens
    itself, and what comes after it belongs to no token. Sums of constants with frozen attention have no tokens.
    """
    without_tokens = {*SOFTMAX, *PRODUCTS, *_ROUTING}
    for node in nodes:
        for ref in _added(node):
            if ref == start or ref.node in live or not graph.depends(ref, start):
                continue
            frozen = [each for each in _first_frozen(graph, ref, live) if each.op not in without_tokens]
            if frozen:  # the last one: routers and the like, which scale it, run before
                return max(frozen, key=lambda each: each.index)
    return None


def _added(node: Node) -> list[Ref]:
    """The arguments of an operation that are added up."""
    if node.op in ADDITIONS:
        return [side for side in node.args[:2] if isinstance(side, Ref)]
    if node.op in JOINT:
        return [ref for i in JOINT[node.op] for ref in _refs(node.args[i])]
    return [node.args[0]] if PRODUCTS.get(node.op) == (1, 2) else []


def _first_frozen(graph: Graph, ref: Ref, live: LiveNodes) -> Iterator[Node]:
    """The frozen operations nearest to live values from which a frozen value was computed."""
    queue, seen = [ref.node], {ref.node}
    while queue:
        node = graph.nodes[queue.pop()]
        if node.op in _SHAPES:
            continue
        if any(source.node in live for source in node.inputs):
            yield node
        fresh = {source.node for source in node.inputs if source.node not in live} - seen
        seen |= fresh
        queue += fresh


def _refs(value: Any) -> list[Ref]:
    if isinstance(value, Ref):
        return [value]
    return [ref for entry in value for ref in _refs(entry)] if isinstance(value, list | tuple) else []
