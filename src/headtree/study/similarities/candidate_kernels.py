"""The kernels of which candidates for the best similarity are made: attention, values, outputs, and tree distances.

Every kernel is of one input, head × head:

- P: cosines of probabilities; S: of their roots, the kernel of the Hellinger distance.
- V: cosines of what heads would write, v·W_O (key × width).
- O: cosines of what heads do write, A·v·W_O (query × width), without its mean over queries.
- J: cosines of both together, A[q, k]·(v·W_O)[k] (query × key × width).
- T: tree distance of probabilities on trees that halve the tokens, with alpha = -2.
- U: tree distance of v·W_O on the trees of tokens and of features that the questionnaire finds for it, with
  alpha = -1. Every head has unit norm, before and after the mean head is taken out.

Tree distances D become kernels as -D / median. Like all kernels, they lose the mean head when they are combined,
and with it what belongs to one of the two heads alone: the additive part of the distance.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from headtree.geometry.emd import tree_emd
from headtree.measures.similarity import head_similarity
from headtree.models.view import ModelView
from headtree.questionnaire.organize import organize_array
from headtree.tensor.attention_tensor import AttentionTensor
from headtree.tensor.probabilities import as_probabilities
from headtree.trees.tree import PartitionTree

#: Exponents of the levels in tree distances of probabilities and of values: fine levels count more.
_ALPHA_ATTENTION, _ALPHA_VALUES = -2.0, -1.0

Square = Float[np.ndarray, "head head"]
Kernels = Mapping[str, Float[np.ndarray, "input head head"]]


def candidate_kernels(
    names: Collection[str], view: ModelView, given: Sequence[dict[str, Tensor]], atts: Sequence[AttentionTensor]
) -> Kernels:
    """The kernels with these one-letter names, on every input; `atts` holds the attention of all heads on it."""
    found: dict[str, Float[np.ndarray, "input head head"]] = {}
    if "S" in names:
        found["S"] = 1 - head_similarity(atts, kind="attention").distance ** 2
    if {"P", "V"} & set(names):
        found["P"], found["V"] = view.head_similarity(inputs=list(given)).inputs.parts
    others = [name for name in "OJTU" if name in names]
    if others:
        by_input = [_kernels_of_input(others, view, item, att) for item, att in zip(given, atts, strict=True)]
        found |= {name: np.stack([kernels[name] for kernels in by_input]) for name in others}
    return {name: found[name] for name in names}


def _kernels_of_input(
    names: Collection[str], view: ModelView, item: dict[str, Tensor], att: AttentionTensor
) -> dict[str, Square]:
    probs = as_probabilities(att).load().values.double().nan_to_num()
    found = {}
    if "T" in names:
        found["T"] = tree_kernel(probs, [PartitionTree.halving(n) for n in probs.shape[1:]], _ALPHA_ATTENTION)
    if set(names) == {"T"}:
        return found
    (cache,) = view.cache(inputs=[item])
    values = torch.from_numpy(np.asarray(cache["ov"].values, dtype=np.float64))
    if "O" in names:
        outputs = probs @ values
        found["O"] = _cosines((outputs - outputs.mean(dim=1, keepdim=True)).flatten(1))
    if "J" in names:
        found["J"] = product_kernel(probs, values)
    if "U" in names:
        found["U"] = value_tree_kernel(values)
    return found


def product_kernel(probs: Float[Tensor, "head query key"], values: Float[Tensor, "head key width"]) -> Square:
    """Cosines of A[q, k]·v[k], which is never built: its products are sums over keys of two small products."""
    total = torch.zeros(len(probs), len(probs), dtype=probs.dtype)
    for key in range(probs.shape[2]):
        looks, writes = probs[:, :, key], values[:, key]
        total += (looks @ looks.T) * (writes @ writes.T)
    return _scaled(total)


def value_tree_kernel(values: Float[Tensor, "head key width"]) -> Square:
    """Minus the tree distance of values, heads of equal size and without the mean head, over its median."""
    unit = _unit(values)
    unit = _unit(unit - unit.mean(dim=0)).float()
    found = organize_array(unit.numpy())
    return tree_kernel(unit, found.trees[1:], _ALPHA_VALUES)


def tree_kernel(values: Float[Tensor, "head _ _"], trees: Sequence[PartitionTree], alpha: float) -> Square:
    """Minus the tree distance of heads, over its median over pairs."""
    distance = np.asarray(tree_emd(values.numpy(), 0, list(trees), alpha=alpha, beta=1.0))
    median = float(np.median(distance[np.triu_indices(len(distance), 1)]))
    return -distance / median if median > 0 else -distance


def _unit(values: Float[Tensor, "head _ _"]) -> Float[Tensor, "head _ _"]:
    norms = torch.linalg.vector_norm(values, dim=(1, 2), keepdim=True)
    return values / torch.where(norms > 0, norms, torch.ones_like(norms))


def _cosines(rows: Float[Tensor, "head entry"]) -> Square:
    return _scaled(rows @ rows.T)


def _scaled(products: Float[Tensor, "head head"]) -> Square:
    """Products of heads over their norms; 0 for a head that is 0."""
    norms = products.diagonal().clamp(min=0).sqrt()
    scale = torch.where(norms > 0, 1 / norms, torch.zeros_like(norms))
    return np.asarray(products * scale[:, None] * scale)
