"""Doubly normalised attention, in which every key gets attention: an optional transform before organizing."""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from headtree import _checks
from headtree.errors import InvalidTypeError
from headtree.tensor.attention_tensor import AttentionTensor
from headtree.tensor.probabilities import HeadBlock, head_blocks


def doubly_normalized(att: AttentionTensor, n_iter: int = 1) -> AttentionTensor:
    """Normalise over queries, then over keys, `n_iter` times (Ding et al. 2020; Sinkhorn and Knopp 1967).

    Parameters
    ----------
    att : AttentionTensor
        Scores, whose exponentials are normalised, or probabilities.
    n_iter : int
        1 is the attention of Ding et al.: the column sum of every key is then at least 1 / number of keys. More
        iterations approach a doubly stochastic matrix, if the mask allows one. Under a causal mask the only one is
        the identity, so more than one iteration destroys the pattern of the head.

    Returns
    -------
    AttentionTensor
        Probabilities whose rows sum to one, with the same mask; sinks are ignored.

    Examples
    --------
    Every key receives at least 1/6 of a query's attention:

    >>> import headtree as ht
    >>> import numpy as np
    >>> att = ht.AttentionTensor.from_array(np.random.default_rng(0).normal(size=(2, 6, 6)) * 3)
    >>> normalized = ht.doubly_normalized(att)
    >>> normalized.kind, bool((normalized.values.sum(1) >= 1 / 6 - 1e-9).all())
    ('probs', True)
    """
    if not isinstance(att, AttentionTensor):
        raise InvalidTypeError(f"att must be an AttentionTensor, got {type(att).__name__}")
    n_iter = _checks.at_least_one(n_iter, "n_iter")
    att = att.load()
    values = torch.cat([_normalized(block, n_iter) for block in head_blocks(att)])
    about = {**att.provenance, "doubly_normalized": n_iter}
    return replace(att, values=values, kind="probs", sinks=None, provenance=about)


def _normalized(block: HeadBlock, n_iter: int) -> Float[Tensor, "head query key"]:
    """Normalise logarithms, so that scores of any size stay in range."""
    logs = block.probs.log() if block.scores is None else block.scores
    logs = logs.masked_fill(~block.allowed, -torch.inf)
    for _ in range(n_iter):
        for axis in (1, 2):
            sums = torch.logsumexp(logs, dim=axis, keepdim=True)
            logs = logs - torch.where(sums.isfinite(), sums, 0)  # a key that no query attends to stays at zero
    return logs.exp()
