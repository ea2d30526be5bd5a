"""Which tokens matter? Remove them in the order of each method's relevance, and see how fast the output changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import xarray as xr
from jaxtyping import Bool, Float, Int
from scipy import stats
from torch import Tensor

from headtree._checks import as_list, at_least_one, generator
from headtree.errors import InvalidValueError
from headtree.measures.heads.rollout import attention_rollout, mean_attention
from headtree.models.given_model import view_and_options
from headtree.models.graph.forward_graph import Ref
from headtree.models.graph.frozen_pass import FrozenPass
from headtree.models.graph.read_stream import locate_stream
from headtree.models.graph.stream_places import StreamPlaces
from headtree.models.inputs import ModelInput
from headtree.models.logit_lens import path_to_logits
from headtree.models.module_stack import tensors_of
from headtree.models.relevance import relevance_of
from headtree.models.token_tensor import TokenTensor, frozen_pass, token_tensors
from headtree.models.watching.collect import PreparedInputs
from headtree.progress import progress
from headtree.tensor.attention_tensor import AttentionTensor

if TYPE_CHECKING:
    import pandas as pd

#: Each method, and what it is.
METHODS = {
    "token tensor (norm)": "norms of the parts of the token tensor after the last layer",
    "token tensor (projection)": "their projections on the final residual stream",
    "token tensor (logit)": "their contributions to the largest logit",
    "rollout": "attention rollout (Abnar and Zuidema 2020)",
    "relevance": "attention times its gradient, rolled out (Chefer et al. 2021)",
    "value-weighted attention": "of the last layer, mean over heads (Kobayashi et al. 2020)",
    "attention": "of the last layer, mean over heads",
    "random": "the mean over random orders",
}

#: Random orders of each input.
_RANDOM = 3

#: Tokens with the same embedding in all inputs, up to this share of the largest entry, hold nothing to remove.
_SAME = 1e-5


@dataclass(frozen=True, eq=False)
class PerturbationTest:
    """How much the output changes when a share of the tokens is removed, for each method; larger areas are better.

    Examples
    --------
    >>> import headtree as ht
    >>> network = ht.load_bundled("txl")
    >>> given = [{"input_ids": item["input_ids"][:, :12]} for item in network.inputs[:3]]
    >>> methods = ["attention", "rollout", "random"]
    >>> found = ht.perturbation_test(network.model, inputs=given, methods=methods, steps=4)
    >>> found.curves.shape  # methods, inputs, shares 0, 1/4 … 1
    (3, 3, 5)
    >>> found.table().columns.tolist()
    ['method', 'area', 'low', 'high']
    """

    methods: tuple[str, ...]
    shares: Float[np.ndarray, " step"]  #: of the tokens that are removed
    curves: Float[np.ndarray, "method input step"]  #: change of the output
    output: str  #: which change this is

    @property
    def areas(self) -> Float[np.ndarray, "method input"]:
        """Area under each curve: the mean change over all shares."""
        return np.asarray(np.trapezoid(self.curves, self.shares, axis=2))

    def interval(self, method: str) -> tuple[float, float, float]:
        """Mean area over inputs, and its 95 % interval by Student's t."""
        return _interval(self.areas[self._index(method)])

    def difference(self, method: str, other: str) -> tuple[float, float, float]:
        """Mean difference of the areas of two methods on the same inputs, and its 95 % interval."""
        return _interval(self.areas[self._index(method)] - self.areas[self._index(other)])

    def table(self) -> pd.DataFrame:
        """Mean area of every method with its interval, the largest first."""
        import pandas as pd

        rows = [(method, *self.interval(method)) for method in self.methods]
        table = pd.DataFrame(rows, columns=["method", "area", "low", "high"])
        return table.sort_values("area", ascending=False, ignore_index=True)

    def _index(self, method: str) -> int:
        if method not in self.methods:
            raise InvalidValueError(f"method must be one of {', '.join(map(repr, self.methods))}, got {method!r}")
        return self.methods.index(method)


def _interval(values: Float[np.ndarray, " input"]) -> tuple[float, float, float]:
    mean = float(values.mean())
    if len(values) < 2:
        return mean, np.nan, np.nan
    half = float(stats.t.ppf(0.975, len(values) - 1) * stats.sem(values))
    return mean, mean - half, mean + half


