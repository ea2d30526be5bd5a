"""Which attention calls and heads of a model were asked for."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from headtree.errors import InvalidTypeError, InvalidValueError
from headtree.models.watching import attention_sites
from headtree.models.watching.probe import AttentionPlan
from headtree.tensor.attention_tensor import HeadId

Window = tuple[int, int] | tuple[tuple[int, int], tuple[int, int]]


@dataclass(frozen=True, eq=False)
class Selection:
    """The chosen sites of a plan, in layer order, and the chosen heads of each."""

    part: str
    layers: dict[int, int]  #: site → its number among the layers of the part
    heads: dict[int, tuple[int, ...]]  #: site → chosen heads
    mask_varies: bool = False

    @property
    def sites(self) -> tuple[int, ...]:
        """Numbers of the chosen sites in the plan."""
        return tuple(self.heads)

    def start(self, site: int) -> int:
        """The first slice of a site's heads in the tensor."""
        before = 0
        for other, heads in self.heads.items():
            if other == site:
                break
            before += len(heads)
        return before

    def head_ids(self) -> tuple[HeadId, ...]:
        """Layer and place of every chosen head."""
        return tuple(HeadId(self.layers[site], head) for site, heads in self.heads.items() for head in heads)

    def places(self, plan: AttentionPlan) -> dict[int, int]:
        """The number of a watched call → the chosen site it is."""
        order = range(len(plan.sites)) if plan.keep is None else plan.keep
        return {call: site for site, call in enumerate(order) if site in self.heads}


def select(plan: AttentionPlan, part: str | None, layers: Any, heads: Any) -> Selection:
    """The selection that was asked for, checked against what the model has."""
    parts = attention_sites.parts_of(plan.sites)
    name = _part(parts, part, plan.sites[0].name)
    sites = parts[name]
    chosen = _layers(layers, len(sites))
    wanted = _heads(heads, chosen, [plan.sites[site].shape[1] for site in sites])
    picked = {sites[layer]: wanted[layer] for layer in chosen if wanted[layer]}
    shapes = {site: plan.sites[site].shape for site in picked}
    _check_shapes(plan, {site: layer for layer, site in enumerate(sites)}, shapes)
    kinds = {type(plan.sites[site].module).__name__ + str(_window_of(plan.sites[site].module)) for site in picked}
    return Selection(name, {site: layer for layer, site in enumerate(sites)}, picked, mask_varies=len(kinds) > 1)


def _window_of(module: Any) -> Any:
    """Sliding and full attention have different masks."""
    return getattr(module, "sliding_window", getattr(module, "local_attention", None))


def _part(parts: dict[str, list[int]], part: str | None, first: str) -> str:
    names = sorted(parts)
    if part is None:
        if len(parts) > 1:
            raise InvalidValueError(
                f"the model has several kinds of attention, so part must be one of {', '.join(map(repr, names))}"
            )
        return names[0]
    if part in parts:
        return part
    if names == [""]:
        raise InvalidValueError(
            f"part must be left out, got {part!r}: all attention that was seen is one stack of layers, the "
            f"first of them {first!r}"
        )
    raise InvalidValueError(f"part must be one of {', '.join(map(repr, names))} for this model, got {part!r}")


def _layers(layers: Any, n_layers: int) -> list[int]:
    if layers is None:
        return list(range(n_layers))
    if isinstance(layers, slice):
        layers = _sliced(n_layers, layers, "layers")
    chosen = _integers([layers] if _is_integer(layers) else layers, "layers")
    bad = [layer for layer in chosen if not -n_layers <= layer < n_layers]
    if bad or not chosen:
        raise InvalidValueError(f"layers must be some of 0 to {n_layers - 1}, got {bad or 'none'}")
    return sorted({layer % n_layers for layer in chosen})


