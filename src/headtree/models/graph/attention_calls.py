"""Find the attention calls of a traced forward pass: a softmax between two products of activations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from headtree.errors import InvalidValueError
from headtree.models.graph.forward_graph import SOFTMAX, Graph, Node, Ref, Trace
from headtree.models.watching.attention_sites import AttentionSite


@dataclass(frozen=True, eq=False)
class TracedSite:
    """One attention call of a traced forward pass."""

    softmax: int | None  #: node; None for user-described attention, of which only the result is known
    mix: int  #: node of the product probs @ values
    query: Ref  #: (head, token, feature)
    key: Ref  #: (head, feature, token)
    value: Ref  #: (head, token, feature)
    module: str  #: path of the innermost module that ran the softmax


def find_sites(graph: Graph, *, learned_queries: bool = False) -> list[TracedSite]:
    """All attention calls, in call order; on request also those whose queries or keys are weights of the model.

    Between the product of queries and keys and the softmax, scores may be scaled, shifted, masked and capped.
    Between the softmax and the product with the values, probs may be masked, scaled and reshaped. Neither path
    passes through another product.
    """
    users = graph.users()
    sites = []
    for node in graph.nodes:
        if node.op not in SOFTMAX or not node.is_activation:
            continue
        scores = _nearest(
            graph, [node.index], lambda i: [ref.node for ref in graph.nodes[i].inputs], _multiplies_activations
        )
        if not scores and learned_queries:  # such as a learned query that pools all tokens
            scores = _nearest(
                graph,
                [node.index],
                lambda i: [ref.node for ref in graph.nodes[i].inputs],
                _multiplies_an_activation,
            )
        mixes = _nearest(graph, [node.index], lambda i: users[i], _multiplies_activations)
        if not scores or not mixes:
            continue
        product, mix = graph.nodes[max(scores)], graph.nodes[min(mixes)]
        query, key = _factors(graph, product)
        probs, value = _factors(graph, mix)
        if not graph.depends(probs, node.index):
            continue  # values @ probs: no known model does that
        module = node.position.module if node.position is not None else ""
        sites.append(TracedSite(node.index, mix.index, query, key, value, module))
    return sites


def matched_sites(trace: Trace, known: Sequence[AttentionSite], model: str) -> list[TracedSite]:
    """The traced counterparts of the attention calls that a capture found, matched by call order.

    A module described with `register_attention` counts as a whole: its result takes the place of probs @ values.
    """
    described = [site.name for site in known if site.seen_by == "described"]
    found = find_sites(trace.graph)
    n_inside = sum(_is_inside(site.module, described) for site in found)
    if len(found) - n_inside < len(known) - len(described):
        found = find_sites(trace.graph, learned_queries=True)
    softmaxes = iter([site for site in found if not _is_inside(site.module, described)])
    last_call: dict[str, int] = {}
    matched = []
    for site in known:
        if site.seen_by == "described":
            call = last_call[site.name] = last_call.get(site.name, -1) + 1
            ref = trace.modules.get((site.name, call))
            traced = None if ref is None else TracedSite(None, ref.node, ref, ref, ref, site.name)
        else:
            traced = next(softmaxes, None)
        if traced is None:
            break
        matched.append(traced)
    if len(matched) != len(known) or next(softmaxes, None) is not None:
        raise InvalidValueError(
            f"{model} makes {len(known)} attention calls, but its trace has {len(found)} softmaxes between "
            "products of queries, keys and values, so they cannot be matched; describe the modules that attend "
            "with register_attention"
        )
    return matched


def _is_inside(module: str, names: list[str]) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in names)


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


def _nearest(
    graph: Graph,
    start: Iterable[int],
    step: Callable[[int], list[int]],
    wanted: Callable[[Graph, Node], bool],
) -> set[int]:
    """The nearest nodes that are `wanted`, on paths of activations that pass through no other product."""
    found: set[int] = set()
    seen: set[int] = set()
    queue = list(start)
    while queue:
        for index in step(queue.pop()):
            node = graph.nodes[index]
            if index in seen or not node.is_activation:
                continue
            seen.add(index)
            if wanted(graph, node):
                found.add(index)
            elif graph.factors(node) is None and node.op not in SOFTMAX:
                queue.append(index)
    return found
