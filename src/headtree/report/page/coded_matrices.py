"""Matrices of all heads in a few bits for each cell, whole or averaged over boxes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, UInt8

from headtree.tensor.attention_tensor import AttentionTensor
from headtree.tensor.probabilities import head_blocks

#: Cells on a side of a thumbnail, and on one of many heads.
_THUMBNAIL, _SMALL_THUMBNAIL, _MANY_HEADS = 32, 16, 400

#: A tensor on disk is read some heads at a time.
_ENTRIES_AT_A_TIME = 1 << 24

#: A thumbnail's scale ends at this share of its cells: one bright cell does not darken the others.
_BRIGHT = 0.995

#: Rows of probabilities add up to 1 within this; the sums of others are stored.
_ROUNDING = 2e-3

#: Kinds whose scale is symmetric about 0.
_SIGNED = ("scores", "signed", "diverging")

#: Kinds of which the square root is coded, with the sign if there is one, since most of their values are small.
_ROOTS = ("probs", "signed")


class Grain(NamedTuple):
    """How finely a matrix is stored."""

    cell: int  #: queries and keys on a side of a cell; 1 for the whole matrix
    bits: int  #: 8 or 4

    @property
    def largest(self) -> int:
        """The code of the largest value; the next one means missing."""
        return (1 << self.bits) - 2


WHOLE = Grain(1, 8)

#: Some matrices, and which of their entries are present.
Block = tuple[Float[np.ndarray, "head query key"], Bool[np.ndarray, "#head query key"]]


class Scale(NamedTuple):
    """Code c means ``low + (high - low) · (c / largest) ** power``.

    With `low` = -`high` it means ``high · sign(t) · |t| ** power`` where ``t = 2 c / largest - 1``.
    """

    low: Float[np.ndarray, " head"]
    high: Float[np.ndarray, " head"]
    power: float


def coded_matrices(att: AttentionTensor, kind: str, grain: Grain) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The matrices of an input as text and arrays of a part of the page.

    Parameters
    ----------
    att : AttentionTensor
        One input.
    kind : str
        "probs": after softmax, on a scale from 0; "scores": before it, on a scale that is symmetric about 0;
        "signed": on such a scale too. Of "probs" and "signed" the square root is coded. Rows of "probs" are
        known to add up to 1, or to `sums`, which makes up for much of what few bits lose.
    grain : Grain
        Size of cells and number of bits.
    """
    return coded_blocks(_blocks(att, kind), kind, grain)


