"""A network of attention and skips alone, with its attention held fixed: a sum over paths.

With attention matrices and the scales of norms held at their values on one input, and without MLPs, every layer is
linear in the stream up to biases, and the layers multiply out to a sum over paths: in each layer a path goes
through one head or along the skip. There are C(L, l) Hˡ paths of length l, the number of heads they go through.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from headtree._checks import at_least_one, generator
from headtree.errors import InvalidTypeError, InvalidValueError
from headtree.models.graph.attention_calls import TracedSite
from headtree.models.graph.forward_graph import Graph, Node, Position, Ref, Trace, trace
from headtree.models.graph.linearize import LinearPart
from headtree.models.graph.read_stream import LocatedStream
from headtree.models.graph.residual_stream import ResidualSum, Term, idle_products, same_numbers
from headtree.models.inputs import ModelInput

#: What is taken out; skips stay.
_WITHOUT = ("mlp", "cross")

#: How far the sum of all paths may be from what the model computed, relative, before something is not linear.
_TOLERANCE = 1e-3


@dataclass(frozen=True, eq=False)
class FrozenLayer:
    """One layer: along the skip, and through its heads."""

    along: LinearPart  #: the skip, with the norms that stand in it
    part: LinearPart  #: the skip and the heads
    mix: int  #: the node where the heads stand side by side, (head, token, feature)
    n_heads: int

    def skip(self, x: Tensor) -> Tensor:
        """Along the skip, norms included."""
        return self.along(x)[0]

    def both(self, x: Tensor, affine: bool = False) -> tuple[Tensor, Tensor]:
        """Along the skip and through all heads; with the biases if `affine`."""
        skip, heads = self.part(x, affine)
        return skip, heads

    def head(self, x: Tensor, head: int) -> Tensor:
        """Through one head."""
        return self.part(x, change={self.mix: partial(_only, head)})[1]


def _only(head: int, mixed: Tensor) -> Tensor:
    chosen = torch.zeros_like(mixed)
    chosen[head] = mixed[head]
    return chosen


@dataclass(frozen=True, eq=False)
class FrozenNetwork:
    """The network of one input; all results are float64 and have the shape of the model's stream."""

    start: Tensor  #: what enters the first layer
    layers: tuple[FrozenLayer, ...]
    last: LinearPart  #: from the last sum to the end of the stream: the last norm, if layers end in one
    output: Tensor  #: what the model without MLPs computed, in its own precision
    token_axis: int

    @property
    def n_paths(self) -> tuple[int, ...]:
        """How many paths of each length there are: the coefficients of Π (1 + H_l s)."""
        return count_paths([layer.n_heads for layer in self.layers])

    def by_length(self) -> tuple[list[Tensor], Tensor]:
        """The sum of all paths of each length, 0 … L, and the biases' term.

        A running polynomial in a counter s: each layer maps p(s) to skip(p) + s·heads(p), in (L + 1)(L + 2) / 2
        layer applications.
        """
        sums, biases = [self.start], torch.zeros_like(self.start)
        for layer in self.layers:
            applied = [layer.both(term) for term in sums]
            skipped, attended = [pair[0] for pair in applied], [pair[1] for pair in applied]
            sums = [
                skipped[0],
                *(skip + heads for skip, heads in zip(skipped[1:], attended[:-1], strict=True)),
                attended[-1],
            ]
            skip, heads = layer.both(biases, affine=True)
            biases = skip + heads
            layer.part.release()
        return [self.last(term)[0] for term in sums], self.last(biases, affine=True)[0]

    def path(self, heads: Sequence[int | None]) -> Tensor:
        """The term of one path: for every layer the head it goes through, None for the skip."""
        if isinstance(heads, str) or not isinstance(heads, Sequence):
            raise InvalidTypeError(f"heads must be a list with a head or None for every layer, got {heads!r}")
        if len(heads) != len(self.layers):
            raise InvalidValueError(f"heads must name {len(self.layers)} layers' heads or None, got {len(heads)}")
        x = self.start
        for number, (layer, head) in enumerate(zip(self.layers, heads, strict=True)):
            if head is not None and not 0 <= head < layer.n_heads:
                raise InvalidValueError(f"heads[{number}] must be None or 0 to {layer.n_heads - 1}, got {head}")
            x = layer.skip(x) if head is None else layer.head(x, head)
        return self.last(x)[0]

    def random_paths(self, length: int, n: int = 1, rng: int | np.random.Generator = 0) -> Tensor:
        """The sum of n paths of one length, each drawn with equal chance from all of them."""
        if isinstance(length, bool) or not isinstance(length, int | np.integer):
            raise InvalidTypeError(f"length must be a whole number, got {length!r}")
        if not 0 <= length <= len(self.layers):
            raise InvalidValueError(f"length must be 0 to {len(self.layers)}, the number of layers, got {length}")
        draw = generator(rng)
        total = torch.zeros_like(self.output, dtype=torch.float64)
        for _ in range(at_least_one(n, "n")):
            total += self.path(random_path([layer.n_heads for layer in self.layers], int(length), draw))
        return total

    def first_length_by_head(self, direction: Tensor) -> list[Float[Tensor, " head"]]:
        """For every layer, ⟨term of the path through one head alone, direction⟩ of each of its heads.

        All at once, by the gradient where the heads stand side by side; in the model's own precision.
        """
        start, direction = self.start.to(self.output.dtype), direction.to(self.output.dtype)
        mixes: list[Tensor] = []

        def keep(mixed: Tensor) -> Tensor:
            mixes.append(mixed.detach().requires_grad_())
            return mixes[-1]

        with torch.enable_grad():
            along, through = start, torch.zeros_like(start)
            for layer in self.layers:
                along, heads = layer.part(along.detach(), change={layer.mix: keep})
                through = layer.skip(through) + heads
            inner = (self.last(through)[0] * direction).sum()
            slopes = torch.autograd.grad(inner, mixes)
        return [(mix.detach() * slope).flatten(1).sum(dim=1) for mix, slope in zip(mixes, slopes, strict=True)]


