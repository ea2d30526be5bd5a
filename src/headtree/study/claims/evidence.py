"""What the tests of claims are made from: the numbers of one network on one input."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from headtree.measures.entropy import head_entropy
from headtree.measures.invariance import SoftmaxInvariance, softmax_invariance
from headtree.measures.orders import check_pair
from headtree.measures.per_input import MeasuredInput
from headtree.questionnaire.organization import Organization
from headtree.study.claims.clusters import Clustering, clustering
from headtree.tensor.attention_tensor import AttentionTensor


@dataclass(frozen=True, eq=False)
class ClaimNumbers:
    """What claims are tested on beyond what every run measures."""

    coefficients: Float[np.ndarray, "head function"]  #: those that make the entropy of each head
    variation: Float[np.ndarray, " head"]  #: mean absolute step between neighbours in organized order
    variation_relative: Float[np.ndarray, " head"]  #: the same over the head's root mean square
    clusters: Clustering
    softmax: SoftmaxInvariance | None  #: of all heads; None for probabilities


@dataclass(frozen=True, eq=False)
class Evidence:
    """Everything that claims are tested on, of one network on one input, without the tensor itself."""

    measured: MeasuredInput  #: as the run has it
    beyond: ClaimNumbers


def measure_beyond(att: AttentionTensor, org: Organization, head_functions: int, *, rng: int = 0) -> ClaimNumbers:
    """Measure on one input what its run did not.

    Parameters
    ----------
    att : AttentionTensor
        Of kind "scores", or "probs": then what is about the inside of softmax is left out.
    org : Organization
        Of `att`.
    head_functions : int
        Functions that make a head's entropy.
    rng : int
        For the clusters of structureless heads.
    """
    check_pair(att, org)
    whole = replace(att, values=att.filled().values, mask=None)  # filled once for all
    variation, size = _variation(whole.values, org)
    return ClaimNumbers(
        coefficients=head_entropy(whole, org, head_functions).coefficients,
        variation=variation,
        variation_relative=np.divide(variation, size, out=np.zeros_like(size), where=size > 0),
        clusters=clustering(org.distances[0], rng=rng),
        softmax=softmax_invariance(whole, org) if att.kind == "scores" else None,
    )


def _variation(
    values: Float[Tensor, "head query key"], org: Organization
) -> tuple[Float[np.ndarray, " head"], Float[np.ndarray, " head"]]:
    """Mean absolute step to the next query and key in organized order, and root mean square, of every head."""
    rows, columns = (torch.from_numpy(org.order(axis)) for axis in (1, 2))
    steps, sizes = [], []
    for head in values:
        x = head[rows][:, columns].double()
        steps.append(sum(float(x.diff(dim=dim).abs().mean()) for dim in (0, 1) if x.shape[dim] > 1))
        sizes.append(float(x.square().mean().sqrt()))
    return np.array(steps), np.array(sizes)
