"""A run as the data of its page, within a budget of bytes.

What does not fit is left out in a fixed order: coefficients and paraproduct terms of all heads except one of each
family, then resolution, then inputs. The page lists what is missing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Int, UInt8

from headtree.questionnaire.organization import Organization
from headtree.report.page.details import N_COEFFICIENTS, N_TERM_BLOCKS, TERMS, Details, details
from headtree.report.page.overview import core, representatives, shortened
from headtree.report.page.packing import packed
from headtree.report.page.page_sections import sections, thumbnail
from headtree.report.page.tiles import AxisBlocks, Tiles, boxes, coarser, coded, folder_blocks, tiles
from headtree.tensor.attention_tensor import AttentionTensor

if TYPE_CHECKING:
    from headtree.runs.run import Run

#: Cells on a side of a matrix, finest first.
_SIZES = (192, 128, 96, 80, 64, 56, 48, 40, 32, 24, 16, 8)

#: All heads have coefficients and terms if that leaves tiles of this size; otherwise only representatives do.
_SIZE_WORTH_DETAILS = 64

#: Inputs are left out before tiles become coarser than this.
_SIZE_WORTH_INPUTS = 32

#: Smallest ratio by which compression and base64 change the size of tiles; low enough to rule out no plan that
#: fits.
_BEST_RATIO = 0.3

#: Inputs differ in how well they compress; a plan is dropped when the first ones exceed their share by this factor.
_SLACK = 1.1

#: Coarser tiles and other inputs may compress this much better than those seen so far.
_NEARLY = 0.93

#: Ratio by which compression changes coefficients and terms, for planning.
_DETAIL_RATIO = 0.7

#: Most entries of matrices for which coefficients and terms of all heads are computed: more would take too long.
_DETAIL_ENTRIES = 1 << 26


class PagePlan(NamedTuple):
    """How much of a run the page holds."""

    size: int  #: cells on a side of a matrix, at most
    n_inputs: int
    every_head: bool  #: whether coefficients and terms are there for every head


@dataclass(frozen=True)
class PageData:
    """Packed data of a page by name, and what is missing, in words."""

    parts: dict[str, str]
    plan: PagePlan
    left_out: tuple[str, ...]

    @property
    def n_bytes(self) -> int:
        """Size of the parts in the page."""
        return sum(map(len, self.parts.values()))


def page_data(run: Run, room: int) -> PageData:
    """All that fits into `room` bytes, in the order given above."""
    text, arrays = core(run)
    section_text, section_notes = sections(run)
    rest = packed({"sections": section_text}, {})
    material = _Material(run)
    core_size = len(packed(text, arrays)) + len(rest) + 4000  # a few words are added below
    chosen, inputs = _first_that_fits(material, room - core_size)
    notes = (*_left_out(run, chosen, material), *section_notes)
    text |= {
        "left_out": notes,
        "n_shown": chosen.n_inputs,
        "tile_size": chosen.size,
        "terms": list(TERMS),
        "layers": int(run.heads["layer"].nunique()),
    }
    parts = {"core": packed(text, arrays), "sections": rest}
    return PageData(parts | {f"input_{i}": part for i, part in enumerate(inputs)}, chosen, notes)


def _first_that_fits(material: _Material, room: int) -> tuple[PagePlan, list[str]]:
    *plans, least = _plans(material)
    for plan in plans:
        if material.estimate(plan) <= room:
            parts = _parts(material, plan, room)
            if sum(map(len, parts)) <= room:
                return plan, parts
    return least, _parts(material, least, None)


def _parts(material: _Material, plan: PagePlan, room: int | None) -> list[str]:
    """The packed data of each input; ends early once it exceeds the room."""
    parts: list[str] = []
    for i in range(plan.n_inputs):
        parts.append(material.part(plan, i))
        if room is not None and sum(map(len, parts)) * plan.n_inputs > room * (i + 1) * _SLACK:
            parts.append(" " * room)  # the inputs to come would not fit either
            break
    return parts


def _plans(material: _Material) -> Iterator[PagePlan]:
    """From everything to the least, in the order of the module's docstring."""
    n_inputs, longest = material.run.n_inputs, material.longest
    sizes = [size for size in _SIZES if size < longest]
    if longest <= _SIZES[0]:
        sizes = [longest, *sizes]
    worth = [size for size in sizes if size >= _SIZE_WORTH_INPUTS] or sizes[:1]
    if material.affords_every_head:
        for size in sizes:
            if size >= _SIZE_WORTH_DETAILS or size == sizes[0]:
                yield PagePlan(size, n_inputs, True)
    for size in worth:
        yield PagePlan(size, n_inputs, False)
    for n in range(n_inputs - 1, 0, -1):
        yield PagePlan(worth[-1], n, False)
    for size in sizes:
        if size < worth[-1]:
            yield PagePlan(size, 1, False)


