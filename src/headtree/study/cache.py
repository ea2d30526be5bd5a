"""Cached measurements, which let a long command continue after an interruption."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from headtree._files import write_text
from headtree._json import from_json, to_json
from headtree._version import __version__
from headtree.runs.run import Run

T = TypeVar("T")


def kept(file: Path, made_from: Any, kind: type[T], measure: Callable[[], T]) -> T:
    """The result in a file, if it was made from the same; else measure it and keep it there.

    Parameters
    ----------
    file : path
        Written whole or not at all. One that cannot be read is replaced.
    made_from : JSON
        Everything that the result depends on beside the version of headtree.
    kind : type
        Of the result: a dataclass of numbers, arrays and texts, or a list or mapping of them.
    measure : function
        Returns the result.
    """
    origin = hashlib.sha256(json.dumps([made_from, __version__], sort_keys=True).encode()).hexdigest()
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        if found["origin"] == origin:
            result: T = from_json(kind, found["result"])
            return result
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass  # not there yet, or of no use
    result = measure()
    write_text(file, json.dumps({"origin": origin, "result": to_json(result)}))
    return result


def origin_of(run: Run) -> list[Any]:
    """What tells a run from any other, also from one that took its place with --force."""
    return [run.kind, dict(run.record.settings), run.record.headtree, run.record.created]
