"""A whole network frozen on one input: the residual stream as a linear map of its tokens, plus biases.

Frozen are attention probabilities, scales of norms, gates, and of activation functions the ratio of result to
argument (TensorLens, arXiv 2601.17958). What is left is linear, so each token can be sent through alone.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from headtree.errors import InvalidValueError
from headtree.models.graph.forward_graph import Graph, Node, Ref, Trace, aten
from headtree.models.graph.linearize import LinearMap
from headtree.models.graph.live_nodes import never_linear
from headtree.models.graph.stream_places import StreamPlaces

#: Parts and biases must sum to the stream up to this share of its largest entry; more for half precision.
_TOLERANCE, _HALF_TOLERANCE = 1e-4, 3e-2

_COPIES = (aten.alias.default, aten.detach.default, aten.clone.default, aten._to_copy.default)


class FrozenPass:
    """The residual stream of one input as a linear map of its tokens.

    Parameters
    ----------
    places : StreamPlaces
        Where the residual stream is.
    traced : Trace
        The trace of the input, with all values.
    model : str
        Name of the model, for errors.
    """

    def __init__(self, places: StreamPlaces, traced: Trace, model: str) -> None:
        graph = self.graph = traced.graph
        self.places, self.traced, self.model = places, traced, model
        self.depths = [*(depth.ref(graph) for depth in places.depths), places.end_ref(graph)]
        self.start = _before_copies(graph, self.depths[0])
        self.linear = LinearMap(graph, self.start, self.depths, activations=True)
        self.value = _working(graph.value(self.start))
        self._check_operations(self.linear, "residual stream")
        self._check_sum()

    @property
    def n_tokens(self) -> int:
        """Number of tokens."""
        return int(self.value.shape[self.places.stream.token_axis])

    def residual(self) -> Float[Tensor, "depth token width"]:
        """The residual stream before the first layer and after each, as the model computes it."""
        values = [_working(self.graph.value(ref)) for ref in self.depths]
        return torch.stack([self.places.tokens_first(value) for value in values])

    def bias(self) -> Float[Tensor, "depth token width"]:
        """What of the residual stream comes from no token."""
        found = self.linear(torch.zeros_like(self.value), affine=True)
        return torch.stack([self.places.tokens_first(value) for value in found])

    def parts(self, tokens: Sequence[int]) -> list[Float[Tensor, "part token width"]]:
        """What of the residual stream at each depth comes from each of some tokens."""
        axis = self.places.stream.token_axis
        alone = self.value.new_zeros((len(tokens), *self.value.shape))
        for x, token in zip(alone, tokens, strict=True):
            x.select(axis, token).copy_(self.value.select(axis, token))
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="There is a performance drop", category=UserWarning)
            try:
                return list(torch.vmap(self._at_all_depths)(alone))
            except RuntimeError:  # an operation that torch cannot batch
                return [torch.stack(depth) for depth in zip(*map(self._at_all_depths, alone), strict=True)]

    def _at_all_depths(self, x: Tensor) -> tuple[Float[Tensor, "token width"], ...]:
        return tuple(self.places.tokens_first(value) for value in self.linear(x))

    def directions(self, logits: Ref, target: int | None) -> Float[Tensor, "token width"]:
        """By how much a logit of each token grows with each entry of the stream after the last layer.

        Parameters
        ----------
        logits : Ref
            The logits in the graph.
        target : int, optional
            Index of the logit; by default the largest one of each token.
        """
        end = self.depths[-1]
        linear = LinearMap(self.graph, end, [logits], activations=True)
        self._check_operations(linear, "logits")
        values = self.graph.value(logits)
        chosen = values.argmax(dim=-1) if target is None else torch.full(values.shape[:-1], target)
        with torch.enable_grad():
            x = _working(self.graph.value(end)).requires_grad_()
            (found,) = linear(x)
            picked = found.gather(-1, chosen.to(found.device)[..., None])
            (slope,) = torch.autograd.grad(picked.sum(), x)
        return self.places.tokens_first(slope)

    def _check_operations(self, linear: LinearMap, what: str) -> None:
        """Raise an error if an operation carries tokens but is not linear when it is frozen."""
        found = never_linear(self.graph, linear.start, linear.nodes, linear.live)
        if found is None and all(linear.reaches):
            return
        raise InvalidValueError(
            f"{self.model} cannot be frozen: the {what} depends on tokens through {_described(found)}, which is "
            "not proportional to its argument when everything else is fixed; attention_relevance and capture "
            "explain such models"
        )

    def _check_sum(self) -> None:
        """Raise an error if the frozen network does not reproduce the stream."""
        is_half = self.graph.value(self.start).dtype.itemsize < 4
        tolerance = _HALF_TOLERANCE if is_half else _TOLERANCE
        found = self.linear(self.value, affine=True)
        for depth, (value, ref) in enumerate(zip(found, self.depths, strict=True)):
            own = self.graph.value(ref)
            if not torch.isfinite(own).all():
                raise InvalidValueError(
                    f"the residual stream has NaN or infinite values after {depth} layers; check the model's "
                    "weights and the input"
                )
            if not _is_close(value, own, tolerance):
                raise InvalidValueError(
                    f"{self.model} cannot be frozen: after {depth} layers the parts of its tokens do not sum to "
                    f"its residual stream, from {_described(self._first_difference(tolerance))} on; "
                    "attention_relevance and capture explain such models"
                )

    def _first_difference(self, tolerance: float) -> Node | None:
        """The first operation that gives another result than in the model."""
        different: list[Node] = []

        def compare(node: Node) -> Any:
            def check(result: Any) -> Any:
                values = result if isinstance(result, tuple | list) else (result,)
                pairs = zip(values, node.values, strict=False)
                if not all(_is_close(value, own, tolerance) for value, own in pairs if own is not None):
                    different.append(node)
                return result

            return check

        self.linear(self.value, affine=True, change={node.index: compare(node) for node in self.linear.nodes})
        return different[0] if different else None


def _before_copies(graph: Graph, ref: Ref) -> Ref:
    """The value that a value is a copy of: the first layer may read both."""
    while graph.node(ref).op in _COPIES and graph.node(graph.node(ref).args[0]).is_activation:
        ref = graph.node(ref).args[0]
    return ref


def _working(value: Tensor) -> Tensor:
    """A value in at least single precision."""
    return value.detach().to(torch.promote_types(value.dtype, torch.float32))


def _is_close(value: Tensor, own: Tensor, tolerance: float) -> bool:
    largest = float(own.abs().max()) if own.numel() else 0.0
    return bool((value.to(own.device) - own).abs().max() <= tolerance * max(largest, 1e-6)) if own.numel() else True


def _described(node: Node | None) -> str:
    if node is None or node.position is None:
        return "an unknown operation"
    return f"the operation {node.position.op} in {node.position.module or 'the model'!r}"
