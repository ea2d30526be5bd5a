"""What is measured on one input: one record, stored by runs and read by their tables, pages, figures and claims."""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float

from headtree._json import from_json, to_json
from headtree.bases.tensor_haar import TensorHaarBasis
from headtree.errors import HeadtreeWarning
from headtree.measures.entropy import head_entropy, network_entropy
from headtree.measures.invariance import SoftmaxInvariance, softmax_invariance
from headtree.measures.orders import check_pair
from headtree.measures.regularity import exponents_in_each
from headtree.measures.sparsity import Sparsity, curve_counts, sparsity
from headtree.questionnaire.organization import Organization, PerAxis
from headtree.tensor.attention_tensor import AttentionTensor, HeadId
from headtree.tensor.probabilities import as_probabilities
from headtree.trees.tree import PartitionTree

#: Heads, evenly spread, on which softmax invariance is measured: it takes three paraproducts a head.
_SAMPLED_HEADS = 8

#: Share of the functions, the coarsest ones, that do not count as fine.
_COARSE_SHARE = 0.01


@dataclass(frozen=True, eq=False)
class MeasuredInput:
    """The numbers of one network on one input, without the tensor itself.

    `exponent` is by order: organized and given.
    """

    heads: tuple[HeadId, ...]
    kind: str  #: "scores", "probs" or "weighted"
    structure: Float[np.ndarray, " head"]  #: l1 norm of the coarsest Haar coefficients of the probabilities
    entropy: Float[np.ndarray, " head"]  #: the same of what was organized: the l1 entropy of [OA]
    entropy_relative: Float[np.ndarray, " head"]  #: over the norm
    norm: Float[np.ndarray, " head"]
    head_functions: int  #: functions that make the entropy of a head
    network_entropy: float
    network_entropy_relative: float
    network_functions: int  #: functions that make the entropy of the network
    network_coefficients: Float[np.ndarray, " function"]  #: the network's coefficients in these, by falling support
    sparsity: Sparsity
    fine_share: float  #: share of the energy outside the coarsest 1 % of the functions of the organized tensor
    exponent: dict[str, Float[np.ndarray, " head"]]  #: mixed Hölder exponents
    invariance: SoftmaxInvariance | None  #: of the heads that it names; None for probabilities
    n_filled: int  #: missing entries that were filled first

    def to_json(self) -> str:
        """The text of its file; `from_json` reads it back bit for bit."""
        return json.dumps(to_json(self)) + "\n"

    @classmethod
    def from_json(cls, text: str) -> MeasuredInput:
        """What `to_json` was called on."""
        found: MeasuredInput = from_json(cls, json.loads(text))
        return found


def measure_input(
    att: AttentionTensor,
    org: Organization,
    *,
    head_functions: int = 400,
    network_functions: int = 100,
    rng: int = 0,
    probs: AttentionTensor | None = None,
) -> MeasuredInput:
    """Measure one input.

    Parameters
    ----------
    att : AttentionTensor
        Of any kind; of a tensor on disk, all of it is read.
    org : Organization
        Of `att`.
    head_functions, network_functions : int
        Coarsest functions that make the entropy of a head, and of the network.
    rng : int
        Seed of the random orders.
    probs : AttentionTensor, optional
        The same heads as probabilities, for the structure score; by default from `att`.
    """
    check_pair(att, org)
    att = att.load()
    full = att.filled()
    whole = replace(att, values=full.values, mask=None)  # filled once for all
    of_heads = head_entropy(whole, org, top=head_functions)
    of_network = network_entropy(whole, org, top=network_functions)
    curves, fine_share = _sparsity(whole, org, rng)
    after_softmax = of_heads.raw if att.kind == "probs" else _structure(probs or att, org, head_functions)
    return MeasuredInput(
        heads=att.heads,
        kind=att.kind,
        structure=after_softmax,
        entropy=of_heads.raw,
        entropy_relative=of_heads.relative,
        norm=of_heads.norm,
        head_functions=of_heads.n_functions,
        network_entropy=float(of_network),
        network_entropy_relative=float(of_network.relative),
        network_functions=of_network.n_functions,
        network_coefficients=of_network.coefficients,
        sparsity=replace(curves, n_filled=full.n_filled),
        fine_share=fine_share,
        exponent=_exponents(whole, org),
        invariance=_sampled_invariance(whole, org) if att.kind == "scores" else None,
        n_filled=full.n_filled,
    )


def _structure(att: AttentionTensor, org: Organization, n_functions: int) -> Float[np.ndarray, " head"]:
    probs = as_probabilities(att)
    whole = replace(probs, values=probs.filled().values, mask=None)
    return head_entropy(whole, org, top=n_functions).raw


def _exponents(att: AttentionTensor, org: Organization) -> dict[str, Float[np.ndarray, " head"]]:
    """Mixed Hölder exponents on the learned trees of queries and keys, and on dyadic trees over the given order."""
    learned = tuple(org.trees)[1:]
    trees = {"organized": learned, "given": tuple(PartitionTree.halving(tree.n_leaves) for tree in learned)}
    fits = exponents_in_each(att.values, [TensorHaarBasis(pair) for pair in trees.values()])
    return {order: fit.exponent for order, fit in zip(trees, fits, strict=True)}


def _sparsity(att: AttentionTensor, org: Organization, rng: int) -> tuple[Sparsity, float]:
    """The curves at their usual counts, and the energy outside the coarsest functions, a count of its own."""
    size = int(np.prod(att.shape))
    usual, coarse = curve_counts(size), max(1, int(_COARSE_SHARE * size))
    counts = np.union1d(usual, coarse)
    found = sparsity(att, org, counts=counts, rng=rng)
    error = found.by_order["organized"].coarsest[np.searchsorted(counts, coarse)]
    chosen = np.searchsorted(counts, usual)
    curves = {
        order: replace(curve, counts=usual, largest=curve.largest[chosen], coarsest=curve.coarsest[chosen])
        for order, curve in found.by_order.items()
    }
    return replace(found, by_order=curves), float(error**2)


def _sampled_invariance(att: AttentionTensor, org: Organization) -> SoftmaxInvariance:
    """Softmax invariance of some heads of every depth of the network."""
    n = len(att.heads)
    chosen = np.unique(np.linspace(0, n - 1, min(n, _SAMPLED_HEADS)).round().astype(np.int64))
    some = att.take(chosen)
    flat = PerAxis(org.names, [PartitionTree.flat(len(chosen)), *list(org.trees)[1:]])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HeadtreeWarning)  # heads on which exp overflows have a distance of nan
        return softmax_invariance(some, replace(org, trees=flat))
