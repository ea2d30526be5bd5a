"""Record a forward pass as a graph: which operation made which value, from what, and inside which module.

Operations are recorded at the level of aten, where it no longer matters how the code is written: a linear layer,
GPT-2's Conv1D and an einsum are all a product with a parameter, and attention is always a softmax between two
products. The components of a model can thus be recognized by what they compute; no architecture is known by name.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from torch.utils.weak import WeakIdKeyDictionary

from headtree.errors import HeadtreeError, InvalidTypeError
from headtree.models.inputs import ModelInput
from headtree.models.module_stack import ModuleCall, ModuleStack, tensors_of
from headtree.models.watching.probe import arguments
from headtree.models.watching.returned import reported_layers
from headtree.models.watching.unchanged import unchanged
from headtree.models.watching.watch import implementation

aten = torch.ops.aten

#: Matrix products, and the indices of the arguments that are the two factors.
PRODUCTS = {
    aten.mm.default: (0, 1),
    aten.bmm.default: (0, 1),
    aten.addmm.default: (1, 2),
    aten.baddbmm.default: (1, 2),
}
SOFTMAX = (aten._softmax.default, aten._safe_softmax.default)

#: Operations that do not change any number.
SAME_NUMBERS = frozenset(
    getattr(aten, name).default
    for name in (
        "view",
        "_unsafe_view",
        "alias",
        "detach",
        "clone",
        "_to_copy",
        "permute",
        "t",
        "expand",
        "unsqueeze",
    )
) | {aten.transpose.int, aten.squeeze.dim}


class Position(NamedTuple):
    """Where an operation runs in a model's code; the same operation has the same position on any other input."""

    module: str  #: path of the innermost module that was running
    call: int  #: number of earlier calls of this module
    op: str
    nth: int  #: number of earlier runs of this operation within the call


@dataclass(frozen=True, slots=True)
class Ref:
    """A value in the graph: one output of a node."""

    node: int
    output: int = 0


@dataclass(eq=False)
class Node:
    """One operation, or a value that comes from outside the forward pass."""

    index: int
    op: Any  #: None for a value from outside
    args: tuple[Any, ...]  #: with a Ref instead of every tensor
    kwargs: dict[str, Any]
    inputs: tuple[Ref, ...]
    ancestors: int  #: bit set of the nodes it depends on, including itself
    is_activation: bool  #: computed from the model's input, not only from weights and positions
    position: Position | None
    values: tuple[Any, ...] = ()  #: its tensors; None for those that were not kept

    @property
    def place(self) -> Position:
        """The position of an operation, which a value from outside does not have."""
        if self.position is None:
            raise RuntimeError("a value from outside the forward pass has no position")
        return self.position


@dataclass(eq=False)
class Graph:
    """All operations of a forward pass, in the order they ran."""

    nodes: list[Node] = field(default_factory=list)

    def value(self, ref: Ref) -> Tensor:
        """The tensor as it was when it was computed."""
        found: Tensor = self.nodes[ref.node].values[ref.output]
        return found

    @cached_property
    def by_position(self) -> Mapping[Position, Node]:
        """Every operation by its position; use it once the graph is complete."""
        return {node.position: node for node in self.nodes if node.position is not None}

    def node(self, ref: Ref) -> Node:
        """The operation that computed the value."""
        return self.nodes[ref.node]

    def depends(self, later: Ref | int, earlier: Ref | int) -> bool:
        """Whether a value was computed from another one, or is the same."""
        ancestor = earlier.node if isinstance(earlier, Ref) else earlier
        return bool(self.nodes[later.node if isinstance(later, Ref) else later].ancestors >> ancestor & 1)

    def users(self) -> list[list[int]]:
        """For every node, the indices of the nodes that use it."""
        found: list[list[int]] = [[] for _ in self.nodes]
        for node in self.nodes:
            for source in dict.fromkeys(ref.node for ref in node.inputs):
                found[source].append(node.index)
        return found

    def factors(self, node: Node) -> tuple[Ref, Ref] | None:
        """The two factors of a matrix product; None for other operations."""
        if node.op not in PRODUCTS:
            return None
        left, right = (node.args[i] for i in PRODUCTS[node.op])
        return left, right

    def replay(self, start: Mapping[Ref, Tensor], target: Ref) -> Tensor:
        """The value that `target` would have if the values in `start` were replaced; differentiable by autograd."""
        known: dict[Ref, Tensor] = dict(start)
        first = min(ref.node for ref in start)
        for node in self.nodes[first : target.node + 1]:
            changed = any(ref in known for ref in node.inputs)
            if not changed or Ref(node.index) in start or not self.depends(target, node.index):
                continue
            args, kwargs = tree_map_only(
                Ref, lambda ref: known[ref] if ref in known else self.value(ref), (node.args, node.kwargs)
            )
            if node.op._schema.is_mutable:
                args = (args[0].clone(), *args[1:])
            result = node.op(*args, **kwargs)
            for i, value in enumerate(result if isinstance(result, tuple | list) else (result,)):
                known[Ref(node.index, i)] = value
        return known[target] if target in known else self.value(target)


