"""What measures start from: what enters softmax, and trees to compare the found ones with."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float
from torch import Tensor

from headtree import _checks
from headtree.errors import InvalidTypeError, InvalidValueError
from headtree.questionnaire.organization import Organization
from headtree.tensor.attention_tensor import AttentionTensor
from headtree.tensor.filling import Filled
from headtree.trees.tree import PartitionTree

#: The names of `orders`.
ORDERS = ("organized", "given", "random", "shuffled")


def softmax_input(att: AttentionTensor, full: Filled | None = None) -> Float[Tensor, "head query key"]:
    """What enters softmax, without gaps, in float64: scores, or logarithms of the others.

    `full` is ``att.filled()``, for callers that have it already.
    """
    if att.kind == "scores":
        return (full or att.filled()).values.double()
    return att.log_probs()


def check_pair(att: Any, org: Any) -> None:
    """Raise unless `org` can be the organization of `att`."""
    if not isinstance(att, AttentionTensor):
        raise InvalidTypeError(
            f"att must be an AttentionTensor, got {type(att).__name__}; wrap an array with "
            "AttentionTensor.from_array"
        )
    if not isinstance(org, Organization):
        raise InvalidTypeError(
            f"org must be an Organization, got {type(org).__name__}; pass the result of organize(att)"
        )
    if org.shape != att.shape:
        raise InvalidValueError(
            f"org must be the organization of att, of shape {att.shape}, but its trees have {org.shape} leaves; "
            "pass organize(att), or the tensor that was organized"
        )


def orders(trees: list[PartitionTree], rng: int | np.random.Generator) -> dict[str, list[PartitionTree]]:
    """Make trees on the same axes to compare the learned trees with.

    ``"organized"`` are the learned trees. ``"given"`` halves the axes in their original order, ``"random"`` in a
    random order. ``"shuffled"`` has the learned trees with randomly permuted leaves: the same folders, but with
    other leaves in them.
    """
    generator = _checks.generator(rng)
    permutations = [generator.permutation(tree.n_leaves) for tree in trees]
    given = [PartitionTree.halving(tree.n_leaves) for tree in trees]
    return {
        "organized": list(trees),
        "given": given,
        "random": [tree.take(p) for tree, p in zip(given, permutations, strict=True)],
        "shuffled": [tree.take(p) for tree, p in zip(trees, permutations, strict=True)],
    }
