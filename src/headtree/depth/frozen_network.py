"""A network of attention and skip connections with frozen attention, which is a sum over paths.

Without MLPs, and with attention matrices and the scales of norms frozen at their values on one input, every layer
is linear in the residual stream up to biases. The product of the layers expands into a sum over paths: in each
layer a path goes through one head or along the skip connection. The length l of a path is the number of heads it
goes through, and there are C(L, l) Hˡ paths of length l.
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
from headtree.models.graph.linearize import LinearMap
from headtree.models.graph.read_stream import LocatedStream
from headtree.models.graph.residual_stream import ResidualSum, Term, same_numbers, unneeded_products
from headtree.models.inputs import ModelInput

#: Terms that are removed; skip connections stay.
_WITHOUT = ("mlp", "cross")

#: Largest relative difference between the sum of all paths and the model's output; more means a nonlinear layer.
_TOLERANCE = 1e-3


@dataclass(frozen=True, eq=False)
class FrozenLayer:
    """One layer: its skip connection and its heads."""

    skip_map: LinearMap  #: the skip connection, with norms in it
    full_map: LinearMap  #: the skip connection and the heads
    mix: int  #: the node of probs @ values, (head, token, feature)
    n_heads: int

    def skip(self, x: Tensor) -> Tensor:
        """Along the skip connection, including norms in it."""
        return self.skip_map(x)[0]

    def both(self, x: Tensor, affine: bool = False) -> tuple[Tensor, Tensor]:
        """Along the skip connection, and through all heads; with biases if `affine`."""
        skip, heads = self.full_map(x, affine)
        return skip, heads

    def head(self, x: Tensor, head: int) -> Tensor:
        """Through one head."""
        return self.full_map(x, change={self.mix: partial(_only, head)})[1]


def _only(head: int, mixed: Tensor) -> Tensor:
    chosen = torch.zeros_like(mixed)
    chosen[head] = mixed[head]
    return chosen


@dataclass(frozen=True, eq=False)
class FrozenNetwork:
    """The network of one input as a sum over paths; results are float64 in the shape of the residual stream.

    Examples
    --------
    >>> import headtree as ht
    >>> network = ht.load_bundled("vit")
    >>> (frozen,) = ht.frozen_networks(network.model, inputs=network.inputs[0])
    >>> frozen.n_paths[:3]  # of length 0, 1 and 2
    (1, 144, 9504)
    >>> path = [3] + 11 * [None]  # through head 3 of the first layer, then along the skip connections
    >>> frozen.path(path).shape
    torch.Size([1, 197, 192])
    """

    start: Tensor  #: input of the first layer
    layers: tuple[FrozenLayer, ...]
    last: LinearMap  #: from the last sum to the end of the stream: the last norm, if layers end with one
    output: Tensor  #: output of the model without MLPs, in its own precision
    token_axis: int

    @property
    def n_paths(self) -> tuple[int, ...]:
        """Number of paths of each length: the coefficients of Π (1 + H_l s)."""
        return count_paths([layer.n_heads for layer in self.layers])

    def by_length(self) -> tuple[list[Tensor], Tensor]:
        """The sum of all paths of each length, 0 … L, and the term of the biases.

        A polynomial in a formal variable s is propagated through the layers: each maps p(s) to skip(p) +
        s·heads(p). This takes (L + 1)(L + 2) / 2 layer applications.
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
            layer.full_map.release()
        return [self.last(term)[0] for term in sums], self.last(biases, affine=True)[0]

    def path(self, heads: Sequence[int | None]) -> Tensor:
        """The term of one path, given for every layer by a head, or None for the skip connection."""
        if isinstance(heads, str) or not isinstance(heads, Sequence):
            raise InvalidTypeError(f"heads must be a list with a head or None for every layer, got {heads!r}")
        if len(heads) != len(self.layers):
            raise InvalidValueError(f"heads must have {len(self.layers)} entries, one per layer, got {len(heads)}")
        x = self.start
        for number, (layer, head) in enumerate(zip(self.layers, heads, strict=True)):
            if head is not None and not 0 <= head < layer.n_heads:
                raise InvalidValueError(f"heads[{number}] must be None or 0 to {layer.n_heads - 1}, got {head}")
            x = layer.skip(x) if head is None else layer.head(x, head)
        return self.last(x)[0]

    def random_paths(self, length: int, n: int = 1, rng: int | np.random.Generator = 0) -> Tensor:
        """The sum of n paths of one length, drawn uniformly from all of them."""
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
        """For each head of each layer, ⟨term of the path through this head only, direction⟩.

        All heads are computed at once, from the gradient at probs @ values, in the model's own precision.
        """
        start, direction = self.start.to(self.output.dtype), direction.to(self.output.dtype)
        mixes: list[Tensor] = []

        def record(mixed: Tensor) -> Tensor:
            mixes.append(mixed.detach().requires_grad_())
            return mixes[-1]

        with torch.enable_grad():
            along, through = start, torch.zeros_like(start)
            for layer in self.layers:
                along, heads = layer.full_map(along.detach(), change={layer.mix: record})
                through = layer.skip(through) + heads
            inner = (self.last(through)[0] * direction).sum()
            slopes = torch.autograd.grad(inner, mixes)
        return [(mix.detach() * slope).flatten(1).sum(dim=1) for mix, slope in zip(mixes, slopes, strict=True)]


