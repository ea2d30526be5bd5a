"""A run as the data of its page, within a budget of bytes.

Matrices take most of the room. Those of as many inputs as fit are whole; of the others, cells are averages over
boxes, or they are left out. Then come Haar coefficients and paraproduct terms of every head, otherwise of one head
of each family, and last 8 bits for each cell instead of 4. The page lists what is missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Int

from headtree.questionnaire.organization import Organization
from headtree.report.page.coded_matrices import WHOLE, Grain, coded_matrices, thumbnails
from headtree.report.page.details import N_COEFFICIENTS, N_TERM_BLOCKS, TERMS, Details, details
from headtree.report.page.overview import core, representatives, shortened
from headtree.report.page.packing import packed
from headtree.report.page.page_sections import sections, thumbnail
from headtree.report.words.slice_words import all_said_of

if TYPE_CHECKING:
    from headtree.runs.run import Run

#: Sides of cells that are tried, finest first.
CELLS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)

#: By how much the cells of the inputs that are not shown as finely as the first may be larger.
_COARSER = (2, 4, 8)

#: A matrix of fewer cells on a side than this is not worth showing, unless it is the only one.
_LEAST_CELLS = 32

#: No matrix takes fewer bytes for each cell than this: what is larger all the same need not be tried.
_BEST_RATIO = 0.02

#: Share of the room that matrices after softmax may take if those before it are shown too.
_SHARE_OF_PROBS = 0.6

#: By how much compression shrinks coefficients and terms, for planning.
_DETAIL_RATIO = 0.5

#: Most entries of matrices for which coefficients and terms of all heads are computed: more would take too long.
_DETAIL_ENTRIES = 1 << 26

#: Bytes of the core that are added once the plan is known: the notes.
_NOTES = 4000


@dataclass(frozen=True)
class PagePlan:
    """How much of a run the page holds."""

    grains: dict[str, tuple[Grain | None, ...]]  #: of each input, for each of the kinds that are shown
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
        return _bytes(self.parts)


def page_data(run: Run, room: int) -> PageData:
    """All that fits into `room` bytes, in the order given above."""
    text, arrays = core(run)
    section_text, section_notes = sections(run)
    material = _Material(run)
    text["thumbnails"], pictures = thumbnails(run.attention[0], material.kinds[0])
    arrays |= pictures
    parts = {"core": packed(text, arrays), "sections": packed({"sections": section_text}, {})}
    few = sum(material.input_bound(i) for i in range(run.n_inputs))
    left = room - _bytes(parts) - few - _NOTES
    grains: dict[str, tuple[Grain | None, ...]] = {}
    for kind in material.kinds:
        share = _SHARE_OF_PROBS if kind == "probs" and len(material.kinds) > 1 else 1.0
        grains[kind] = tuple(_grains(material, kind, share * left))
        left -= _bytes(material.matrices_of({kind: grains[kind]}))
    inputs: dict[str, str] = {}
    every_head = material.affords_every_head(left + few)
    if every_head:
        inputs = {f"input_{i}": material.input_part(i, every_head=True) for i in range(run.n_inputs)}
        every_head = _bytes(inputs) <= left + few
    if not every_head:
        inputs = {f"input_{i}": material.input_part(i, every_head=False) for i in range(run.n_inputs)}
    left += few - _bytes(inputs)
    exact: dict[str, tuple[Grain | None, ...]] = dict.fromkeys(material.kinds, (WHOLE,) * run.n_inputs)
    if all(grain == Grain(1, 4) for own in grains.values() for grain in own):
        more = sum(material.size(kind, i, WHOLE) for kind in material.kinds for i in range(run.n_inputs))
        if more - _bytes(material.matrices_of(grains)) <= left:
            grains = exact
    parts |= inputs | material.matrices_of(grains)
    plan = PagePlan(grains, every_head)
    notes = (*_left_out(run, plan, material), *section_notes)
    text |= {
        "left_out": all_said_of(run.slices, notes),
        "grains": {kind: [grain and grain.cell for grain in own] for kind, own in grains.items()},
        "terms": list(TERMS),
    }
    return PageData(parts | {"core": packed(text, arrays)}, plan, notes)


def _bytes(parts: dict[str, str]) -> int:
    return sum(map(len, parts.values()))


def _grains(material: _Material, kind: str, room: float) -> list[Grain | None]:
    """The grain of each input's matrices: the first ones as fine as possible, all of them if they fit."""
    n = material.run.n_inputs

    def sizes(grain: Grain, first: int, end: int) -> Iterator[float]:
        return (material.size(kind, i, grain) for i in range(first, end))

    for cell in CELLS:
        fine = Grain(cell, 4)
        if cell > 1 and material.longest <= cell:
            break
        if _fits(sizes(fine, 0, n), room):
            return [fine for _ in range(n)]
        if not _fits(sizes(fine, 0, 1), room):
            continue
        for factor in _COARSER:
            coarse = Grain(cell * factor, 4)
            if material.longest // coarse.cell < _LEAST_CELLS:
                break
            for first in range(n - 1, 0, -1):
                if _fits(chain(sizes(fine, 0, first), sizes(coarse, first, n)), room):
                    return [fine if i < first else coarse for i in range(n)]
        if material.longest // cell >= _LEAST_CELLS or cell == 1:
            first = max(k for k in range(1, n) if k == 1 or _fits(sizes(fine, 0, k), room))
            return [fine if i < first else None for i in range(n)]
    return [Grain(_smallest(material.longest), 4), *[None] * (n - 1)]


