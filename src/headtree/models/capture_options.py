"""Checks of the options of a capture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from headtree import _checks
from headtree.errors import InvalidTypeError, InvalidValueError
from headtree.models.watching.probe import AttentionPlan
from headtree.tensor.attention_tensor import CapturedKind

if TYPE_CHECKING:
    from headtree.models.watching.collect import PreparedInputs

_DTYPES = {"float16": torch.float16, "float32": torch.float32, "float64": torch.float64}


def the_one_given(given: Mapping[str, Any]) -> str:
    """The name of the only argument that is not None."""
    names = [name for name, value in given.items() if value is not None]
    if len(names) != 1:
        raise InvalidTypeError(
            f"exactly one of texts, images and inputs must be given, got {' and '.join(names) or 'none of them'}"
        )
    return names[0]


def check_options(
    kind: str, batch_size: int | None, dtype: str | None, modality: str, tokens: Any, targets: Any
) -> None:
    """Raise an error that names an option of a wrong value, or one that does not apply."""
    _checks.one_of(kind, "kind", CapturedKind)
    if dtype is not None and not (isinstance(dtype, str) and dtype in _DTYPES):
        raise InvalidValueError(f"dtype must be one of {tuple(_DTYPES)}, got {dtype!r}")
    if batch_size is not None and (not isinstance(batch_size, int) or batch_size < 1):
        raise InvalidValueError(f"batch_size must be a whole number of at least 1, got {batch_size!r}")
    for name, value in (("tokens", tokens), ("targets", targets)):
        if value is not None and modality != "texts":
            raise InvalidTypeError(f"{name} applies to texts, not to {modality}; leave it out")


def check_scores(model: nn.Module, plan: AttentionPlan, kind: CapturedKind) -> None:
    """Raise an error if scores are asked for and not available."""
    if plan.from_outputs and kind == "scores":
        raise InvalidValueError(
            f"the scores of {type(model).__name__} are not available: the attentions it returns are not the "
            "softmax of any scores it computes; use kind='probs', or describe the scores with register_attention"
        )


def value_dtype(model: nn.Module, dtype: str | None) -> torch.dtype:
    """The type of the captured values: the given one, or else float32, and float64 for a float64 model."""
    if dtype is not None:
        return _DTYPES[dtype]
    is_double = any(parameter.dtype == torch.float64 for parameter in model.parameters())
    return torch.float64 if is_double else torch.float32


def check_not_given(given: Mapping[str, Any]) -> None:
    """Refuse options of a view where there is one already."""
    named = [name for name, value in given.items() if value is not None and value is not False]
    if named:
        raise InvalidTypeError(
            f"{', '.join(named)} must be given to ModelView itself, but model is already a view; leave "
            f"{'it' if len(named) == 1 else 'them'} out"
        )


def check_all_heads(prepared: PreparedInputs, why: str) -> None:
    """Refuse a selection of layers or heads where all of them are needed."""
    n_heads = sum(prepared.plan.sites[i].shape[1] for i in prepared.selection.layers)
    if len(prepared.selection.head_ids()) != n_heads:
        raise InvalidValueError(f"layers and heads must be left out, since {why}")
