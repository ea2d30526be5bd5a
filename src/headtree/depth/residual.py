"""Measure how fast tokens become alike with depth, with and without skip connections and MLPs.

[RC] Dong, Cordonnier, Loukas: Attention is not all you need: pure attention loses rank doubly exponentially with
depth, 2021.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float
from torch import Tensor, nn

from headtree.depth.bound import Bound, find_bound
from headtree.depth.norms import norms
from headtree.depth.untrained import fresh_copy
from headtree.errors import HeadtreeWarning, InvalidTypeError, InvalidValueError
from headtree.models.given_model import prepare
from headtree.models.graph.head_weights import weights_of
from headtree.models.graph.read_stream import LocatedStream, locate_stream, read_stream
from headtree.models.inputs import ModelInput
from headtree.models.view import ModelView
from headtree.models.watching.collect import PreparedInputs
from headtree.progress import progress

if TYPE_CHECKING:
    import pandas as pd

#: Terms cancelled in each variant. Cross-attention adds tokens of another sequence and is removed with the MLPs.
VARIANTS: dict[str, tuple[str, ...]] = {
    "as is": (),
    "without skips": ("skip",),
    "without MLPs": ("mlp", "cross"),
    "attention alone": ("skip", "mlp", "cross"),
}

#: Relative residual of pretrained BERT on 128 tokens, read from figure 2 of [RC]: depth → value.
PUBLISHED_BERT: dict[str, dict[int, float]] = {
    "attention alone": {0: 0.687, 1: 0.676, 2: 0.315, 3: 0.139, 4: 0.031, 6: 0.0, 12: 0.0},
    "without MLPs": {0: 0.687, 1: 0.717, 2: 0.636, 3: 0.489, 4: 0.353, 6: 0.205, 12: 0.074},
    "as is": {0: 0.687, 1: 0.666, 2: 0.559, 3: 0.504, 4: 0.466, 6: 0.379, 12: 0.310},
}


@dataclass(frozen=True, eq=False)
class RankResidual:
    """Relative residual ``‖res(X)‖ / ‖X‖`` of the residual stream, before the first layer and after each layer.

    The axes of the arrays are the variants in the order of `variants`, the inputs, and the depths 0 … L.

    Examples
    --------
    >>> import headtree as ht
    >>> network = ht.load_bundled("vit")
    >>> found = ht.rank_residual(network.model, inputs=network.inputs[0], fresh=False)
    >>> found.variants
    ('as is', 'without skips', 'without MLPs', 'attention alone')
    >>> found.curve("as is").shape  # one input; before the first layer and after each of 12
    (1, 13)
    """

    trained: Float[np.ndarray, "variant input depth"]
    fresh: Float[np.ndarray, "variant input depth"] | None  #: with untrained weights
    bound: Bound | None  #: None if the matrices of the heads cannot be separated
    #: natural logarithm of the bound of "attention alone", relative to the stream
    log_bound: Float[np.ndarray, "input depth"] | None
    #: the same of "without skips"; None if an MLP is not Lipschitz
    log_bound_with_mlps: Float[np.ndarray, "input depth"] | None
    layers: tuple[str, ...]  #: path of each layer's attention module

    @property
    def variants(self) -> tuple[str, ...]:
        """Names of the variants, in the order of the arrays."""
        return tuple(VARIANTS)

    def curve(self, variant: str, fresh: bool = False) -> Float[np.ndarray, "input depth"]:
        """The curves of one variant, one per input."""
        if variant not in VARIANTS:
            raise InvalidValueError(f"variant must be one of {tuple(VARIANTS)}, got {variant!r}")
        values = self.fresh if fresh else self.trained
        if values is None:
            raise InvalidValueError("the fresh network was not measured; pass fresh=True to rank_residual")
        return np.asarray(values[list(VARIANTS).index(variant)])

    def table(self) -> pd.DataFrame:
        """One row per depth: mean and spread over inputs of every curve."""
        import pandas as pd

        columns: dict[str, Any] = {"depth": np.arange(self.trained.shape[-1])}
        for weights, values in (("trained", self.trained), ("fresh", self.fresh)):
            if values is None:
                continue
            for name, curve in zip(VARIANTS, values, strict=True):
                columns[f"{weights} {name}"] = curve.mean(axis=0)
                columns[f"{weights} {name} spread"] = curve.std(axis=0)
        return pd.DataFrame(columns)


def rank_residual(
    model: Any,
    *,
    texts: Sequence[str] | None = None,
    images: Sequence[Any] | None = None,
    inputs: Any = None,
    part: str | None = None,
    fresh: bool | nn.Module = True,
    rng: int = 0,
    **options: Any,
) -> RankResidual:
    """Measure how far the residual stream is from rank one after every layer.

    The model runs as is, without skip connections, without MLPs, and with attention alone; with its own weights and
    with untrained ones. Removed terms are cancelled where the model's own code adds them.

    Parameters
    ----------
    model, texts, images, inputs, part, **options
        As in `headtree.capture`, except layers, heads and window: the stream runs through the whole network.
    fresh : bool or module
        Whether to measure an untrained copy of the network as well; or the untrained network itself.
    rng : int
        Seed of the untrained weights.

    Examples
    --------
    Tokens become alike in a network of attention alone:

    >>> import headtree as ht
    >>> network = ht.load_bundled("vit")
    >>> found = ht.rank_residual(network.model, inputs=network.inputs[0], fresh=False)
    >>> found.curve("as is")[0, [0, 12]].round(1)  # before the first layer, after the last
    array([0.9, 0.8])
    >>> found.curve("attention alone")[0, [0, 12]].round(1)
    array([0.9, 0. ])
    """
    if not isinstance(fresh, bool | nn.Module):
        raise InvalidTypeError(
            f"fresh must be True, False or an untrained network, got {type(fresh).__name__}; pass a torch.nn.Module"
        )
    if isinstance(rng, bool) or not isinstance(rng, int | np.integer) or rng < 0:
        raise InvalidValueError(f"rng must be a seed of 0 or more, got {rng!r}")
    prepared = whole_network(model, inputs=inputs, texts=texts, images=images, part=part, **options)
    new = fresh_copy(prepared.model, int(rng)) if fresh is True else fresh
    return measured(prepared, new if isinstance(new, nn.Module) else None)


def whole_network(model: Any, **options: Any) -> PreparedInputs:
    """Prepare inputs as `headtree.capture` does, for a measure that needs all layers, heads and tokens."""
    for name in ("layers", "heads", "window", "kind"):
        if options.pop(name, None) is not None:
            raise InvalidTypeError(
                f"{name} selects what capture returns, but depth is measured on the whole network; leave it out"
            )
    return prepare(model, kind="probs", **options)


def measured(prepared: PreparedInputs, fresh: nn.Module | None) -> RankResidual:
    """The curves of a model on prepared inputs, and of an untrained model of the same class."""
    n_runs = len(VARIANTS) * len(prepared.batches()) * (1 if fresh is None else 2)
    with progress("residual of the stream", n_runs) as step, prepared.view.ready():
        located = locate_stream(prepared, chunked=True)
        trained = _measure(located, step)
        bound = _bound_or_none(located)
        untrained = None
        if fresh is not None:
            other = replace(prepared, view=ModelView(fresh, device=prepared.view.device))
            with other.view.ready():
                untrained = _measure(locate_stream(other, chunked=True), step)
    return RankResidual(
        trained.relative(),
        None if untrained is None else untrained.relative(),
        bound,
        None if bound is None else _log_bounds(bound, trained, "attention alone", with_mlps=False),
        None if bound is None else _log_bounds(bound, trained, "without skips", with_mlps=True),
        tuple(site.module for site in located.sites),
    )


@dataclass(frozen=True, eq=False)
class _Norms:
    """Composite norms of the stream and of its residual."""

    stream: Float[np.ndarray, "variant input depth"]
    residual: Float[np.ndarray, "variant input depth"]

    def relative(self) -> Float[np.ndarray, "variant input depth"]:
        ratio = np.zeros_like(self.stream)
        np.divide(self.residual, self.stream, out=ratio, where=self.stream != 0)
        return ratio


def _measure(located: LocatedStream, step: Any) -> _Norms:
    """Run every variant on every input."""
    prepared = located.prepared
    shape = (len(VARIANTS), len(prepared.items), len(located.stream.layers) + 1)
    values = _Norms(np.full(shape, np.nan), np.full(shape, np.nan))
    for variant, (name, without) in enumerate(VARIANTS.items()):
        for batch in _batches(located):
            streams = read_stream(located, [prepared.items[i] for i in batch], without)
            for depth, stream in enumerate(streams):
                for indices, x in _without_padding(stream, batch, prepared):
                    stream_norm, residual_norm = norms(x)
                    values.stream[variant, indices, depth] = stream_norm.cpu().numpy()
                    values.residual[variant, indices, depth] = residual_norm.cpu().numpy()
            _check_finite(values.stream[variant][batch], name, batch)
            step(name)
    return values


def _without_padding(
    stream: Float[Tensor, "input token width"], batch: list[int], prepared: PreparedInputs
) -> Iterator[tuple[list[int], Float[Tensor, "input token width"]]]:
    """Indices of inputs and their tokens: all inputs together, or one at a time if there is padding."""
    rows = [tokens_of(x, prepared.items[i], i) for i, x in zip(batch, stream, strict=True)]
    if all(len(row) == stream.shape[1] for row in rows):
        yield batch, stream
    else:
        yield from (([i], row[None]) for i, row in zip(batch, rows, strict=True))


def _batches(located: LocatedStream) -> list[list[int]]:
    if located.stream.batch_axis is None:
        return [[i] for i in range(len(located.prepared.items))]
    return located.prepared.batches()


def tokens_of(x: Float[Tensor, "token width"], item: ModelInput, number: int) -> Float[Tensor, "present width"]:
    """The rows of actual tokens, without padding; at least two."""
    mask = item.kwargs.get("attention_mask")
    if isinstance(mask, Tensor) and mask.shape == (1, x.shape[0]):
        x = x[mask[0].bool().to(x.device)]
    if x.shape[0] < 2:
        raise InvalidValueError(
            f"input {number} must have at least 2 tokens, or there is nothing to compare, got {x.shape[0]}; pass "
            "longer inputs"
        )
    return x


def _check_finite(norms_seen: Float[np.ndarray, "input depth"], variant: str, batch: list[int]) -> None:
    if np.isfinite(norms_seen).all():
        return
    row, depth = np.argwhere(~np.isfinite(norms_seen))[0]
    depth_words = "before the first layer" if depth == 0 else f"after layer {depth - 1}"
    problem = f"the stream of input {batch[row]} has NaN or infinite values {depth_words}"
    if variant == "as is":
        raise InvalidValueError(f"{problem}; check the model's weights and the inputs, or run it in float32")
    warnings.warn(f"{variant}, {problem}; the curve is undefined there", HeadtreeWarning, stacklevel=2)


def _bound_or_none(located: LocatedStream) -> Bound | None:
    try:
        return find_bound(located, weights_of(located.prepared))
    except InvalidValueError:  # adapters or described attention: there are no matrices to bound
        return None


def _log_bounds(
    bound: Bound, measured_norms: _Norms, variant: str, with_mlps: bool
) -> Float[np.ndarray, "input depth"] | None:
    """Logarithm of the bound on the residual, relative to the stream of the same variant."""
    if with_mlps and any(constant is None for constant in bound.lipschitz):
        return None
    row = list(VARIANTS).index(variant)
    n_depths = measured_norms.stream.shape[2]
    with np.errstate(divide="ignore", invalid="ignore"):  # a stream of zeros has no relative bound
        start = np.log(measured_norms.residual[row, :, 0])
        logs = [[bound.log_residual(float(log), depth, with_mlps) for depth in range(n_depths)] for log in start]
        relative: Float[np.ndarray, "input depth"] = np.array(logs) - np.log(measured_norms.stream[row])
    return relative