@dataclass(frozen=True, eq=False)
class _Material:
    """What the page's data are made from, each computed once."""

    run: Run
    _fine: dict[int, tuple[Tiles, Tiles]] = field(default_factory=dict)
    _details: dict[tuple[int, bool], Details] = field(default_factory=dict)
    _ratios: list[float] = field(default_factory=list)  #: bytes for each cell of the parts made so far

    @cached_property
    def shapes(self) -> list[tuple[int, int, int]]:
        return [self.run.attention[i].shape for i in range(self.run.n_inputs)]

    @property
    def longest(self) -> int:
        """Length of the longest side of a matrix."""
        return max(max(shape[1:]) for shape in self.shapes)

    @property
    def affords_every_head(self) -> bool:
        return sum(int(np.prod(shape)) for shape in self.shapes) <= _DETAIL_ENTRIES

    @cached_property
    def chosen(self) -> Int[np.ndarray, " head"]:
        """Heads with coefficients and terms where not all have them."""
        return representatives(self.run)

    def heads(self, plan: PagePlan) -> Int[np.ndarray, " head"]:
        return np.arange(self.shapes[0][0]) if plan.every_head else self.chosen

    def estimate(self, plan: PagePlan) -> float:
        """Bytes that the parts of a plan take at the least; nearer to the truth once one part has been made."""
        cells = self._cells(plan)
        n_details = sum(
            N_COEFFICIENTS + len(TERMS) * int(np.prod([min(n, N_TERM_BLOCKS) for n in shape[1:]]))
            for shape in self.shapes[: plan.n_inputs]
        )
        known = max(self._ratios, default=_BEST_RATIO)
        return known * sum(cells) + (_DETAIL_RATIO * n_details * len(self.heads(plan)) if plan.every_head else 0)

    def _cells(self, plan: PagePlan) -> list[int]:
        """Number of cells of both kinds of matrices, for each input."""
        sides = [[min(n, plan.size) for n in shape[1:]] for shape in self.shapes[: plan.n_inputs]]
        return [2 * shape[0] * a * b for shape, (a, b) in zip(self.shapes, sides, strict=False)]

    def part(self, plan: PagePlan, i: int) -> str:
        """The packed matrices of one input."""
        att, org = self.run.values[i], self.run.organization[i]
        own = self._details.get((i, plan.every_head))
        if own is None:
            own = self._details[i, plan.every_head] = details(att, org, self.heads(plan).tolist())
        text, arrays = _matrices(att, self._tiles(plan, i))
        for name, axis in (("query", 1), ("key", 2)):
            arrays |= _axis(org, axis, name)
        detail_text, detail_arrays = _detail_arrays(own)
        text |= detail_text | {"image": thumbnail(self.run, i)}
        result = packed(text, arrays | detail_arrays)
        if not plan.every_head:
            self._ratios.append(_NEARLY * len(result) / self._cells(plan)[i])
        return result

    def _tiles(self, plan: PagePlan, i: int) -> tuple[Tiles, Tiles]:
        att, org = self.run.values[i], self.run.organization[i]
        fine = self._fine.get(i)
        within = [(None, None)] * 2 if fine is None else [(f.rows, f.columns) for f in fine]
        pairs = [
            tuple(boxes(att.shape[axis], plan.size, old) for axis, old in zip((1, 2), within[0], strict=True)),
            tuple(
                folder_blocks(org.trees[axis], org.order(axis), plan.size, old)
                for axis, old in zip((1, 2), within[1], strict=True)
            ),
        ]
        if fine is None:
            as_is, organized = tiles(att, pairs)  # type: ignore[arg-type]
            self._fine[i] = (as_is, organized)
            return as_is, organized
        as_is, organized = (coarser(old, *pair) for old, pair in zip(fine, pairs, strict=True))
        return as_is, organized


