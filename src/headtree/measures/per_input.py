"""What is measured on one input: one record, stored by runs and read by their tables, pages, figures and claims."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float, Int

from headtree._json import from_json, to_json
from headtree.bases.tensor_haar import TensorHaarBasis
from headtree.errors import HeadtreeWarning
from headtree.measures.entropy import head_entropy
from headtree.measures.invariance import SoftmaxInvariance, heads_at_a_time, joined_invariance, softmax_invariance
from headtree.measures.orders import check_pair
from headtree.measures.regularity import exponents_in_each, matrices_at_a_time
from headtree.measures.sparsity import Sparsity
from headtree.measures.whole_network import MeasuredNetwork, Scratch, measure_network, measure_on_disk
from headtree.questionnaire.organization import Organization, PerAxis
from headtree.tensor.attention_tensor import AttentionTensor, HeadId
from headtree.tensor.probabilities import as_probabilities
from headtree.trees.tree import PartitionTree

#: Heads, evenly spread, on which softmax invariance is measured: it takes three paraproducts a head.
_SAMPLED_HEADS = 8

#: Memory that measuring a block of heads takes for each of its entries.
_BYTES_PER_ENTRY = 64


@dataclass(frozen=True, eq=False)
class MeasuredInput:
    """The numbers of one network on one input, without the tensor itself.

    `exponent` is by order: organized and given.
    """

    heads: tuple[HeadId, ...]
    kind: str  #: "scores", "probs", "weighted" or "signed"
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


@dataclass(frozen=True, eq=False)
class MeasuredHeads:
    """What is measured on each of some heads, whatever the others are; the names are those of `MeasuredInput`."""

    heads: tuple[HeadId, ...]
    structure: Float[np.ndarray, " head"]
    entropy: Float[np.ndarray, " head"]
    entropy_relative: Float[np.ndarray, " head"]
    norm: Float[np.ndarray, " head"]
    head_functions: int
    exponent: dict[str, Float[np.ndarray, " head"]]
    n_filled: int


def measure_input(
    att: AttentionTensor,
    org: Organization,
    *,
    head_functions: int = 400,
    network_functions: int = 100,
    rng: int = 0,
    probs: AttentionTensor | None = None,
    scratch: Scratch | None = None,
) -> MeasuredInput:
    """Measure one input.

    Parameters
    ----------
    att : AttentionTensor
        Of any kind; of a tensor on disk, all of it is read, unless there is a scratch folder.
    org : Organization
        Of `att`.
    head_functions, network_functions : int
        Coarsest functions that make the entropy of a head, and of the network.
    rng : int
        Seed of the random orders.
    probs : AttentionTensor, optional
        The same heads as probabilities, for the structure score; by default from `att`.
    scratch : Scratch, optional
        Where coefficients may be written, for a tensor that does not fit into memory: it is then read by blocks,
        with the same result.
    """
    check_pair(att, org)
    if scratch is not None:
        parts = []
        for some in ranges_of_heads(att.shape, scratch.memory // _BYTES_PER_ENTRY):
            same = None if probs is None else probs.take(some)
            parts.append(measure_heads(att.take(some), org, head_functions, same))
        norm = np.concatenate([part.norm for part in parts])
        network = measure_on_disk(att, org, scratch, norm, network_functions, rng)
        return joined(parts, network, measure_invariance(att, org))
    att = att.load()
    full = att.filled()
    whole = replace(att, values=full.values, mask=None)  # filled once for all
    heads = replace(measure_heads(whole, org, head_functions, probs or att), n_filled=full.n_filled)
    return joined([heads], measure_network(whole, org, network_functions, rng), measure_invariance(whole, org))


def ranges_of_heads(shape: tuple[int, int, int], n_entries: int) -> list[range]:
    """Ranges of heads that are measured as all heads together are, of so many entries or as few as possible."""
    n_heads, n_queries, n_keys = shape
    grid = matrices_at_a_time(n_queries * n_keys)
    step = max(1, n_entries // (grid * n_queries * n_keys)) * grid
    return [range(start, min(start + step, n_heads)) for start in range(0, n_heads, step)]


def measure_heads(
    att: AttentionTensor, org: Organization, head_functions: int, probs: AttentionTensor | None = None
) -> MeasuredHeads:
    """Measure some heads of an input, which are in memory, on the trees of queries and keys of all."""
    full = att.filled()
    whole = replace(att, values=full.values, mask=None)
    own = _with_flat_heads(org, len(att.heads))
    of_heads = head_entropy(whole, own, top=head_functions)
    return MeasuredHeads(
        heads=att.heads,
        structure=of_heads.raw if att.kind == "probs" else _structure(probs or att, own, head_functions),
        entropy=of_heads.raw,
        entropy_relative=of_heads.relative,
        norm=of_heads.norm,
        head_functions=of_heads.n_functions,
        exponent=_exponents(whole, org),
        n_filled=full.n_filled,
    )


def sampled_heads(att: AttentionTensor) -> Int[np.ndarray, " some"]:
    """The heads on which softmax invariance is measured."""
    n = len(att.heads)
    return np.unique(np.linspace(0, n - 1, min(n, _SAMPLED_HEADS)).round().astype(np.int64))


def measure_invariance(att: AttentionTensor, org: Organization) -> SoftmaxInvariance | None:
    """Softmax invariance of some heads of every depth of the network; None unless they are scores."""
    if att.kind != "scores":
        return None
    chosen = sampled_heads(att)
    found = []
    for start in range(0, len(chosen), step := heads_at_a_time(att.shape[1] * att.shape[2])):
        some = att.take(chosen[start : start + step])
        some = replace(some, values=some.filled().values, mask=None)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", HeadtreeWarning)  # heads on which exp overflows have a distance of nan
            found.append(softmax_invariance(some, _with_flat_heads(org, len(some.heads))))
    return joined_invariance(found)


def joined(
    parts: Sequence[MeasuredHeads], network: MeasuredNetwork, invariance: SoftmaxInvariance | None
) -> MeasuredInput:
    """The record of an input from what was measured on ranges of its heads, and on all together."""

    def column(name: str) -> Float[np.ndarray, " head"]:
        return np.concatenate([getattr(part, name) for part in parts])

    n_filled = sum(part.n_filled for part in parts)
    return MeasuredInput(
        heads=tuple(head for part in parts for head in part.heads),
        kind=network.kind,
        structure=column("structure"),
        entropy=column("entropy"),
        entropy_relative=column("entropy_relative"),
        norm=column("norm"),
        head_functions=parts[0].head_functions,
        network_entropy=float(network.entropy),
        network_entropy_relative=float(network.entropy.relative),
        network_functions=network.entropy.n_functions,
        network_coefficients=network.entropy.coefficients,
        sparsity=replace(network.sparsity, n_filled=n_filled),
        fine_share=network.fine_share,
        exponent={order: np.concatenate([part.exponent[order] for part in parts]) for order in parts[0].exponent},
        invariance=invariance,
        n_filled=n_filled,
    )


def _with_flat_heads(org: Organization, n_heads: int) -> Organization:
    """The organization of some heads, of whose tree nothing is used."""
    flat = PerAxis(org.names, [PartitionTree.flat(n_heads), *list(org.trees)[1:]])
    return replace(org, trees=flat)


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