def perturbation_test(
    model: Any,
    *,
    texts: Any = None,
    images: Any = None,
    inputs: Any = None,
    methods: Sequence[str] | None = None,
    steps: int = 8,
    rng: int | np.random.Generator = 0,
    **options: Any,
) -> PerturbationTest:
    """Compare methods that say which tokens an output depends on, by removing tokens in their order.

    A token is removed by giving it the mean embedding of all tokens of the input before the first layer. Tokens
    whose embedding is the same in all inputs, such as the class token, are not removed. The change of output is the
    total variation distance of the predicted probabilities (of the last token, if every token has logits); of a
    model without logits it is 1 minus the cosine of the mean of its residual stream over tokens.

    Parameters
    ----------
    model, texts, images, inputs, **options
        As in `headtree.capture`.
    methods : list of str, optional
        Names of methods; by default all that the model allows, as in `PerturbationTest.methods`.
    steps : int
        Number of shares of tokens at which the output is measured.
    rng : int or numpy generator
        Draws random orders.

    Examples
    --------
    >>> import headtree as ht
    >>> network = ht.load_bundled("txl")
    >>> given = [{"input_ids": item["input_ids"][:, :12]} for item in network.inputs[:3]]
    >>> found = ht.perturbation_test(network.model, inputs=given, methods=["attention", "random"], steps=4)
    >>> found.methods, found.output
    (('attention', 'random'), 'total variation of the predicted probabilities')
    """
    steps, draw = at_least_one(steps, "steps"), generator(rng)
    view, others = view_and_options(model, options)
    prepared = view.prepare(texts=texts, images=images, inputs=inputs, kind="probs", **others)
    tensors = token_tensors(prepared, None)
    has_logits = _has_logits(prepared)
    chosen = _checked_methods(methods, has_logits)
    removable = _removable([tensor.residual[0] for tensor in tensors])
    shares = np.linspace(0, 1, steps + 1)
    curves = np.zeros((len(chosen), len(tensors), steps + 1))
    with progress("removing tokens", len(tensors)) as step:
        for i, tensor in enumerate(tensors):
            curves[:, i] = _curves(_Explained(prepared, tensor, has_logits), chosen, removable[i], shares, draw)
            step(f"input {i + 1} of {len(tensors)}")
    output = "total variation of the predicted probabilities" if has_logits else "1 - cosine of the mean state"
    return PerturbationTest(tuple(chosen), shares, curves, output)


def token_relevance(
    model: Any,
    *,
    texts: Any = None,
    images: Any = None,
    inputs: Any = None,
    methods: Sequence[str] | None = None,
    **options: Any,
) -> list[xr.DataArray]:
    """How relevant each token is for each position after the last layer, by several methods beside each other.

    Returns one array (by, query, key) per input. Methods have units of their own; only their order compares.

    Parameters
    ----------
    model, texts, images, inputs, **options
        As in `headtree.capture`.
    methods : list of str, optional
        As in `perturbation_test`, except "random".

    Examples
    --------
    >>> import headtree as ht
    >>> network = ht.load_bundled("txl")
    >>> given = {"input_ids": network.inputs[0]["input_ids"][:, :12]}
    >>> (found,) = ht.token_relevance(network.model, inputs=given, methods=["attention", "rollout"])
    >>> found.sizes
    Frozen({'by': 2, 'query': 12, 'key': 12})
    >>> found.sel(by="rollout").isel(query=-1).sum().round(6).item()
    1.0
    """
    view, others = view_and_options(model, options)
    prepared = view.prepare(texts=texts, images=images, inputs=inputs, kind="probs", **others)
    has_logits = _has_logits(prepared)
    chosen = _checked_methods(methods, has_logits, also_random=False)
    found = []
    for tensor in token_tensors(prepared, None):
        explained = _Explained(prepared, tensor, has_logits)
        matrices = np.stack([_MATRICES[method](explained).double().numpy() for method in chosen])
        coords = {"by": chosen, "query": list(tensor.tokens), "key": list(tensor.tokens)}
        found.append(xr.DataArray(matrices, dims=("by", "query", "key"), coords=coords))
    return found


def _has_logits(prepared: PreparedInputs) -> bool:
    """Whether the model returns logits, which are more than its residual stream itself."""
    with prepared.view.ready():
        stream = StreamPlaces(locate_stream(prepared))
        try:
            path_to_logits(prepared, stream)
        except InvalidValueError:
            return False
    return True


def _checked_methods(methods: Sequence[str] | None, has_logits: bool, also_random: bool = True) -> list[str]:
    without = {"token tensor (logit)": not has_logits, "random": not also_random}
    possible = [name for name in METHODS if not without.get(name)]
    given = [methods] if isinstance(methods, str) else methods
    chosen = possible if given is None else as_list(given, "methods", "names")
    wrong = [name for name in chosen if not isinstance(name, str) or name not in possible]
    if wrong or not chosen:
        raise InvalidValueError(
            f"methods must be some of {', '.join(map(repr, possible))}, got {wrong[0] if wrong else 'none'!r}"
        )
    return chosen


def _removable(starts: Sequence[Float[Tensor, "token width"]]) -> list[Bool[np.ndarray, " token"]]:
    """The tokens of each input that are not the same in all inputs; all, if there is no other input to compare."""
    if len(starts) < 2 or len({start.shape for start in starts}) > 1:
        return [np.ones(len(start), dtype=bool) for start in starts]
    together = torch.stack(list(starts))
    apart = (together - together[:1]).abs().amax(dim=(0, 2)) > _SAME * together.abs().max()
    return [apart.numpy() if apart.any() else np.ones(len(apart), dtype=bool) for _ in starts]


