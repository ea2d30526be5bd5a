"""The Haar transform of a tree as a chain of plane rotations.

The value of a folder A is ``sum over A / √|A|``. Joining A and B into A ∪ B rotates their two values: one result is
the value of A ∪ B, the other the coefficient of the function that is positive on A and negative on B. A tree with n
leaves is n - 1 rotations of each fibre. The transform is orthogonal because every step is; its inverse is the chain
in reverse order with negated angles.
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
    """A chain of plane rotations of the rows of a working array, with the row of each input and output.

    Step k replaces rows (p, q) = (first[k], second[k]) by (sin·p + cos·q, sin·q - cos·p). The steps of one round
    use different rows and can be done at the same time.
    """

    first: Int[np.ndarray, " step"]
    second: Int[np.ndarray, " step"]
    cos: Float[np.ndarray, " step"]
    sin: Float[np.ndarray, " step"]
    round: Int[np.ndarray, " step"]  #: nondecreasing
    row_in: Int[np.ndarray, " input"]  #: row of each input
    row_out: Int[np.ndarray, " output"]  #: row of each output

    def inverse(self) -> Rotations:
        """Return the chain that undoes this one."""
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
        """Return the chain restricted to some of its outputs."""
        return replace(self, row_out=self.row_out[outputs])


def rotate_on_cpu(
    values: Float[Tensor, "outer input inner"], chain: Rotations
) -> Float[Tensor, "outer output inner"]:
    """Apply the chain in compiled code: every thread takes a block of fibres through all steps while in cache."""
    source = values.contiguous().numpy()
    out = np.empty((source.shape[0], len(chain.row_out), source.shape[2]), source.dtype)
    angles = chain.cos.astype(source.dtype), chain.sin.astype(source.dtype)
    rotate(source, (chain.first, chain.second), angles, chain.row_in, chain.row_out, out)
    return torch.from_numpy(out)


def rotate_by_rounds(
    values: Float[Tensor, "outer input inner"], chain: Rotations
) -> Float[Tensor, "outer output inner"]:
    """Apply the chain in torch, for tensors on any device: all steps of a round at once."""
    rows = torch.empty_like(values, memory_format=torch.contiguous_format)
    rows[:, torch.from_numpy(chain.row_in).to(values.device)] = values
    for at_once in np.split(np.arange(len(chain.round)), np.flatnonzero(np.diff(chain.round)) + 1):
        p, q = (torch.from_numpy(index[at_once]).to(values.device) for index in (chain.first, chain.second))
        cos, sin = (torch.from_numpy(a[at_once]).to(values)[:, None] for a in (chain.cos, chain.sin))
        at_p, at_q = rows[:, p], rows[:, q]
        rows[:, p] = sin * at_p + cos * at_q
        rows[:, q] = sin * at_q - cos * at_p
    return rows[:, torch.from_numpy(chain.row_out).to(values.device)]
