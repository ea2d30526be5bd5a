"""A network's attention as one labelled array: heads × queries × keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, get_args

from headtree import _checks
from headtree.errors import InvalidTypeError, InvalidValueError

Kind = Literal["scores", "probs"]


class HeadId(NamedTuple):
    """Where a head sits: its layer and its place in the layer, both from 0."""

    layer: int
    head: int

    def __str__(self) -> str:
        return f"L{self.layer}H{self.head}"


@dataclass(frozen=True, eq=False, repr=False)
class AttentionTensor:
    """Every head of a network on one input: ``values[head, query, key]``.

    Parameters
    ----------
    values : array or tensor (head, query, key)
        Real numbers; the heads of all layers in layer order.
    heads : sequence of HeadId
        Layer and head of each slice.
    queries, keys : sequence of str
        Token strings or patch positions.
    kind : {"scores", "probs"}
        Everything finite that enters softmax, or what leaves it.
    mask : array of bool, optional
        True where an entry is missing because the model forbids it; broadcast to the shape of `values`.
    provenance : mapping
        Where the tensor came from.
    """

    values: Any
    heads: tuple[HeadId, ...]
    queries: tuple[str, ...]
    keys: tuple[str, ...]
    kind: Kind = "scores"
    mask: Any = None
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        shape = tuple(self.values.shape)
        if len(shape) != 3 or 0 in shape:
            raise InvalidValueError(
                f"values must have three axes (head, query, key), none of them empty, got shape {shape}"
            )
        if self.kind not in get_args(Kind):
            raise InvalidValueError(f"kind must be one of {get_args(Kind)}, got {self.kind!r}")
        labels = {
            "heads": tuple(HeadId(*head) for head in self.heads),
            "queries": tuple(self.queries),
            "keys": tuple(self.keys),
        }
        for (name, values), n in zip(labels.items(), shape, strict=True):
            if len(values) != n:
                raise InvalidValueError(f"{name} must label the {n} slices of its axis, got {len(values)}")
            object.__setattr__(self, name, values)
        object.__setattr__(self, "mask", _checks.missing_entries(self.mask, "values", shape))
        object.__setattr__(self, "provenance", MappingProxyType(dict(self.provenance)))

    @classmethod
    def from_array(
        cls,
        x: Any,
        *,
        heads: Sequence[tuple[int, int]] | None = None,
        heads_per_layer: int | None = None,
        queries: Sequence[str] | None = None,
        keys: Sequence[str] | None = None,
        kind: Kind = "scores",
        mask: Any = None,
    ) -> AttentionTensor:
        """Label any (head, query, key) array.

        Without `heads`, heads are numbered in one layer, or in layers of `heads_per_layer`; tokens get their
        positions as names.
        """
        values = _checks.real_tensor(x, "x") if not hasattr(x, "shape") else x
        if len(values.shape) != 3:
            raise InvalidValueError(
                f"x must have three axes (head, query, key), got shape {tuple(values.shape)}; "
                "organize_array takes arrays with any number of axes"
            )
        n_heads, n_queries, n_keys = values.shape
        if heads is not None and heads_per_layer is not None:
            raise InvalidTypeError("give heads or heads_per_layer, not both")
        if heads_per_layer is not None and (heads_per_layer < 1 or n_heads % heads_per_layer):
            raise InvalidValueError(f"heads_per_layer must divide the {n_heads} heads, got {heads_per_layer}")
        per_layer = heads_per_layer or n_heads
        return cls(
            values=values,
            heads=tuple(HeadId(*head) for head in heads or (divmod(i, per_layer) for i in range(n_heads))),
            queries=tuple(map(str, range(n_queries))) if queries is None else tuple(queries),
            keys=tuple(map(str, range(n_keys))) if keys is None else tuple(keys),
            kind=kind,
            mask=mask,
        )

    @property
    def shape(self) -> tuple[int, int, int]:
        """Number of heads, queries and keys."""
        n_heads, n_queries, n_keys = self.values.shape
        return int(n_heads), int(n_queries), int(n_keys)

    def __repr__(self) -> str:
        n_heads, n_queries, n_keys = self.shape
        n_layers = len({head.layer for head in self.heads})
        missing = "" if self.mask is None else f", {float(self.mask.double().mean()):.0%} missing"
        return (
            f"AttentionTensor({n_heads} heads in {n_layers} layers × {n_queries} queries × {n_keys} keys, "
            f"{self.kind}{missing})"
        )
