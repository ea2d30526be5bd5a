"""What measures start from: a tensor without gaps, and trees to compare the found ones with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from headtree import _checks
from headtree.errors import InvalidTypeError, InvalidValueError
from headtree.questionnaire.organization import Organization
from headtree.tensor.attention_tensor import AttentionTensor
from headtree.trees.tree import PartitionTree


@dataclass(frozen=True, eq=False)
class Filled:
    """A network tensor with its missing entries filled, and how many there were."""

    values: Float[Tensor, "head query key"]
    n_filled: int


def filled(att: AttentionTensor) -> Filled:
    """Fill what the mask hides: probs with 0, scores with the mean of the row's present entries.

    A row without any entry takes the mean of its head's present entries, and a head without any is 0.
    """
    att = att.load()  # of a tensor on disk: measures read all of it
    if att.mask is None:
        return Filled(_checks.full_tensor(_on_cpu(att.values), "att.values"), 0)
    values = _checks.real_tensor(att.values, "att.values")
    values = values.masked_fill(att.mask, 0)
    if att.kind == "scores":
        values = torch.where(att.mask, _row_means(values, att.mask), values)
    return Filled(_checks.full_tensor(values, "att.values"), int(att.mask.sum()))


def _on_cpu(values: Any) -> Any:
    return values.cpu() if isinstance(values, Tensor) else values


def _row_means(
    values: Float[Tensor, "head query key"], mask: Bool[Tensor, "head query key"]
) -> Float[Tensor, "head query 1"]:
    sums, counts = values.sum(dim=2, keepdim=True), (~mask).sum(dim=2, keepdim=True)
    of_head = sums.sum(dim=1, keepdim=True) / counts.sum(dim=1, keepdim=True).clamp(min=1)
    return torch.where(counts > 0, sums / counts.clamp(min=1), of_head)


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
