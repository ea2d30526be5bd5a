"""Select attention calls and heads of a model."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from headtree.errors import InvalidTypeError, InvalidValueError
from headtree.models import facts
from headtree.models.watching import attention_sites
from headtree.models.watching.probe import AttentionPlan
from headtree.tensor.attention_tensor import HeadId

Window = tuple[int, int] | tuple[tuple[int, int], tuple[int, int]]


@dataclass(frozen=True, eq=False)
class Selection:
    """The selected sites of a plan, in layer order, and the selected heads of each."""

    part: str
    layers: dict[int, int]  #: site → its layer within the part
    heads: dict[int, tuple[int, ...]]  #: site → selected heads
    mask_varies: bool = False

    @property
    def sites(self) -> tuple[int, ...]:
        """Indices of the selected sites in the plan."""
        return tuple(self.heads)

    def start(self, site: int) -> int:
        """Index of a site's first head in the tensor."""
        before = 0
        for other, heads in self.heads.items():
            if other == site:
                break
            before += len(heads)
        return before

    def head_ids(self) -> tuple[HeadId, ...]:
        """Layer of every selected head and its index within the layer."""
        return tuple(HeadId(self.layers[site], head) for site, heads in self.heads.items() for head in heads)

    def site_of_call(self, plan: AttentionPlan) -> dict[int, int]:
        """Position of a watched call in call order → index of the selected site.

        The position is all that identifies a call: a module may be called several times.
        """
        calls = range(len(plan.sites)) if plan.call_order is None else plan.call_order
        return {call: site for site, call in enumerate(calls) if site in self.heads}


def select(
    plan: AttentionPlan, part: str | None, layers: Any, heads: Any, *, of_one_shape: bool = True
) -> Selection:
    """Select a part, layers and heads, checked against the model's attention calls.

    Unless `of_one_shape` is false, all layers must have one matrix of queries and keys per head, of one shape.
    """
    parts = attention_sites.parts_of(plan.sites)
    name = _part_name(parts, part, plan)
    sites = parts[name]
    chosen = _layers(layers, len(sites))
    wanted = _heads(heads, chosen, [plan.sites[site].shape[1] for site in sites])
    picked = {sites[layer]: wanted[layer] for layer in chosen if wanted[layer]}
    if of_one_shape:
        shapes = {site: plan.sites[site].shape for site in picked}
        _check_shapes(plan, {site: layer for layer, site in enumerate(sites)}, shapes)
    kinds = {
        type(plan.sites[site].module).__name__ + str(facts.attention_window(plan.sites[site].module))
        for site in picked
    }
    return Selection(name, {site: layer for layer, site in enumerate(sites)}, picked, mask_varies=len(kinds) > 1)


def _part_name(parts: dict[str, list[int]], part: str | None, plan: AttentionPlan) -> str:
    names = sorted(parts)
    listing = ", ".join(map(repr, names))
    unseen = f"; {' and '.join(plan.unseen[:3])} cannot be captured" if plan.unseen else ""
    if part is not None and not isinstance(part, str):
        raise InvalidTypeError(f"part must be a string, one of {listing}, got {part!r}{unseen}")
    if part in parts:
        return part
    if part is None and len(parts) == 1 and not unseen:
        return names[0]
    if part is None and len(parts) == 1:
        raise InvalidValueError(
            f"part must be given, because the model has other attention as well{unseen}; pass part={names[0]!r} to "
            "capture the rest, or describe the other with register_attention"
        )
    if part is None:
        raise InvalidValueError(
            f"part must be one of {listing}, because the model has several kinds of attention{unseen}"
        )
    if names == [""]:
        raise InvalidValueError(
            f"part must be left out, got {part!r}: the model has a single stack of attention layers, which starts "
            f"at {plan.sites[0].name!r}{unseen}"
        )
    raise InvalidValueError(f"part must be one of {listing} for this model, got {part!r}{unseen}")


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
    """Selected heads of every selected layer."""
    if heads is None:
        return {layer: tuple(range(n_heads[layer])) for layer in layers}
    pairs = _pairs(heads, layers, n_heads)
    if not pairs:
        raise InvalidValueError("heads must name at least one head, got none")
    bad = [(layer, head) for layer, head in pairs if layer not in layers or not 0 <= head < n_heads[layer]]
    if bad:
        counts = sorted({n_heads[layer] for layer in layers})
        raise InvalidValueError(
            f"heads must be less than {' or '.join(map(str, counts))}, or pairs (layer, head) of layers "
            f"{_ranges(layers)}, got {bad[0]}"
        )
    return {layer: tuple(sorted({head for other, head in pairs if other == layer})) for layer in layers}


def _ranges(numbers: Sequence[int]) -> str:
    """Sorted numbers in words, such as "0 to 11" or "0, 3"."""
    is_whole = len(numbers) > 2 and numbers[-1] - numbers[0] == len(numbers) - 1
    return f"{numbers[0]} to {numbers[-1]}" if is_whole else ", ".join(map(str, numbers))


def _pairs(heads: Any, layers: Sequence[int], n_heads: Sequence[int]) -> list[tuple[int, int]]:
    """The `heads` argument as (layer, head) pairs."""
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


def _sliced(n: int, selected: slice, name: str) -> list[int]:
    try:
        return list(range(n)[selected])
    except (TypeError, ValueError):
        raise InvalidTypeError(f"{name} must be a slice of whole numbers, got {selected!r}") from None


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
            f"the layers have unequal shapes (queries × keys): {listing}; select layers of one shape with layers=…"
        )
    site, shape = next(iter(shapes.items()))
    if shape[0] != 1:
        raise InvalidValueError(
            f"layer {layers[site]} ({plan.sites[site].name}) attends within {_in_words(shape)} of each input, not "
            "over all of it, so its heads have no single (query, key) matrix; select other layers with layers=…"
        )


def _in_words(shape: tuple[int, int, int, int]) -> str:
    n_windows, _, n_queries, n_keys = shape
    size = f"{n_queries}×{n_keys}"
    return size if n_windows == 1 else f"{n_windows} windows of {size}"


def parse_window(window: Any) -> tuple[slice, slice]:
    """The windows of queries and keys as slices."""
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
