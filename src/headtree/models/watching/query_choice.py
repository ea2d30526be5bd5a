"""Some queries of an input, as users name them: by position or by token."""

from __future__ import annotations

import operator
import reprlib
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

from headtree._checks import as_list, at_least_one, checked_index
from headtree.errors import InvalidTypeError, InvalidValueError

Queries = Sequence[int | str]

#: How tokenizers mark that a token starts a word or continues one.
_MARKS = "Ġ▁# "


def check_rows(window: Any, queries: Any, generate: Any) -> None:
    """Raise an error if options that say which queries to capture exclude each other."""
    if queries is not None and window is not None:
        raise InvalidTypeError("queries cannot be combined with window, which selects queries too; leave one out")
    if generate is not None and window is not None:
        raise InvalidTypeError("window cannot be combined with generate; select with queries=… instead")
    if generate is not None:
        at_least_one(generate, "generate")
    if queries is not None:
        _entries(queries)


def chosen_queries(queries: Queries, labels: Sequence[str], i: int) -> list[int]:
    """Positions of the chosen queries of input i, in the order given, each once.

    Examples
    --------
    >>> chosen_queries([-1, "cat"], ["the", "Ġcat", "Ġsat"], 0)
    [2, 1]
    """
    found: dict[int, None] = {}
    for entry in _entries(queries):
        if isinstance(entry, str):
            found |= dict.fromkeys(_positions(entry, labels, i))
        else:
            found[checked_index(entry, len(labels), "queries", f"tokens of input {i}")] = None
    return list(found)


def _entries(queries: Any) -> list[Any]:
    entries = [queries] if isinstance(queries, str | int) else as_list(queries, "queries", "positions or tokens")
    wrong = [entry for entry in entries if isinstance(entry, bool) or not _is_query(entry)]
    if wrong:
        raise InvalidTypeError(f"queries must be positions or tokens, got {reprlib.repr(wrong[0])}")
    if not entries:
        raise InvalidValueError("queries must name at least one query, got none; leave it out for all of them")
    return entries


def _is_query(entry: Any) -> bool:
    try:
        return isinstance(entry, str) or operator.index(entry) is not None
    except TypeError:
        return False


def _positions(token: str, labels: Sequence[str], i: int) -> list[int]:
    exact = [position for position, label in enumerate(labels) if label == token]
    plain = token.strip(_MARKS)
    found = exact or [at for at, label in enumerate(labels) if plain and label.strip(_MARKS) == plain]
    if found:
        return found
    near = get_close_matches(token, labels, n=3, cutoff=0.5) or labels[:5]
    raise InvalidValueError(
        f"queries must be tokens of every input, but {token!r} is not among the {len(labels)} tokens of input {i}, "
        f"such as {', '.join(map(repr, dict.fromkeys(near)))}; pass one of them, or positions"
    )
