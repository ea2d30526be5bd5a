"""Cached measurements, which let a long command continue after an interruption."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from headtree._files import read_json, write_text
from headtree._json import from_json, to_json
from headtree._version import __version__
from headtree.runs.run import Run

T = TypeVar("T")


def cached(path: Path, key: Any, kind: type[T], compute: Callable[[], T]) -> T:
    """The result stored at `path`, if it was stored with the same key; else compute it and store it there.

    Parameters
    ----------
    path : path
        The file. It is written whole or not at all, and replaced if it cannot be read.
    key : JSON
        Everything that determines the result besides the version of headtree.
    kind : type
        Type of the result: a dataclass of numbers, arrays and strings, or a list or mapping of them.
    compute : function
        Returns the result.
    """
    origin = hashlib.sha256(json.dumps([key, __version__], sort_keys=True).encode()).hexdigest()
    try:
        found = read_json(path)
        if found["origin"] == origin:
            result: T = from_json(kind, found["result"])
            return result
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass  # missing or unreadable
    result = compute()
    write_text(path, json.dumps({"origin": origin, "result": to_json(result)}))
    return result


def origin_of(run: Run) -> list[Any]:
    """What distinguishes a run from every other, including one replaced with --force."""
    return [run.kind, dict(run.record.settings), run.record.headtree, run.record.created]
