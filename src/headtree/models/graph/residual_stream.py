"""Find the residual stream of any transformer: what is added to it, by which module, and where.

A skip connection is a sum of a value and something computed from it. The residual stream is the chain of such sums
in which each adds to the result of the one before, with at most norms between them. A term that contains an
attention call is an attention branch; any other is an MLP.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from headtree.errors import InvalidValueError
from headtree.models.graph.attention_calls import TracedSite
from headtree.models.graph.forward_graph import SAME_NUMBERS, Graph, Node, Position, Ref, Trace, aten

_ADDITIONS = (aten.add.Tensor, aten.add_.Tensor)


@dataclass(frozen=True, eq=False)
class Term:
    """One term of a residual sum."""

    ref: Ref
    position: Position  #: of the addition
    operand: int  #: which of its two sides, 0 or 1
    role: str  #: "skip", "attention", "cross" or "mlp"
    site: TracedSite | None = None  #: the attention call of an attention branch


@dataclass(frozen=True, eq=False)
class ResidualSum:
    """One sum that adds to the stream; several additions in a row count as one sum."""

    result: Ref
    terms: tuple[Term, ...]
    additions: tuple[Position, ...]  #: in order; each except the last is a side of a later one
    sides: Mapping[Position, tuple[Position, int]]  #: addition → the later addition it is a side of, and which side

    @property
    def skip(self) -> Term:
        """The term that comes from the stream."""
        return next(term for term in self.terms if term.role == "skip")

    def without(self, roles: Collection[str]) -> dict[Position, int]:
        """The surviving side of each addition if the terms of some roles are cancelled.

        If all terms would be cancelled, the skip term survives: a layer without its MLP passes its input on.
        """
        removed = [term for term in self.terms if term.role in roles]
        if len(removed) == len(self.terms):
            removed = [term for term in removed if term.role != "skip"]
        cancelled = {(term.position, term.operand) for term in removed}
        surviving = {}
        for position in self.additions:
            sides = [side for side in (0, 1) if (position, side) not in cancelled]
            if not sides:
                cancelled.add(self.sides[position])
            elif len(sides) == 1:
                surviving[position] = sides[0]
        return surviving


@dataclass(frozen=True, eq=False)
class ResidualStream:
    """The residual stream of one stack of layers in a traced forward pass."""

    start: Ref  #: input of the first layer
    layers: tuple[tuple[ResidualSum, ...], ...]  #: the sums of each layer; a layer has one self-attention
    end: Ref  #: output of the last layer, before any norm that belongs to no layer
    token_axis: int
    batch_axis: int | None  #: None if the stream has no batch axis

    def without(self, roles: Collection[str]) -> dict[Position, int]:
        """The surviving side of each addition if the terms of some roles are cancelled in all layers."""
        return {
            position: side
            for layer in self.layers
            for each in layer
            for position, side in each.without(roles).items()
        }


def unneeded_products(graph: Graph, surviving: Mapping[Position, int]) -> frozenset[Position]:
    """The matrix products that no result depends on once one side of some additions is cancelled."""
    needed = [False] * len(graph.nodes)
    is_read = [False] * len(graph.nodes)
    for node in reversed(graph.nodes):
        needed[node.index] = needed[node.index] or not is_read[node.index]
        side = None if node.position is None else surviving.get(node.position)
        used = node.inputs if side is None else (node.args[side],)
        for ref in node.inputs:
            is_read[ref.node] = True
        for ref in used if needed[node.index] else ():
            needed[ref.node] = True
    return frozenset(
        node.position
        for node in graph.nodes
        if node.position is not None and graph.factors(node) is not None and not needed[node.index]
    )


def find_stream(trace: Trace, sites: Sequence[TracedSite], all_sites: Sequence[TracedSite]) -> ResidualStream:
    """The residual stream that some attention calls read and write.

    Parameters
    ----------
    trace : Trace
        Trace of one input.
    sites : list of TracedSite
        The self-attention calls of one stack of layers, in call order.
    all_sites : list of TracedSite
        Every attention call of the model.
    """
    graph = trace.graph
    found = _residual_sums(graph)
    first = _sum_of(graph, found, sites[0])
    before = _chain_before(graph, found, first)
    chain = [*before, first]
    while (following := _next_sum(graph, found, chain[-1].result)) is not None:
        chain.append(following)
    chain = [_with_roles(graph, each, all_sites) for each in chain]
    _check_sites(chain, sites)
    layers = _layers(chain, sites)
    if not layers:  # its keys come from another stream
        raise InvalidValueError(_no_stream_message(sites[0].module))
    start = chain[0].skip.ref
    shape = tuple(graph.value(start).shape)
    n_tokens = graph.value(sites[0].query).shape[-2]
    axes = [axis for axis in range(len(shape) - 1) if shape[axis] == n_tokens]
    if not axes or len(shape) not in (2, 3):
        raise InvalidValueError(
            f"the residual stream of {sites[0].module} has shape {shape}, not (batch, token, width)"
        )
    token_axis = axes[-1] if len(shape) == 3 and shape[0] == 1 else axes[0]
    batch_axis = None if len(shape) == 2 else 1 - token_axis
    return ResidualStream(start, layers, _end(graph, layers), token_axis, batch_axis)


def _residual_sums(graph: Graph) -> list[ResidualSum]:
    """Every sum of a value and things computed from it; nested sums that nothing else uses count as one."""
    users = graph.users()
    found = []
    for node in graph.nodes:
        if not _is_addition(graph, node) or _continues(graph, node, users):
            continue
        terms, additions, sides = _flatten(graph, node, users)
        skips = [term for term in terms if _is_skip(graph, term, terms)]
        if len(skips) == 1:
            roles = tuple(
                Term(term.ref, term.position, term.operand, "skip" if term is skips[0] else "mlp") for term in terms
            )
            found.append(ResidualSum(Ref(node.index), roles, tuple(additions), sides))
    return found


def _is_addition(graph: Graph, node: Node) -> bool:
    if node.op not in _ADDITIONS or node.kwargs.get("alpha", 1) != 1 or not isinstance(node.args[1], Ref):
        return False
    sides = node.args[:2]
    shapes = {graph.value(side).shape for side in sides}
    return len(shapes) == 1 and all(graph.node(side).is_activation for side in sides)


def _continues(graph: Graph, node: Node, users: list[list[int]]) -> bool:
    """Whether a sum is only a side of another sum."""
    if len(users[node.index]) != 1:
        return False
    user = graph.nodes[users[node.index][0]]
    return _is_addition(graph, user)


def _flatten(
    graph: Graph, node: Node, users: list[list[int]]
) -> tuple[list[Term], list[Position], dict[Position, tuple[Position, int]]]:
    """Terms, additions and sides of a sum, as in `ResidualSum`."""
    terms: list[Term] = []
    additions: list[Position] = []
    sides: dict[Position, tuple[Position, int]] = {}
    position = node.place
    for operand, side in enumerate(node.args[:2]):
        inner = graph.node(side)
        if _is_addition(graph, inner) and _continues(graph, inner, users):
            inner_terms, inner_additions, inner_sides = _flatten(graph, inner, users)
            terms += inner_terms
            additions += inner_additions
            sides |= {**inner_sides, inner.place: (position, operand)}
        else:
            terms.append(Term(side, position, operand, "mlp"))
    return terms, [*additions, position], sides


def _is_skip(graph: Graph, term: Term, terms: list[Term]) -> bool:
    same = same_numbers(graph, term.ref)
    return len(terms) > 1 and all(
        other is term or (graph.depends(other.ref, same) and same_numbers(graph, other.ref) != same)
        for other in terms
    )


def same_numbers(graph: Graph, ref: Ref) -> Ref:
    """The earliest value that has the same numbers."""
    node = graph.node(ref)
    while node.op in SAME_NUMBERS and isinstance(node.args[0], Ref) and graph.node(node.args[0]).is_activation:
        ref = node.args[0]
        node = graph.node(ref)
    return ref


def _sum_of(graph: Graph, sums: list[ResidualSum], site: TracedSite) -> ResidualSum:
    """The sum that adds the result of an attention call to the stream."""
    for each in sums:
        branches = [term for term in each.terms if term.role != "skip"]
        if any(graph.depends(term.ref, site.mix) for term in branches) and not graph.depends(
            each.skip.ref, site.mix
        ):
            return each
    raise InvalidValueError(_no_stream_message(site.module))


def _no_stream_message(module: str) -> str:
    """Error message for an attention module that does not add to a residual stream."""
    return (
        f"no residual stream was found around the attention module {module!r}: its result is not added to its "
        "input as x + f(x) with tensors of one shape; if another module attends, describe it with "
        "register_attention, and its result is followed instead"
    )


def leads_to(graph: Graph, start: Ref, end: Ref) -> bool:
    """Whether `end` depends only on `start`, with no matrix product between them: norms, casts, scales."""
    queue, seen = [end.node], {end.node}
    while queue:
        index = queue.pop()
        if index == start.node:
            continue
        node = graph.nodes[index]
        sources = [ref.node for ref in node.inputs if graph.node(ref).is_activation]
        if graph.factors(node) is not None or node.op is aten.convolution.default or not sources:
            return False
        if min(sources) < start.node:
            return False
        fresh = [source for source in sources if source not in seen]
        seen.update(fresh)
        queue += fresh
    return graph.depends(end, start)


def _next_sum(graph: Graph, sums: list[ResidualSum], value: Ref) -> ResidualSum | None:
    return next(
        (each for each in sums if each.result.node > value.node and leads_to(graph, value, each.skip.ref)), None
    )


def _chain_before(graph: Graph, sums: list[ResidualSum], first: ResidualSum) -> list[ResidualSum]:
    """Sums of the same stream before the first attention."""
    chain: list[ResidualSum] = []
    current = first
    while True:
        earlier = [each for each in sums if leads_to(graph, each.result, current.skip.ref) and each is not current]
        if not earlier:
            return chain
        current = earlier[-1]
        chain.insert(0, current)


def _with_roles(graph: Graph, each: ResidualSum, sites: Sequence[TracedSite]) -> ResidualSum:
    terms = []
    for term in each.terms:
        role, site = term.role, None
        if role != "skip":
            within = [
                s for s in sites if graph.depends(term.ref, s.mix) and not graph.depends(each.skip.ref, s.mix)
            ]
            within = [s for s in within if _same_stream(graph, s.query, each)]
            if within:
                site = within[-1]
                role = "attention" if _same_stream(graph, site.value, each) else "cross"
        terms.append(Term(term.ref, term.position, term.operand, role, site))
    return replace(each, terms=tuple(terms))


def _same_stream(graph: Graph, ref: Ref, each: ResidualSum) -> bool:
    return graph.depends(ref, same_numbers(graph, each.skip.ref))


def _check_sites(chain: list[ResidualSum], sites: Sequence[TracedSite]) -> None:
    known = {id(term.site) for each in chain for term in each.terms}
    for site in sites:
        if id(site) not in known:
            raise InvalidValueError(_no_stream_message(site.module))


def _layers(chain: list[ResidualSum], sites: Sequence[TracedSite]) -> tuple[tuple[ResidualSum, ...], ...]:
    """Each self-attention starts a layer; sums before the first one belong to the first layer."""
    wanted = {id(site) for site in sites}
    layers: list[list[ResidualSum]] = []
    waiting: list[ResidualSum] = []
    for each in chain:
        starts_layer = any(id(term.site) in wanted and term.role == "attention" for term in each.terms)
        if starts_layer:
            layers.append([*waiting, each])
            waiting = []
        elif layers:
            layers[-1].append(each)
        else:
            waiting.append(each)
    return tuple(tuple(layer) for layer in layers)


def _end(graph: Graph, layers: tuple[tuple[ResidualSum, ...], ...]) -> Ref:
    """Output of the last layer: its last sum, followed by a norm if the layers before end with one."""
    last = layers[-1][-1].result
    if len(layers) > 1:
        path = _operations(graph, layers[-2][-1].result, layers[-1][0].skip.ref)
    elif len(layers[0]) > 1:
        path = _operations(graph, layers[0][-2].result, layers[0][-1].skip.ref)
    else:
        path = []
    if not path:
        return last
    shape = graph.value(last).shape
    for node in graph.nodes[last.node + 1 :]:
        ref = Ref(node.index)
        is_like = node.op is path[-1] and node.is_activation and graph.value(ref).shape == shape
        if is_like and leads_to(graph, last, ref) and _operations(graph, last, ref) == path:
            return ref
    return last


def _operations(graph: Graph, start: Ref, end: Ref) -> list[object]:
    """The operations between two values of the stream, except those that change no number."""
    between = [
        node
        for node in graph.nodes[start.node + 1 : end.node + 1]
        if graph.depends(node.index, start) and graph.depends(end, node.index)
    ]
    return [node.op for node in between if node.op not in SAME_NUMBERS]
