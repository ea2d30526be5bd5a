"""The type of number that a model computes in."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from headtree.errors import InvalidTypeError, InvalidValueError

#: Types that a model can be loaded in, by the names torch gives them.
MODEL_DTYPES = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
}


def checked_model_dtype(name: Any, argument: str = "model_dtype") -> torch.dtype | None:
    """The type of torch by its name; None stays None."""
    if name is None:
        return None
    if not isinstance(name, str):
        raise InvalidTypeError(
            f"{argument} must be the name of a type, one of {', '.join(MODEL_DTYPES)}, got {name!r}"
        )
    if name not in MODEL_DTYPES:
        raise InvalidValueError(f"{argument} must be one of {', '.join(MODEL_DTYPES)}, got {name!r}")
    return MODEL_DTYPES[name]


def check_not_loaded(model: Any, model_dtype: Any) -> None:
    """Refuse a type to load the model in if it is loaded already."""
    if isinstance(model, nn.Module) and model_dtype is not None:
        raise InvalidTypeError(
            "model_dtype is the type that a model is loaded in, but this one is loaded already; leave it out, and "
            f"convert the module with model.to(torch.{model_dtype})"
        )
