"""The contribution of paths of each length to a network of attention and skip connections."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from headtree._memory import allowed_memory, format_bytes
from headtree.depth.frozen_network import FrozenNetwork, check_sum, freeze
from headtree.depth.norms import relative_residual
from headtree.depth.residual import tokens_of, whole_network
from headtree.errors import InvalidValueError
from headtree.models.graph.read_stream import LocatedStream, locate_stream
from headtree.models.graph.trace_memory import growth_of, trace_bytes
from headtree.models.inputs import ModelInput
from headtree.models.watching.collect import PreparedInputs
from headtree.progress import progress

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class PathLengths:
    """Contributions of the paths of a network of attention and skip connections, by length 0 … L.

    Shares are signed: ``⟨sum of the paths, output⟩ / ‖output‖²``. With the share of the biases they sum to 1.

    Examples
    --------
    >>> import headtree as ht
    >>> network = ht.load_bundled("vit")
    >>> paths = ht.path_lengths(network.model, inputs=network.inputs[0])
    >>> round(float(paths.share.sum() + paths.bias_share.sum()), 6)
    1.0
    >>> paths.table().columns[:4].tolist()
    ['length', 'paths', 'share', 'share spread']
    """

    n_paths: tuple[int, ...]  #: C(L, l) Hˡ
    share: Float[np.ndarray, "input length"]
    bias_share: Float[np.ndarray, " input"]
    size: Float[np.ndarray, "input length"]  #: Frobenius norm of the sum, relative to that of the output
    residual: Float[np.ndarray, "input length"]  #: relative residual of the sum; small values are close to rank one
    head_share: Float[np.ndarray, "input layer head"]  #: share of the path through this head only
    difference: Float[np.ndarray, " input"]  #: relative difference of the sum of all paths from the model's output
    layers: tuple[str, ...]  #: path of each layer's attention module

    def table(self) -> pd.DataFrame:
        """One row per length: number of paths; mean and spread over inputs of shares, sizes and residuals."""
        import pandas as pd

        columns: dict[str, Any] = {"length": np.arange(len(self.n_paths)), "paths": [str(n) for n in self.n_paths]}
        for name, values in (("share", self.share), ("size", self.size), ("residual", self.residual)):
            columns[name], columns[f"{name} spread"] = values.mean(axis=0), values.std(axis=0)
        return pd.DataFrame(columns)

    def top_heads(self, n: int = 10) -> list[tuple[str, float]]:
        """The heads whose paths of length one contribute most, by the absolute value of their mean share."""
        mean = self.head_share.mean(axis=0)
        order = np.argsort(-np.abs(mean), axis=None, kind="stable")[:n]
        heads = [np.unravel_index(index, mean.shape) for index in order]
        return [(f"L{layer}H{head}", float(mean[layer, head])) for layer, head in heads]


def path_lengths(
    model: Any,
    *,
    texts: Sequence[str] | None = None,
    images: Sequence[Any] | None = None,
    inputs: Any = None,
    part: str | None = None,
    **options: Any,
) -> PathLengths:
    """Compute the exact contribution of all paths of each length, without sampling.

    The model runs without its MLPs, and its attention matrices and the scales of its norms are frozen at their
    values on each input. The paths then add up to the model's output up to rounding, which is checked.

    Parameters
    ----------
    model, texts, images, inputs, part, **options
        As in `headtree.capture`, except layers, heads and window: paths go through the whole network.

    Examples
    --------
    >>> import headtree as ht
    >>> network = ht.load_bundled("vit")
    >>> paths = ht.path_lengths(network.model, inputs=network.inputs[0])
    >>> paths.n_paths[:3]  # 12 layers of 12 heads
    (1, 144, 9504)
    >>> paths.share[0, :3].round(2)  # of the paths of length 0, 1 and 2
    array([ 0.26, -0.02, -0.35])
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
    """The network of every input as a sum over paths, to evaluate single, random, or all paths of one length.

    Parameters
    ----------
    model, texts, images, inputs, part, **options
        As in `headtree.capture`, except layers, heads and window: paths go through the whole network.

    Examples
    --------
    All paths and the biases together give the output of the model without its MLPs:

    >>> import headtree as ht
    >>> import torch
    >>> network = ht.load_bundled("vit")
    >>> (frozen,) = ht.frozen_networks(network.model, inputs=network.inputs[0])
    >>> sums, biases = frozen.by_length()
    >>> len(sums)  # lengths 0 to 12
    13
    >>> torch.allclose(sum(sums) + biases, frozen.output.double(), rtol=1e-3, atol=1e-3)
    True
    """
    prepared = whole_network(model, inputs=inputs, texts=texts, images=images, part=part, **options)
    with prepared.view.ready():
        located = _softmax_stream(prepared)
        return [freeze(located, item, i) for i, item in enumerate(prepared.items)]


def paths_of(prepared: PreparedInputs) -> PathLengths:
    """The contributions of paths by length on prepared inputs."""
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
    """The paths of one input."""

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
        raise InvalidValueError(
            f"the stream of input {number} without MLPs is all zeros, so its paths have no shares; check the "
            "inputs and the model's weights"
        )
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
    rows = term if term.ndim == 2 else term.movedim(network.token_axis, -2).reshape(-1, term.shape[-1])
    return float(relative_residual(tokens_of(rows, item, number)))


def _softmax_stream(prepared: PreparedInputs) -> LocatedStream:
    located = locate_stream(prepared)
    other = next((site for site in located.sites if site.softmax is None), None)
    if other is not None:
        raise InvalidValueError(
            f"{other.module!r} has no paths, because its attention was described with register_attention and is "
            "not a softmax between products; rank_residual measures such models"
        )
    return located


def _check_memory(located: LocatedStream, item: ModelInput) -> None:
    """Raise an error if the trace of an input would not fit into memory, before it runs."""
    need = trace_bytes(located, growth_of(located, item))
    free, source = allowed_memory(None)
    if need > free:
        raise InvalidValueError(
            f"the paths of an input of this length need about {format_bytes(need)}, but {source} is "
            f"{format_bytes(free)}; pass shorter inputs, for example with tokens=128"
        )
