"""What the paths of each length contribute to a network of attention and skips."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from headtree.depth.frozen_network import FrozenNetwork, check_sum, freeze
from headtree.depth.norms import relative_residual
from headtree.depth.residual import tokens_of, whole_network
from headtree.errors import InvalidValueError
from headtree.models.graph.read_stream import LocatedStream, locate_stream
from headtree.models.inputs import ModelInput
from headtree.models.watching.collect import PreparedInputs
from headtree.models.watching.memory import available_memory, words
from headtree.progress import progress

if TYPE_CHECKING:
    import pandas as pd

#: Share of the free memory that the trace of one input may take.
_SHARE = 0.8


@dataclass(frozen=True, eq=False)
class PathLengths:
    """The paths of a network with attention and skips alone, gathered by length 0 … L.

    Shares are signed: ``⟨sum of the paths, output⟩ / ‖output‖²``; with the share of the biases they add up to 1.
    """

    n_paths: tuple[int, ...]  #: C(L, l) Hˡ
    share: Float[np.ndarray, "input length"]
    bias_share: Float[np.ndarray, " input"]
    size: Float[np.ndarray, "input length"]  #: Frobenius norm of the sum, relative to the output's
    residual: Float[np.ndarray, "input length"]  #: relative residual of the sum; small: close to rank one
    head_share: Float[np.ndarray, "input layer head"]  #: of the path through this head alone, skips elsewhere
    difference: Float[np.ndarray, " input"]  #: of the sum of all paths from the model's own numbers, relative
    layers: tuple[str, ...]  #: path of each layer's attention module

    def table(self) -> pd.DataFrame:
        """A row per length: number of paths, mean and spread over inputs of shares, sizes and residuals."""
        import pandas as pd

        columns: dict[str, Any] = {"length": np.arange(len(self.n_paths)), "paths": [str(n) for n in self.n_paths]}
        for name, values in (("share", self.share), ("size", self.size), ("residual", self.residual)):
            columns[name], columns[f"{name} spread"] = values.mean(axis=0), values.std(axis=0)
        return pd.DataFrame(columns)

    def top_heads(self, n: int = 10) -> list[tuple[str, float]]:
        """The heads whose paths of length one carry most, by the modulus of their mean share."""
        mean = self.head_share.mean(axis=0)
        order = np.argsort(-np.abs(mean), axis=None, kind="stable")[:n]
        places = [np.unravel_index(at, mean.shape) for at in order]
        return [(f"L{layer}H{head}", float(mean[layer, head])) for layer, head in places]


def path_lengths(
    model: Any,
    *,
    texts: Sequence[str] | None = None,
    images: Sequence[Any] | None = None,
    inputs: Any = None,
    part: str | None = None,
    **options: Any,
) -> PathLengths:
    """Exact contribution of all paths of each length, by a running polynomial, without sampling.

    The model runs without its MLPs; its attention matrices and the scales of its norms are held at what they are on
    each input. The paths then add up to what it computes, up to the rounding of its own precision; that is checked.

    Parameters
    ----------
    model, texts, images, inputs, part, **options
        As `headtree.capture` takes them; without layers, heads and window, since paths lead through all.
    """
    prepared = whole_network(model, inputs=inputs, texts=texts, images=images, part=part, **options)
    return paths_of(prepared)


def frozen_networks(
    model: Any,
    *,
    texts: Sequence[str] | None = None,
    images: Sequence[Any] | None = None,
    inputs: Any = None,
    part: str | None = None,
    **options: Any,
) -> list[FrozenNetwork]:
    """The network of every input as a sum over paths: single paths, random ones, and all of one length.

    Parameters
    ----------
    model, texts, images, inputs, part, **options
        As `headtree.capture` takes them; without layers, heads and window, since paths lead through all.
    """
    prepared = whole_network(model, inputs=inputs, texts=texts, images=images, part=part, **options)
    with prepared.view.ready():
        located = _softmax_stream(prepared)
        return [freeze(located, item, i) for i, item in enumerate(prepared.items)]


def paths_of(prepared: PreparedInputs) -> PathLengths:
    """The path lengths of a prepared model."""
    rows = []
    with (
        progress("paths", len(prepared.items)) as step,
        prepared.view.ready(),
        torch.no_grad(),
    ):
        located = _softmax_stream(prepared)
        for i, item in enumerate(prepared.items):
            _check_memory(located, item)
            rows.append(_measure(freeze(located, item, i), item, i, located.sites[0].module))
            step(f"input {i + 1} of {len(prepared.items)}")
    n_paths = rows[0].n_paths
    return PathLengths(
        n_paths,
        share=np.array([row.share for row in rows]),
        bias_share=np.array([row.bias_share for row in rows]),
        size=np.array([row.size for row in rows]),
        residual=np.array([row.residual for row in rows]),
        head_share=np.array([row.head_share for row in rows]),
        difference=np.array([row.difference for row in rows]),
        layers=tuple(site.module for site in located.sites),
    )


@dataclass(frozen=True, eq=False)
class _Row:
    """One input's paths."""

    n_paths: tuple[int, ...]
    share: list[float]
    bias_share: float
    size: list[float]
    residual: list[float]
    head_share: Float[np.ndarray, "layer head"]
    difference: float