def _matrices(att: AttentionTensor, both: tuple[Tiles, Tiles]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    power = 1.0 if att.kind == "scores" else 2.0
    low = np.fmin.reduce([np.fmin.reduce(t.means, axis=(1, 2)) for t in both])
    high = np.fmax.reduce([np.fmax.reduce(t.means, axis=(1, 2)) for t in both])
    low, high = np.nan_to_num(low), np.nan_to_num(high)
    if att.kind != "scores":
        low = np.zeros_like(low)
    arrays: dict[str, np.ndarray] = {"low": low, "high": high}
    for name, t in zip(("as_is", "organized"), both, strict=True):
        arrays |= {name: _filtered(coded(t.means, low, high, power).codes)}
        arrays |= _block_arrays(name, t.rows, t.columns)
    text = {
        "power": power,
        "queries": [shortened(token) for token in att.queries],
        "keys": [shortened(token) for token in att.keys],
        "missing": att.mask is not None,
    }
    return text, arrays


def _filtered(codes: UInt8[np.ndarray, "head row column"]) -> UInt8[np.ndarray, "head row column"]:
    """Each row minus the one above, modulo 256: smooth matrices compress better."""
    return np.diff(codes, axis=1, prepend=np.uint8(0))


def _block_arrays(name: str, rows: AxisBlocks, columns: AxisBlocks) -> dict[str, np.ndarray]:
    return {
        f"{name}_rows": rows.starts.astype(np.int32),
        f"{name}_columns": columns.starts.astype(np.int32),
    }


def _axis(org: Organization, axis: int, name: str) -> dict[str, np.ndarray]:
    """Display order of an axis, and the level on which each slice separates from the one before it."""
    order, labels = org.order(axis), org.trees[axis].labels
    apart = labels[:, order[1:]] != labels[:, order[:-1]]
    return {
        f"{name}_order": order.astype(np.int32),
        f"{name}_split": np.concatenate([[0], apart.argmax(axis=0)]).astype(np.uint8),
        f"{name}_levels": np.asarray(org.trees[axis].n_folders, dtype=np.int32),
    }


def _detail_arrays(own: Details) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    arrays = {
        "detail_heads": own.heads.astype(np.int32),
        "support": own.support.astype(np.int32),
        "moduli": own.moduli,
        "largest": own.largest,
        "octaves": own.octaves.astype(np.int32),
        "energy": own.energy,
        "terms": own.terms,
        "term_scale": own.term_scale,
        "shares": own.shares,
        **_block_arrays("terms", own.rows, own.columns),
    }
    return {"n_filled": own.n_filled}, arrays


def _left_out(run: Run, plan: PagePlan, material: _Material) -> Iterator[str]:
    n_heads = material.shapes[0][0]
    if not plan.every_head:
        n = len(material.chosen)
        yield (
            f"Haar coefficients and paraproduct terms are included for {n} of {n_heads} heads: in each family the "
            "head nearest to the others."
        )
    if plan.size < material.longest:
        yield (
            f"Matrices are averaged to at most {plan.size} × {plan.size} cells; the largest has "
            f"{' × '.join(str(n) for n in max(shape[1:] for shape in material.shapes))} entries."
        )
    if plan.n_inputs < run.n_inputs:
        yield (
            f"Matrices are included for the first {plan.n_inputs} of {run.n_inputs} inputs; trees, scores and "
            "stability cover all inputs."
        )
