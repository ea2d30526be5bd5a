"""Find the attention calls of a traced forward pass: a softmax between two products of activations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from headtree.errors import InvalidValueError
from headtree.models.graph.forward_graph import SOFTMAX, Graph, Node, Ref, Trace
from headtree.models.watching.attention_sites import AttentionSite
from headtree.models.watching.probe import AttentionPlan
from headtree.models.watching.returned import close_where_allowed


@dataclass(frozen=True, eq=False)
class TracedSite:
    """One attention call of a traced forward pass."""

    softmax: int | None  #: node; None for user-described attention, of which only the result is known
    mix: int  #: node of the product probs @ values
    query: Ref  #: (head, token, feature)
    key: Ref  #: (head, feature, token)
    value: Ref  #: (head, token, feature)
    module: str  #: path of the innermost module that ran the softmax
    is_content: bool = True  #: whether scores and values depend on the input, or either on weights alone
    adds_scores: bool = False  #: whether scores are the sum of several products of activations
    again: tuple[int, ...] = ()  #: products of equal probs with other values: of differential attention, of LiLT

    @property
    def mixes(self) -> tuple[int, ...]:
        """Nodes of all products of these probs with values."""
        return (self.mix, *self.again)


class Search:
    """Looks for the products around a softmax.

    Between the product of queries and keys and the softmax, scores may be scaled, shifted, masked and capped.
    Between the softmax and the product with the values, probs may be masked, scaled and reshaped. Neither path
    passes through another product.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph, self.users = graph, graph.users()
        self.softmaxes = [node for node in graph.nodes if node.op in SOFTMAX]

    def around(self, node: Node, *, learned_queries: bool) -> TracedSite | None:
        """The attention call of a softmax of activations; None if it is no such softmax.

        With `learned_queries`, queries or keys may be weights of the model.
        """
        if not node.is_activation:
            return None
        scores = self._nearest(node, self._inputs, _multiplies_activations)
        if not scores and learned_queries:  # such as a learned query that pools all tokens
            scores = self._nearest(node, self._inputs, _multiplies_an_activation)
        return self._site(node, scores, self._nearest(node, self._users, _multiplies_activations))

    def compares(self, node: Node) -> bool:
        """Whether the scores that enter a softmax are products of activations."""
        return bool(self._nearest(node, self._inputs, _multiplies_activations))

    def around_known(self, node: Node) -> TracedSite | None:
        """The attention call of a softmax that is known to be attention, whatever its scores depend on."""
        found = self.around(node, learned_queries=True)
        if found is not None:
            return found
        scores = self._nearest(node, self._inputs, _is_product, also_weights=True)
        mixes = self._nearest(node, self._users, self._multiplies_computed, also_weights=True)
        return self._site(node, scores, mixes, is_content=False)

    def _site(self, node: Node, scores: set[int], mixes: set[int], is_content: bool = True) -> TracedSite | None:
        if not scores or not mixes:
            return None
        product, mix = self.graph.nodes[max(scores)], self.graph.nodes[min(mixes)]
        query, key = _factors(self.graph, product)
        probs, value = _factors(self.graph, mix)
        if not self.graph.depends(probs, node.index):
            return None  # values @ probs: no known model does that
        module = node.position.module if node.position is not None else ""
        adds_scores = sum(_multiplies_activations(self.graph, self.graph.nodes[index]) for index in scores) > 1
        return TracedSite(node.index, mix.index, query, key, value, module, is_content, adds_scores)

    def _inputs(self, index: int) -> list[int]:
        return [ref.node for ref in self.graph.nodes[index].inputs]

    def _users(self, index: int) -> list[int]:
        return self.users[index]

    def _multiplies_computed(self, graph: Graph, node: Node) -> bool:
        """Whether a node multiplies two results of other products, not a weight itself."""
        sides = graph.factors(node)
        return sides is not None and all(
            any(
                _is_product(graph, other) and graph.depends(side, other.index)
                for other in graph.nodes[: node.index]
            )
            for side in sides
        )

    def _nearest(
        self,
        start: Node,
        step: Callable[[int], list[int]],
        wanted: Callable[[Graph, Node], bool],
        *,
        also_weights: bool = False,
    ) -> set[int]:
        """The nearest nodes that are `wanted`, on paths of activations that pass through no other product."""
        found: set[int] = set()
        seen: set[int] = set()
        queue = [start.index]
        while queue:
            for index in step(queue.pop()):
                node = self.graph.nodes[index]
                if index in seen or not (node.is_activation or also_weights):
                    continue
                seen.add(index)
                if wanted(self.graph, node):
                    found.add(index)
                elif not _is_product(self.graph, node) and node.op not in SOFTMAX:
                    queue.append(index)
        return found