class _Explained:
    """One input whose output is explained: its relevances by each method, and its output without some tokens."""

    def __init__(self, prepared: PreparedInputs, tensor: TokenTensor, has_logits: bool) -> None:
        self.prepared, self.tensor, self.has_logits = prepared, tensor, has_logits
        self.item: ModelInput = tensor.item
        with prepared.view.ready(), torch.no_grad():
            self.frozen: FrozenPass = frozen_pass(prepared, tensor.item)
            self.rows = self._rows()

    def _rows(self) -> Float[Tensor, " query"]:
        """Weights of the queries that the output reads."""
        n = self.frozen.n_tokens
        logits = self.frozen.traced.logits
        if not self.has_logits or logits is None:
            return torch.full((n,), 1 / n)
        if self.frozen.graph.value(logits).ndim == 3:
            return torch.eye(n)[-1]
        reads = self.frozen.directions(logits, None).abs().amax(dim=-1).cpu() > 0
        return reads / reads.sum()

    def relevance(self, method: str) -> Float[np.ndarray, " key"]:
        """Relevance of each token for the output."""
        return np.asarray((self.rows.double() @ _MATRICES[method](self).double()).numpy())

    def captured(self, kind: Any) -> AttentionTensor:
        """Attention on this input."""
        (att,) = replace(self.prepared, items=(self.item,), kind=kind).run()
        return att

    def without(self, tokens: Sequence[int], mean: Float[Tensor, " width"]) -> Float[Tensor, " entry"]:
        """The output if some tokens have the mean embedding."""
        frozen = self.frozen
        axis = frozen.places.stream.token_axis
        start = frozen.graph.value(frozen.start).clone()
        for token in tokens:
            start.select(axis, token)[:] = mean.to(start)
        target: Ref = frozen.depths[-1]
        if self.has_logits and frozen.traced.logits is not None:
            target = frozen.traced.logits
        found = frozen.graph.replay({frozen.start: start}, target)
        if self.has_logits:
            return found.reshape(-1, found.shape[-1])[-1].double().softmax(dim=0).cpu()
        return frozen.places.tokens_first(found).double().mean(dim=0).cpu()

    def change(self, before: Tensor, after: Tensor) -> float:
        """How much an output differs from another."""
        if self.has_logits:
            return float((before - after).abs().sum() / 2)
        return 1 - float(torch.nn.functional.cosine_similarity(before, after, dim=0))


def _of_last_layer(att: AttentionTensor) -> Tensor:
    last = att.heads[-1].layer
    return mean_attention(att, [i for i, head in enumerate(att.heads) if head.layer == last])


def _weighted(explained: _Explained) -> Tensor:
    att = explained.captured("weighted")
    last = [head.layer == att.heads[-1].layer for head in att.heads]
    return att.block()[torch.tensor(last)].mean(dim=0)


def _relevance(explained: _Explained) -> Tensor:
    def size(output: Any) -> Tensor:
        state = next(tensors_of(output)).mean(dim=1)
        return (state * state).sum().sqrt()

    target = None if explained.has_logits else size
    return torch.from_numpy(relevance_of(explained.prepared, explained.item, target).tokens)


#: From an explained input to relevances (query, key).
_MATRICES: Mapping[str, Callable[[_Explained], Tensor]] = {
    "token tensor (norm)": lambda explained: explained.tensor.reduce("norm").values[-1],
    "token tensor (projection)": lambda explained: explained.tensor.reduce("projection").values[-1],
    "token tensor (logit)": lambda explained: explained.tensor.reduce("logit").values[-1],
    "rollout": lambda explained: attention_rollout(explained.captured("probs"))[-1],
    "relevance": _relevance,
    "value-weighted attention": _weighted,
    "attention": lambda explained: _of_last_layer(explained.captured("probs")),
}


def _curves(
    explained: _Explained,
    methods: Sequence[str],
    removable: Bool[np.ndarray, " token"],
    shares: Float[np.ndarray, " step"],
    draw: np.random.Generator,
) -> Float[np.ndarray, "method step"]:
    tokens = np.flatnonzero(removable)
    mean = explained.tensor.residual[0][torch.from_numpy(tokens)].mean(dim=0)
    if "token tensor (logit)" in methods:
        explained.tensor.reduce("logit")  # with the other reductions in the same pass
    orders = [_orders(explained, method, tokens, draw) for method in methods]
    counts = np.round(shares * len(tokens)).astype(int)
    with explained.prepared.view.ready(), torch.no_grad():
        before = explained.without([], mean)

        def curve(order: Sequence[int]) -> list[float]:
            return [explained.change(before, explained.without(order[:n], mean)) for n in counts]

        return np.array([np.mean([curve(order) for order in of_method], axis=0) for of_method in orders])


def _orders(
    explained: _Explained, method: str, tokens: Int[np.ndarray, " removable"], draw: np.random.Generator
) -> list[list[int]]:
    """The tokens from the most relevant to the least; several random orders for the method "random"."""
    if method == "random":
        return [draw.permutation(tokens).tolist() for _ in range(_RANDOM)]
    relevance = explained.relevance(method)[tokens]
    return [tokens[np.argsort(-relevance, kind="stable")].tolist()]
