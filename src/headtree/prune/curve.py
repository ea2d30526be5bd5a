"""Loss against the share of heads removed, for several criteria, on inputs that ranked nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import nn

from headtree._checks import as_list, at_least_one, flag, seed
from headtree.errors import HeadtreeError, InvalidTypeError, InvalidValueError
from headtree.models.given_model import view_and_options
from headtree.models.graph.forward_graph import logits_of
from headtree.models.inputs import ModelInput
from headtree.models.objective import LossFunction, Objective, choose_objective
from headtree.models.view import ModelView
from headtree.models.watching.collect import PreparedInputs
from headtree.models.watching.probe import arguments
from headtree.models.watching.select import select
from headtree.progress import progress
from headtree.prune.importance import CRITERIA, RankingData, check_criterion
from headtree.prune.refit import OutputLayers, refitted
from headtree.tensor.attention_tensor import HeadId

if TYPE_CHECKING:
    from pandas import DataFrame

#: Inputs that each set needs at least.
_FEWEST = 2

#: Computes something, unless an earlier run did and stored it under this name; values are JSON.
Remember = Callable[[str, Callable[[], Any]], Any]


@dataclass(frozen=True, eq=False)
class Difference:
    """Mean difference of loss between two criteria on the same test inputs."""

    better: str  #: the criterion with the smaller loss
    worse: str
    difference: float  #: loss with `worse` minus loss with `better`
    error: float  #: standard error, paired over inputs, and over random orders; nan for a single input

    @property
    def is_clear(self) -> bool:
        """Whether the difference exceeds two standard errors."""
        return bool(self.difference > 2 * self.error)


@dataclass(frozen=True, eq=False)
class PruneCurve:
    """Losses without more and more heads; see `prune_curve`.

    Examples
    --------
    >>> import headtree as ht
    >>> network = ht.load_bundled("txl")
    >>> inputs = [{"input_ids": item["input_ids"][:, :32]} for item in network.inputs[:6]]
    >>> found = ht.prune_curve(network.model, ["confidence", "random"], inputs=inputs, steps=2, n_random=2)
    >>> found
    PruneCurve(confidence, random; 128 heads, 2 steps; ranked on 2 inputs, tested on 4)
    >>> list(found.table().columns)[:7]
    ['criterion', 'removed', 'share', 'loss', 'error', 'increase', 'increase_error']
    """

    counts: Int[np.ndarray, " step"]  #: number of heads removed at each step, the first 0
    n_heads: int
    losses: Mapping[
        str, Float[np.ndarray, "order step input"]
    ]  #: mean loss of each test input; random: many orders
    correct: Mapping[
        str, Float[np.ndarray, "order step input"]
    ]  #: 1 where the class is right; empty without labels
    weights: Float[np.ndarray, " input"]  #: number of losses of each test input
    orders: Mapping[str, list[list[HeadId]]]  #: in which heads were removed
    objective: str
    n_ranking: int
    n_calibration: int  #: 0 without refitting
    iterative: bool
    skipped: Mapping[str, str]  #: criteria that the model does not have, and why

    @property
    def n_test(self) -> int:
        """Number of test inputs."""
        return len(self.weights)

    def loss(self, criterion: str) -> Float[np.ndarray, " step"]:
        """Mean loss at each step, over orders and test inputs."""
        return np.asarray(np.average(self.losses[criterion].mean(axis=0), axis=1, weights=self.weights))

    def error(self, criterion: str) -> Float[np.ndarray, " step"]:
        """Standard error over test inputs, and over random orders."""
        return np.array([_error(values, self.weights) for values in self.losses[criterion].swapaxes(0, 1)])

    def increase(self, criterion: str) -> tuple[Float[np.ndarray, " step"], Float[np.ndarray, " step"]]:
        """Mean increase of the loss over that with all heads, and its standard error, paired over inputs."""
        values = self.losses[criterion]
        rises = (values - values[:, :1]).swapaxes(0, 1)
        means = self.loss(criterion)
        return means - means[0], np.array([_error(rise, self.weights) for rise in rises])

    def compare(self, first: str, second: str, step: int | None = None) -> Difference:
        """The difference between two criteria at one step; by default the mean over all steps after the first."""
        chosen = slice(1, None) if step is None else slice(step, step + 1)
        ours, theirs = (self.losses[name][:, chosen].mean(axis=1) for name in (first, second))
        mean = float(np.average(theirs.mean(axis=0) - ours.mean(axis=0), weights=self.weights))
        over_inputs = _error((theirs.mean(axis=0) - ours.mean(axis=0))[None], self.weights)
        over_orders = sum(_order_variance(values, self.weights) for values in (ours, theirs))
        better, worse = (first, second) if mean >= 0 else (second, first)
        return Difference(better, worse, abs(mean), float(np.sqrt(over_inputs**2 + over_orders)))

    def step_at(self, share: float) -> int:
        """The step whose share of removed heads is nearest to one."""
        return int(np.abs(self.counts / self.n_heads - share).argmin())

    def comparisons(self) -> DataFrame:
        """A row per pair of criteria and step: their difference of loss, with its paired standard error."""
        from pandas import DataFrame

        pairs = [
            (int(count), self.compare(first, second, step))
            for step, count in enumerate(self.counts)
            for first, second in combinations(self.losses, 2)
            if count
        ]
        rows = [
            [count, count / self.n_heads, pair.better, pair.worse, pair.difference, pair.error, pair.is_clear]
            for count, pair in pairs
        ]
        columns = ["removed", "share", "better", "worse", "difference", "error", "is_clear"]
        return DataFrame(rows, columns=columns)

    def table(self) -> DataFrame:
        """A row per criterion and step."""
        from pandas import DataFrame

        rows = []
        for name in self.losses:
            loss, error = self.loss(name), self.error(name)
            rise, rise_error = self.increase(name)
            right = self.correct.get(name)
            for step, count in enumerate(self.counts):
                accuracy = [np.nan, np.nan]
                if right is not None:
                    ones = np.ones(self.n_test)
                    accuracy = [float(right[:, step].mean()), _error(right[:, step], ones)]
                losses = [loss[step], error[step], rise[step], rise_error[step]]
                rows.append([name, int(count), count / self.n_heads, *losses, *accuracy])
        columns = ["criterion", "removed", "share", "loss", "error", "increase", "increase_error"]
        columns += ["accuracy", "accuracy_error"]
        return DataFrame(rows, columns=columns)

    def __repr__(self) -> str:
        return (
            f"PruneCurve({', '.join(self.losses)}; {self.n_heads} heads, {len(self.counts) - 1} steps; ranked on "
            f"{self.n_ranking} inputs, tested on {self.n_test})"
        )


def _error(values: Float[np.ndarray, "order input"], weights: Float[np.ndarray, " input"]) -> float:
    """Standard error of the weighted mean over inputs, and of the mean over orders."""
    mean = values.mean(axis=0)
    n = len(mean)
    if n < 2:
        return float("nan")
    share = weights / weights.sum()
    spread = share * (mean - np.average(mean, weights=weights))
    return float(np.sqrt(n / (n - 1) * np.square(spread).sum() + _order_variance(values, weights)))


def _order_variance(values: Float[np.ndarray, "order input"], weights: Float[np.ndarray, " input"]) -> float:
    means = np.average(values, axis=1, weights=weights)
    return float(means.var(ddof=1) / len(means)) if len(means) > 1 else 0.0


def prune_curve(
    model: Any,
    criteria: str | Sequence[str] = "all",
    *,
    texts: Any = None,
    images: Any = None,
    inputs: Any = None,
    labels: Any = None,
    loss: LossFunction | None = None,
    steps: int = 10,
    n_random: int = 10,
    iterative: bool = False,
    refit: bool = False,
    rng: int = 0,
    remember: Remember | None = None,
    **options: Any,
) -> PruneCurve:
    """Measure the loss of a model without more and more of its heads, removed in the order of several criteria.

    Inputs are divided in the order given: the first third ranks heads, with `refit` the second third fits the
    output projections, and the loss is that of the rest.

    Parameters
    ----------
    model : str, path, torch.nn.Module or ModelView
        As in `headtree.capture`.
    criteria : str or list of str
        Criteria of `headtree.head_importance`, or "all" of them that the model has.
    texts, images, inputs, labels, loss
        As in `headtree.head_effects`.
    steps : int
        Number of equal steps from no head removed to all but one.
    n_random : int
        Number of random orders.
    iterative : bool
        Whether heads are ranked again after each step, in the network as it is then.
    refit : bool
        Whether the output projections are fitted again after each step, as in `headtree.prune_heads`.
    rng : int
        Draws random orders, and whatever the criteria draw.
    remember : function, optional
        Called with a name and a function; returns its result, stored or new. The command `headtree prune` resumes
        with it.
    **options
        Further arguments of `headtree.capture`, such as tokens, part, batch_size, tokenizer.

    Examples
    --------
    >>> import headtree as ht
    >>> network = ht.load_bundled("txl")
    >>> inputs = [{"input_ids": item["input_ids"][:, :32]} for item in network.inputs[:6]]
    >>> found = ht.prune_curve(network.model, ["shannon", "random"], inputs=inputs, steps=2, n_random=2)
    >>> found.counts.tolist(), found.losses["random"].shape
    ([0, 64, 127], (2, 3, 4))
    """
    at_least_one(steps, "steps")
    at_least_one(n_random, "n_random")
    names, rng = _checked_criteria(criteria), seed(rng)
    iterative, refit = flag(iterative, "iterative"), flag(refit, "refit")
    if remember is not None and not callable(remember):
        raise InvalidTypeError(f"remember must be a function of a name and a function, got {remember!r}")
    view, others = view_and_options(model, options)
    given = {"texts": texts, "images": images, "inputs": inputs}
    prepared = view.headed.prepare(kind="probs", of_one_shape=False, **given, **others)
    data = _Data.divided(prepared, others, labels, loss, refit, rng)
    return _Measurement(data, steps, n_random, iterative, remember or (lambda _, compute: compute())).curve(names)


def _checked_criteria(criteria: Any) -> list[str]:
    if isinstance(criteria, str):
        criteria = list(CRITERIA) if criteria == "all" else [criteria]
    if not isinstance(criteria, Sequence) or not criteria:
        raise InvalidTypeError(f"criteria must be 'all' or a list of criteria, got {criteria!r}")
    for criterion in criteria:
        check_criterion(criterion)
    return list(dict.fromkeys(criteria))


@dataclass(frozen=True, eq=False)
class _Data:
    """Inputs for ranking, calibration and test, which share none."""

    prepared: PreparedInputs  #: all of them
    options: Mapping[str, Any]
    ranking: slice
    calibration: slice | None
    test: slice
    labels: Any
    loss: LossFunction | None
    rng: int

    @classmethod
    def divided(
        cls, prepared: PreparedInputs, options: Mapping[str, Any], labels: Any, loss: Any, refit: bool, rng: int
    ) -> _Data:
        n, third = len(prepared.items), len(prepared.items) // 3
        fewest = _FEWEST * 3
        if n < fewest:
            raise InvalidValueError(
                f"there must be at least {fewest} inputs, {_FEWEST} each to rank heads, fit and test, got {n}; "
                "pass more or longer texts, or fewer tokens per input"
            )
        labels = None if labels is None else as_list(labels, "labels", "labels")
        if labels is not None and len(labels) != n:
            raise InvalidValueError(f"labels must have one entry per input, got {len(labels)} for {n} inputs")
        calibration = slice(third, 2 * third) if refit else None
        start = 2 * third if refit else third
        return cls(prepared, options, slice(0, third), calibration, slice(start, n), labels, loss, rng)

    def some(self, which: slice) -> tuple[PreparedInputs, Any]:
        """Some of the prepared inputs, and their labels."""
        labels = None if self.labels is None else self.labels[which]
        return replace(self.prepared, items=self.prepared.items[which]), labels

    def ranking_data(self, view: ModelView, removed: Sequence[tuple[int, int]]) -> RankingData:
        """What heads are ranked on, in a view of the model or of a copy with other weights."""
        chosen, labels = self.some(self.ranking)
        given = {"inputs": [_arguments(item) for item in chosen.items]}
        skipped = ("tokens", "targets", "texts", "images")
        options = {name: value for name, value in self.options.items() if name not in skipped}
        return RankingData(view, given, options, labels, self.loss, self.rng, tuple(removed))


def _arguments(item: ModelInput) -> dict[str, Any]:
    if item.args:
        raise InvalidTypeError("inputs must be mappings of the model's arguments by name here, not positional ones")
    return dict(item.kwargs)


class _Test:
    """The test inputs, with the loss of any variant of the model on them."""

    def __init__(self, data: _Data) -> None:
        self.prepared, self.labels = data.some(data.test)
        with self.prepared.view.ready():
            self.objective: Objective = choose_objective(
                self.prepared, labels=self.labels, loss=data.loss, rng=data.rng
            )
        size = 1 if self.objective.single else self.prepared.batch_size
        self.batches = replace(self.prepared, items=self.objective.items, batch_size=size).batches()
        self.whole: list[Any] = []
        if self.objective.is_distance:
            with self.prepared.view.ready():
                self.whole = [self._run(self.prepared.model, batch) for batch in self.batches]

    def losses(self, model: nn.Module) -> dict[str, Any]:
        """Mean loss and number of losses of every test input, and whether its class is right, as JSON."""
        n = len(self.objective.items)
        means, counts, right = [0.0] * n, [0] * n, [0] * n
        for b, batch in enumerate(self.batches):
            output = self._run(model, batch)
            found = self.objective.losses(output, batch, self.whole[b] if self.whole else output)
            for i, values in zip(batch, found, strict=True):
                means[i], counts[i] = float(values.double().mean()), len(values)
            if self.is_classified:
                best = logits_of(output).argmax(dim=-1)  # type: ignore[union-attr]
                for row, i in enumerate(batch):
                    right[i] = int(best[row] == int(self.labels[i]))
        return {"losses": means, "counts": counts, "correct": right if self.is_classified else None}

    @property
    def is_classified(self) -> bool:
        """Whether each input has one class."""
        return self.labels is not None and np.ndim(self.labels[0]) == 0

    def _run(self, model: nn.Module, batch: Sequence[int]) -> Any:
        args, kwargs = arguments(model, [self.objective.items[i] for i in batch])
        with torch.no_grad():
            return model(*args, **kwargs)


class _Measurement:
    """Goes through criteria and steps."""

    def __init__(self, data: _Data, steps: int, n_random: int, iterative: bool, remember: Remember) -> None:
        self.data, self.n_random, self.iterative, self.remember = data, n_random, iterative, remember
        self.view = data.prepared.view
        self.heads = select(data.prepared.plan, data.prepared.part, None, None, of_one_shape=False).head_ids()
        total = len(self.heads)
        self.counts = np.unique(np.round(np.linspace(0, total - 1, steps + 1)).astype(np.int64))
        self.test = _Test(data)
        self.layers: OutputLayers | None = None
        self.known: dict[str, Any] = {}

    def stored(self, name: str, compute: Callable[[], Any]) -> Any:
        """What was computed under this name, now or in an earlier run."""
        if name not in self.known:
            self.known[name] = self.remember(name, compute)
        return self.known[name]

    def curve(self, names: Sequence[str]) -> PruneCurve:
        losses: dict[str, np.ndarray] = {}
        correct: dict[str, np.ndarray] = {}
        orders: dict[str, list[list[HeadId]]] = {}
        skipped: dict[str, str] = {}
        weights = np.zeros(0)
        many = {name: self.n_random if name == "random" else 1 for name in names}
        with progress("pruning", sum(many.values()) * len(self.counts)) as step:
            for name in names:
                try:
                    rows = [list(self._measured(name, k, step)) for k in range(many[name])]
                except HeadtreeError as error:
                    if len(names) == 1:
                        raise
                    skipped[name] = str(error)
                    continue
                found = [[point for _, point in row] for row in rows]
                losses[name] = np.array([[point["losses"] for point in row] for row in found])
                weights = np.array(found[0][0]["counts"], dtype=np.float64)
                orders[name] = [row[-1][0] for row in rows]
                if found[0][0]["correct"] is not None:
                    correct[name] = np.array([[point["correct"] for point in row] for row in found], dtype=float)
        if not losses:
            raise InvalidValueError(f"no criterion can be measured: {'; '.join(skipped.values())}")
        data = self.data
        n_ranking = data.ranking.stop
        n_fit = 0 if data.calibration is None else data.calibration.stop - data.calibration.start
        objective = self.test.objective.name
        return PruneCurve(
            self.counts,
            len(self.heads),
            losses,
            correct,
            weights,
            orders,
            objective,
            n_ranking,
            n_fit,
            self.iterative,
            skipped,
        )

    def _measured(
        self, name: str, k: int, step: Callable[[str], None]
    ) -> Iterator[tuple[list[HeadId], dict[str, Any]]]:
        """The heads removed so far and the losses without them, step by step."""
        removed: list[HeadId] = []
        order: list[HeadId] = []
        model: Callable[[], nn.Module] | None = None
        for i, count in enumerate(self.counts):
            if not order or (self.iterative and name != "random" and count > len(removed)):
                order = self._ranked(name, k, i, removed, model)
            removed = order[: int(count)]
            model = None
            if self.data.calibration is not None and removed:
                model = cache(partial(self._refitted, tuple(removed)))
            pairs = [(int(head.layer), int(head.head)) for head in removed]
            compute = partial(self._losses, model, pairs)
            of_whom = f"{name}-{k:02d}-{int(count):05d}" if removed else "whole"  # which all criteria share
            yield order, self.stored(f"losses-{of_whom}", compute)
            step(f"{name}, {int(count)} of {len(self.heads)} heads removed")

    def _ranked(
        self, name: str, k: int, i: int, removed: Sequence[HeadId], model: Callable[[], nn.Module] | None
    ) -> list[HeadId]:
        """All heads in the order of removal; those removed already come first."""

        def rank() -> list[list[int]]:
            pairs = [(head.layer, head.head) for head in removed]
            view = self.view if model is None else ModelView(model())
            data = replace(self.data.ranking_data(view, pairs if model is not None else ()), rng=self.data.rng + k)
            is_ablated = model is None and bool(pairs)
            with self.view.ablated(pairs, part=self.data.prepared.part) if is_ablated else nullcontext():
                found = data.importance(name)
            return [[head.layer, head.head] for head in found.order()]

        found = self.stored(f"order-{name}-{k:02d}-{i:05d}", rank)
        gone = set(removed)
        return [*removed, *(HeadId(*pair) for pair in found if HeadId(*pair) not in gone)]

    def _refitted(self, removed: Sequence[HeadId]) -> nn.Module:
        chosen, _ = self.data.some(self.data.calibration or slice(0))
        if self.layers is None:
            with chosen.view.ready():
                self.layers = OutputLayers.find(chosen)
        return refitted(chosen, [(head.layer, head.head) for head in removed], layers=self.layers)

    def _losses(self, model: Callable[[], nn.Module] | None, pairs: Sequence[tuple[int, int]]) -> dict[str, Any]:
        changed = None if model is None else model().eval()
        with self.view.ready():
            if changed is not None:
                return self.test.losses(changed)
            with self.view.ablated(pairs, part=self.data.prepared.part) if pairs else nullcontext():
                return self.test.losses(self.view.model)
