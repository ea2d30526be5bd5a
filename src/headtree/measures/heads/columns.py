"""Columns of values, some of which may be missing for a stated reason, and their averages over inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float


@dataclass(frozen=True, eq=False)
class Column:
    """One measure for every row; nan where it is undefined, with the reason."""

    values: Float[np.ndarray, " row"]
    reason: str = ""  #: applies to the rows that are nan

    @classmethod
    def missing(cls, n: int, reason: str) -> Column:
        """Make a column without any values."""
        return cls(np.full(n, np.nan), reason)


def joined_columns(tables: Sequence[dict[str, Column]]) -> dict[str, Column]:
    """The same columns of further rows, one table after the other."""
    return {
        name: Column(np.concatenate([table[name].values for table in tables]), column.reason)
        for name, column in tables[0].items()
    }


@dataclass(frozen=True, eq=False)
class Averages:
    """Columns over several inputs: mean and standard deviation of the values that exist."""

    mean: dict[str, Float[np.ndarray, " row"]]  #: without columns that have no value on any input
    spread: dict[str, Float[np.ndarray, " row"]]  #: nan where fewer than two inputs have a value
    missing: dict[str, str]  #: reason for every column that lacks a value somewhere


def averages(tables: Sequence[dict[str, Column]]) -> Averages:
    """Compute the mean and standard deviation over inputs of columns with the same name."""
    mean, spread, missing = {}, {}, {}
    for name in {name: None for table in tables for name in table}:
        columns = [table[name] for table in tables if name in table]
        values = np.stack([column.values for column in columns])
        count = (~np.isnan(values)).sum(axis=0)
        if (count < len(tables)).any():
            missing[name] = _reason(columns, len(tables))
        if count.any():
            sums = np.nansum(values, axis=0)
            mean[name] = np.divide(sums, count, out=np.full(len(count), np.nan), where=count > 0)
            squares = np.nansum((values - mean[name]) ** 2, axis=0)
            spread[name] = np.sqrt(np.divide(squares, count - 1, out=np.full(len(count), np.nan), where=count > 1))
    return Averages(mean, spread, missing)


def _reason(columns: Sequence[Column], n_inputs: int) -> str:
    reasons = [column.reason for column in columns if np.isnan(column.values).any()]
    distinct = "; ".join(dict.fromkeys(reasons))
    return distinct if len(reasons) in (0, n_inputs) else f"{distinct} (on {len(reasons)} of {n_inputs} inputs)"