def _measure(network: FrozenNetwork, item: ModelInput, number: int, module: str) -> _Row:
    sums, biases = network.by_length()
    total = torch.stack(sums).sum(dim=0) + biases
    difference = check_sum(network, total, module)
    squared = float((total * total).sum())
    if squared == 0:
        raise InvalidValueError(f"the stream of input {number} without MLPs is all zeros; its paths have no shares")
    by_head = network.first_length_by_head(total)
    widest = max(len(heads) for heads in by_head)
    head_share = np.full((len(by_head), widest), np.nan)
    for layer, heads in enumerate(by_head):
        head_share[layer, : len(heads)] = (heads / squared).cpu().numpy()
    return _Row(
        network.n_paths,
        share=[float((term * total).sum()) / squared for term in sums],
        bias_share=float((biases * total).sum()) / squared,
        size=[float(term.norm()) / squared**0.5 for term in sums],
        residual=[_residual(term, network, item, number) for term in sums],
        head_share=head_share,
        difference=difference,
    )


def _residual(term: Tensor, network: FrozenNetwork, item: ModelInput, number: int) -> float:
    rows = term.movedim(network.token_axis, -2).reshape(-1, term.shape[-1])
    return float(relative_residual(tokens_of(rows, item, number)))


def _softmax_stream(prepared: PreparedInputs) -> LocatedStream:
    located = locate_stream(prepared)
    other = next((site for site in located.sites if site.softmax is None), None)
    if other is not None:
        raise InvalidValueError(
            f"the attention of {other.module!r} was registered and is no softmax between products, so that it has "
            "no paths; rank_residual measures such models"
        )
    return located


def _check_memory(located: LocatedStream, item: ModelInput) -> None:
    """Refuse an input whose forward pass cannot be kept whole, before it is run."""
    growth = item.size() / max(1, located.prepared.plan.probe.size())
    n_tokens = located.graph.value(located.sites[0].query).shape[-2]
    linear = square = 0
    for node in located.graph.nodes:
        for value in node.values:
            if isinstance(value, Tensor) and node.is_activation:
                is_square = value.ndim >= 2 and value.shape[-1] == value.shape[-2] == n_tokens
                n_bytes = value.numel() * value.element_size()
                square, linear = square + n_bytes * is_square, linear + n_bytes * (not is_square)
    need, free = int(linear * growth + square * growth**2), int(available_memory() * _SHARE)
    if need > free:
        raise InvalidValueError(
            f"the paths of an input this long need about {words(need)}, {_SHARE:.0%} of the free memory is "
            f"{words(free)}; pass shorter inputs, for instance with tokens=128"
        )
