"""Find what belongs to single heads in a model's weights, from what heads compute and not from the model's name.

Autograd on a traced forward pass tells which entries of a parameter the scores and the output of each head depend
on. An entry that no remaining head depends on can go.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from headtree.errors import InvalidValueError
from headtree.models.cuts import Cuts, Number, Repeat, Slice, is_linear, output_axis
from headtree.models.graph.attention_calls import TracedCalls, TracedSite, traced_calls
from headtree.models.graph.forward_graph import Graph, Node, Ref
from headtree.models.graph.projections import OutputProjection, ProjectionFinder, entering_projection
from headtree.models.watching.collect import PreparedInputs

#: Numbers of a module that may be its width or that of its heads together; both readings are tried.
_WIDTHS = re.compile(r"^(hidden_size|embed_dim|embedding_dim|d_model|dim|n_embd|width)$")

#: How many readings of a module's numbers there are; see `_numbers`.
N_READINGS = 3


@dataclass(frozen=True, eq=False)
class Served:
    """Which heads use which entries of a parameter, along each of its axes."""

    path: str
    by_axis: tuple[Bool[Tensor, "head entry"], ...]
    in_scores: tuple[Bool[Tensor, "head entry"], ...]  #: the same for the scores alone

    def sliced_axis(self, remaining: Sequence[int]) -> int | None:
        """The axis with entries that only removed heads use; None if there is none."""
        found = [a for a, used in enumerate(self.by_axis) if bool((~self.stays(a, remaining)).any())]
        if len(found) > 1:
            raise InvalidValueError(f"heads share {self.path} in blocks, not along one axis")
        return found[0] if found else None

    def stays(self, axis: int, remaining: Sequence[int]) -> Bool[Tensor, " entry"]:
        """Which entries some remaining head uses, or no head at all."""
        used = self.by_axis[axis]
        return used[list(remaining)].any(dim=0) | ~used.any(dim=0)


@dataclass(frozen=True, eq=False)
class OutputWeight:
    """The output projection of one attention call, a linear layer."""

    module: str  #: path of the layer
    path: str  #: path of its weight
    axis: int  #: the axis of the weight that numbers what heads hand over
    rows: Int[Tensor, "head feature"]  #: which entries along that axis belong to each head


class CutFinder:
    """Finds the cuts that remove heads of a model; the view of the prepared inputs must be ready."""

    def __init__(self, prepared: PreparedInputs) -> None:
        self.prepared, self.model, self.plan = prepared, prepared.model, prepared.plan
        traced = prepared.view.traced(self.plan)
        self.graph: Graph = traced.graph
        self.calls: TracedCalls = traced_calls(traced, self.plan, type(self.model).__name__)
        self.finder = ProjectionFinder(self.graph, self.calls.all())
        self._layers: dict[int, LayerWeights] = {}

    @cached_property
    def tensors(self) -> dict[int, str]:
        """Nodes of the graph that are parameters or buffers, with their paths."""
        named = [*self.model.named_parameters(), *self.model.named_buffers()]
        paths = {id(value): path for path, value in named}
        nodes = (node for node in self.graph.nodes if node.op is None and id(node.values[0]) in paths)
        return {node.index: paths[id(node.values[0])] for node in nodes}

    def cuts(self, removed: dict[int, tuple[int, ...]], reading: int) -> Cuts:
        """What to cut to remove heads of some attention calls, by the number of the call."""
        slices: list[Slice] = []
        repeats: list[Repeat] = []
        emptied: list[str] = []
        numbers: list[Number] = []
        for i, heads in removed.items():
            found = self.layer(i).cuts(heads, reading)
            slices += found.slices
            repeats += found.repeats
            emptied += found.emptied
            numbers += found.numbers
        layers = self.prepared.selection.layers
        pairs = tuple((layers[i], head) for i, heads in removed.items() for head in heads)
        return Cuts(pairs, tuple(slices), tuple(repeats), tuple(emptied), (), tuple(numbers))

    def layer(self, i: int) -> LayerWeights:
        """The weights of one attention call, by head; an error if they cannot be told apart."""
        if i not in self._layers:
            self._layers[i] = self._layer(i)
        return self._layers[i]

    def output_weight(self, i: int) -> OutputWeight:
        """The output projection of one attention call; an error unless it is a linear layer of its own."""
        known = self.plan.sites[i]
        self._check_own(i)
        output = self._output(i)
        path, axis = self._output_weight(output, known.name)
        return OutputWeight(path.rpartition(".")[0], path, axis, output.rows)

    def _output(self, i: int) -> OutputProjection:
        site, known = self.calls[i], self.plan.sites[i]
        if site.softmax is None:
            raise InvalidValueError(
                f"the attention of {known.name} was described with register_attention, so its weights are unknown"
            )
        output = self.finder.output_projection(site, known.shape[0])
        if output is None:
            raise InvalidValueError(f"{known.name} has no output projection to cut")
        return output

    def _layer(self, i: int) -> LayerWeights:
        site, known = self.calls[i], self.plan.sites[i]
        weight, output = self.output_weight(i), self._output(i)
        made_in = _common_module(
            [node for ref in (site.query, site.key, site.value) for node in self._made_by(ref)]
        )
        if made_in is None or sum(_is_within(other.name, made_in) for other in self.plan.sites) > 1:
            raise InvalidValueError(
                f"queries, keys and values of {known.name} are not made inside one module of its own"
            )
        served = self._served(i, site, output, made_in, weight.path)
        return LayerWeights(self.model, made_in, known.shape[1], weight, tuple(served))

    def _check_own(self, i: int) -> None:
        """Refuse attention whose weights other layers use too."""
        name = self.plan.sites[i].name
        layers = [n for n, site in enumerate(self.plan.sites) if site.name == name]
        if len(layers) > 1:
            raise InvalidValueError(
                f"{len(layers)} layers share the weights of {name}, so a head cannot be removed from one of them"
            )

    def _made_by(self, ref: Ref) -> list[Node]:
        return [node for node, _, _ in self.finder.projections_before(ref)]

    def _output_weight(self, output: OutputProjection, name: str) -> tuple[str, int]:
        """Path of the parameter that holds W_O, and its axis that heads share out among them."""
        sides = self.graph.factors(output.node) or output.node.args[:2]
        node = next(self.graph.node(side) for side in sides if not self.graph.node(side).is_activation)
        while node.index not in self.tensors and len(node.inputs) == 1:
            node = self.graph.node(node.inputs[0])
        path = self.tensors.get(node.index)
        if path is None or not is_linear(self.model.get_submodule(path.rpartition(".")[0])):
            raise InvalidValueError(f"the output projection of {name} is not the weight of a linear layer")
        module = self.model.get_submodule(path.rpartition(".")[0])
        return path, 1 - output_axis(module)

    def _served(self, i: int, site: TracedSite, output: OutputProjection, scope: str, own: str) -> Iterator[Served]:
        """The parameters below a module by the heads that use their entries; the output projection apart."""
        within = {
            Ref(index): path for index, path in self.tensors.items() if _is_within(path, scope) and path != own
        }
        starts = {
            ref: self.graph.value(ref).detach().clone().requires_grad_()
            for ref in within
            if self.graph.value(ref).is_floating_point()
        }
        if not starts:
            return
        n_windows, n_heads = self.plan.sites[i].shape[:2]
        scores = self._reached(starts, self.graph.nodes[site.softmax or 0].args[0])
        scores = scores.reshape(n_windows, n_heads, *scores.shape[-2:]).transpose(0, 1)
        entering_ref, axis = entering_projection(self.graph, output.node)
        entering = self._reached(starts, entering_ref).movedim(axis, 0)
        entering = entering[output.rows.flatten().to(entering.device)].unflatten(0, output.rows.shape)
        by_scores, by_output = _used(scores, starts), _used(entering, starts)
        for ref, path in within.items():
            if ref in starts:
                pairs = zip(by_scores[ref], by_output[ref], strict=True)
                yield Served(path, tuple(a | b for a, b in pairs), tuple(by_scores[ref]))

    def _reached(self, starts: dict[Ref, Tensor], target: Ref) -> Tensor:
        with torch.enable_grad():
            return self.graph.replay(starts, target)


def _used(target: Tensor, starts: dict[Ref, Tensor]) -> dict[Ref, list[Bool[Tensor, "head entry"]]]:
    """Along each axis of each start, which entries the slices of a target depend on."""
    found: dict[Ref, list[Tensor]] = {
        ref: [torch.zeros(len(target), size, dtype=torch.bool) for size in start.shape]
        for ref, start in starts.items()
    }
    if not target.requires_grad:
        return found
    # irregular weights: with equal ones, terms can cancel
    weights = torch.rand(target.shape[1:], generator=torch.Generator().manual_seed(0)).to(target) + 0.5
    for head, values in enumerate(target):
        slopes = torch.autograd.grad(
            (values * weights).sum(), list(starts.values()), retain_graph=True, allow_unused=True
        )
        for (ref, start), slope in zip(starts.items(), slopes, strict=True):
            for axis in range(0 if slope is None else start.ndim):
                others = [other for other in range(start.ndim) if other != axis]
                found[ref][axis][head] = ((slope != 0).any(dim=others) if others else slope != 0).cpu()
    return found


@dataclass(frozen=True, eq=False)
class LayerWeights:
    """The weights of one attention call, by head."""

    model: nn.Module
    module: str  #: path of the module that makes queries, keys and values
    n_heads: int
    output: OutputWeight
    served: tuple[Served, ...]

    def cuts(self, removed: Sequence[int], reading: int) -> Cuts:
        """What to cut to remove some heads, with one reading of what the module's numbers mean."""
        remaining = [head for head in range(self.n_heads) if head not in set(removed)]
        # attention without heads runs as one head that reads and writes nothing, so the model's own code still fits
        shown = remaining or [0]
        slices = []
        for tensor in self.served:
            axis = tensor.sliced_axis(shown)
            if axis is not None:
                index = tensor.stays(axis, shown).nonzero()[:, 0].tolist()
                slices.append(Slice(tensor.path, axis, tuple(index)))
        rows = sorted(self.output.rows[shown].flatten().tolist())
        slices.append(Slice(self.output.path, self.output.axis, tuple(rows)))
        repeats = tuple(self._repeats(shown)) if self._is_uneven(shown) else ()
        numbers = tuple(self._numbers(shown, bool(repeats), reading))
        emptied = () if remaining else tuple(self._linear_layers())
        return Cuts((), tuple(slices), () if emptied else repeats, emptied, (), numbers)

    @cached_property
    def groups(self) -> list[list[int]]:
        """Heads that share keys and values, in order."""
        found: set[tuple[int, ...]] = set()
        for tensor in self.served:
            for used in tensor.by_axis:
                sets = {tuple(column.nonzero()[:, 0].tolist()) for column in used.T}
                if len(sets - {()}) > 1:
                    found |= {one for one in sets if len(one) > 1}
        singles = [[head] for head in range(self.n_heads)]
        shared = sorted(map(list, found))
        return shared if sorted(reduce(operator.iadd, shared, [])) == list(range(self.n_heads)) else singles

    def _group_sizes(self, remaining: Sequence[int]) -> list[int]:
        sizes = [len(set(group) & set(remaining)) for group in self.groups]
        return [size for size in sizes if size]

    def _is_uneven(self, remaining: Sequence[int]) -> bool:
        return len(set(self._group_sizes(remaining))) > 1

    def _repeats(self, remaining: Sequence[int]) -> Iterator[Repeat]:
        """Linear layers for keys and values, of which each remaining head gets its own copy of the result."""
        for tensor in self.served:
            path, _, name = tensor.path.rpartition(".")
            module = self.model.get_submodule(path)
            if name != "weight" or not is_linear(module):
                continue
            axis = output_axis(module)
            used, scores = tensor.by_axis[axis], tensor.in_scores[axis].any(dim=0)
            index = tensor.stays(axis, remaining).nonzero()[:, 0]
            used, scores = used[:, index], scores[index]
            is_shared = used.sum(dim=0) > 1
            if not bool(is_shared.any()) or bool(used.all()):
                continue
            features = (~is_shared).nonzero()[:, 0].tolist()  # queries, where one layer makes them too
            for role in (scores, ~scores):  # keys, then values
                for head in remaining:
                    features += (used[head] & is_shared & role).nonzero()[:, 0].tolist()
            yield Repeat(path, tuple(features))

    def _linear_layers(self) -> Iterator[str]:
        """Linear layers that work for heads alone: their results belong to heads, or they project them."""
        for tensor in self.served:
            path, _, name = tensor.path.rpartition(".")
            module = self.model.get_submodule(path)
            if name == "weight" and is_linear(module):
                used = tensor.by_axis[output_axis(module)]
                if self.n_heads == 1 or not bool((used == used[:1]).all()) or len(self.groups) == 1:
                    yield path
        yield self.output.module

    def _numbers(self, remaining: Sequence[int], is_repeated: bool, reading: int) -> Iterator[Number]:
        """What the module knows about its heads, afterwards.

        Reading 0 takes attributes named like a width as the width of the stream, reading 1 as that of all heads
        together. Reading 2 changes the numbers of heads in the module's configuration as well.
        """
        sizes = self._group_sizes(remaining)
        n_after = len(remaining)
        n_shared = n_after if is_repeated else len(sizes)
        n_features, group = self.output.rows.shape[1], len(self.groups[0])
        before = {"heads": self.n_heads, "shared": len(self.groups), "group": group}
        after = {"heads": n_after, "shared": n_shared, "group": n_after // n_shared}
        module: Any = self.model.get_submodule(self.module)
        owners = [("", vars(module))]
        if reading == 2 and hasattr(module, "config"):
            owners.append(("config.", vars(module.config)))
        for prefix, values in owners:
            for name, value in values.items():
                if isinstance(value, bool) or not isinstance(value, int) or name.startswith("_"):
                    continue
                role = _role(name)
                if role is not None and value == before[role]:
                    yield Number(self.module, prefix + name, after[role])
                if role is not None or prefix or (reading == 0 and _WIDTHS.match(name)):
                    continue
                if value == self.n_heads * n_features:
                    yield Number(self.module, name, n_after * n_features)
                elif value == len(self.groups) * n_features and not _WIDTHS.match(name):
                    yield Number(self.module, name, n_shared * n_features)


def _role(name: str) -> str | None:
    """What a number about heads counts, by its name: heads, heads of keys and values, or heads that share these."""
    is_shared = re.search(r"key_value|kv", name) is not None
    if re.search(r"group|n_rep", name):
        return "group"
    if not re.search(r"heads?", name) or re.search(r"dim|size", name):
        return None
    return "shared" if is_shared else "heads"


def _common_module(nodes: Sequence[Node]) -> str | None:
    """Path of the innermost module around the modules that ran some operations."""
    paths = [node.position.module.split(".")[:-1] for node in nodes if node.position is not None]
    if not paths:
        return None
    common = []
    for names in zip(*paths, strict=False):
        if len(set(names)) > 1:
            break
        common.append(names[0])
    return ".".join(common)


def _is_within(path: str, module: str) -> bool:
    return module in ("", path) or path.startswith(f"{module}.")
