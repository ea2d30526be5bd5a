"""The Haar transform of a tree as a chain of plane rotations.

A folder A with leaves enters as ``sum over A / √|A|``. Joining A with B into A ∪ B is a rotation of that
pair: one part is the value of A ∪ B, the other the coefficient of the function that is positive on A and
negative on B. A tree of n leaves is n - 1 rotations, each done once per fibre: the transform is orthogonal
because every step is, and its inverse is the same chain backwards with the angles reversed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from headtree.bases.rotation_kernels import rotate


@dataclass(frozen=True, eq=False)
class Rotations:
    """Rows of a working array go in, are rotated pair by pair, and come out in another order.

    Step k replaces rows (p, q) = (first[k], second[k]) by (sin·p + cos·q, sin·q - cos·p). Steps of one round
    touch different rows, so that they may be done at once.
    """

    first: Int[np.ndarray, " step"]
    second: Int[np.ndarray, " step"]
    cos: Float[np.ndarray, " step"]
    sin: Float[np.ndarray, " step"]
    round: Int[np.ndarray, " step"]  #: not falling
    row_in: Int[np.ndarray, " input"]  #: row that each input goes to
    row_out: Int[np.ndarray, " output"]  #: row that each output comes from

    def inverse(self) -> Rotations:
        """The chain that undoes this one."""
        return Rotations(
            first=self.first[::-1].copy(),
            second=self.second[::-1].copy(),
            cos=-self.cos[::-1],
            sin=self.sin[::-1].copy(),
            round=(self.round.max(initial=0) - self.round)[::-1].copy(),
            row_in=self.row_out,
            row_out=self.row_in,
        )

    def only(self, outputs: Int[np.ndarray, " wanted"]) -> Rotations:
        """The chain with some of its outputs only."""
        return replace(self, row_out=self.row_out[outputs])


def rotate_on_cpu(
    values: Float[Tensor, "outer input inner"], chain: Rotations
) -> Float[Tensor, "outer output inner"]:
    """Compiled: every thread takes a block of fibres through all steps while it is in cache."""
    source = values.contiguous().numpy()
    out = np.empty((source.shape[0], len(chain.row_out), source.shape[2]), source.dtype)
    angles = chain.cos.astype(source.dtype), chain.sin.astype(source.dtype)
    rotate(source, (chain.first, chain.second), angles, chain.row_in, chain.row_out, out)
    return torch.from_numpy(out)


def rotate_by_rounds(
    values: Float[Tensor, "outer input inner"], chain: Rotations
) -> Float[Tensor, "outer output inner"]:
    """The same with torch alone, for tensors on any device: the steps of a round at once."""
    rows = torch.empty_like(values, memory_format=torch.contiguous_format)
    rows[:, torch.from_numpy(chain.row_in).to(values.device)] = values
    for at_once in np.split(np.arange(len(chain.round)), np.flatnonzero(np.diff(chain.round)) + 1):
        p, q = (torch.from_numpy(index[at_once]).to(values.device) for index in (chain.first, chain.second))
        cos, sin = (torch.from_numpy(a[at_once]).to(values)[:, None] for a in (chain.cos, chain.sin))
        at_p, at_q = rows[:, p], rows[:, q]
        rows[:, p] = sin * at_p + cos * at_q
        rows[:, q] = sin * at_q - cos * at_p
    return rows[:, torch.from_numpy(chain.row_out).to(values.device)]
