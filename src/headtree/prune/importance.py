"""How much each head matters, by one of several criteria, from cheap ones to the measured effect."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float

from headtree._checks import generator, seed
from headtree.errors import InvalidValueError
from headtree.measures.consensus import consensus
from headtree.measures.entropy import head_entropy
from headtree.measures.heads.effects import head_effects
from headtree.measures.heads.loss_changes import measuring
from headtree.measures.heads.patterns import confidence, row_entropies
from headtree.measures.similarity import head_similarity
from headtree.models.activation_cache import caches_of
from headtree.models.given_model import view_and_options
from headtree.models.objective import LossFunction, choose_objective
from headtree.models.view import ModelView
from headtree.models.watching.collect import PreparedInputs
from headtree.progress import progress
from headtree.prune.compensation import layer_signals, removal_order
from headtree.prune.refit import OutputLayers
from headtree.questionnaire.organize import organize
from headtree.tensor.attention_tensor import AttentionTensor, HeadId
from headtree.tensor.probabilities import HeadBlock, head_blocks

if TYPE_CHECKING:
    from pandas import DataFrame

#: What each criterion says is important, in words.
CRITERIA: Mapping[str, str] = {
    "effect": "loss without the head minus loss with it",
    "gradient": "E|g|, mean size of the first-order change of loss (Michel et al. 2019)",
    "compensated": "cost of its removal if the other heads of the layer are fitted again",
    "confidence": "mean largest attention weight (Voita et al. 2019)",
    "shannon": "low Shannon entropy of attention",
    "haar_probs": "l1 entropy of Haar coefficients of attention probabilities",
    "haar_scores": "l1 entropy of Haar coefficients of attention scores",
    "output_norm": "norm of what it writes over the norm of the residual stream",
    "family": "best of its family by confidence",
    "pairs": "the more confident of two heads that do alike",
    "random": "nothing: a random order",
}


@dataclass(frozen=True, eq=False)
class HeadImportance:
    """How much each head matters by one criterion; see `head_importance`.

    Examples
    --------
    >>> import headtree as ht
    >>> network = ht.load_bundled("vit")
    >>> found = ht.head_importance(network.model, "confidence", inputs=network.inputs[:2])
    >>> found
    HeadImportance('confidence', 144 heads, 2 inputs)
    >>> found.least(3) == found.order()[:3]
    True
    """

    criterion: str
    heads: tuple[HeadId, ...]
    importance: Float[np.ndarray, " head"]  #: larger for heads that matter more; not comparable between criteria
    error: Float[np.ndarray, " head"]  #: standard error over inputs; nan if unknown
    n_inputs: int

    def order(self) -> list[HeadId]:
        """All heads, the least important first; equal ones in the order of layers and heads."""
        return [self.heads[i] for i in np.argsort(self.importance, kind="stable")]

    def least(self, n: float) -> list[HeadId]:
        """The least important heads: a number of them, or below 1 a share of all; for `headtree.prune_heads`."""
        return self.order()[: number_of_heads(n, len(self.heads))]

    def table(self) -> DataFrame:
        """A row per head, the most important first."""
        from pandas import DataFrame

        columns = {
            "layer": [head.layer for head in self.heads],
            "head": [head.head for head in self.heads],
            "importance": self.importance,
            "error": self.error,
        }
        return DataFrame(columns).sort_values("importance", ascending=False, kind="stable", ignore_index=True)

    def __repr__(self) -> str:
        return f"HeadImportance({self.criterion!r}, {len(self.heads)} heads, {self.n_inputs} inputs)"


def number_of_heads(n: float, total: int) -> int:
    """A number of heads, from a number or, below 1, a share of all."""
    is_number = isinstance(n, int | float | np.number) and not isinstance(n, bool)
    if not is_number or not 0 <= n <= total or (n > 1 and n != int(n)):
        raise InvalidValueError(f"n must be a number of heads up to {total}, or a share of them below 1, got {n!r}")
    return round(n * total) if n < 1 else int(n)


def head_importance(
    model: Any,
    criterion: str = "confidence",
    *,
    texts: Any = None,
    images: Any = None,
    inputs: Any = None,
    labels: Any = None,
    loss: LossFunction | None = None,
    rng: int = 0,
    **options: Any,
) -> HeadImportance:
    """Say how much each head matters.

    Parameters
    ----------
    model : str, path, torch.nn.Module or ModelView
        As in `headtree.capture`.
    criterion : str
        ``"effect"``: how the loss changes without the head, the ground truth for single heads
        (`headtree.head_effects`). ``"gradient"``: E|g|, the mean over inputs of the size of the first-order change
        (Michel et al. 2019). ``"compensated"``: how late the head goes if heads are removed one by one, and each
        time the other heads of the layer fill the gap as well as they can; made for use with ``refit``.
        From attention alone: ``"confidence"``, the mean largest weight; ``"shannon"``, low entropy of attention;
        ``"haar_probs"`` and ``"haar_scores"``, l1 entropies of Haar coefficients (`headtree.head_entropy`);
        ``"family"``, the most confident head of each family first, then the second of each.
        ``"pairs"``: heads that do alike (`ModelView.head_similarity`) are matched, closest first; the less
        confident of each pair goes, those of the closest pairs first.
        ``"output_norm"``: the norm of what the head writes over the norm of the residual stream.
        ``"random"``: an order to compare with.
    texts, images, inputs
        As in `headtree.capture`; give exactly one of them.
    labels, loss
        As in `headtree.head_effects`, for the criteria that need a loss.
    rng : int
        For random choices.
    **options
        Further arguments of `headtree.capture`, such as tokens, part, layers, tokenizer.

    Examples
    --------
    >>> import headtree as ht
    >>> network = ht.load_bundled("txl")
    >>> inputs = [{"input_ids": item["input_ids"][:, :64]} for item in network.inputs[:4]]
    >>> found = ht.head_importance(network.model, "shannon", inputs=inputs)
    >>> pruned = ht.prune_heads(network.model, found.least(0.25))  # without a quarter of the heads
    >>> list(found.table().columns)
    ['layer', 'head', 'importance', 'error']
    """
    check_criterion(criterion)
    rng = seed(rng)
    view, others = view_and_options(model, options)
    given = {"texts": texts, "images": images, "inputs": inputs}
    ranked = RankingData(view.headed, given, others, labels, loss, rng)
    return ranked.importance(criterion)


def check_criterion(criterion: Any) -> None:
    """Raise an error unless a criterion is known."""
    if not isinstance(criterion, str) or criterion not in CRITERIA:
        raise InvalidValueError(f"criterion must be one of {', '.join(CRITERIA)}, got {criterion!r}")


@dataclass(frozen=True, eq=False)
class RankingData:
    """Inputs on which heads are ranked; inside `ModelView.ablated`, without the ablated heads."""

    view: ModelView
    given: Mapping[str, Any]  #: texts, images or inputs
    options: Mapping[str, Any]  #: further arguments of `ModelView.prepare`
    labels: Any = None
    loss: LossFunction | None = None
    rng: int = 0
    removed: tuple[tuple[int, int], ...] = ()  #: heads (layer, head) that were removed from a refitted model

    def importance(self, criterion: str) -> HeadImportance:
        """The importance of all selected heads."""
        measure = _MEASURES[criterion]
        values, errors, heads, n = measure(self)
        return HeadImportance(criterion, heads, values, errors, n)

    def prepared(self, kind: str = "probs") -> PreparedInputs:
        """The inputs, prepared."""
        return self.view.prepare(**{**self.options, **self.given, "kind": kind})

    def tensors(self, kind: str) -> Iterator[AttentionTensor]:
        """The attention of one input after another."""
        prepared = self.prepared(kind)
        with progress("capturing", len(prepared.items)) as step:
            for i, item in enumerate(prepared.items):
                yield replace(prepared, items=(item,)).run()[0]
                step(f"input {i + 1} of {len(prepared.items)}")


_Measured = tuple[np.ndarray, np.ndarray, tuple[HeadId, ...], int]


def _over_inputs(rows: Sequence[np.ndarray], heads: tuple[HeadId, ...]) -> _Measured:
    """Mean and standard error over inputs."""
    values = np.stack(rows)
    n = len(values)
    errors = values.std(axis=0, ddof=1) / math.sqrt(n) if n > 1 else np.full(values.shape[1], np.nan)
    bad = np.flatnonzero(~np.isfinite(values).all(axis=0))
    if len(bad):
        raise InvalidValueError(
            f"the importance of {heads[bad[0]]} is not defined on some input, which gives it no attention; leave "
            "that input out, or choose another criterion"
        )
    return values.mean(axis=0), errors, heads, n


def _effect(data: RankingData) -> _Measured:
    found = head_effects(
        data.view, **data.given, labels=data.labels, loss=data.loss, rng=data.rng, **_plain(data.options)
    )
    return found.effect, found.error, found.heads, found.n_inputs


def _plain(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name != "kind"}


def _gradient(data: RankingData) -> _Measured:
    prepared = data.prepared()
    rows = []
    with measuring(
        prepared,
        lambda: choose_objective(prepared, labels=data.labels, loss=data.loss, rng=data.rng),
        "zero",
        None,
        data.rng,
    ) as measured:
        if measured.objective.is_distance:
            raise InvalidValueError(
                "criterion 'gradient' needs a loss: the distance of the output from itself has no gradient; "
                "pass labels=… or loss=…, or criterion='compensated'"
            )
        if not measured.has_gradients:
            raise InvalidValueError(
                "criterion 'gradient' needs the outputs of heads as the argument of a module, which this model "
                "does not have; choose criterion='effect'"
            )
        batches = measured.batches(range(len(prepared.items)))
        with progress("gradients", len(batches)) as step:
            for batch in batches:
                slopes, losses = measured.first_order(batch)
                rows += [np.abs(slope) / len(loss) for slope, loss in zip(slopes, losses, strict=True)]
                step(f"input {batch[-1] + 1} of {len(prepared.items)}")
    return _over_inputs(rows, measured.heads)


def _compensated(data: RankingData) -> _Measured:
    prepared = data.prepared()
    with prepared.view.ready():
        objective = choose_objective(prepared, labels=data.labels, loss=data.loss, rng=data.rng)
        layers = OutputLayers.find(prepared)
        selection = prepared.selection
        site_of = {layer: site for site, layer in selection.layers.items()}
        gone = [(site_of[layer], head) for layer, head in data.removed]
        signals = layer_signals(prepared.model, prepared, objective, layers, rng=data.rng)
        order, _ = removal_order(signals, gone)
    rank = {pair: i for i, pair in enumerate([*gone, *order])}
    places = [(site, head) for site, heads in selection.heads.items() for head in heads]
    values = np.array([float(rank[place]) for place in places])
    return values, np.full(len(values), np.nan), selection.head_ids(), len(prepared.items)


def _of_attention(
    kind: str, measure: Callable[[AttentionTensor], Float[np.ndarray, " head"]]
) -> Callable[[RankingData], _Measured]:
    def measured(data: RankingData) -> _Measured:
        rows = []
        heads: tuple[HeadId, ...] = ()
        for att in data.tensors(kind):
            rows.append(measure(att))
            heads = att.heads
        return _over_inputs(rows, heads)

    return measured


def _by_block(measure: Callable[[HeadBlock], torch.Tensor]) -> Callable[[AttentionTensor], np.ndarray]:
    return lambda att: torch.cat([measure(block) for block in head_blocks(att)]).double().numpy()


def _certainty(block: HeadBlock) -> torch.Tensor:
    entropies, rows = row_entropies(block)
    return -block.mean_over_rows(entropies, rows)


def _haar(att: AttentionTensor) -> np.ndarray:
    return np.asarray(head_entropy(att, organize(att)).raw, dtype=np.float64)


def _family(data: RankingData) -> _Measured:
    atts = list(data.tensors("probs"))
    values, _, heads, n = _over_inputs([_by_block(confidence)(att) for att in atts], atts[0].heads)
    if n < 2:
        raise InvalidValueError(f"criterion 'family' needs at least 2 inputs to tell families, got {n}; pass more")
    of_head = consensus(head_similarity(atts)).families().of_leaf
    turn = np.zeros(len(values))
    for family in set(of_head[of_head >= 0].tolist()):
        members = np.flatnonzero(of_head == family)
        turn[members[np.argsort(-values[members], kind="stable")]] = np.arange(len(members))
    # whole numbers order the turns, fractions the heads of a turn by confidence
    ranks = np.argsort(np.argsort(values, kind="stable"), kind="stable") / len(values)
    return turn.max() - turn + ranks, np.full(len(values), np.nan), heads, n


def _pairs(data: RankingData) -> _Measured:
    values, _, heads, n = _MEASURES["confidence"](data)
    similarity = data.view.head_similarity(**data.given, **_plain(data.options))
    pairs = closest_pairs(similarity.distance.mean(axis=0))
    importance = len(heads) + np.argsort(np.argsort(values, kind="stable"), kind="stable").astype(np.float64)
    for turn, (a, b) in enumerate(pairs):
        importance[a if values[a] < values[b] else b] = turn
    return importance, np.full(len(heads), np.nan), heads, n


def closest_pairs(distance: Float[np.ndarray, "head head"]) -> list[tuple[int, int]]:
    """Disjoint pairs of heads: the closest two, then the closest two of the others, and so on."""
    rows, columns = np.triu_indices(len(distance), k=1)
    found: list[tuple[int, int]] = []
    taken: set[int] = set()
    for i in np.argsort(distance[rows, columns], kind="stable"):
        pair = int(rows[i]), int(columns[i])
        if not taken & set(pair):
            found.append(pair)
            taken.update(pair)
    return found


def _output_norm(data: RankingData) -> _Measured:
    prepared = data.prepared()
    rows = []
    heads = prepared.selection.head_ids()
    with progress("reading", len(prepared.items)) as step:
        for i, item in enumerate(prepared.items):
            (cache,) = caches_of(replace(prepared, items=(item,)))
            stream = np.linalg.norm(cache["residual"].values, axis=-1).mean(axis=-1)
            writes = cache["writes"]
            norms = [float(np.linalg.norm(writes[h].values, axis=-1).mean()) for h in range(len(heads))]
            rows.append(np.array(norms) / stream[[head.layer for head in heads]])
            step(f"input {i + 1} of {len(prepared.items)}")
    return _over_inputs(rows, heads)


def _random(data: RankingData) -> _Measured:
    prepared = data.prepared()
    heads = prepared.selection.head_ids()
    values = generator(data.rng).permutation(len(heads)).astype(np.float64)
    return values, np.full(len(heads), np.nan), heads, len(prepared.items)


_MEASURES: Mapping[str, Callable[[RankingData], _Measured]] = {
    "effect": _effect,
    "gradient": _gradient,
    "compensated": _compensated,
    "confidence": _of_attention("probs", _by_block(confidence)),
    "shannon": _of_attention("probs", _by_block(_certainty)),
    "haar_probs": _of_attention("probs", _haar),
    "haar_scores": _of_attention("scores", _haar),
    "output_norm": _output_norm,
    "family": _family,
    "pairs": _pairs,
    "random": _random,
}
