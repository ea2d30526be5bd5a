"""Where a traced forward pass attends: every softmax between a product of two activations and another one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from headtree.errors import InvalidValueError
from headtree.models.graph.forward_graph import SOFTMAX, Graph, Node, Ref, Trace
from headtree.models.watching.attention_sites import AttentionSite


@dataclass(frozen=True, eq=False)
class TracedSite:
    """One attention call of a traced forward pass."""

    softmax: int | None  #: node; None for attention of another kind, of which only the result is known
    mix: int  #: node of the product of probs and values
    query: Ref  #: (head, token, feature)
    key: Ref  #: (head, feature, token)
    value: Ref  #: (head, token, feature)
    module: str  #: path of the innermost module that ran the softmax


def find_sites(graph: Graph) -> list[TracedSite]:
    """All attention calls, in the order they are made.

    Between the product of queries and keys and the softmax, scores may be scaled, shifted, masked and capped;
    between the softmax and the product with the values, probs may be masked, scaled and reshaped. Neither way
    passes through another product.
    """
    users = graph.users()
    sites = []
    for node in graph.nodes:
        if node.op not in SOFTMAX or not node.is_activation:
            continue
        scores = _nearest(graph, [node.index], lambda at: [ref.node for ref in graph.nodes[at].inputs], _is_of_two)
        mixes = _nearest(graph, [node.index], lambda at: users[at], _is_of_two)
        if not scores or not mixes:
            continue
        product, mix = graph.nodes[max(scores)], graph.nodes[min(mixes)]
        query, key = _factors(graph, product)
        probs, value = _factors(graph, mix)
        if not graph.depends(probs, node.index):
            continue  # the values stand on the left: no model that was seen does that
        module = node.position.module if node.position is not None else ""
        sites.append(TracedSite(node.index, mix.index, query, key, value, module))
    return sites


def matched_sites(trace: Trace, known: Sequence[AttentionSite], model: str) -> list[TracedSite]:
    """The calls that a capture knows, as the trace shows them.

    A module that was registered with `register_attention` counts as a whole: its result stands for the mix.
    """
    registered = [site.name for site in known if site.way == "registered"]
    found = find_sites(trace.graph)
    softmaxes = iter([site for site in found if not _is_inside(site.module, registered)])
    calls: dict[str, int] = {}
    matched = []
    for site in known:
        if site.way == "registered":
            call = calls[site.name] = calls.get(site.name, -1) + 1
            ref = trace.modules.get((site.name, call))
            traced = None if ref is None else TracedSite(None, ref.node, ref, ref, ref, site.name)
        else:
            traced = next(softmaxes, None)
        if traced is None:
            break
        matched.append(traced)
    if len(matched) != len(known) or next(softmaxes, None) is not None:
        raise InvalidValueError(
            f"{model} makes {len(known)} attention calls, but {len(found)} times a softmax stands between products "
            "of queries, keys and values, so that they cannot be told apart; register the modules that attend "
            "with register_attention"
        )
    return matched


def _is_inside(module: str, names: list[str]) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in names)


def _is_of_two(graph: Graph, node: Node) -> bool:
    """Whether a node is a product of two activations."""
    sides = graph.factors(node)
    return sides is not None and all(graph.node(side).is_activation for side in sides)


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
    """The wanted nodes reached first, walking over activations and through no other product."""
    found: set[int] = set()
    seen: set[int] = set()
    queue = list(start)
    while queue:
        for at in step(queue.pop()):
            node = graph.nodes[at]
            if at in seen or not node.is_activation:
                continue
            seen.add(at)
            if wanted(graph, node):
                found.add(at)
            elif graph.factors(node) is None and node.op not in SOFTMAX:
                queue.append(at)
    return found
