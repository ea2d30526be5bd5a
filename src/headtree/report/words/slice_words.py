"""What the slices of a tensor are called: heads, or the depths of a token tensor.

Everything that is said about heads holds for depths too, so sentences are written once, about heads, and these
words are exchanged at the end. The page does the same in ``slices.js``.
"""

from __future__ import annotations

import re

from headtree.tensor.slice_names import DEPTH

_HEAD = re.compile(r"\b([Hh])ead(s?)\b")
#: The name of a depth, which is that of the only head of a layer.
NAME = re.compile(r"\bL(\d+)H0\b")


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
    return NAME.sub(r"L\1", text)
