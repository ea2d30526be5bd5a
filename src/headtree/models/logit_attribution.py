"""Direct logit attribution: a logit as the sum of what heads, MLPs and the embedding write into the stream.

What is written reaches the logits through the residual stream alone, in which norms keep the scale that they have
on the input. The logit is then the sum of all contributions and of the biases on the way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor

from headtree.errors import InvalidTypeError, InvalidValueError
from headtree.models.activation_cache import head_coordinates
from headtree.models.capture_options import check_all_heads
from headtree.models.graph.call_places import CallPlaces, find_places
from headtree.models.graph.forward_graph import Graph, Kept, Position, Ref, Trace, trace
from headtree.models.graph.linearize import LinearMap
from headtree.models.graph.operands import Operand, node_at
from headtree.models.graph.read_stream import locate_stream
from headtree.models.graph.stream_places import StreamPlaces, operand
from headtree.models.logit_lens import logits_ref, path_to_logits
from headtree.models.watching.collect import PreparedInputs
from headtree.progress import progress

#: Contributions must add up to the logit up to this share of the largest logit; more for half precision.
_TOLERANCE, _HALF_TOLERANCE = 1e-3, 3e-2


@dataclass(frozen=True, eq=False)
class LogitAttribution:
    """A logit of one input as a sum of contributions; see `ModelView.logit_attribution`.

    ``heads.sum() + layers.sum() + embedding + bias`` is the logit.

    Examples
    --------
    >>> import headtree as ht
    >>> network = ht.load_bundled("vit")
    >>> (found,) = ht.ModelView(network.model).logit_attribution(inputs=network.inputs[0])
    >>> found.heads.dims, found.layers.dims, found.layers.term.values.tolist()
    (('head',), ('layer', 'term'), ['mlp'])
    >>> total = float(found.heads.sum() + found.layers.sum()) + found.embedding + found.bias
    >>> abs(total - found.logit) < 1e-4
    True
    """

    heads: xr.DataArray  #: (head), with coordinates layer and index: what each head contributes
    layers: xr.DataArray  #: (layer, term): what the MLPs, and the cross-attention of a decoder, contribute
    embedding: float  #: contribution of the stream before the first layer
    bias: float  #: of all biases: of output projections, norms and the unembedding
    logit: float  #: the model's own
    target: int  #: index of the logit: a class or a word
    position: int | None  #: the token whose logits these are; None if the model has one row of logits


def attributions_of(prepared: PreparedInputs, target: int | None, position: int | None) -> list[LogitAttribution]:
    """Attributions on every prepared input."""
    check_all_heads(prepared, "a logit is the sum of the contributions of all heads; select among the results")
    with prepared.view.ready(), progress("attributing", len(prepared.items)) as step:
        stream = StreamPlaces(locate_stream(prepared, chunked=True))
        path_to_logits(prepared, stream)  # refuses a stream that ends elsewhere
        calls = [_Call.located(call, stream) for call in find_places(prepared, mixed=True).values()]
        probe = _Skeleton(prepared, stream, stream.located.trace)
        kept = stream.kept | probe.linear.kept | Kept(results=_positions(stream.located.graph, probe.logits))
        for call in calls:
            kept |= call.kept(stream.located.graph)
        found = []
        for i, item in enumerate(prepared.items):
            traced = trace(prepared.model, item, kept=kept)
            numbers = _Numbers(traced.graph, _Skeleton(prepared, stream, traced), target, position)
            found.append(numbers.attribution(prepared, calls))
            step(f"input {i + 1} of {len(prepared.items)}")
    return found


def _positions(graph: Graph, ref: Ref) -> list[Position]:
    position = graph.node(ref).position
    return [] if position is None else [position]


class _Skeleton:
    """The residual stream from its start to the logits: what is added to it are constants, norms are frozen."""

    def __init__(self, prepared: PreparedInputs, stream: StreamPlaces, traced: Trace) -> None:
        graph = traced.graph
        self.logits = logits_ref(prepared, traced)
        self.start = stream.depths[0].ref(graph)
        self.terms = {
            role: [[operand(term).ref(graph) for term in terms] for terms in stream.terms(role)]
            for role in stream.roles
        }
        self.added = list(dict.fromkeys(ref for layers in self.terms.values() for layer in layers for ref in layer))
        self.linear = LinearMap(graph, self.start, [self.logits], frozen={ref.node for ref in self.added})
        if not self.linear.reaches[0]:
            raise InvalidValueError(
                f"the logits of {type(prepared.model).__name__} are not linear in this residual stream: a "
                "nonlinear function (tanh, gelu) or other layers lie between the two, so they are no sum over "
                "heads; use logit_lens or attention_relevance instead"
            )

    def __call__(self, start: Tensor, added: Mapping[Ref, Tensor]) -> Tensor:
        """The logits, given the start of the stream and everything that is added to it."""
        self.linear.constants |= added
        self.linear.release()
        return self.linear(start, affine=True)[0]


@dataclass(frozen=True, eq=False)
class _Call:
    """An attention call and the terms that it adds to the stream."""

    places: CallPlaces
    terms: tuple[Operand, ...]

    @classmethod
    def located(cls, places: CallPlaces, stream: StreamPlaces) -> _Call:
        terms = stream.attention_terms(places)
        if not terms:
            raise InvalidValueError(
                f"what {places.site.name} adds to the residual stream is unknown, so logits are no sum over its "
                "heads; describe the module that attends with register_attention"
            )
        call = cls(places, tuple(map(operand, terms)))
        if not all(call.linear(stream.located.graph).reaches):
            raise InvalidValueError(
                f"what {places.site.name} adds to the residual stream is not linear in the outputs of its heads, "
                "so logits are no sum over them; use attention_relevance instead"
            )
        return call

    def linear(self, graph: Graph) -> LinearMap:
        """From what heads hand over, the input of their output projection or else their product, to the stream."""
        places = self.places
        start = Ref(node_at(graph, places.site.mix).index) if places.output is None else places.output.ref(graph)
        return LinearMap(graph, start, self.added(graph))

    def added(self, graph: Graph) -> list[Ref]:
        """What is added to the stream."""
        return [term.ref(graph) for term in self.terms]

    def by_values(self, graph: Graph) -> list[LinearMap]:
        """One such map for every product with values, where heads share what enters the output projection."""
        several = self.places.site.several
        if several is None:
            return [self.linear(graph)]
        starts = [Ref(node_at(graph, path.product).index) for path in several.paths]
        return [LinearMap(graph, start, self.added(graph)) for start in starts]

    def kept(self, graph: Graph) -> Kept:
        """What a trace must keep, given the graph of the probe."""
        kept = self.places.kept | self.linear(graph).kept
        for linear in self.by_values(graph):
            kept |= linear.kept
        return kept

    def contributions(self, graph: Graph, slopes: Sequence[Tensor]) -> tuple[Float[Tensor, " head"], float]:
        """What each head contributes, and the biases, from the slopes of a logit by what is added to the stream."""
        whole = self.linear(graph)
        none = torch.zeros_like(graph.value(whole.start))
        bias = sum(float((x * s).double().sum()) for x, s in zip(whole(none, affine=True), slopes, strict=True))
        by_head = torch.zeros(self.places.site.n_heads, dtype=torch.float64, device=none.device)
        for linear in self.by_values(graph):
            with torch.enable_grad():
                x = graph.value(linear.start).detach().requires_grad_()
                (gradient,) = torch.autograd.grad(linear(x), x, slopes)
            by_head += self._by_head(gradient * x.detach())
        return by_head, bias

    def _by_head(self, product: Tensor) -> Float[Tensor, " head"]:
        product = product.double()
        projection = self.places.site.projection
        if self.places.output is None or projection is None:
            return product.reshape(self.places.site.n_heads, -1).sum(dim=1)
        features = product.movedim(self.places.output_axis, -1).reshape(-1, product.shape[self.places.output_axis])
        return features.sum(dim=0)[projection.rows.to(features.device)].sum(dim=1)


class _Numbers:
    """One logit of one input: its slope with respect to everything that is added to the stream."""

    def __init__(self, graph: Graph, skeleton: _Skeleton, target: int | None, position: int | None) -> None:
        self.graph, self.skeleton = graph, skeleton
        own = graph.value(skeleton.logits)
        self.index = chosen_logit(own, target, position)
        self.logit, self.largest = float(own[self.index]), float(own.abs().max())
        leaves = {
            ref: graph.value(ref).detach().requires_grad_()
            for ref in dict.fromkeys((skeleton.start, *skeleton.added))
        }
        with torch.enable_grad():
            logit = skeleton(leaves[skeleton.start], leaves)[self.index]
            slopes = torch.autograd.grad(logit, list(leaves.values()), materialize_grads=True)
        self.slopes = dict(zip(leaves, slopes, strict=True))
        zeros = {ref: torch.zeros_like(leaf) for ref, leaf in leaves.items()}
        with torch.no_grad():
            self.constant = float(skeleton(zeros[skeleton.start], zeros)[self.index])  # biases of norms and logits

    def of(self, ref: Ref) -> float:
        """What a value that is added to the stream contributes."""
        return float((self.slopes[ref].double() * self.graph.value(ref).double()).sum())

    def attribution(self, prepared: PreparedInputs, calls: Sequence[_Call]) -> LogitAttribution:
        """All contributions, checked to add up."""
        by_call = [
            call.contributions(self.graph, [self.slopes[ref] for ref in call.added(self.graph)]) for call in calls
        ]
        heads = torch.cat([of_heads for of_heads, _ in by_call]).cpu().numpy()
        bias = self.constant + sum(bias for _, bias in by_call)
        terms = {role: layers for role, layers in self.skeleton.terms.items() if role != "attention"}
        others = {role: [sum(map(self.of, layer)) for layer in layers] for role, layers in terms.items()}
        embedding = self.of(self.skeleton.start)
        layers = np.array(list(others.values())).reshape(len(others), -1).T
        total = float(heads.sum() + layers.sum()) + embedding + bias
        number = next((p for p in prepared.model.parameters() if p.is_floating_point()), None)
        tolerance = _HALF_TOLERANCE if number is not None and number.dtype.itemsize < 4 else _TOLERANCE
        if not abs(total - self.logit) <= tolerance * max(1.0, self.largest):
            raise InvalidValueError(
                f"the contributions to a logit of {type(prepared.model).__name__} add up to {total:.6g}, but the "
                f"logit is {self.logit:.6g}; the model's code does something between its residual stream and its "
                "logits that is not understood"
            )
        coords = {"layer": range(len(layers)), "term": list(others)}
        has_tokens = len(self.index) == 3
        return LogitAttribution(
            heads=xr.DataArray(heads, dims="head", coords=head_coordinates(prepared.selection.head_ids())),
            layers=xr.DataArray(layers, dims=("layer", "term"), coords=coords),
            embedding=embedding,
            bias=bias,
            logit=self.logit,
            target=self.index[-1],
            position=self.index[1] if has_tokens else None,
        )


def chosen_logit(logits: Tensor, target: Any, position: Any) -> tuple[int, ...]:
    """The index of a logit of one input: of a token, by default the last; by default the largest one."""
    if logits.ndim not in (2, 3) or logits.shape[0] != 1:
        raise InvalidValueError(
            f"logits must have the axes (batch, class) or (batch, token, word), got shape {tuple(logits.shape)}"
        )
    where: tuple[int, ...] = (0,)
    if logits.ndim == 3:
        where = (0, _within(-1 if position is None else position, logits.shape[1], "position", "tokens"))
    elif position is not None:
        raise InvalidTypeError(
            f"position must be left out, since the model has one row of logits, got {position!r}"
        )
    row = logits[where]
    return (*where, int(row.argmax()) if target is None else _within(target, len(row), "target", "logits"))


def _within(value: Any, n: int, name: str, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise InvalidTypeError(f"{name} must be a whole number, got {value!r}")
    if not -n <= value < n:
        raise InvalidValueError(f"{name} must be one of the {n} {what}, got {value}")
    return int(value) % n
