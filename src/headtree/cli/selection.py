"""Layers and heads as people type them: ``0-3,8`` and ``L3H5,L4H2``."""

from __future__ import annotations

import re

from headtree.errors import InvalidValueError


def parse_layers(text: str | None) -> list[int] | None:
    """Layers in ascending order, from numbers and ranges such as "0-3,8".

    Examples
    --------
    >>> parse_layers("8, 0-3")
    [0, 1, 2, 3, 8]
    """
    if text is None:
        return None
    numbers = _numbers(text)
    if numbers is None:
        raise InvalidValueError(f"--layers must be numbers and ranges from 0 on, such as 0-3,8, got {text!r}")
    return numbers


def parse_heads(text: str | None) -> list[int] | list[tuple[int, int]] | None:
    """Heads in ascending order: (layer, head) pairs from names such as "L3H5,L4H2", or numbers within each layer.

    Examples
    --------
    >>> parse_heads("L4H2,L3H5"), parse_heads("0-2")
    ([(3, 5), (4, 2)], [0, 1, 2])
    """
    if text is None:
        return None
    names = [re.fullmatch(r"L(\d{1,6})H(\d{1,6})", part, re.IGNORECASE) for part in _parts(text)]
    pairs = [(int(name[1]), int(name[2])) for name in names if name is not None]
    if pairs and len(pairs) == len(names):
        return sorted(set(pairs))
    numbers = _numbers(text)
    if numbers is None:
        raise InvalidValueError(
            "--heads must be names such as L3H5,L4H2 (layer 3, head 5, …), or numbers and ranges such as 0-3 for "
            f"these heads of every layer, got {text!r}"
        )
    return numbers


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")]


def _numbers(text: str) -> list[int] | None:
    """The numbers of a list of numbers and ranges, both ends included; None if it is not such a list.

    Numbers of a million and more are none of a model, and the list is not one.
    """
    found: set[int] = set()
    for part in _parts(text):
        ends = re.fullmatch(r"(\d{1,6})(?:\s*-\s*(\d{1,6}))?", part)
        if ends is None or int(ends[2] or ends[1]) < int(ends[1]):
            return None
        found.update(range(int(ends[1]), int(ends[2] or ends[1]) + 1))
    return sorted(found)
