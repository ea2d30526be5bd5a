"""What the tests of claims are made from: the numbers of one network on one input."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from headtree.bases.tensor_haar import TensorHaarBasis
from headtree.measures.entropy import head_entropy, network_entropy
from headtree.measures.invariance import SoftmaxInvariance, softmax_invariance
from headtree.measures.orders import check_pair
from headtree.measures.regularity import Regularity, regularity
from headtree.measures.sparsity import Sparsity, sparsity
from headtree.questionnaire.organization import Organization
from headtree.study.claims.clusters import Clustering, clustering
from headtree.tensor.attention_tensor import AttentionTensor, HeadId

#: Functions that make a head's entropy and a network's, as in [OA].
HEAD_FUNCTIONS, NETWORK_FUNCTIONS = 400, 100

#: Share of the functions, the coarsest ones, that do not count as high-frequency content.
COARSE_SHARE = 0.01


@dataclass(frozen=True, eq=False)
class Evidence:
    """Everything that claims are tested on, of one network on one input, without the tensor itself."""

    heads: tuple[HeadId, ...]
    kind: str
    regularity: Regularity
    sparsity: Sparsity
    fine_share: float  #: share of the energy outside the coarsest 1 % of the functions of the organized tensor
    entropy: Float[np.ndarray, " head"]
    entropy_relative: Float[np.ndarray, " head"]
    network_entropy: float
    network_entropy_relative: float
    coefficients: Float[np.ndarray, "head function"]  #: the coarsest of each head
    network_coefficients: Float[np.ndarray, " function"]  #: the coarsest of the network
    variation: Float[np.ndarray, " head"]  #: mean absolute step between neighbours in organized order
    variation_relative: Float[np.ndarray, " head"]  #: the same over the head's root mean square
    clusters: Clustering
    softmax: SoftmaxInvariance | None  #: of scores only


def evidence_of(att: AttentionTensor, org: Organization, *, rng: int = 0) -> Evidence:
    """Measure one input.

    Parameters
    ----------
    att : AttentionTensor
        Of kind "scores", or "probs": then what is about the inside of softmax is left out.
    org : Organization
        Of `att`.
    rng : int
        For random orders and the clusters of structureless heads.
    """
    check_pair(att, org)
    values = att.filled().values
    whole = replace(att, values=values, mask=None)  # filled once for all
    n_coarse = max(1, int(COARSE_SHARE * values.numel()))
    sparse = sparsity(whole, org, counts=[n_coarse], rng=rng)
    of_heads, of_network = head_entropy(whole, org, HEAD_FUNCTIONS), network_entropy(whole, org, NETWORK_FUNCTIONS)
    variation, size = _variation(values, org)
    return Evidence(
        heads=att.heads,
        kind=att.kind,
        regularity=regularity(whole, org, rng=rng),
        sparsity=sparse,
        fine_share=float(sparse.by_order["organized"].coarsest[0] ** 2),
        entropy=of_heads.raw,
        entropy_relative=of_heads.relative,
        network_entropy=float(of_network),
        network_entropy_relative=float(of_network.relative),
        coefficients=_coarsest(values, TensorHaarBasis(tuple(org.trees)[1:]), HEAD_FUNCTIONS),
        network_coefficients=_coarsest(values, TensorHaarBasis(tuple(org.trees)), NETWORK_FUNCTIONS),
        variation=variation,
        variation_relative=np.divide(variation, size, out=np.zeros_like(size), where=size > 0),
        clusters=clustering(org.distances[0], rng=rng),
        softmax=softmax_invariance(whole, org) if att.kind == "scores" else None,
    )


def _coarsest(
    values: Float[Tensor, "head query key"], basis: TensorHaarBasis, n: int
) -> Float[np.ndarray, "... function"]:
    return np.asarray(basis.coefficients_of(values, basis.top(min(n, len(basis)))).double().numpy())


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