def count_paths(n_heads: Sequence[int]) -> tuple[int, ...]:
    """Number of paths of length 0, 1, … through layers with these numbers of heads; C(L, l) Hˡ if all have H."""
    counts = [1]
    for heads in n_heads:
        counts = [a + heads * b for a, b in zip([*counts, 0], [0, *counts], strict=True)]
    return tuple(counts)


def random_path(n_heads: Sequence[int], length: int, rng: np.random.Generator) -> list[int | None]:
    """A path of the given length, drawn uniformly."""
    heads: list[int | None] = [None] * len(n_heads)
    remaining = length
    for layer in range(len(n_heads)):
        rest = count_paths(n_heads[layer + 1 :])
        along = rest[remaining] if remaining < len(rest) else 0
        through = n_heads[layer] * rest[remaining - 1] if remaining else 0
        if rng.random() * (along + through) < through:
            heads[layer] = int(rng.integers(n_heads[layer]))
            remaining -= 1
    return heads


def freeze(located: LocatedStream, item: ModelInput, number: int = 0) -> FrozenNetwork:
    """Run the model without MLPs on one input and freeze everything nonlinear."""
    stream = located.stream
    surviving = stream.without(_WITHOUT)
    traced = trace(located.prepared.model, item, surviving, unneeded_products(located.graph, surviving))
    graph, positions = traced.graph, _by_position(traced)
    _check_same_code(located, surviving, positions)
    sums = [_attention_sum(layer) for layer in stream.layers]
    start = same_numbers(graph, _ref(positions, stream.layers[0][0].skip, surviving))
    layers, before = [], start
    for each, site in zip(sums, located.sites, strict=True):
        attention = next(term for term in each.terms if term.role == "attention")
        skip = _ref(positions, each.skip, surviving)
        full_map = LinearMap(graph, before, [skip, _ref(positions, attention, surviving)])
        mix = _mix_node(located.graph, site, positions)
        if not all(full_map.reaches) or not any(node.index == mix.index for node in full_map.nodes):
            raise InvalidValueError(
                f"the layer of {site.module!r} is not linear in the stream when its attention and norms are "
                "frozen, so its paths are not defined; rank_residual measures such models"
            )
        skip_map = LinearMap(graph, before, [skip])
        layers.append(FrozenLayer(skip_map, full_map, mix.index, located.graph.value(site.query).shape[0]))
        before = Ref(positions[each.additions[-1]].index)
    end = located.graph.node(stream.end).position
    finish = before if end is None else Ref(positions[end].index, stream.end.output)
    last = LinearMap(graph, before, [finish])
    output = graph.value(finish).detach()
    if not torch.isfinite(output).all():
        raise InvalidValueError(
            f"the stream of input {number} without MLPs has NaN or infinite values; check the model's weights"
        )
    return FrozenNetwork(graph.value(start).double(), tuple(layers), last, output, stream.token_axis)


def check_sum(network: FrozenNetwork, total: Tensor, module: str) -> float:
    """Relative difference between the sum of all paths and the model's output; an error if it is large."""
    output = network.output.double()
    difference = float((total - output).norm() / output.norm().clamp(min=1e-300))
    if difference > _TOLERANCE:
        raise InvalidValueError(
            f"the paths of the model with attention {module!r} do not add up to its output (relative difference "
            f"{difference:.2g}): a layer is not linear in the stream, so its paths are not defined; rank_residual "
            "measures such models"
        )
    return difference


def _attention_sum(layer: tuple[ResidualSum, ...]) -> ResidualSum:
    return next(each for each in layer if any(term.role == "attention" for term in each.terms))


def _by_position(traced: Trace) -> dict[Position, Node]:
    return {node.position: node for node in traced.graph.nodes if node.position is not None}


def _ref(positions: dict[Position, Node], term: Term, surviving: dict[Position, int]) -> Ref:
    """A term of a sum in another run, in which the other side of its addition may be cancelled."""
    node = positions[term.position]
    ref: Ref = node.args[0] if term.position in surviving else node.args[term.operand]
    return ref


def _mix_node(graph: Graph, site: TracedSite, positions: dict[Position, Node]) -> Node:
    position = graph.nodes[site.mix].position
    if position is None or position not in positions:
        raise InvalidValueError(
            "the model makes different attention calls on this input than on the probe; pass inputs that it "
            "processes in the same way"
        )
    return positions[position]


def _check_same_code(
    located: LocatedStream, surviving: dict[Position, int], positions: dict[Position, Node]
) -> None:
    wanted = [position for layer in located.stream.layers for each in layer for position in each.additions]
    if any(position not in positions for position in [*wanted, *surviving]):
        raise InvalidValueError(
            f"{type(located.prepared.model).__name__} runs different code on this input than on the probe on which "
            "its residual stream was found; pass inputs that it processes in the same way"
        )