def count_paths(n_heads: Sequence[int]) -> tuple[int, ...]:
    """How many paths of length 0, 1, … lead through layers of these numbers of heads; C(L, l) Hˡ if all have H."""
    counts = [1]
    for heads in n_heads:
        counts = [a + heads * b for a, b in zip([*counts, 0], [0, *counts], strict=True)]
    return tuple(counts)


def random_path(n_heads: Sequence[int], length: int, rng: np.random.Generator) -> list[int | None]:
    """A path of one length, all such paths being equally likely."""
    heads: list[int | None] = [None] * len(n_heads)
    left = length
    for layer in range(len(n_heads)):
        rest = count_paths(n_heads[layer + 1 :])
        along = rest[left] if left < len(rest) else 0
        through = n_heads[layer] * rest[left - 1] if left else 0
        if rng.random() * (along + through) < through:
            heads[layer] = int(rng.integers(n_heads[layer]))
            left -= 1
    return heads


def freeze(located: LocatedStream, item: ModelInput, number: int = 0) -> FrozenNetwork:
    """Run the model without MLPs on one input and hold everything that is not linear."""
    stream = located.stream
    kept = stream.without(_WITHOUT)
    traced = trace(located.prepared.model, item, kept, idle_products(located.graph, kept))
    graph, positions = traced.graph, _by_position(traced)
    _check_same_code(located, kept, positions)
    sums = [_attention_sum(layer) for layer in stream.layers]
    start = same_numbers(graph, _ref(positions, stream.layers[0][0].skip, kept))
    layers, before = [], start
    for each, site in zip(sums, located.sites, strict=True):
        attention = next(term for term in each.terms if term.role == "attention")
        skip = _ref(positions, each.skip, kept)
        part = LinearPart(graph, before, [skip, _ref(positions, attention, kept)])
        mix = _mix_node(located.graph, site, positions)
        if not all(part.reaches) or not any(node.index == mix.index for node in part.nodes):
            raise InvalidValueError(
                f"the layer of {site.module!r} is not linear in the stream when its attention and norms are held; "
                "its paths are not defined"
            )
        along = LinearPart(graph, before, [skip])
        layers.append(FrozenLayer(along, part, mix.index, located.graph.value(site.query).shape[0]))
        before = Ref(positions[each.additions[-1]].index)
    end = located.graph.node(stream.end).position
    finish = before if end is None else Ref(positions[end].index, stream.end.output)
    last = LinearPart(graph, before, [finish])
    output = graph.value(finish).detach()
    if not torch.isfinite(output).all():
        raise InvalidValueError(
            f"the stream of input {number} without MLPs holds NaN or infinite numbers; check the model's weights"
        )
    return FrozenNetwork(graph.value(start).double(), tuple(layers), last, output, stream.token_axis)


def check_sum(network: FrozenNetwork, total: Tensor, module: str) -> float:
    """How far all paths together are from what the model computed, relative; an error if far."""
    output = network.output.double()
    difference = float((total - output).norm() / output.norm().clamp(min=1e-300))
    if difference > _TOLERANCE:
        raise InvalidValueError(
            f"the paths of the model with attention {module!r} add up to something else than it computes (relative "
            f"difference {difference:.2g}): part of a layer is not linear in the stream; its paths are not defined"
        )
    return difference


def _attention_sum(layer: tuple[ResidualSum, ...]) -> ResidualSum:
    return next(each for each in layer if any(term.role == "attention" for term in each.terms))


def _by_position(traced: Trace) -> dict[Position, Node]:
    return {node.position: node for node in traced.graph.nodes if node.position is not None}


def _ref(positions: dict[Position, Node], term: Term, kept: dict[Position, int]) -> Ref:
    """A term of a sum in another run, where the other side of its addition may be cancelled."""
    node = positions[term.position]
    ref: Ref = node.args[0] if term.position in kept else node.args[term.operand]
    return ref


def _mix_node(graph: Graph, site: TracedSite, positions: dict[Position, Node]) -> Node:
    at = graph.nodes[site.mix].position
    if at is None or at not in positions:
        raise InvalidValueError("the model attends otherwise on this input than on the short one")
    return positions[at]


def _check_same_code(located: LocatedStream, kept: dict[Position, int], positions: dict[Position, Node]) -> None:
    wanted = [position for layer in located.stream.layers for each in layer for position in each.additions]
    if any(position not in positions for position in [*wanted, *kept]):
        raise InvalidValueError(
            f"{type(located.prepared.model).__name__} runs other code on this input than on the short one on "
            "which its stream was found; pass inputs that it treats alike"
        )
