"""Diagnostics that need the model itself, each with a reason where it cannot be had."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Float

from headtree.errors import HeadtreeError, InvalidValueError
from headtree.measures.heads.activations import activation_columns
from headtree.measures.heads.columns import Column
from headtree.measures.heads.induction import induction
from headtree.measures.heads.patterns import layers_of
from headtree.measures.heads.weight_ranks import weight_columns
from headtree.models.graph.head_weights import weights_of
from headtree.models.graph.read_stream import locate_stream, read_stream
from headtree.models.inputs import ModelInput
from headtree.models.relevance import Target, relevance_of
from headtree.models.watching.collect import PreparedInputs
from headtree.progress import progress
from headtree.tensor.attention_tensor import AttentionTensor, HeadId

_OF_WEIGHTS = (
    "qk_eigenvalue_mean",
    "qk_eigenvalue_variance",
    "qk_rank",
    "qk_stable_rank",
    "ov_rank",
    "ov_stable_rank",
)
_OF_STATES = ("massive_activation_ratio", "token_similarity", "dirichlet_energy")
_Table = dict[str, Column]


@dataclass(frozen=True, eq=False)
class ModelTables:
    """Columns of heads and of layers, one table of each for every input."""

    heads: list[_Table]
    layers: list[_Table]


def model_tables(
    atts: Sequence[AttentionTensor], prepared: PreparedInputs, target: Target, rng: Any
) -> ModelTables:
    """Everything that weights, activations and behaviour say of the heads of these tensors."""
    if len(prepared.items) != len(atts):
        raise InvalidValueError(
            f"atts must be what was captured on the inputs given with the model, got {len(atts)} tensors and "
            f"{len(prepared.items)} inputs; pass the same texts, images or inputs, and tokens= if they were cut"
        )
    heads = atts[0].heads
    of_heads, of_layers = [], []
    with progress("running the model", 2 + len(atts)) as step:
        once = _guarded(_OF_WEIGHTS, len(heads), partial(_weights, heads, prepared))
        step("weights")
        once |= _guarded(("prefix_matching", "copying"), len(heads), partial(_induction, heads, prepared, rng))
        step("induction")
        for i, (att, item) in enumerate(zip(atts, prepared.items, strict=True)):
            relevance = partial(_relevance, heads, prepared, item, target)
            of_heads.append({**once, **_guarded(("relevance",), len(heads), relevance)})
            activations = partial(_activations, att, prepared, item)
            of_layers.append(_guarded(_OF_STATES, len(layers_of(heads)), activations))
            step(f"input {i + 1} of {len(atts)}")
    return ModelTables(of_heads, of_layers)


def _guarded(names: Sequence[str], n: int, measure: Callable[[], _Table]) -> _Table:
    """The columns, or their reason for not being there; a model's own code may raise anything."""
    try:
        return measure()
    except HeadtreeError as error:
        reason = str(error)
    except Exception as error:
        reason = f"the model raised {type(error).__name__}: {error}"
    return {name: Column.missing(n, reason) for name in names}


def _weights(heads: Sequence[HeadId], prepared: PreparedInputs) -> _Table:
    with prepared.view.ready():
        return weight_columns(heads, weights_of(prepared))


def _activations(att: AttentionTensor, prepared: PreparedInputs, item: ModelInput) -> _Table:
    with prepared.view.ready():
        stream = read_stream(locate_stream(prepared), [item])
    return activation_columns(att, [after[0].detach().cpu() for after in stream[1:]])


def _induction(heads: Sequence[HeadId], prepared: PreparedInputs, rng: Any) -> _Table:
    found = induction(prepared.view, part=prepared.part, rng=rng)
    return {
        "prefix_matching": Column(_matched(heads, found.heads, found.prefix_matching), "other heads of the model"),
        "copying": Column(_matched(heads, found.heads, found.copying), found.why_no_copying),
    }


def _relevance(heads: Sequence[HeadId], prepared: PreparedInputs, item: ModelInput, target: Target) -> _Table:
    found = relevance_of(prepared, item, target)
    reason = "no attention raises this output"
    return {"relevance": Column(_matched(heads, found.heads, found.share), reason)}


def _matched(
    heads: Sequence[HeadId], known: Sequence[HeadId], values: Float[np.ndarray, " known"]
) -> Float[np.ndarray, " head"]:
    """Values of these heads, wherever they stand among the known ones."""
    places = {head: place for place, head in enumerate(known)}
    return np.array([values[places[head]] if head in places else np.nan for head in heads])
