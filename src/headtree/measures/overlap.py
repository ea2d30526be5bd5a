"""Which measures of heads another measure already captures: rank correlations over heads, with intervals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from headtree import _checks
from headtree.errors import InvalidTypeError, InvalidValueError
from headtree.measures.comparisons import rank_correlation, resampled_rank_correlations

if TYPE_CHECKING:
    from pandas import DataFrame

#: A measure counts as largely contained if its whole interval lies beyond this correlation.
_LARGELY = 0.7

_LABELS = ("name", "layer", "head", "role", "leaning", "family")


def overlap(
    heads: DataFrame,
    reference: str = "structure",
    *,
    columns: Any = None,
    confidence: float = 0.95,
    n_bootstrap: int = 1000,
    rng: int | np.random.Generator = 0,
) -> DataFrame:
    """Correlate every measure of heads with a reference measure (Spearman), strongest first.

    Parameters
    ----------
    heads : DataFrame
        One row per head: `Run.heads`, or ``diagnostics(...).heads`` with an added column.
    reference : str
        The column to compare with; by default the structure score, the l1 norm of Haar coefficients.
    columns : sequence of str, optional
        The columns to compare; by default all numeric columns except labels.
    confidence : float
        Confidence level of the interval, from resampling the heads `n_bootstrap` times. Heads of one layer are not
        independent, so true intervals are wider.
    n_bootstrap : int
        Number of resamples.
    rng : int or numpy Generator
        Source of the resamples.

    Returns
    -------
    DataFrame
        measure, correlation, low, high, n_heads, and `contained`: "largely" if the interval lies beyond ±0.7,
        "partly" if it excludes 0, "no" otherwise, and "" for a measure that is the same for all heads.

    Examples
    --------
    >>> import headtree as ht
    >>> import numpy as np
    >>> import pandas as pd
    >>> score = np.arange(20.0)
    >>> heads = pd.DataFrame({"structure": score, "spread": score**2, "sign": np.tile([1.0, -1.0], 10)})
    >>> table = ht.overlap(heads)
    >>> dict(zip(table["measure"], table["contained"]))
    {'spread': 'largely', 'sign': 'no'}
    """
    import pandas as pd

    if not isinstance(heads, pd.DataFrame):
        raise InvalidTypeError(f"heads must be a DataFrame with a row per head, got {type(heads).__name__}")
    known = heads.select_dtypes("number").columns
    if not isinstance(reference, str) or reference not in known:
        raise InvalidValueError(f"reference must be a numeric column of heads, {list(known)}, got {reference!r}")
    if not 0 < _checks.finite_number(confidence, "confidence") < 1:
        raise InvalidValueError(f"confidence must be between 0 and 1, got {confidence}")
    n_bootstrap = _checks.at_least_one(n_bootstrap, "n_bootstrap")
    wanted = (
        [name for name in known if name not in _LABELS]
        if columns is None
        else _checks.as_list(columns, "columns", "names")
    )
    unknown = [name for name in wanted if not isinstance(name, str) or name not in known]
    if unknown:
        raise InvalidValueError(f"columns must be numeric columns of heads, got {unknown}; there are {list(known)}")
    generator = _checks.generator(rng)
    rows = [
        _row(
            name, heads[name].to_numpy(float), heads[reference].to_numpy(float), confidence, n_bootstrap, generator
        )
        for name in wanted
        if name != reference
    ]
    table = pd.DataFrame(rows, columns=["measure", "correlation", "low", "high", "n_heads", "contained"])
    strength = table["correlation"].abs().fillna(-1.0)
    return table.loc[strength.sort_values(ascending=False, kind="stable").index].reset_index(drop=True)


def _row(
    name: str,
    values: Float[np.ndarray, " head"],
    reference: Float[np.ndarray, " head"],
    confidence: float,
    n_bootstrap: int,
    rng: np.random.Generator,
) -> dict[str, Any]:
    there = np.isfinite(values) & np.isfinite(reference)
    x, y = values[there], reference[there]
    n = int(there.sum())
    found = rank_correlation(x, y)
    low = high = float("nan")
    if np.isfinite(found):
        draws = rng.integers(n, size=(n_bootstrap, n))
        tail = (1 - confidence) / 2
        low, high = (float(q) for q in np.nanquantile(resampled_rank_correlations(x, y, draws), [tail, 1 - tail]))
    return {
        "measure": name,
        "correlation": found,
        "low": low,
        "high": high,
        "n_heads": n,
        "contained": _contained(low, high),
    }


def _contained(low: float, high: float) -> str:
    if not np.isfinite(low):
        return ""
    if low >= _LARGELY or high <= -_LARGELY:
        return "largely"
    return "partly" if low > 0 or high < 0 else "no"
