"""A run of a plain array as the data of its page: each axis with its slices, shown as heads of a network are.

The matrices of a slice lie along two other axes, averaged over the rest; an array of two axes is one matrix.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float, Int

from headtree.questionnaire.organization import Organization
from headtree.report.page.coded_matrices import WHOLE, Block, Grain, coded_blocks, small_pictures
from headtree.report.page.overview import columns_data, settings_rows, shortened, tree_data
from headtree.report.page.packing import packed
from headtree.report.page.page_data import CELLS, axis_orders
from headtree.report.words.array_answers import array_answers, beyond_noise
from headtree.report.words.slice_words import UNITS
from headtree.report.words.terms import ARRAY_TERMS
from headtree.runs.run import Run

if TYPE_CHECKING:
    from pandas import DataFrame

_ENTRIES_AT_A_TIME = 1 << 24

#: Slices that a folder's words name.
_NAMED = 6


def array_data(run: Run, room: int) -> dict[str, str]:
    """The packed parts of the page, within `room` bytes."""
    org = run.organization[0]
    values = np.asarray(run.array)
    axes = [_Axis(run, org, values, k) for k in range(values.ndim)]
    parts = {f"axis_{axis.number}": axis.part() for axis in axes}
    text = _core(run, org, axes)
    left = room - sum(map(len, parts.values())) - len(packed(text, {})) - 2000
    notes = []
    for axis in axes:
        share = left // (len(axes) - axis.number)
        grain, matrices = axis.matrices_within(share)
        left -= len(matrices)
        parts[f"values_{axis.number}"] = matrices
        if grain.cell > 1:
            sides = " and ".join(org.names[side] for side in axis.sides)
            notes.append(
                f"Slices of {axis.name} are averaged over boxes of {grain.cell} × {grain.cell} of {sides}."
            )
    return {"core": packed(text | {"left_out": notes}, {}), **parts}


def _core(run: Run, org: Organization, axes: Sequence[_Axis]) -> dict[str, Any]:
    """What is the same for all axes."""
    found = run.measures.sparsity
    return {
        "name": run.name,
        "kind": "array",
        "values": "array",
        "unit": asdict(UNITS["slice"]),
        "answers": [answer.to_dict() for answer in array_answers(run)],
        "like_noise": beyond_noise(run) is False,
        "shape": list(org.shape),
        "missing": run.measures.missing,
        "status": str(org.status),
        "notes": [shortened(note, 500) for note in run.record.notes],
        "glossary": {},
        "families": [],
        "terms_explained": ARRAY_TERMS,
        "terms": [],
        "inputs": list(org.names),
        "counts": list(org.shape),
        "all_columns": list(dict.fromkeys(name for axis in axes for name in axis.table.columns)),
        "settings": settings_rows(run),
        "grains": {"values": []},
        "compression": [
            [order, n_for_90, n_for_99]
            for order, n_for_90, n_for_99 in zip(found.orders, found.n_for_90, found.n_for_99, strict=True)
        ],
        "n_coefficients": found.n_coefficients,
    }


@dataclass(frozen=True, eq=False)
class _Axis:
    """One axis of the array, and its slices."""

    run: Run
    org: Organization
    values: Float[np.ndarray, " ..."]
    number: int

    @property
    def name(self) -> str:
        return self.org.names[self.number]

    @property
    def is_whole(self) -> bool:
        """Whether the array is one matrix, which all slices share."""
        return self.values.ndim == 2

    @property
    def sides(self) -> tuple[int, int]:
        """The axes along which matrices lie: the last two others; of a matrix its own two."""
        others = [axis for axis in range(self.values.ndim) if self.is_whole or axis != self.number]
        return others[-2], others[-1]

    @cached_property
    def table(self) -> DataFrame:
        """The table of slices, which begins with their names."""
        table = self.run.tables[self.name]
        names = [shortened(str(label)) for label in table["label" if "label" in table else "slice"]]
        rest = table.drop(columns=[column for column in ("label", "slice") if column in table])
        rest.insert(0, "name", names)
        return rest

    @cached_property
    def kind(self) -> str:
        """Whether zero is the middle of the colour scale: it is where values have both signs."""
        return "diverging" if np.nanmin(self.values) < 0 < np.nanmax(self.values) else "values"

    @property
    def shape(self) -> tuple[int, int, int]:
        """Matrices, rows, columns."""
        rows, columns = (self.values.shape[side] for side in self.sides)
        return 1 if self.is_whole else self.values.shape[self.number], rows, columns

    def blocks(self) -> Iterator[Block]:
        """Some matrices at a time, with what is present."""
        if self.is_whole:
            yield _present(self.values[None])
            return
        first = np.moveaxis(self.values, (self.number, *self.sides), (0, -2, -1))
        step = max(1, _ENTRIES_AT_A_TIME // max(1, first[0].size))
        for start in range(0, len(first), step):
            block, allowed = _present(np.asarray(first[start : start + step], dtype=np.float64))
            rest = tuple(range(1, block.ndim - 2))
            counts = allowed.sum(axis=rest)
            yield block.sum(axis=rest) / np.maximum(counts, 1), counts > 0

    def part(self) -> str:
        """Table, tree, affinities and orders of the axis, and small pictures of its slices."""
        text, arrays = self._group()
        pictures, codes = small_pictures(self.blocks(), self.shape, self.kind)
        text["thumbnails"] = pictures
        rows, columns = self.sides
        labels = [self._labels(side) for side in self.sides]
        sides = {"sides": [self.org.names[rows], self.org.names[columns]], "queries": labels[0], "keys": labels[1]}
        orders = axis_orders(self.org, rows, "query") | axis_orders(self.org, columns, "key")
        others = [name for axis, name in enumerate(self.org.names) if axis not in (*self.sides, self.number)]
        whole = {
            "whole": self.is_whole,
            "over": others,
            "axis": self.sides.index(self.number) if self.is_whole else -1,
        }
        return packed(text | sides | whole, arrays | codes | orders)

    def _group(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        table, org, k = self.table, self.org, self.number
        columns, arrays = columns_data(table)
        names = table["name"].tolist()

        def words(folders: list[Int[np.ndarray, " slice"]]) -> list[str]:
            return [_folder_words([names[i] for i in own]) for own in folders]

        tree, tree_text, tree_arrays = tree_data(
            "all_axis", org.trees[k], org.order(k), org.all_affinities(k), words
        )
        text = {
            "columns": columns,
            "n_heads": len(table),
            "axis_name": self.name,
            "similarities": [{"kind": "axis", "title": self.name, "meaning": ""}],
            tree: tree_text,
        }
        return text, arrays | {f"{tree}_{part}": array for part, array in tree_arrays.items()}

    def _labels(self, axis: int) -> list[str]:
        table = self.run.tables[self.org.names[axis]]
        return [shortened(str(label)) for label in table["label" if "label" in table else "slice"]]

    def matrices_within(self, room: int) -> tuple[Grain, str]:
        """The matrices as finely as they fit into this room: in 8 bits, in 4, or averaged over boxes."""
        for grain in (WHOLE, *(Grain(cell, 4) for cell in CELLS)):
            made = packed(*coded_blocks(self.blocks(), self.kind, grain))
            if len(made) <= room or grain.cell >= max(self.shape[1:]):
                break
        return grain, made


def _present(values: Float[np.ndarray, " ..."]) -> tuple[Float[np.ndarray, " ..."], Bool[np.ndarray, " ..."]]:
    """The values with zeros for what is missing, and what is there."""
    missing = np.isnan(values)
    return np.where(missing, 0, values), ~missing


def _folder_words(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_NAMED])
    return f"{len(names)} slices: {shown}{', …' if len(names) > _NAMED else ''}."
