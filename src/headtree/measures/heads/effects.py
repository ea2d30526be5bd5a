"""The effect of a head: how the loss changes without it, with its standard error and reliability.

On a few thousand tokens the change of loss without a head is nearly all its first-order term, whose mean over all
text is close to zero in a trained network. The first-order term is cheap, since one pass with gradients gives it
for all heads, so its mean is taken over many more inputs than those on which heads are really ablated (a control
variate).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float, Int

from headtree._checks import flag, generator, one_of
from headtree.errors import InvalidValueError
from headtree.measures.comparisons import rank_correlation
from headtree.measures.heads.loss_changes import LossChanges, measuring
from headtree.models.ablation import How, check_how, prepared_reference
from headtree.models.given_model import view_and_options
from headtree.models.objective import LossFunction, choose_objective
from headtree.models.watching.collect import PreparedInputs
from headtree.progress import progress
from headtree.tensor.attention_tensor import HeadId

if TYPE_CHECKING:
    from pandas import DataFrame

#: Of this many inputs or fewer, all are used to ablate heads; of more, a tenth, but at least so many.
_FEW_INPUTS = 16

#: Random divisions of the inputs into halves whose rank correlations the reliability averages.
_DIVISIONS = 50


@dataclass(frozen=True, eq=False)
class HeadEffects:
    """Change of loss without each head; see `head_effects`.

    Examples
    --------
    >>> import headtree as ht
    >>> network = ht.load_bundled("vit")
    >>> found = ht.head_effects(
    ...     network.model, inputs=list(network.inputs[:4]), labels=network.labels[:4], layers=[0, 11]
    ... )
    >>> found
    HeadEffects(24 heads; cross entropy of labels; ablated on 4 of 4 inputs)
    >>> found.effect.shape, found.changes.shape, found.similarity.shape
    ((24,), (24, 4), (24, 24))
    >>> list(found.table().columns)
    ['layer', 'head', 'effect', 'error', 'raw', 'first_order']
    """

    heads: tuple[HeadId, ...]
    effect: Float[np.ndarray, " head"]  #: mean change of loss per token: positive if the head helps
    error: Float[np.ndarray, " head"]  #: standard error of `effect` over inputs; nan for fewer than three inputs
    raw: Float[np.ndarray, " head"]  #: mean change on the ablated inputs alone, without the control variate
    first_order: Float[np.ndarray, " head"]  #: mean first-order change over all inputs; nan if it is unknown
    reliability: float  #: mean rank correlation of `effect` between disjoint halves of the inputs
    raw_reliability: float  #: the same of `raw`
    changes: Float[np.ndarray, "head token"]  #: change of loss at every token of the ablated inputs
    input_of: Int[np.ndarray, " token"]  #: the input that each token of `changes` belongs to
    loss: float  #: mean loss per token with all heads, over all inputs used
    objective: str  #: what the loss is, in words
    how: How
    n_inputs: int  #: number of inputs used
    n_ablated: int  #: number of inputs on which heads were ablated

    @property
    def similarity(self) -> Float[np.ndarray, "head head"]:
        """Functional similarity: correlation over tokens of the changes of loss without each of two heads."""
        centred = self.changes - self.changes.mean(axis=1, keepdims=True)
        norms = np.linalg.norm(centred, axis=1, keepdims=True)
        scaled = np.divide(centred, norms, out=np.zeros_like(centred), where=norms > 0)
        return np.asarray(scaled @ scaled.T)

    def table(self) -> DataFrame:
        """A row per head, the one that matters most first."""
        from pandas import DataFrame

        columns = {
            "layer": [head.layer for head in self.heads],
            "head": [head.head for head in self.heads],
            "effect": self.effect,
            "error": self.error,
            "raw": self.raw,
            "first_order": self.first_order,
        }
        return DataFrame(columns).sort_values("effect", ascending=False, kind="stable", ignore_index=True)

    def __repr__(self) -> str:
        return (
            f"HeadEffects({len(self.heads)} heads; {self.objective}; ablated on {self.n_ablated} of "
            f"{self.n_inputs} inputs)"
        )


def head_effects(
    model: Any,
    *,
    texts: Any = None,
    images: Any = None,
    inputs: Any = None,
    labels: Any = None,
    loss: LossFunction | None = None,
    how: How = "zero",
    reference: Any = None,
    n_ablated: int | None = None,
    control: bool = True,
    rng: int = 0,
    **options: Any,
) -> HeadEffects:
    """Measure how the loss of a model changes without each of its heads.

    Parameters
    ----------
    model : str, path, torch.nn.Module or ModelView
        As in `headtree.capture`. An id or a folder is loaded with its output head, if its files have one.
    texts, images, inputs
        As in `headtree.capture`; give exactly one of them.
    labels : sequence, optional
        For each input its class, or for each token (-100 for tokens that do not count; not shifted).
    loss : function, optional
        A loss of your own: called with the model's output and the arguments of its forward method, for one input;
        returns a tensor of losses. By default the cross entropy of the labels if they are given, of the next token
        for a causal language model or a decoder with logits, of masked tokens for another encoder with a logit for
        every word; otherwise the squared distance of the model's output (logits, or else its first output) from
        what it is with all heads, relative to its mean square.
    how : {"zero", "mean", "resample"}
        What an ablated head hands to the output projection; as in `ModelView.ablated`.
    reference : optional
        Reference inputs for "mean" and "resample", as in `ModelView.ablated`; by default the inputs themselves,
        for "resample" always another one.
    n_ablated : int, optional
        On how many of the inputs, the first ones, to ablate each head. The others serve only for the mean of the
        first-order term, and are not used where there is none. By default all of up to 16 inputs, and a tenth of
        more, but at least 16.
    control : bool
        Whether to use the first-order term as a control variate.
    rng : int
        Draws masked tokens, reference inputs, and the halves of the reliability.
    **options
        Further arguments of `headtree.capture`, such as tokens, part, layers, heads, batch_size, tokenizer.

    Notes
    -----
    With Δ the change of loss without a head and c its first-order term, the effect is the mean of Δ - c over the
    ablated inputs plus the mean of c over all inputs. For `how="zero"`, c = -∂loss/∂m for a mask m on the head.
    Standard errors are over inputs: tokens of one input are not independent.

    Examples
    --------
    >>> import headtree as ht
    >>> network = ht.load_bundled("txl")
    >>> inputs = [{"input_ids": item["input_ids"][:, :32]} for item in network.inputs[:3]]
    >>> found = ht.head_effects(network.model, inputs=inputs, heads=[(0, 0), (15, 3)])
    >>> found.objective, found.heads
    ('cross entropy of the next token', (HeadId(layer=0, head=0), HeadId(layer=15, head=3)))
    """
    generator(rng)
    view, others = view_and_options(model, options)
    prepared = view.headed.prepare(texts=texts, images=images, inputs=inputs, kind="probs", **others)
    n = len(prepared.items)
    n_ablated = _checked_count(n_ablated, n)
    reference = reference_inputs(prepared, how, reference)

    def objective() -> Any:
        return choose_objective(prepared, labels=labels, loss=loss, rng=rng)

    with measuring(prepared, objective, how, reference, rng) as measured:
        sums = _measure(measured, n_ablated, control)
    return _summed_up(measured, sums, rng)


def _checked_count(n_ablated: int | None, n: int) -> int:
    if n_ablated is None:
        return n if n <= _FEW_INPUTS else max(_FEW_INPUTS, -(-n // 10))
    if isinstance(n_ablated, bool) or not isinstance(n_ablated, int | np.integer) or not 1 <= n_ablated <= n:
        raise InvalidValueError(f"n_ablated must be a whole number from 1 to the {n} inputs, got {n_ablated!r}")
    return int(n_ablated)


def reference_inputs(prepared: PreparedInputs, how: How, reference: Any) -> PreparedInputs | None:
    """Reference inputs for a way of ablating: those given, or the inputs themselves; None if it needs none."""
    one_of(how, "how", How)
    if how == "zero":
        check_how(how, reference)
        return None
    if reference is None:
        check_how(how, prepared)
        return prepared
    check_how(how, reference)
    return prepared_reference(prepared.view, reference, prepared.part)


@dataclass(frozen=True, eq=False)
class _Sums:
    """Per input, summed over its tokens."""

    changes: Float[np.ndarray, "ablated head"]
    slopes: Float[np.ndarray, "input head"] | None  #: first-order changes
    n_tokens: Float[np.ndarray, " input"]
    losses: Float[np.ndarray, " input"]
    by_token: list[Float[np.ndarray, "head token"]]  #: changes of each ablated input


def _measure(measured: LossChanges, n_ablated: int, control: bool) -> _Sums:
    heads = measured.heads
    has_slopes = flag(control, "control") and measured.has_gradients and not measured.objective.is_distance
    n = len(measured.prepared.items) if has_slopes else n_ablated  # further inputs serve the slopes alone
    losses: dict[int, np.ndarray] = {}
    slopes = np.zeros((n, len(heads)))
    by_token: dict[int, np.ndarray] = {}
    ablated = measured.batches(range(n_ablated))
    others = measured.batches(range(n)) if has_slopes else []
    if torch.is_inference_mode_enabled():
        raise InvalidValueError("effects need gradients; call head_effects outside torch.inference_mode")
    with progress("ablating heads", len(ablated) * len(heads) + len(others)) as step:
        for batch in others:
            slopes[batch], found = measured.first_order(batch)
            losses.update(zip(batch, found, strict=True))
            step("first-order terms")
        for batch in ablated:
            base = measured.base(batch)
            losses.update(zip(batch, base.losses, strict=True))
            for i, loss in zip(batch, base.losses, strict=True):
                by_token[i] = np.zeros((len(heads), len(loss)))
            for h, head in enumerate(heads):
                for i, change in zip(batch, measured.changes(base, [head]), strict=True):
                    by_token[i][h] = change
                step(f"without L{head.layer}H{head.head}")
    empty = next((i for i in range(n) if len(losses[i]) == 0), None)
    if empty is not None:
        raise InvalidValueError(f"input {empty} has no loss: no token of it is predicted or labelled; leave it out")
    return _Sums(
        changes=np.stack([by_token[i].sum(axis=1) for i in range(n_ablated)]),
        slopes=slopes if has_slopes else (np.zeros_like(slopes) if measured.objective.is_distance else None),
        n_tokens=np.array([len(losses[i]) for i in range(n)], dtype=np.float64),
        losses=np.array([losses[i].sum() for i in range(n)]),
        by_token=[by_token[i] for i in range(n_ablated)],
    )


def _summed_up(measured: LossChanges, sums: _Sums, rng: int) -> HeadEffects:
    n_ablated, n = len(sums.changes), len(sums.n_tokens)
    everything, ablated = np.arange(n), np.arange(n_ablated)
    first_order = np.full(len(measured.heads), np.nan)
    if sums.slopes is not None:
        first_order = sums.slopes.sum(axis=0) / sums.n_tokens.sum()
    reliability, raw_reliability = _reliability(sums, generator(rng))
    return HeadEffects(
        heads=measured.heads,
        effect=_effect(sums, ablated, everything),
        error=_error(sums),
        raw=_raw(sums, ablated),
        first_order=first_order,
        reliability=reliability,
        raw_reliability=raw_reliability,
        changes=np.concatenate(sums.by_token, axis=1),
        input_of=np.repeat(ablated, [change.shape[1] for change in sums.by_token]),
        loss=float(sums.losses.sum() / sums.n_tokens.sum()),
        objective=measured.objective.name,
        how=measured.how,
        n_inputs=n,
        n_ablated=n_ablated,
    )


def _raw(sums: _Sums, ablated: np.ndarray) -> Float[np.ndarray, " head"]:
    return np.asarray(sums.changes[ablated].sum(axis=0) / sums.n_tokens[ablated].sum())


def _effect(sums: _Sums, ablated: np.ndarray, everything: np.ndarray) -> Float[np.ndarray, " head"]:
    """Mean of Δ - c over the ablated inputs plus the mean of c over all inputs."""
    if sums.slopes is None:
        return _raw(sums, ablated)
    beyond = (sums.changes[ablated] - sums.slopes[ablated]).sum(axis=0) / sums.n_tokens[ablated].sum()
    return np.asarray(beyond + sums.slopes[everything].sum(axis=0) / sums.n_tokens[everything].sum())


def _error(sums: _Sums) -> Float[np.ndarray, " head"]:
    """Standard error by the jackknife over inputs; leaving out an ablated input leaves out its two terms."""
    n_ablated, n = len(sums.changes), len(sums.n_tokens)
    if n_ablated < 3:
        return np.full(sums.changes.shape[1], np.nan)
    everything, ablated = np.arange(n), np.arange(n_ablated)
    used = everything if sums.slopes is not None else ablated
    whole = _effect(sums, ablated, everything)
    squares = np.zeros_like(whole)
    for group, size in ((ablated, n_ablated), (used[n_ablated:], n - n_ablated)):
        for i in group:
            without = _effect(sums, ablated[ablated != i], everything[everything != i])
            squares += (size - 1) / size * (without - whole) ** 2 if size > 1 else 0
    return np.asarray(np.sqrt(squares))


def _reliability(sums: _Sums, rng: np.random.Generator) -> tuple[float, float]:
    """Mean rank correlation of the effects, and of the raw ones, between random halves of the inputs."""
    n_ablated, n = len(sums.changes), len(sums.n_tokens)
    if n_ablated < 2:
        return float("nan"), float("nan")
    found = []
    for _ in range(_DIVISIONS):
        ablated, rest = rng.permutation(n_ablated), n_ablated + rng.permutation(n - n_ablated)
        halves = [(np.sort(ablated[i::2]), np.sort(rest[i::2])) for i in (0, 1)]
        effects = [_effect(sums, part, np.concatenate([part, more])) for part, more in halves]
        raws = [_raw(sums, part) for part, _ in halves]
        found.append((rank_correlation(*effects), rank_correlation(*raws)))
    effect, raw = np.nanmean(found, axis=0) if np.isfinite(found).any(axis=0).all() else (np.nan, np.nan)
    return float(effect), float(raw)