def _fits(sizes: Iterator[float], room: float) -> bool:
    """Whether the sum is within the room; stops asking once it is not."""
    total = 0.0
    for size in sizes:
        total += size
        if total > room:
            return False
    return True


def _smallest(longest: int) -> int:
    """The cell of the coarsest matrix that is shown at all: eight on a side."""
    return max(1, -(-longest // 8))


@dataclass(frozen=True, eq=False)
class _Material:
    """What the page's data are made from, each computed once."""

    run: Run
    _made: dict[tuple[str, int, Grain], str] = field(default_factory=dict)

    @property
    def kinds(self) -> tuple[str, ...]:
        """What the page shows of each head: attention after softmax and, where it is known, before it.

        Numbers of both signs that no softmax is taken of are shown as they are.
        """
        return {"scores": ("probs", "scores"), "signed": ("signed",)}.get(self.run.kind, ("probs",))

    @cached_property
    def shapes(self) -> list[tuple[int, int, int]]:
        return [self.run.attention[i].shape for i in range(self.run.n_inputs)]

    @property
    def longest(self) -> int:
        """Length of the longest side of a matrix."""
        return max(max(shape[1:]) for shape in self.shapes)

    def _detail_bytes(self, i: int) -> int:
        """Bytes of coefficients and terms of one head on an input, before compression."""
        n_blocks = [min(n, N_TERM_BLOCKS) for n in self.shapes[i][1:]]
        return N_COEFFICIENTS + len(TERMS) * int(np.prod(n_blocks)) + 100

    def affords_every_head(self, room: float) -> bool:
        """Whether coefficients and terms of all heads are quickly computed and likely to take at most this room."""
        n_bytes = _DETAIL_RATIO * self.shapes[0][0] * sum(map(self._detail_bytes, range(self.run.n_inputs)))
        return n_bytes <= room and sum(int(np.prod(shape)) for shape in self.shapes) <= _DETAIL_ENTRIES

    def input_bound(self, i: int) -> int:
        """Most bytes that `input_part` takes with the chosen heads only."""
        att = self.run.attention[i]
        words = sum(len(shortened(token)) + 4 for token in (*att.queries, *att.keys))
        return (
            4 * (len(self.chosen) * self._detail_bytes(i) + 2 * words) // 3
            + len(thumbnail(self.run, i) or "")
            + 20_000
        )

    @cached_property
    def chosen(self) -> Int[np.ndarray, " head"]:
        """Heads with coefficients and terms where not all have them."""
        return representatives(self.run)

    def size(self, kind: str, i: int, grain: Grain) -> float:
        """Bytes of the matrices of an input; of those that are surely too large, a lower bound."""
        n_heads, *sides = self.shapes[i]
        n_cells = n_heads * int(np.prod([-(-n // grain.cell) for n in sides]))
        least = _BEST_RATIO * n_cells * grain.bits / 4
        return least if least > 10_000_000 else len(self.matrices(kind, i, grain))

    def matrices(self, kind: str, i: int, grain: Grain) -> str:
        """The packed matrices of one input."""
        key = (kind, i, grain)
        if key not in self._made:
            att = self.run.values[i] if kind == "scores" else self.run.attention[i]
            self._made[key] = packed(*coded_matrices(att, kind, grain))
        return self._made[key]

    def matrices_of(self, grains: Mapping[str, tuple[Grain | None, ...]]) -> dict[str, str]:
        """All packed matrices of a plan, by name."""
        return {
            f"{kind}_{i}": self.matrices(kind, i, grain)
            for kind, own in grains.items()
            for i, grain in enumerate(own)
            if grain is not None
        }

    def input_part(self, i: int, every_head: bool) -> str:
        """Tokens, orders, coefficients and terms of one input."""
        att, org = self.run.values[i], self.run.organization[i]
        heads = np.arange(self.shapes[0][0]) if every_head else self.chosen
        text: dict[str, Any] = {
            "queries": [shortened(token) for token in att.queries],
            "keys": [shortened(token) for token in att.keys],
            "image": thumbnail(self.run, i),
        }
        arrays: dict[str, np.ndarray] = {}
        for name, axis in (("query", 1), ("key", 2)):
            arrays |= axis_orders(org, axis, name)
        detail_text, detail_arrays = _detail_arrays(details(att, org, heads.tolist()))
        return packed(text | detail_text, arrays | detail_arrays)


def axis_orders(org: Organization, axis: int, name: str) -> dict[str, np.ndarray]:
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
        "terms_rows": own.rows.starts.astype(np.int32),
        "terms_columns": own.columns.starts.astype(np.int32),
    }
    return {"n_filled": own.n_filled}, arrays


_KIND_WORDS = {"probs": "Matrices after softmax", "scores": "Matrices before softmax"}


def _left_out(run: Run, plan: PagePlan, material: _Material) -> Iterator[str]:
    n_heads = material.shapes[0][0]
    if not plan.every_head:
        yield (
            f"Haar coefficients and paraproduct terms are included for {len(material.chosen)} of {n_heads} heads: "
            "in each family the head nearest to the others, and the head shown first."
        )
    for kind, grains in plan.grains.items():
        what = _KIND_WORDS[kind] if len(plan.grains) > 1 else "Matrices"
        if set(grains) <= {WHOLE, Grain(1, 4)}:
            continue
        runs = "; ".join(f"{_grain_words(grain)}: {_inputs(own)}" for grain, own in _grouped(grains))
        yield f"{what} by input: {runs}."
    if any(grain is None for own in plan.grains.values() for grain in own):
        yield "Trees, scores and stability cover all inputs."


def _grain_words(grain: Grain | None) -> str:
    if grain is None:
        return "left out"
    return "whole" if grain.cell == 1 else f"averaged over boxes of {grain.cell} × {grain.cell} entries"


def _grouped(grains: tuple[Grain | None, ...]) -> list[tuple[Grain | None, list[int]]]:
    found: dict[Grain | None, list[int]] = {}
    for i, grain in enumerate(grains):
        found.setdefault(grain, []).append(i)
    return list(found.items())


def _inputs(own: list[int]) -> str:
    return str(own[0]) if len(own) == 1 else f"{own[0]}-{own[-1]}"