@dataclass(eq=False)
class TracedCalls:
    """The traced counterparts of the attention calls that a capture found."""

    model: str  #: name of its class
    known: Sequence[AttentionSite]
    sites: dict[int, TracedSite]  #: by the number of the attention call
    others: list[TracedSite] = field(default_factory=list)  #: attention of the trace that is no known call

    def __getitem__(self, i: int) -> TracedSite:
        """One product of probs and values; an error if there is none, or more than one."""
        site = self.product(i)
        if site.again or not site.is_content:
            why = "several products with values" if site.again else "scores or values that depend on weights alone"
            raise InvalidValueError(
                f"the attention of {self.known[i].name} has {why}, so the weights and the residual stream around "
                "it cannot be told apart; select other layers with layers=…"
            )
        return site

    def product(self, i: int) -> TracedSite:
        """The call, also if its probs are multiplied by values several times, or its scores are constant."""
        if i not in self.sites and self.known[i].seen_by == "outputs":
            raise InvalidValueError(
                f"the attention of {self.model} is known only from its outputs, and layer {self.known[i].name} of "
                "them is not what exactly one product multiplies by values, so it cannot be followed from there; "
                "describe the modules that attend with register_attention"
            )
        if i not in self.sites:
            raise InvalidValueError(
                f"the attention of {self.known[i].name} in {self.model} was seen, but its trace has no softmax "
                "there between a product of queries and keys and one with values, so what its heads read and write "
                "cannot be told; select other layers, or describe the modules that attend with register_attention"
            )
        return self.sites[i]

    def beside(self, i: int) -> list[TracedSite]:
        """Other attention of the trace, which is no known call, in the same call of the module."""
        return [site for site in self.others if site.module == self.sites[i].module]

    def all(self) -> list[TracedSite]:
        """All attention of the trace, in the order of the products with values."""
        return sorted([*self.sites.values(), *self.others], key=lambda site: site.mix)


def traced_calls(trace: Trace, plan: AttentionPlan, model: str) -> TracedCalls:
    """The traced counterparts of a plan's attention calls.

    A call is known by the module that ran its softmax, and by its turn among the softmaxes of one shape in that
    call of the module. If only the attention that a model returns is known, it must be the probs that enter a
    product. A module described with `register_attention` counts as a whole: its result takes the place of
    probs @ values.
    """
    graph = trace.graph
    search = Search(graph)
    found = _by_values(graph, search, plan.returned) if plan.from_outputs else _by_place(search, plan)
    found |= _described(trace, plan.sites)
    described = [site.name for site in plan.sites if site.seen_by == "described"]
    taken = {site.softmax for site in found.values()}
    again = {mix for site in found.values() for mix in site.again}
    around = (search.around(node, learned_queries=False) for node in search.softmaxes if node.index not in taken)
    others = [
        site
        for site in around
        if site is not None and site.mix not in again and not _is_inside(site.module, described)
    ]
    return TracedCalls(model, plan.sites, found, others)