def _heads(heads: Any, layers: Sequence[int], n_heads: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """Chosen heads of every chosen layer."""
    if heads is None:
        return {layer: tuple(range(n_heads[layer])) for layer in layers}
    pairs = _pairs(heads, layers, n_heads)
    if not pairs:
        raise InvalidValueError("heads must name at least one head, got none")
    bad = [(layer, head) for layer, head in pairs if layer not in layers or not 0 <= head < n_heads[layer]]
    if bad:
        counts = sorted({n_heads[layer] for layer in layers})
        raise InvalidValueError(
            f"heads must be numbers under {' or '.join(map(str, counts))}, or pairs (layer, head) within the "
            f"chosen layers, got {bad[0]}"
        )
    return {layer: tuple(sorted({head for other, head in pairs if other == layer})) for layer in layers}


def _pairs(heads: Any, layers: Sequence[int], n_heads: Sequence[int]) -> list[tuple[int, int]]:
    """What was asked for as pairs (layer, head)."""
    if isinstance(heads, slice):
        return [(layer, head) for layer in layers for head in _sliced(n_heads[layer], heads, "heads")]
    try:
        items: list[Any] = [heads] if _is_integer(heads) else list(heads)
    except TypeError:
        raise InvalidTypeError(
            f"heads must be a list of whole numbers or of pairs (layer, head), got {heads!r}"
        ) from None
    if all(isinstance(item, tuple) and len(item) == 2 for item in items):
        numbers = [_integers(item, "heads") for item in items]
        return [(layer, head) for layer, head in numbers]
    return [(layer, head) for layer in layers for head in _integers(items, "heads")]


def _sliced(n: int, places: slice, name: str) -> list[int]:
    try:
        return list(range(n)[places])
    except (TypeError, ValueError):
        raise InvalidTypeError(f"{name} must be a slice of whole numbers, got {places!r}") from None


def _is_integer(value: Any) -> bool:
    try:
        operator.index(value)
    except TypeError:
        return False
    return True


def _integers(values: Iterable[Any], name: str) -> list[int]:
    try:
        return [operator.index(value) for value in values]
    except TypeError:
        raise InvalidTypeError(f"{name} must be whole numbers, got {values!r}") from None


def _check_shapes(
    plan: AttentionPlan, layers: dict[int, int], shapes: dict[int, tuple[int, int, int, int]]
) -> None:
    listing = ", ".join(f"layer {layers[site]} {_in_words(shape)}" for site, shape in shapes.items())
    if len({(n_inputs, *size) for n_inputs, _, *size in shapes.values()}) > 1:
        raise InvalidValueError(
            f"the layers' heads have unequal shapes (queries × keys): {listing}; a tensor needs one, so choose "
            "layers of one shape with layers=…"
        )
    site, shape = next(iter(shapes.items()))
    if shape[0] != 1:
        raise InvalidValueError(
            f"layer {layers[site]} ({plan.sites[site].name}) attends within {_in_words(shape)} of each input, "
            "not over all of it, so that its heads have no single (query, key) matrix; choose other layers, if "
            "there are any"
        )


def _in_words(shape: tuple[int, int, int, int]) -> str:
    n_windows, _, n_queries, n_keys = shape
    size = f"{n_queries}×{n_keys}"
    return size if n_windows == 1 else f"{n_windows} windows of {size}"


def parse_window(window: Any) -> tuple[slice, slice]:
    """The windows of queries and keys."""
    if window is None:
        return slice(None), slice(None)
    try:
        pair = tuple(window)
    except TypeError:
        raise InvalidTypeError(f"window must be (start, stop), or a pair of such pairs, got {window!r}") from None
    if len(pair) == 2 and all(isinstance(w, Sequence) for w in pair):
        return _slice(pair[0]), _slice(pair[1])
    return _slice(pair), _slice(pair)


def _slice(bounds: Any) -> slice:
    values = _integers(bounds, "window")
    if len(values) != 2 or not 0 <= values[0] < values[1]:
        raise InvalidValueError(f"window must be (start, stop) with 0 <= start < stop, got {bounds!r}")
    return slice(*values)
