"""Find W_Q, W_K, W_V and W_O of every attention head, however the model names and fuses them."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from headtree.errors import InvalidValueError
from headtree.models.graph.attention_calls import TracedCalls, traced_calls
from headtree.models.graph.chunked_heads import find_chunked_heads, unknown_values
from headtree.models.graph.forward_graph import Graph
from headtree.models.graph.projections import ProjectionFinder
from headtree.models.watching.collect import PreparedInputs


@dataclass(frozen=True, eq=False)
class HeadWeights:
    """Weight matrices of one attention call, for row vectors: the queries of head h are ``x @ query[h]``.

    Biases, rotary position embeddings, norms of queries and keys, and the scale of the scores are not included.
    Heads that share keys and values (grouped-query attention) have equal matrices.

    Examples
    --------
    >>> import headtree as ht
    >>> network = ht.load_bundled("vit")
    >>> layer = ht.head_weights(network.model, inputs=network.inputs[0], layers=[0])[0]
    >>> layer.value.shape, layer.output.shape  # (head, width, feature) and (head, feature, width)
    (torch.Size([12, 192, 16]), torch.Size([12, 16, 192]))
    >>> layer.ov.shape  # W_V W_O
    torch.Size([12, 192, 192])
    """

    name: str  #: path of the attention module
    layer: int  #: index among the attention calls of its part, as in `AttentionTensor.heads`
    is_cross: bool
    query: Float[Tensor, "head width feature"]
    key: Float[Tensor, "head key_width feature"]
    value: Float[Tensor, "head key_width value_feature"]
    output: Float[Tensor, "head value_feature out_width"]

    @property
    def qk(self) -> Float[Tensor, "head width key_width"]:
        """W_Q W_Kᵀ of every head: ``scores ∝ x @ qk[h] @ y.T`` if nothing else enters the scores."""
        return self.query @ self.key.mT

    @property
    def ov(self) -> Float[Tensor, "head key_width out_width"]:
        """W_V W_O of every head: ``contribution = probs[h] @ y @ ov[h]``."""
        return self.value @ self.output


def weights_of(prepared: PreparedInputs) -> list[HeadWeights]:
    """Weight matrices of the selected heads; the view must be ready."""
    plan = prepared.plan
    if plan.probe.has_state():
        raise InvalidValueError(
            "inputs must not bring a key-value cache here, because weights are found by following the keys of the "
            "tokens; they are the same without it, so leave it out"
        )
    traced = prepared.view.traced(plan)
    calls = traced_calls(traced, plan, type(prepared.model).__name__)
    other = next((site for site in calls.all() if site.softmax is None), None)
    if other is not None:
        raise InvalidValueError(
            f"the weights of {other.module or 'the model'} are unknown, because its attention was described with "
            "register_attention; weights are found only around a softmax between products of queries, keys and "
            "values"
        )
    finder = ProjectionFinder(traced.graph, calls.all())
    return [
        HeadWeights(
            plan.sites[i].name,
            prepared.selection.layers[i],
            plan.sites[i].is_cross,
            *(_chunked(prepared, traced.graph, calls, i) or finder.matrices(calls[i])),
        )
        for i in prepared.selection.sites
    ]


def _chunked(
    prepared: PreparedInputs, graph: Graph, calls: TracedCalls, i: int
) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
    """The matrices of heads that attend in chunks; None if they do not."""
    if i in calls.sites or not prepared.plan.from_outputs:
        return None
    output = prepared.view.output_sites(prepared.plan, [i])[i]
    found = None
    if output.projection is not None:
        found = find_chunked_heads(graph, output.projection, prepared.plan.returned[i])
    if found is None or output.matrix is None:
        raise unknown_values(calls.model, output.name)
    if found.query is None or found.key is None:
        raise InvalidValueError(
            f"layer {prepared.selection.layers[i]} of {calls.model} does not attend by the softmax of products of "
            "two projections of the tokens, so it has no W_Q and W_K; select other layers with layers=…, or read "
            "what its heads write with view.cache"
        )
    return found.query.matrix, found.key.matrix, found.value.matrix, output.matrix
