"""What a long command has measured, kept in files, so that it goes on where it was interrupted."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from headtree._files import write_text
from headtree._version import __version__
from headtree.measures.invariance import SoftmaxInvariance
from headtree.measures.regularity import HolderExponent, Regularity
from headtree.measures.sparsity import CompressionCurve, Sparsity
from headtree.runs.run import Run
from headtree.study.claims.clusters import Clustering
from headtree.study.claims.evidence import Evidence
from headtree.study.claims.single_heads import MatrixRegularity
from headtree.tensor.attention_tensor import HeadId

T = TypeVar("T")

_RESULTS: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        Clustering,
        CompressionCurve,
        Evidence,
        HeadId,
        HolderExponent,
        MatrixRegularity,
        Regularity,
        SoftmaxInvariance,
        Sparsity,
    )
}


def kept(file: Path, made_from: Any, measure: Callable[[], T]) -> T:
    """The result in a file, if it was made from the same; else measure it and keep it there.

    Parameters
    ----------
    file : path
        Written whole or not at all. One that cannot be read is replaced.
    made_from : JSON
        Everything that the result depends on beside the version of headtree.
    measure : function
        Returns results of headtree: dataclasses of numbers, arrays, texts, and lists and mappings of them.
    """
    origin = hashlib.sha256(json.dumps([made_from, __version__], sort_keys=True).encode()).hexdigest()
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        if found["origin"] == origin:
            result: T = from_json(found["result"])
            return result
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass  # not there yet, or of no use
    result = measure()
    write_text(file, json.dumps({"origin": origin, "result": to_json(result)}))
    return result


def origin_of(run: Run) -> list[Any]:
    """What tells a run from any other, also from one that took its place with --force."""
    return [run.kind, dict(run.record.settings), run.record.headtree, run.record.created]


def to_json(value: Any) -> Any:
    """As JSON takes it; `from_json` gives it back, every bit."""
    if isinstance(value, np.ndarray):
        return {"array": value.ravel().tolist(), "shape": list(value.shape), "dtype": str(value.dtype)}
    if type(value).__name__ in _RESULTS:
        fields = value._asdict() if isinstance(value, HeadId) else _fields(value)
        return {"kind": type(value).__name__, "fields": {name: to_json(item) for name, item in fields.items()}}
    if isinstance(value, dict):
        return {"mapping": {name: to_json(item) for name, item in value.items()}}
    if isinstance(value, tuple | list):
        return {"tuple" if isinstance(value, tuple) else "list": [to_json(item) for item in value]}
    return value.item() if isinstance(value, np.generic) else value


def from_json(value: Any) -> Any:
    """What `to_json` was given."""
    if not isinstance(value, dict):
        return value
    if "array" in value:
        return np.array(value["array"], dtype=value["dtype"]).reshape(value["shape"])
    if "kind" in value:
        return _RESULTS[value["kind"]](**{name: from_json(item) for name, item in value["fields"].items()})
    if "mapping" in value:
        return {name: from_json(item) for name, item in value["mapping"].items()}
    items = [from_json(item) for item in value["tuple" if "tuple" in value else "list"]]
    return tuple(items) if "tuple" in value else items


def _fields(value: Any) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
