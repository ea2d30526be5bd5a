"""Where a model runs, and the type of number it computes in."""

from __future__ import annotations

from typing import Any

import torch

from headtree.errors import InvalidTypeError, InvalidValueError

#: Types that a model can be loaded in, by the names torch gives them.
MODEL_DTYPES = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
}


def checked_device(device: Any) -> torch.device | None:
    """The device as torch knows it, once something was placed on it; None stays None."""
    if device is None:
        return None
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise InvalidValueError(
            f"device must be a device of torch such as 'cpu', 'cuda' or 'cuda:1', got {device!r}"
        ) from error
    if found.type == "meta":
        raise InvalidValueError("device must hold numbers, got 'meta', which has only shapes; use 'cpu' or 'cuda'")
    try:
        torch.empty(1, device=found)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise InvalidValueError(
            f"device {str(found)!r} is not available here: {reason}; use 'cpu', or check the driver and that torch "
            "is built for this device"
        ) from error
    return found


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
