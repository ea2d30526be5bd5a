"""The numbers that claims are tested on, for one network on one input."""

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
from headtree.measures.regularity import regularity
from headtree.questionnaire.organization import Organization
from headtree.study.claims.clusters import Clustering, clustering
from headtree.tensor.attention_tensor import AttentionTensor


@dataclass(frozen=True, eq=False)
class ClaimNumbers:
    """Numbers that the tests of claims need besides the measures of a run."""

    exponent: dict[str, Float[np.ndarray, " head"]]  #: mixed Hölder exponents on the trees of four orders
    constant: dict[str, Float[np.ndarray, " head"]]  #: and constants
    coefficients: Float[np.ndarray, "head function"]  #: coefficients that enter the entropy of each head
    variation: Float[np.ndarray, " head"]  #: mean absolute difference of neighbours in organized order
    variation_relative: Float[np.ndarray, " head"]  #: `variation` divided by the head's root mean square
    clusters: Clustering
    softmax: SoftmaxInvariance | None  #: of all heads; None for probabilities


@dataclass(frozen=True, eq=False)
class Evidence:
    """Everything that claims are tested on, for one network on one input, without the tensor itself."""

    measured: MeasuredInput  #: from the run
    beyond: ClaimNumbers


def measure_beyond(att: AttentionTensor, org: Organization, head_functions: int, *, rng: int = 0) -> ClaimNumbers:
    """Compute the numbers of one input that its run does not contain.

    Parameters
    ----------
    att : AttentionTensor
        Scores or probabilities; for probabilities, `softmax` is None.
    org : Organization
        Organization of `att`.
    head_functions : int
        Number of functions in a head's entropy.
    rng : int
        Seed of the random orders and of the null distribution of clusters.
    """
    check_pair(att, org)
    org.check_all_compared(0)
    whole = replace(att, values=att.filled().values, mask=None)  # filled once for all measures
    variation, size = _variation(whole.values, org)
    fits = regularity(whole, org, rng=rng).by_order
    return ClaimNumbers(
        exponent={order: fit.exponent for order, fit in fits.items()},
        constant={order: fit.constant for order, fit in fits.items()},
        coefficients=head_entropy(whole, org, head_functions).coefficients,
        variation=variation,
        variation_relative=np.divide(variation, size, out=np.zeros_like(size), where=size > 0),
        clusters=clustering(org.distances[0], rng=rng),
        softmax=softmax_invariance(whole, org) if att.kind == "scores" else None,
    )


def _variation(
    values: Float[Tensor, "head query key"], org: Organization
) -> tuple[Float[np.ndarray, " head"], Float[np.ndarray, " head"]]:
    """Mean absolute difference of neighbours in organized order, and root mean square, of every head."""
    rows, columns = (torch.from_numpy(org.order(axis)) for axis in (1, 2))
    steps, sizes = [], []
    for head in values:
        x = head[rows][:, columns].double()
        steps.append(sum(float(x.diff(dim=dim).abs().mean()) for dim in (0, 1) if x.shape[dim] > 1))
        sizes.append(float(x.square().mean().sqrt()))
    return np.array(steps), np.array(sizes)
