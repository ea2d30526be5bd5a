"""Diffusion coordinates of the heads of a consensus, for maps and for the order of its tree."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from headtree.geometry.diffusion import diffusion_map
from headtree.measures.consensus import Consensus


def consensus_coordinates(consensus: Consensus) -> Float[np.ndarray, "head 3"]:
    """Three diffusion coordinates of the affinity of all inputs; 0 where there are fewer."""
    n = len(consensus.affinity)
    found = np.zeros((n, 3))
    if n > 1:
        points = np.asarray(diffusion_map(consensus.affinity, min(3, n - 1)).coordinates)
        found[:, : points.shape[1]] = points
    return found