def _by_place(search: Search, plan: AttentionPlan) -> dict[int, TracedSite]:
    found = {}
    for i, site in enumerate(plan.sites):
        alike = [other for other in plan.watched if other.place == site.place and other.shape == site.shape]
        nodes = [node for node in search.softmaxes if is_call(node, site)]
        groups = [[node] for node in nodes]
        if len(groups) != len(alike):
            groups = _without_repeats(nodes)
        if site.place is None or site.seen_by == "described" or len(groups) != len(alike):
            continue
        chosen = [groups[turn] for turn, other in enumerate(alike) if other in plan.sites]
        first = groups[next(turn for turn, other in enumerate(alike) if other is site)][0]
        others = {node.index for group in chosen for node in group[:1]}
        equal = [
            node for node in nodes if node.index not in others and torch.equal(node.values[0], first.values[0])
        ]
        traced, *again = (search.around_known(node) for node in (first, *equal))
        if traced is not None and None not in again:
            found[i] = replace(traced, again=tuple(each.mix for each in again if each is not None))
    return found


def is_call(node: Node, site: AttentionSite) -> bool:
    """Whether a softmax ran where a call of attention did, and has its shape."""
    position = node.position
    return position is not None and (position.module, position.call) == site.place and _has_shape(node, site)


def _has_shape(node: Node, site: AttentionSite) -> bool:
    """Whether a softmax has the shape of a call, or one key more: a sink."""
    n_batch, n_heads, n_queries, n_keys = site.shape
    shape = node.values[0].shape
    return (
        2 < len(shape) < 5
        and shape[-2:] in ((n_queries, n_keys), (n_queries, n_keys + site.has_sinks))
        and shape[:-2].numel() == n_batch * n_heads
    )


def _without_repeats(nodes: Sequence[Node]) -> list[list[Node]]:
    """Softmaxes in groups of equal ones that follow each other, which a watch reports as one call."""
    groups: list[list[Node]] = []
    for node in nodes:
        if groups and torch.equal(groups[-1][0].values[0], node.values[0]):
            groups[-1].append(node)
        else:
            groups.append([node])
    return groups


def _by_values(graph: Graph, search: Search, returned: Sequence[Tensor]) -> dict[int, TracedSite]:
    """The softmaxes whose probs a model returns; a layer that is not the probs of exactly one has none."""
    sites = [site for node in search.softmaxes if (site := search.around_known(node)) is not None]
    entering = [graph.value(_factors(graph, graph.nodes[site.mix])[0]) for site in sites]
    found = {}
    for i, layer in enumerate(returned):
        same = [site for site, probs in zip(sites, entering, strict=True) if _holds(probs, layer)]
        if len(same) == 1:
            found[i] = same[0]
    return found


def _holds(probs: Tensor, layer: Tensor) -> bool:
    """Whether probs are a returned layer, or have it as their last queries and keys, after the model's prompt."""
    n_heads, n_queries, n_keys = layer.shape
    if probs.ndim != 3 or probs.shape[0] != n_heads or probs.shape[1] < n_queries or probs.shape[2] < n_keys:
        return False
    return close_where_allowed(layer, probs[:, -n_queries:, -n_keys:])


def _described(trace: Trace, known: Sequence[AttentionSite]) -> dict[int, TracedSite]:
    last_call: dict[str, int] = {}
    found = {}
    for i, site in enumerate(known):
        if site.seen_by == "described":
            call = last_call[site.name] = last_call.get(site.name, -1) + 1
            ref = trace.modules.get((site.name, call))
            if ref is not None:
                found[i] = TracedSite(None, ref.node, ref, ref, ref, site.name)
    return found


def _is_inside(module: str, names: Iterable[str]) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in names)


def _is_product(graph: Graph, node: Node) -> bool:
    return graph.factors(node) is not None


def _multiplies_activations(graph: Graph, node: Node) -> bool:
    """Whether a node multiplies two activations."""
    sides = graph.factors(node)
    return sides is not None and all(graph.node(side).is_activation for side in sides)


def _multiplies_an_activation(graph: Graph, node: Node) -> bool:
    """Whether a node multiplies an activation by anything."""
    sides = graph.factors(node)
    return sides is not None and any(graph.node(side).is_activation for side in sides)


def _factors(graph: Graph, node: Node) -> tuple[Ref, Ref]:
    sides = graph.factors(node)
    if sides is None:
        raise RuntimeError("not a product")
    return sides