def coded_blocks(blocks: Iterable[Block], kind: str, grain: Grain) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The same for blocks of matrices of an array.

    Those of kind "values" have a scale from the least to the largest, those of kind "diverging" one about 0.
    """
    codes, lows, highs, sums = [], [], [], []
    power = 2.0 if kind in _ROOTS else 1.0
    for values, allowed in blocks:
        means = box_means(values, allowed, grain.cell)
        scale = _scale(means, kind)
        codes.append(coded(means, scale, grain))
        lows.append(scale.low)
        highs.append(scale.high)
        sums.append(_row_sums(means))
    whole = np.concatenate(codes)
    text = {
        "kind": kind,
        "signed": kind in _SIGNED,
        "power": power,
        "cell": grain.cell,
        "bits": grain.bits,
        "shape": whole.shape,
    }
    packed = nibbles(whole) if grain.bits == 4 else whole
    arrays = {"codes": packed, "low": np.concatenate(lows), "high": np.concatenate(highs)}
    if kind == "probs" and not np.allclose(known := np.concatenate(sums), 1, atol=_ROUNDING):
        arrays["sums"] = known
    return text, arrays


def _row_sums(means: Float[np.ndarray, "head row column"]) -> Float[np.ndarray, "head row"]:
    """What each row adds up to, 1 where all of it is missing."""
    is_empty = np.isnan(means).all(axis=2)
    return np.asarray(np.where(is_empty, 1, np.nansum(means, axis=2)), dtype=np.float32)


def _blocks(att: AttentionTensor, kind: str) -> Iterator[Block]:
    """Some heads at a time, with what is present."""
    if kind == "probs" and att.kind == "scores":
        for block in head_blocks(att):
            yield block.probs.numpy(), block.allowed.numpy()
        return
    n_heads, n_queries, n_keys = att.shape
    step = max(1, _ENTRIES_AT_A_TIME // (n_queries * n_keys))
    for start in range(0, n_heads, step):
        heads = slice(start, start + step)
        values = att.block(heads).numpy()
        allowed = np.ones((1, n_queries, n_keys), bool) if att.mask is None else ~np.asarray(att.mask[heads], bool)
        yield np.where(allowed, values, 0), allowed


def box_means(
    values: Float[np.ndarray, "head query key"], allowed: Bool[np.ndarray, "#head query key"], cell: int
) -> Float[np.ndarray, "head row column"]:
    """Mean of the present entries of every box of `cell` × `cell` entries; nan where none is present.

    All boxes are equal except the last: boxes of unequal size would draw patterns that are not in the data.
    """
    if cell == 1:
        return np.where(allowed, values, np.nan).astype(np.float32, copy=False)
    starts = [np.arange(0, n, cell) for n in values.shape[1:]]

    def sums(array: np.ndarray) -> np.ndarray:
        by_row = np.add.reduceat(array, starts[0], axis=1, dtype=np.float64)
        return np.asarray(np.add.reduceat(by_row, starts[1], axis=2))

    present = sums(allowed)
    total = sums(np.where(allowed, values, 0))
    means = np.divide(total, present, out=np.full(total.shape, np.nan), where=present > 0)
    return np.asarray(means, dtype=np.float32)


def _scale(means: Float[np.ndarray, "head row column"], kind: str) -> Scale:
    if kind in _SIGNED:
        most = np.nan_to_num(np.fmax.reduce(np.abs(means), axis=(1, 2))).astype(np.float32)
        return Scale(-most, most, 2.0 if kind in _ROOTS else 1.0)
    high = np.nan_to_num(np.fmax.reduce(means, axis=(1, 2))).astype(np.float32)
    if kind == "values":
        return Scale(np.nan_to_num(np.fmin.reduce(means, axis=(1, 2))).astype(np.float32), high, 1.0)
    return Scale(np.zeros_like(high), high, 2.0)


def coded(
    values: Float[np.ndarray, "head row column"], scale: Scale, grain: Grain
) -> UInt8[np.ndarray, "head row column"]:
    """The nearest code of each value."""
    low, high = scale.low[:, None, None], scale.high[:, None, None]
    share = np.clip((values - low) / np.where(high > low, high - low, 1), 0, 1)
    if scale.power == 2:
        is_signed = np.any(scale.low < 0)
        share = 0.5 + 0.5 * np.sign(2 * share - 1) * np.sqrt(np.abs(2 * share - 1)) if is_signed else np.sqrt(share)
    codes = np.rint(grain.largest * share)
    return np.where(np.isnan(values), grain.largest + 1, codes).astype(np.uint8)


def nibbles(codes: UInt8[np.ndarray, "head row column"]) -> UInt8[np.ndarray, "head byte"]:
    """Two codes in a byte, the first in its upper half; a head begins with a new byte."""
    flat = codes.reshape(len(codes), -1)
    if flat.shape[1] % 2:
        flat = np.pad(flat, ((0, 0), (0, 1)))
    return np.asarray(flat[:, ::2] << 4 | flat[:, 1::2])


def thumbnails(att: AttentionTensor, kind: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Every head as a small picture, each on a scale of its own."""
    return small_pictures(_blocks(att, kind), att.shape, kind)


def small_pictures(
    blocks: Iterable[Block], shape: tuple[int, int, int], kind: str
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The same for blocks of matrices, of this shape in all."""
    n_heads, n_queries, n_keys = shape
    size = _SMALL_THUMBNAIL if n_heads > _MANY_HEADS else _THUMBNAIL
    grain = Grain(max(1, -(-max(n_queries, n_keys) // size)), 4)
    codes = []
    for values, allowed in blocks:
        means = box_means(values, allowed, grain.cell)
        codes.append(coded(means, _bright_scale(means, kind), grain))
    whole = np.concatenate(codes)
    text = {"shape": whole.shape, "cell": grain.cell, "signed": kind in _SIGNED}
    return text, {"thumbnails": nibbles(whole)}


def _bright_scale(means: Float[np.ndarray, "head row column"], kind: str) -> Scale:
    """A scale that ends where nearly all cells do."""
    present = np.where(np.isfinite(means).any(axis=(1, 2), keepdims=True), means, 0)

    def end(values: np.ndarray, share: float) -> Float[np.ndarray, " head"]:
        return np.asarray(np.nan_to_num(np.nanquantile(values, share, axis=(1, 2))), dtype=np.float32)

    if kind in _SIGNED:
        most = end(np.abs(present), _BRIGHT)
        return Scale(-most, most, 2.0 if kind in _ROOTS else 1.0)
    high = end(present, _BRIGHT)
    if kind == "values":
        return Scale(end(present, 1 - _BRIGHT), high, 1.0)
    return Scale(np.zeros_like(high), high, 2.0)
