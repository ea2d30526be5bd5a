"""A few numbers about the heads of a network during training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from headtree.tensor.attention_tensor import AttentionTensor
from headtree.trees.tree import PartitionTree

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def mixed_difference(x: Float[Tensor, "head query key"]) -> Float[Tensor, " head"]:
    r"""Mean of \|dd'\| over scales and entries, per head, on dyadic trees of queries and keys.

    dd' = P^(j+1)P'^(j'+1) f - P^(j+1)P'^j' f - P^j P'^(j'+1) f + P^j P'^j' f is the mixed Haar difference of eq.
    (12) of [OA]. It is constant on folders, so each folder is weighted by its size.
    """
    queries, query_weights = (part.to(x) for part in _differences(x.shape[1]))
    keys, key_weights = (part.to(x) for part in _differences(x.shape[2]))
    sizes = query_weights[:, None] * key_weights
    n_scales = (PartitionTree.halving(x.shape[1]).n_levels - 1) * (PartitionTree.halving(x.shape[2]).n_levels - 1)
    means = [((queries @ head @ keys.T).abs() * sizes).sum() for head in x]
    return torch.stack(means) / max(1, n_scales)


def _differences(n: int) -> tuple[Float[Tensor, "folder leaf"], Float[Tensor, " folder"]]:
    """Mean over a folder minus mean over its parent, for all folders below the root, and their sizes over n."""
    tree = PartitionTree.halving(n)
    means = np.zeros((tree.n_nodes, n))
    for nodes in tree.nodes:
        means[nodes, np.arange(n)] = 1 / tree.sizes[nodes]
    below = np.arange(1, tree.n_nodes)
    differences = means[below] - means[tree.parents[below]]
    return torch.from_numpy(differences), torch.from_numpy(tree.sizes[below] / n)


def head_numbers(att: AttentionTensor) -> dict[str, float]:
    """Mean absolute mixed Haar difference of the heads, and the mean of their unmasked entries."""
    values = att.block()
    mask = None if att.mask is None else torch.as_tensor(np.asarray(att.mask))
    present = values if mask is None else values[(~mask).expand(values.shape)]
    return {
        "mixed_difference": float(mixed_difference(att.filled().values).mean()),
        "head_mean": float(present.mean()),
    }


def structure(trained: AttentionTensor, initial: AttentionTensor) -> dict[str, float]:
    """Distances of the heads' attention from uniform, from each other and from the untrained network.

    The distance is total variation, half the sum of absolute differences, averaged over queries: 0 means equal, 1
    means nothing in common.
    """
    probs, before = trained.block(), initial.block()
    mask = None if trained.mask is None else torch.as_tensor(np.asarray(trained.mask))
    return {
        "from_uniform": _from_uniform(probs, mask),
        "from_uniform_untrained": _from_uniform(before, mask),
        "from_each_other": _from_each_other(probs),
        "from_each_other_untrained": _from_each_other(before),
        "from_untrained": float((probs - before).abs().sum(dim=-1).mean() / 2),
    }


def _from_uniform(probs: Float[Tensor, "head query key"], mask: Bool[Tensor, "#head query key"] | None) -> float:
    allowed = torch.ones_like(probs[:1]) if mask is None else (~mask).to(probs.dtype)
    uniform = allowed / allowed.sum(dim=-1, keepdim=True).clamp(min=1)
    return float((probs - uniform).abs().sum(dim=-1).mean() / 2)


def _from_each_other(probs: Float[Tensor, "head query key"]) -> float:
    n_heads, n_queries, _ = probs.shape
    distances = torch.cdist(probs.transpose(0, 1), probs.transpose(0, 1), p=1).sum(dim=0) / (2 * n_queries)
    return float(distances.sum() / max(1, n_heads * (n_heads - 1)))


def plot_history(history: Sequence[Mapping[str, Any]], path: Path, title: str) -> None:
    """Draw the loss, the heads' mixed differences and their mean over training, as SVG or PNG by the file name."""
    from headtree.report.figures.style import write

    write(_history_figure(history, title), path)


def _history_figure(history: Sequence[Mapping[str, Any]], title: str) -> Figure:
    from headtree.report.figures.style import BLUE, GREEN, PAGE, PURPLE, VERMILION, new_figure, style
    from headtree.report.words.numbers import number_words

    seen, unseen = "training", "validation"
    if "valid_accuracy" in history[0]:  # images, which have no validation set
        seen, unseen = "training (augmented images, smoothed labels)", "first 2000 test images"
    steps = [row["step"] for row in history]
    learned = [(row["step"], row["train_loss"]) for row in history if row.get("train_loss") is not None]
    with style():
        figure = new_figure(PAGE, PAGE)
        loss, differences, means = figure.subplots(3, sharex=True)
        loss.plot(steps, [row["valid_loss"] for row in history], color=BLUE, marker="o", label=unseen)
        if learned:
            loss.plot(*zip(*learned, strict=True), color=VERMILION, linestyle="--", label=seen)
        loss.legend()
        loss.set(ylabel="loss", title=title)
        differences.plot(steps, [row["mixed_difference"] for row in history], color=GREEN, marker="^")
        differences.set_ylabel("mean size of the\nmixed Haar differences")
        means.plot(steps, [row["head_mean"] for row in history], color=PURPLE, marker="v")
        means.set(xlabel="step", ylabel="mean of the\nheads' scores")
        means.xaxis.set_major_formatter(number_words)
        for axes in (loss, differences, means):
            axes.grid()
    return figure
