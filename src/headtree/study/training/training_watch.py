"""What the heads of a network look like, in a few numbers, while it learns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from headtree.tensor.attention_tensor import AttentionTensor
from headtree.trees.tree import PartitionTree


def mixed_difference(x: Float[Tensor, "head query key"]) -> Float[Tensor, " head"]:
    r"""Mean of \|dd'\| over scales and entries, per head, on halving trees of queries and keys as they stand.

    dd' = P^(j+1)P'^(j'+1) f - P^(j+1)P'^j' f - P^j P'^(j'+1) f + P^j P'^j' f is the mixed Haar difference of eq.
    (12) of [OA]. It is constant on folders, so each folder counts with its size.
    """
    queries, query_weights = (part.to(x) for part in _differences(x.shape[1]))
    keys, key_weights = (part.to(x) for part in _differences(x.shape[2]))
    sizes = query_weights[:, None] * key_weights
    n_scales = (PartitionTree.halving(x.shape[1]).n_levels - 1) * (PartitionTree.halving(x.shape[2]).n_levels - 1)
    means = [((queries @ head @ keys.T).abs() * sizes).sum() for head in x]
    return torch.stack(means) / max(1, n_scales)


def _differences(n: int) -> tuple[Float[Tensor, "folder leaf"], Float[Tensor, " folder"]]:
    """Mean over a folder minus mean over its parent, for the folders of all levels under the root; shares of n."""
    tree = PartitionTree.halving(n)
    means = np.zeros((tree.n_nodes, n))
    for nodes in tree.nodes:
        means[nodes, np.arange(n)] = 1 / tree.sizes[nodes]
    below = np.arange(1, tree.n_nodes)
    differences = means[below] - means[tree.parents[below]]
    return torch.from_numpy(differences), torch.from_numpy(tree.sizes[below] / n)


def head_numbers(att: AttentionTensor) -> dict[str, float]:
    """Mean size of the heads' mixed Haar differences, and their mean over present entries."""
    values = att.block()
    mask = None if att.mask is None else torch.as_tensor(np.asarray(att.mask))
    present = values if mask is None else values[(~mask).expand(values.shape)]
    return {
        "mixed_difference": float(mixed_difference(att.filled().values).mean()),
        "head_mean": float(present.mean()),
    }


def structure(trained: AttentionTensor, initial: AttentionTensor) -> dict[str, float]:
    """How far the heads' attention is from uniform, from each other and from the untrained network's.

    Distances between probabilities are total variation, half the sum of absolute differences, in the mean over
    queries: 0 is equal, 1 is nothing in common.
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
    """Draw loss, the heads' mixed differences and their mean against the steps (SVG or PNG by the name)."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 7), layout="constrained")
    FigureCanvasSVG(figure)
    axes = figure.subplots(3, sharex=True)
    steps = [row["step"] for row in history]
    seen, unseen = "training", "validation"
    if "valid_accuracy" in history[0]:  # images, which have no validation part
        seen, unseen = "training (changed images, smoothed labels)", "first 2000 test images"
    axes[0].plot(steps, [row["valid_loss"] for row in history], marker=".", label=unseen)
    learned = [(row["step"], row["train_loss"]) for row in history if row.get("train_loss") is not None]
    axes[0].plot(*zip(*learned, strict=True), label=seen, alpha=0.6) if learned else None
    axes[0].legend()
    axes[1].plot(steps, [row["mixed_difference"] for row in history], marker=".", color="C2")
    axes[2].plot(steps, [row["head_mean"] for row in history], marker=".", color="C3")
    names = ("loss", "mean size of the\nmixed Haar differences", "mean of the\nheads' scores")
    for ax, name in zip(axes, names, strict=True):
        ax.set_ylabel(name)
        ax.grid(alpha=0.3)
    axes[2].set_xlabel("step")
    axes[0].set_title(title)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
