"""Text and arrays as one compressed string that a browser can unpack."""

from __future__ import annotations

import base64
import json
import math
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

_ALIGNMENT = 8  # bytes; typed arrays in a browser must start at a multiple of their item size

#: What a browser has a typed array for.
_DTYPES = {"uint8", "uint16", "int32", "float32", "float64"}


def packed(text: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> str:
    """`text` (as JSON) and `arrays`, compressed (zlib) and written in base64; `static/data.js` reads it.

    Base64 has no character with a meaning in HTML: no token or name can break out of it.
    """
    layout: dict[str, tuple[str, tuple[int, ...], int]] = {}
    parts: list[bytes] = []
    length = 0
    for name, array in arrays.items():
        if str(array.dtype) not in _DTYPES:
            raise TypeError(f"arrays must be of {sorted(_DTYPES)}, got {array.dtype} for {name}")
        data = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<")).tobytes()
        layout[name] = (str(array.dtype), array.shape, length)
        parts += [data, b"\0" * (-len(data) % _ALIGNMENT)]
        length += len(data) + len(parts[-1])
    header = json.dumps({"text": json_ready(text), "arrays": layout}, allow_nan=False).encode()
    header += b" " * (-(len(header) + _ALIGNMENT) % _ALIGNMENT)
    size = len(header).to_bytes(_ALIGNMENT, "little")
    return base64.b64encode(zlib.compress(b"".join([size, header, *parts]), 6)).decode("ascii")


def json_ready(value: Any) -> Any:
    """`value` as JSON can hold it: NaN becomes null, other values that JSON does not know become text."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): json_ready(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset | np.ndarray):
        return [json_ready(item) for item in value]
    if isinstance(value, int | np.integer):
        return int(value)
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, np.bool_):
        return bool(value)
    return str(value)
