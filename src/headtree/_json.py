"""Results as JSON and back, bit for bit: dataclasses, named tuples, arrays, and lists and mappings of them.

The JSON holds plain names, numbers and nested lists. `from_json` restores the types from the annotations of the
requested type.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np

from headtree.errors import InvalidTypeError

#: Array types whose entries plain JSON numbers represent exactly.
_EXACT = ("float64", "int64", "bool")


def to_json(value: Any) -> Any:
    """A value for `json.dumps`, from which `from_json` restores `value` bit for bit."""
    if isinstance(value, np.ndarray):
        if str(value.dtype) not in _EXACT:
            raise InvalidTypeError(
                f"arrays to store must have one of the dtypes {', '.join(_EXACT)}, got {value.dtype}; convert them"
            )
        return value.tolist()
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {name: to_json(item) for name, item in value.items()}
    if isinstance(value, tuple | list):
        return [to_json(item) for item in value]
    return value.item() if isinstance(value, np.generic) else value


def from_json(kind: Any, value: Any) -> Any:
    """Restore a value of type `kind` from the result of `to_json`; an optional value may be None."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        chosen = next(one for one in arguments if one is not NoneType)
        return None if value is None else from_json(chosen, value)
    if hasattr(kind, "array_type"):  # a jaxtyping annotation, such as Float[np.ndarray, " head"]
        return np.array(value, dtype=next(name for name in _EXACT if name in kind.dtypes))
    if is_dataclass(kind) and isinstance(kind, type):
        hints = _hints(kind)
        return kind(**{field.name: from_json(hints[field.name], value[field.name]) for field in fields(kind)})
    if hasattr(kind, "_fields"):  # a named tuple
        return kind(*map(from_json, _hints(kind).values(), value))
    if origin is dict:
        return {name: from_json(arguments[1], item) for name, item in value.items()}
    if origin is list:
        return [from_json(arguments[0], item) for item in value]
    if origin is tuple:
        kinds = [arguments[0]] * len(value) if arguments[-1] is Ellipsis else arguments
        return tuple(map(from_json, kinds, value))
    return value


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)