class Positions:
    """Assigns a `Position` to each operation of a forward pass as it runs."""

    def __init__(self, stack: ModuleStack) -> None:
        self._stack = stack
        self._outside: dict[str, int] = {}  # counts of operations outside every module

    def next(self, op: Any) -> Position:
        """Position of the operation that runs now; call this exactly once per operation."""
        call = self._stack.running[-1] if self._stack.running else None
        counts = self._outside if call is None else call.counts
        nth = counts[str(op)] = counts.get(str(op), -1) + 1
        return Position("", -1, str(op), nth) if call is None else Position(call.name, call.index, str(op), nth)


@dataclass(frozen=True)
class Kept:
    """Which values of a forward pass a trace keeps; those from outside, such as weights, it always keeps."""

    operands: Collection[Position] = frozenset()  #: operations of which all tensors that they read are kept
    results: Collection[Position] = frozenset()  #: operations of which the results are kept

    def __or__(self, other: Kept) -> Kept:
        return Kept({*self.operands, *other.operands}, {*self.results, *other.results})


class Recorder(TorchDispatchMode):
    """Records every operation into a graph while active; see `trace` for `surviving`, `unneeded` and `kept`."""

    def __init__(
        self,
        positions: Positions,
        read: Sequence[tuple[str, Tensor]],
        surviving: Mapping[Position, int],
        unneeded: Collection[Position],
        kept: Kept | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.positions, self.graph = positions, Graph()
        self.surviving, self.unneeded, self.kept = surviving, unneeded, kept
        self.refs: Any = WeakIdKeyDictionary()
        self.read: Any = WeakIdKeyDictionary()
        for name, tensor in read:
            self.read[tensor] = name

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        position = self.positions.next(func)
        kwargs = kwargs or {}
        inputs: list[Ref] = []
        keeps_operands = self.kept is not None and position in self.kept.operands

        def ref_of(tensor: Tensor) -> Ref:
            inputs.append(self._ref(tensor))
            if keeps_operands:
                self._keep(inputs[-1], tensor)
            return inputs[-1]

        ref_args, ref_kwargs = tree_map_only(Tensor, ref_of, (args, kwargs))
        if func._schema.is_mutable and inputs and isinstance(args[0], Tensor):
            self._save_old_value(inputs[0], args[0])
        if position in self.surviving:
            result = one_side(func, args, self.surviving[position])
            side = ref_args[self.surviving[position]]
            func, ref_args, ref_kwargs, inputs = aten.clone.default, (side,), {}, [side]
        elif position in self.unneeded:
            result = empty_product(func, args)
        else:
            result = func(*args, **kwargs)
        outputs = tuple(result) if isinstance(result, tuple | list) else (result,)
        if any(isinstance(value, Tensor) for value in outputs):
            is_kept = self.kept is None or position in self.kept.results
            values = outputs if is_kept else (None,) * len(outputs)
            node = self._add(func, ref_args, ref_kwargs, tuple(inputs), position, values)
            for i, value in enumerate(outputs):
                if isinstance(value, Tensor):
                    self.refs[value] = Ref(node.index, i)
        return result

    def _save_old_value(self, ref: Ref, tensor: Tensor) -> None:
        """Copy a value before an in-place operation overwrites it, unless it is not kept."""
        if self.graph.node(ref).values[ref.output] is not None:
            self._keep(ref, tensor.clone())

    def _keep(self, ref: Ref, tensor: Tensor) -> None:
        node = self.graph.node(ref)
        values = list(node.values)
        values[ref.output] = tensor
        node.values = tuple(values)

    def _ref(self, tensor: Tensor) -> Ref:
        if tensor not in self.refs:
            node = self._add(None, (), {}, (), None, (tensor,))
            name = self.read.get(tensor)
            # masks are inputs too, but values computed only from them carry no content
            node.is_activation = name is not None and tensor.is_floating_point() and "mask" not in name
            self.refs[tensor] = Ref(node.index)
        found: Ref = self.refs[tensor]
        return found

    def _add(
        self,
        op: Any,
        args: Any,
        kwargs: Any,
        inputs: tuple[Ref, ...],
        position: Position | None,
        values: tuple[Any, ...],
    ) -> Node:
        nodes = self.graph.nodes
        index = len(nodes)
        ancestors = 1 << index
        for ref in inputs:
            ancestors |= nodes[ref.node].ancestors
        is_activation = any(nodes[ref.node].is_activation for ref in inputs) or self._is_lookup(op, inputs)
        node = Node(index, op, args, kwargs, inputs, ancestors, is_activation, position, values)
        nodes.append(node)
        return node

    def _is_lookup(self, op: Any, inputs: tuple[Ref, ...]) -> bool:
        """Whether an operation looks up rows of a table by tokens of the model's input."""
        if op not in (aten.embedding.default, aten.index.Tensor, aten.index_select.default):
            return False
        nodes = self.graph.nodes
        return any(
            nodes[ancestor].op is None and nodes[ancestor].values[0] in self.read
            for ref in inputs[1:]
            for ancestor in _bits(nodes[ref.node].ancestors)
        )


def _bits(mask: int) -> Iterator[int]:
    """Indices of the bits that are set."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


@contextmanager
def math_attention() -> Iterator[None]:
    """Run attention as products and a softmax instead of one fused kernel."""
    fast_path = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)


@contextmanager
def unfused() -> Iterator[None]:
    """Disable gradients, and run attention as products and a softmax instead of one fused kernel."""
    with torch.no_grad(), math_attention():
        yield


@dataclass(frozen=True, eq=False)
class Trace:
    """The graph of one forward pass and the results of its modules."""

    graph: Graph
    modules: Mapping[tuple[str, int], Ref]  #: (path, index of the call) → the first tensor it returned
    #: (path, index of the call) → the tensors it was called with, by position or keyword
    arguments: Mapping[tuple[str, int], Mapping[int | str, Ref]]
    logits: Ref | None = None  #: the tensor that the model returned, or the one named logits
    reported: tuple[Ref | None, ...] = ()  #: on request, the attention of each layer that the model returned


def _takes(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether the model's forward has parameters for these arguments."""
    try:
        inspect.signature(model.forward).bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def trace(
    model: nn.Module,
    item: ModelInput,
    surviving: Mapping[Position, int] | None = None,
    unneeded: Collection[Position] = frozenset(),
    kept: Kept | None = None,
    *,
    reporting: bool = False,
) -> Trace:
    """Run the model on one input and record every operation.

    Parameters
    ----------
    model : module
        In evaluation mode.
    item : ModelInput
        One input.
    surviving : mapping, optional
        Additions with one side cancelled, each mapped to the index of its surviving side.
    unneeded : collection of Position, optional
        Products that are not computed, because no surviving value needs them.
    kept : Kept, optional
        The values that the graph holds; by default all of them, and the results of all modules.
    reporting : bool
        Whether the model attends eagerly and returns its attention.
    """
    args, kwargs = arguments(model, [item])
    read = [("", value) for value in args if isinstance(value, Tensor)]
    read += [(name, value) for name, value in kwargs.items() if isinstance(value, Tensor)]
    outputs: dict[tuple[str, int], Tensor] = {}
    given: dict[tuple[str, int], dict[int | str, Ref]] = {}

    def entered(call: ModuleCall) -> None:
        named: list[tuple[int | str, Any]] = [*enumerate(call.args), *call.kwargs.items()]
        given[call.name, call.index] = {
            name: recorder.refs[value]
            for name, value in named
            if isinstance(value, Tensor) and value in recorder.refs
        }

    def left(call: ModuleCall, output: Any) -> None:
        first = next(tensors_of(output), None)
        if first is not None and kept is None:
            outputs[call.name, call.index] = first

    stack = ModuleStack(model, entered, left)
    recorder = Recorder(Positions(stack), read, surviving or {}, unneeded, kept)
    options = {"output_attentions": True} if reporting else {}
    with ExitStack() as contexts:
        if reporting:
            contexts.enter_context(implementation(model, "eager"))
        for context in (unfused(), stack.watching(), unchanged(model), recorder):
            contexts.enter_context(context)
        try:
            output = model(*args, **kwargs, **options)
        except TypeError as error:
            if isinstance(error, HeadtreeError) or _takes(model, args, {**kwargs, **options}):
                raise
            raise InvalidTypeError(
                f"model {type(model).__name__} does not take these inputs: {error}; pass a model of the same kind"
            ) from error
    logits = logits_of(output)
    reported = tuple(map(recorder.refs.get, reported_layers(output))) if reporting else ()
    modules = {key: recorder.refs[tensor] for key, tensor in outputs.items() if tensor in recorder.refs}
    return Trace(recorder.graph, modules, given, None if logits is None else recorder.refs.get(logits), reported)


def logits_of(output: Any) -> Tensor | None:
    """The logits among a model's outputs: the only tensor, or the one of that name; None if there are none."""
    logits = output if isinstance(output, Tensor) else getattr(output, "logits", None)
    return logits if isinstance(logits, Tensor) else None


def empty_product(func: Any, args: tuple[Any, ...]) -> Tensor:
    """Zeros in the shape of a product whose values are not needed."""
    left, right = (args[i] for i in PRODUCTS[func])
    zeros: Tensor = left.new_zeros((*left.shape[:-1], right.shape[-1]))
    return zeros


def one_side(func: Any, args: tuple[Any, ...], surviving: int) -> Tensor:
    """Result of an addition whose other side is cancelled."""
    value: Tensor = args[surviving].to(torch.result_type(args[0], args[1])).expand_as(args[0]).clone()
    return args[0].copy_(value) if func._schema.is_mutable else value
