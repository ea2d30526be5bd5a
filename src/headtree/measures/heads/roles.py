"""The roles that heads are named after: how much attention goes to the previous token, delimiters, the same row."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from headtree import _checks
from headtree.errors import InvalidValueError
from headtree.measures.heads.columns import Averages, Column, averages
from headtree.measures.heads.token_relations import relations
from headtree.tensor.attention_tensor import AttentionTensor, HeadId
from headtree.tensor.probabilities import HeadBlock, checked_tensors, head_blocks

#: The roles in words. A head is named after a narrow role if possible, because the broad roles contain narrow ones.
NARROW = {
    "previous_token": "previous token",
    "same_token": "same token",
    "next_token": "next token",
    "first_token": "first token",
    "class_token": "class token",
    "delimiters": "delimiters",
    "earlier_copies": "earlier copies",
}
BROAD = {
    "neighbours": "neighbours",
    "same_row": "same row",
    "same_column": "same column",
    "nearby_tokens": "nearby tokens",
}
WORDS = {**NARROW, **BROAD}

#: Standard deviations by which a head's share must exceed the shuffled share; no head of noise does.
_CLEARLY = 4.0

#: Smallest excess, and smallest ratio of share to chance, at which a head leans to a role it is not named after.
_LEANING, _TIMES = 0.1, 3.0

#: Smallest number of queries on which a role must be possible; otherwise one repeated word could decide a role.
_FEWEST = 3

#: Entries of all roles together that are summed at a time.
_ENTRIES_AT_A_TIME = 1 << 24

#: Share, chance, variance of the shuffled share and number of queries of each role, on one input.
RoleTables = tuple[dict[str, Column], ...]


@dataclass(frozen=True, eq=False)
class Roles:
    """Share of every head's attention in every role, compared with shuffled attention.

    Shares are means over the queries that have a choice: some of their allowed keys are in the role and others are
    not. Shuffling the weights of each row among its allowed keys gives a share whose mean, `chance`, and standard
    deviation are known in closed form; `score` is measured in these standard deviations.

    Examples
    --------
    >>> import headtree as ht
    >>> import numpy as np
    >>> tokens = [f"t{i}" for i in range(8)]
    >>> scores = 8 * np.eye(8, k=-1)[None] + np.random.default_rng(0).normal(size=(2, 8, 8))
    >>> att = ht.AttentionTensor(scores, heads=[(0, 0), (0, 1)], queries=tokens, keys=tokens)
    >>> roles = ht.head_roles(att)
    >>> roles.names
    ('previous token', 'previous token')
    >>> bool((roles.share["previous_token"] > roles.chance["previous_token"]).all())
    True
    """

    heads: tuple[HeadId, ...]
    share: dict[str, Float[np.ndarray, " head"]]  #: mean over inputs; roles that exist on no input are left out
    chance: dict[str, Float[np.ndarray, " head"]]
    score: dict[str, Float[np.ndarray, " head"]]  #: (share - chance) / standard deviation of the shuffled share
    n_queries: dict[str, Float[np.ndarray, " head"]]  #: number of queries with a choice, mean over inputs
    spread: dict[str, Float[np.ndarray, " head"]]  #: standard deviation of the share over inputs
    missing: dict[str, str]  #: why a role has no share, for some or all heads or inputs
    least: float

    @property
    def excess(self) -> dict[str, Float[np.ndarray, " head"]]:
        """(share - chance) / (1 - chance): 1 if all attention is in the role, 0 if no more than chance."""
        return {name: (share - self.chance[name]) / (1 - self.chance[name]) for name, share in self.share.items()}

    @property
    def names(self) -> tuple[str, ...]:
        """The role of each head in words; "" for a head without one.

        This is the narrow role with the largest excess, or otherwise the broad role (rows, columns, neighbours,
        nearby tokens) with the largest excess. The excess must be at least `least`, the share four standard
        deviations above chance, and the role possible for at least three queries of an input.
        """
        return self._named(self.least, 1.0)

    @property
    def leanings(self) -> tuple[str, ...]:
        """The role of each head, or the role it leans to: an excess of 0.1 and a share of three times chance.

        A leaning is clear compared with shuffled attention, but most of the head's attention goes elsewhere. "" for
        a head without a role or leaning.
        """
        leaning = self._named(min(self.least, _LEANING), _TIMES)
        return tuple(name or other for name, other in zip(self.names, leaning, strict=True))

    def _named(self, least: float, times: float) -> tuple[str, ...]:
        excess = self.excess
        result = [""] * len(self.heads)
        for kind in (BROAD, NARROW):
            known = [name for name in kind if name in excess]
            for head in range(len(self.heads)):
                clear = [
                    (float(excess[name][head]), kind[name])
                    for name in known
                    if excess[name][head] >= least
                    and self.share[name][head] >= times * self.chance[name][head]
                    and self.score[name][head] >= _CLEARLY
                    and self.n_queries[name][head] >= _FEWEST
                ]
                result[head] = max(clear, key=lambda pair: pair[0])[1] if clear else result[head]
        return tuple(result)


def head_roles(
    atts: AttentionTensor | Any,
    *,
    delimiters: Collection[str] | None = None,
    window: int = 4,
    least: float = 0.4,
) -> Roles:
    """Measure the roles of every head on one input or several.

    Parameters
    ----------
    atts : AttentionTensor or sequence
        The same heads on each input; scores go through softmax first.
    delimiters : collection of str, optional
        Tokens that count as delimiters; by default punctuation, line ends and special tokens.
    window : int
        Largest distance of nearby tokens.
    least : float
        Smallest excess at which a head is named after a role.

    Examples
    --------
    >>> import headtree as ht
    >>> import numpy as np
    >>> tokens = ["The", "cat", "sat", ".", "The", "dog", "ran", "."]
    >>> scores = np.stack([8 * np.eye(8, k=-1), 8.0 * np.tile([t == "." for t in tokens], (8, 1))])
    >>> att = ht.AttentionTensor(scores, heads=[(0, 0), (0, 1)], queries=tokens, keys=tokens)
    >>> ht.head_roles(att).names
    ('previous token', 'delimiters')
    """
    tensors = checked_tensors(atts)
    least = checked_least(least)
    return roles_from(tensors[0].heads, [role_tables(att, delimiters, window) for att in tensors], least)


def checked_least(least: float) -> float:
    """The excess from which a head has a role."""
    if not 0 < _checks.finite_number(least, "least") <= 1:
        raise InvalidValueError(f"least must be greater than 0 and at most 1, got {least}")
    return float(least)


def roles_from(heads: tuple[HeadId, ...], tables: list[RoleTables], least: float) -> Roles:
    """The roles of heads from the tables of every input."""
    share, chance, variance, n_queries = (averages([table[i] for table in tables]) for i in range(4))
    return Roles(
        heads=heads,
        share=share.mean,
        chance=chance.mean,
        score={name: _score(name, share, chance, variance, tables) for name in share.mean},
        n_queries=n_queries.mean,
        spread=share.spread,
        missing=share.missing,
        least=least,
    )


def _score(
    name: str, share: Averages, chance: Averages, variance: Averages, tables: list[RoleTables]
) -> Float[np.ndarray, " head"]:
    """Difference between share and chance in standard deviations of the mean over inputs."""
    n_inputs = sum(~np.isnan(table[0][name].values) for table in tables)
    deviation = np.sqrt(variance.mean[name] / np.maximum(n_inputs, 1))
    above = share.mean[name] - chance.mean[name]
    return np.asarray(np.divide(above, deviation, out=np.zeros(len(above)), where=deviation > 1e-12))


def role_tables(att: AttentionTensor, delimiters: Collection[str] | None, window: int) -> RoleTables:
    """Share, chance, variance of the shuffled share and number of queries of each role on one input."""
    known = relations(att, delimiters=delimiters, window=window)
    n_heads = len(att.heads)
    reasons = {name: reason for name, reason in known.items() if isinstance(reason, str)}
    here = {name: relation for name, relation in known.items() if not isinstance(relation, str)}
    masks = torch.from_numpy(np.stack(list(here.values())))
    blocks = [_shares(block, masks) for block in head_blocks(att)]
    columns = [torch.cat([block[i] for block in blocks]).numpy() for i in range(4)]
    why = "no query may attend to such a key and to another"
    result: list[dict[str, Column]] = []
    for values in columns:
        table = {name: Column(values[:, i], why) for i, name in enumerate(here)}
        table |= {name: Column.missing(n_heads, reason) for name, reason in reasons.items()}
        result.append({name: table[name] for name in known})
    return tuple(result)


def _masses(
    values: Float[Tensor, "head query key"], masks: Bool[Tensor, "role query key"]
) -> Float[Tensor, "head role query"]:
    """Sums of rows over the keys of each role, some queries at a time."""
    step = max(1, _ENTRIES_AT_A_TIME // (len(masks) * masks.shape[2]))
    parts = [
        torch.einsum("hqk,rqk->hrq", some, of_roles.to(values.dtype))
        for some, of_roles in zip(values.split(step, dim=1), masks.split(step, dim=1), strict=True)
    ]
    return torch.cat(parts, dim=2)


def _shares(block: HeadBlock, masks: Bool[Tensor, "role query key"]) -> tuple[Float[Tensor, "head role"], ...]:
    """Share of each head in each role, mean and variance of the shuffled share, and number of queries.

    All are means over the queries that have a choice. Shuffling a row of n weights with sum t and variance s² puts
    t·m/n on m of its keys, with variance m (1 - m/n) s²: m draws without replacement.
    """
    share, m = (_masses(values, masks) for values in (block.probs, block.allowed.to(block.probs.dtype)))
    n = block.n_allowed[:, None]
    total = block.probs.sum(dim=2)[:, None]
    squares = (block.probs * block.probs).sum(dim=2)[:, None]
    variance = ((squares - total**2 / n.clamp(min=1)) / (n - 1).clamp(min=1)).clamp(min=0)
    rows = (m > 0) & (m < n)
    n_rows = rows.sum(dim=2)

    def mean(values: Tensor) -> Tensor:
        return torch.where(rows, values, 0).double().sum(dim=2) / n_rows

    shuffled = mean(m * (1 - m / n.clamp(min=1)) * variance) / n_rows
    return mean(share), mean(total * m / n.clamp(min=1)), shuffled, n_rows.double().expand_as(shuffled)
