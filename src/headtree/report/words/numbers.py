"""How numbers of any size are written in figures, tables, sections and on the command line.

Shares and correlations, which lie between -1 and 1, have two decimals within a sentence.
"""

from __future__ import annotations

import math

from headtree.measures.jackknife import Estimate

_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def number_words(value: float, position: object = None) -> str:
    """A number as people write it: 0.05, 12, 1,500, beyond that 2·10⁶ or 10⁻⁴; a dash if it is not finite.

    Parameters
    ----------
    value : float
        The number; three significant digits are shown, from 1,000 to 100,000 all digits before the point.
    position : object
        Not used: matplotlib passes it to its tick formatters, and this function is one.

    Examples
    --------
    >>> [number_words(value) for value in (0.05123, 12, 1500, 2e6, 1e-4, float("nan"))]
    ['0.0512', '12', '1,500', '2·10⁶', '10⁻⁴', '–']
    """
    if not math.isfinite(value):
        return "–"
    if value == 0:
        return "0"
    size = abs(value)
    if 1e-3 <= size < 1e5:
        return f"{value:,.0f}" if size >= 999.5 else f"{value:.3g}"
    mantissa, exponent = f"{value:.2e}".split("e")
    power = "10" + str(int(exponent)).translate(_SUPERSCRIPT)
    mantissa = mantissa.rstrip("0").rstrip(".")
    return power if mantissa == "1" else f"{mantissa}·{power}"


def interval_words(estimate: Estimate) -> str:
    """A number with its interval.

    Examples
    --------
    >>> interval_words(Estimate(0.5, (0.25, 0.75), (6,)))
    '0.5 [0.25, 0.75]'
    >>> interval_words(Estimate(0.5, (float("nan"), float("nan")), (1,)))
    '0.5 (no interval)'
    """
    low, high = estimate.interval
    if not math.isfinite(estimate.number):
        return "–"
    ends = f"[{number_words(low)}, {number_words(high)}]" if math.isfinite(low) else "(no interval)"
    return f"{number_words(estimate.number)} {ends}"
