"""How far heads work together: the change of loss without a group, beyond the sum of the changes without each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Int

from headtree._checks import generator
from headtree.errors import InvalidTypeError, InvalidValueError
from headtree.measures.heads.effects import reference_inputs
from headtree.measures.heads.loss_changes import measuring
from headtree.models.ablation import How, head_pairs
from headtree.models.given_model import view_and_options
from headtree.models.objective import LossFunction, choose_objective
from headtree.progress import progress
from headtree.tensor.attention_tensor import HeadId

if TYPE_CHECKING:
    from pandas import DataFrame

_Group = tuple[HeadId, ...]


@dataclass(frozen=True, eq=False)
class Interactions:
    """Interactions of groups of heads; see `interactions`.

    Examples
    --------
    >>> import headtree as ht
    >>> network = ht.load_bundled("vit")
    >>> inputs, labels = list(network.inputs[:3]), network.labels[:3]
    >>> found = ht.interactions(network.model, [[(0, 1), (0, 5)]], inputs=inputs, labels=labels, n_partners=2)
    >>> found.groups[0], found.partners.shape
    ((HeadId(layer=0, head=1), HeadId(layer=0, head=5)), (1, 2))
    >>> list(found.table().columns)
    ['group', 'together', 'apart', 'interaction', 'error', 'partners', 'p']
    """

    groups: tuple[_Group, ...]
    together: Float[np.ndarray, " group"]  #: mean change of loss per token without all heads of the group
    apart: Float[np.ndarray, " group"]  #: sum of the mean changes without each of its heads
    error: Float[np.ndarray, " group"]  #: standard error of the interaction over inputs; nan for fewer than three
    partners: Float[np.ndarray, "group partner"]  #: interactions of random groups of the same layers
    objective: str
    n_inputs: int

    @property
    def interaction(self) -> Float[np.ndarray, " group"]:
        """`together` minus `apart`: positive if heads stand in for each other, negative if they need each other."""
        return np.asarray(self.together - self.apart)

    @property
    def p(self) -> Float[np.ndarray, " group"]:
        """Share of partners, the group included, whose interaction is at least as far from zero."""
        found = np.abs(self.interaction)[:, None]
        share = (1 + (np.abs(self.partners) >= found).sum(axis=1)) / (1 + self.partners.shape[1])
        return np.where(np.isnan(self.partners).any(axis=1), np.nan, share)

    def table(self) -> DataFrame:
        """A row per group, in the order given."""
        from pandas import DataFrame

        return DataFrame(
            {
                "group": [" ".join(f"L{head.layer}H{head.head}" for head in group) for group in self.groups],
                "together": self.together,
                "apart": self.apart,
                "interaction": self.interaction,
                "error": self.error,
                "partners": self.partners.mean(axis=1) if self.partners.shape[1] else np.nan,
                "p": self.p,
            }
        )


def interactions(
    model: Any,
    groups: Sequence[Sequence[tuple[int, int]]],
    *,
    texts: Any = None,
    images: Any = None,
    inputs: Any = None,
    labels: Any = None,
    loss: LossFunction | None = None,
    how: How = "zero",
    reference: Any = None,
    n_partners: int = 8,
    rng: int = 0,
    **options: Any,
) -> Interactions:
    r"""Measure how far heads stand in for each other, or need each other.

    For a group g of heads, with Δ the change of loss without some heads,

    .. math:: I_g = \Delta_g - \sum_{h \in g} \Delta_h,

    beside the same of random groups of heads of the same layers. For a pair this is Δab - Δa - Δb.

    Parameters
    ----------
    model : str, path, torch.nn.Module or ModelView
        As in `headtree.capture`.
    groups : list of lists of (layer, head)
        Pairs of heads, or larger groups, such as families.
    texts, images, inputs, labels, loss, how, reference
        As in `head_effects`.
    n_partners : int
        Number of random groups to compare each group with: heads drawn from the layers of the group, as many from
        each, none of them in the group. Nan if a layer has too few others.
    rng : int
        Draws partners, masked tokens and reference inputs.
    **options
        Further arguments of `headtree.capture`, such as tokens, part, batch_size, tokenizer.

    Examples
    --------
    >>> import headtree as ht
    >>> network = ht.load_bundled("txl")
    >>> inputs = [{"input_ids": item["input_ids"][:, :24]} for item in network.inputs[:3]]
    >>> found = ht.interactions(network.model, [[(4, 0), (4, 1)], [(15, 0), (15, 3)]], inputs=inputs, n_partners=1)
    >>> found.interaction.shape, found.objective
    ((2,), 'cross entropy of the next token')
    """
    if isinstance(n_partners, bool) or not isinstance(n_partners, int) or n_partners < 0:
        raise InvalidValueError(f"n_partners must be a whole number of at least 0, got {n_partners!r}")
    chosen = _checked_groups(groups)
    view, others = view_and_options(model, options)
    if {"layers", "heads"} & set(others):
        raise InvalidTypeError("layers and heads are given by the groups; leave them out")
    prepared = view.headed.prepare(texts=texts, images=images, inputs=inputs, kind="probs", **others)
    known = set(prepared.selection.head_ids())
    for group in chosen:
        for head in group:
            if head not in known:
                raise InvalidValueError(f"groups must name heads of the model, got {tuple(head)}")
    draws = generator(rng)
    partners = [[_partner(group, known, draws) for _ in range(n_partners)] for group in chosen]

    def objective() -> Any:
        return choose_objective(prepared, labels=labels, loss=loss, rng=rng)

    everything = [*chosen, *(partner for each in partners for partner in each if partner is not None)]
    units = dict.fromkeys([*everything, *((head,) for group in everything for head in group)])
    with measuring(prepared, objective, how, reference_inputs(prepared, how, reference), rng) as measured:
        sums, n_tokens = _summed_changes(measured, list(units))
    by_input = {unit: sums[:, i] for i, unit in enumerate(units)}
    beyond = {group: by_input[group] - sum(by_input[(head,)] for head in group) for group in everything}
    return Interactions(
        groups=tuple(chosen),
        together=np.array([by_input[group].sum() for group in chosen]) / n_tokens.sum(),
        apart=np.array([sum(by_input[(head,)].sum() for head in group) for group in chosen]) / n_tokens.sum(),
        error=np.array([_error(beyond[group], n_tokens) for group in chosen]),
        partners=np.array(
            [[np.nan if partner is None else beyond[partner].sum() for partner in each] for each in partners]
        ).reshape(len(chosen), n_partners)
        / n_tokens.sum(),
        objective=measured.objective.name,
        n_inputs=len(prepared.items),
    )


def _checked_groups(groups: Any) -> list[_Group]:
    if isinstance(groups, str) or not isinstance(groups, Sequence) or not groups:
        raise InvalidTypeError(f"groups must be a list of groups of heads, got {groups!r}")
    found = []
    for i, group in enumerate(groups):
        pairs = head_pairs(group)
        if len(pairs) < 2:
            raise InvalidValueError(f"groups[{i}] must name at least two heads (layer, head), got {group!r}")
        found.append(tuple(HeadId(layer, head) for layer, head in pairs))
    return found


def _partner(group: _Group, known: set[HeadId], rng: np.random.Generator) -> _Group | None:
    """As many heads of each layer as the group has, drawn from the others; None if there are too few."""
    drawn: list[HeadId] = []
    for layer in dict.fromkeys(head.layer for head in group):
        wanted = sum(head.layer == layer for head in group)
        others = sorted(head for head in known if head.layer == layer and head not in group)
        if len(others) < wanted:
            return None
        drawn += [others[i] for i in rng.choice(len(others), size=wanted, replace=False)]
    return tuple(drawn)


def _summed_changes(
    measured: Any, units: list[_Group]
) -> tuple[Float[np.ndarray, "input unit"], Int[np.ndarray, " input"]]:
    """Changes of loss without each unit, summed over the tokens of each input, and the number of these."""
    n = len(measured.prepared.items)
    sums, n_tokens = np.zeros((n, len(units))), np.zeros(n, dtype=np.int64)
    batches = measured.batches(range(n))
    with progress("ablating heads", len(batches) * len(units)) as step:
        for batch in batches:
            base = measured.base(batch)
            n_tokens[batch] = [len(loss) for loss in base.losses]
            for u, unit in enumerate(units):
                sums[batch, u] = [change.sum() for change in measured.changes(base, unit)]
                step(f"without {len(unit)} head{'s' if len(unit) > 1 else ''}")
    return sums, n_tokens


def _error(beyond: Float[np.ndarray, " input"], n_tokens: Int[np.ndarray, " input"]) -> float:
    """Standard error of a ratio of sums over inputs, by the jackknife."""
    n = len(beyond)
    if n < 3:
        return float("nan")
    without = (beyond.sum() - beyond) / (n_tokens.sum() - n_tokens)
    return float(np.sqrt((n - 1) / n * ((without - beyond.sum() / n_tokens.sum()) ** 2).sum()))
