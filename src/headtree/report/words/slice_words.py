"""What the slices of a tensor are called: heads, the depths of a token tensor, or slices of a plain array.

Everything that is said about heads holds for depths too, so sentences are written once, about heads, and these
words are exchanged at the end. What a page says itself, it says with the words of its `Unit`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from headtree.tensor.slice_names import DEPTH, HEAD

_HEAD = re.compile(r"\b([Hh])ead(s?)\b")
#: Depths attend to nothing: tokens have a weight in them.
_ATTENTION = re.compile(r"\b(its|their|the same|depth's) attention\b")
#: The name of a depth, which is that of the only head of a layer.
NAME = re.compile(r"\bL(\d+)H0\b")


@dataclass(frozen=True)
class Unit:
    """The words of a page for its slices."""

    one: str
    many: str
    does: str  #: what a query does to its keys
    name: str  #: a regular expression that their names match; "" for any name
    examples: str  #: of what one can search for


UNITS: Mapping[str, Unit] = MappingProxyType(
    {
        HEAD: Unit(
            HEAD, "heads", "attends to", r"L\d+H\d+", "L3H5, L4H2 · role = previous token · confidence > 0.5"
        ),
        DEPTH: Unit(DEPTH, "depths", "is made of", r"L\d+", "L3, L4 · layer 3-5 · structure rank < 4"),
        "slice": Unit("slice", "slices", "", "", "a name · place in tree < 5 · folder 1 = 0"),
    }
)


def said_of(slices: str, text: str) -> str:
    """A sentence about heads as one about what a tensor has slices of.

    Parameters
    ----------
    slices : str
        What there are slices of: `Run.slices`.
    text : str
        About heads, with names such as L3H0.

    Examples
    --------
    >>> said_of("depth", "Heads like L3H0 are rare: 2 heads."), said_of("head", "1 head")
    ('Depths like L3 are rare: 2 depths.', '1 head')
    """
    if slices != DEPTH:
        return text
    text = _HEAD.sub(lambda found: ("D" if found[1] == "H" else "d") + "epth" + found[2], text)
    text = _ATTENTION.sub(r"\1 weight", text).replace("attend to", "are made of")
    return NAME.sub(r"L\1", text)


def all_said_of(slices: str, data: Any) -> Any:
    """The same for every text in lists and mappings; keys stay.

    Examples
    --------
    >>> all_said_of("depth", {"head": ["L3H0", 4]})
    {'head': ['L3', 4]}
    """
    if isinstance(data, str):
        return said_of(slices, data)
    if isinstance(data, Mapping):
        return {key: all_said_of(slices, value) for key, value in data.items()}
    return [all_said_of(slices, value) for value in data] if isinstance(data, list | tuple) else data
