"""Diagnostics that need the model itself, each with a reason where it is not available."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
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
from headtree.models.graph.read_stream import LocatedStream, locate_stream, read_stream
from headtree.models.inputs import ModelInput
from headtree.models.relevance import Target, relevance_of
from headtree.models.watching.collect import PreparedInputs
from headtree.tensor.attention_tensor import AttentionTensor, HeadId

_WEIGHT_COLUMNS = (
    "qk_eigenvalue_mean",
    "qk_eigenvalue_variance",
    "qk_rank",
    "qk_stable_rank",
    "ov_rank",
    "ov_stable_rank",
)
_STATE_COLUMNS = ("massive_activation_ratio", "token_similarity", "dirichlet_energy")
_Table = dict[str, Column]


@dataclass(frozen=True, eq=False)
class ModelOfInputs:
    """A model and the inputs on which attention was captured."""

    prepared: PreparedInputs
    locate: Callable[[], LocatedStream]  #: finds the residual stream, once for all inputs

    @classmethod
    def of(cls, prepared: PreparedInputs) -> ModelOfInputs:
        """The model of prepared inputs."""
        return cls(prepared, cache(partial(locate_stream, prepared, chunked=True)))

    def check_number(self, n_tensors: int) -> None:
        """Raise an error if these are not the inputs of the tensors."""
        if len(self.prepared.items) != n_tensors:
            raise InvalidValueError(
                f"atts must be captured on the inputs given with the model, got {n_tensors} tensors and "
                f"{len(self.prepared.items)} inputs; pass the same texts, images or inputs, and the same "
                "tokens= if texts were cut"
            )

    def same_for_all(self, heads: Sequence[HeadId], rng: Any) -> _Table:
        """Columns of heads that do not depend on the inputs: of weights, and of induction on random tokens."""
        prepared, n = self.prepared, len(heads)
        weights = _guarded(_WEIGHT_COLUMNS, n, partial(_weights, heads, prepared))
        return weights | _guarded(("prefix_matching", "copying"), n, partial(_induction, heads, prepared, rng))

    def of_input(self, i: int, att: AttentionTensor, target: Target) -> tuple[_Table, _Table]:
        """Columns of heads and of layers on one of the inputs, whose tensor is `att`."""
        heads, item = att.heads, self.prepared.items[i]
        relevance = partial(_relevance, heads, self.prepared, item, target)
        activations = partial(_activations, att, self.prepared, self.locate, item)
        return (
            _guarded(("relevance",), len(heads), relevance),
            _guarded(_STATE_COLUMNS, len(layers_of(heads)), activations),
        )


def _guarded(names: Sequence[str], n: int, measure: Callable[[], _Table]) -> _Table:
    """The measured columns, or missing ones with the reason; a model's own code may raise any exception."""
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


def _activations(
    att: AttentionTensor, prepared: PreparedInputs, locate: Callable[[], LocatedStream], item: ModelInput
) -> _Table:
    with prepared.view.ready():
        stream = read_stream(locate(), [item])
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
    """The values of some heads, looked up among the known ones; nan for heads that are not known."""
    index = {head: i for i, head in enumerate(known)}
    return np.array([values[index[head]] if head in index else np.nan for head in heads])
