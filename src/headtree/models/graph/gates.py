"""Tell attention from other softmaxes in modules that are named like it: gates, weights of residual streams."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from headtree.errors import InvalidValueError
from headtree.models.graph.attention_calls import Search, is_call
from headtree.models.graph.forward_graph import SOFTMAX, Kept, Node, Position, trace
from headtree.models.graph.residual_stream import same_numbers
from headtree.models.watching.attention_sites import AttentionSite
from headtree.models.watching.probe import AttentionPlan

#: More softmaxes than one call of a module makes.
_MOST_SOFTMAXES = 64


def without_gates(plan: AttentionPlan, model: nn.Module) -> AttentionPlan:
    """The plan without softmaxes that are no attention, where only the names of their modules say that they are.

    Attention multiplies values by a softmax of products of queries and keys, or by the very softmax of anything
    else, such as scores of a learned query. PatchTSMixer's softmax is a gate; that of DeepSeek-V4's connections is
    normalized further, and weighs residual streams. What a model returns as attention is not doubted.
    """
    doubtful = [site for site in plan.sites if site.seen_by == "softmax" and site.place is not None]
    if not doubtful or plan.call_order is not None:
        return plan
    positions = {
        Position(*site.place, str(op), nth)
        for site in doubtful
        if site.place is not None
        for op in SOFTMAX
        for nth in range(_MOST_SOFTMAXES)
    }
    search = Search(trace(model, plan.probe, kept=Kept(results=positions)).graph)
    gates = [site for site in doubtful if _is_gate(search, site)]
    if not gates:
        return plan
    calls = [i for i, site in enumerate(plan.sites) if site not in gates]
    if not calls:
        unseen = "".join(f", and {each} cannot be captured" for each in plan.unseen[:1])
        raise InvalidValueError(
            f"no attention was found in {type(model).__name__}: no matrix of values is multiplied by the softmax "
            f"of {gates[0].name}, so it is no attention{unseen}; if the model attends in another way, describe "
            "that with register_attention"
        )
    return replace(plan, sites=tuple(plan.sites[i] for i in calls), call_order=tuple(calls))


def _is_gate(search: Search, site: AttentionSite) -> bool:
    """Whether the trace shows the softmax of a site, and never as attention."""
    nodes = [node for node in search.softmaxes if is_call(node, site)]
    return bool(nodes) and not any(_attends(search, node) for node in nodes)


def _attends(search: Search, node: Node) -> bool:
    if search.around(node, learned_queries=False) is not None:
        return True
    if node.values[0].shape[-1] == 1:  # torch multiplies by a single key without a matrix product
        return search.compares(node)
    site = search.around_known(node)
    if site is None:
        return False
    probs, _ = search.graph.factors(search.graph.nodes[site.mix]) or (None, None)
    return probs is not None and same_numbers(search.graph, probs).node == node.index
