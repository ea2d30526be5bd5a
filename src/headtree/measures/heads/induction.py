"""Induction heads: what a model that predicts the next token does when random tokens repeat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from headtree import _checks
from headtree.errors import HeadtreeError, InvalidValueError
from headtree.measures.heads.probabilities import head_blocks
from headtree.measures.heads.token_relations import query_positions
from headtree.models import facts
from headtree.models.graph.head_weights import weights_of
from headtree.models.view import as_view
from headtree.models.watching.collect import PreparedInputs
from headtree.tensor.attention_tensor import AttentionTensor, HeadId

#: The fewest tokens that make a sequence worth repeating.
_FEWEST = 4


@dataclass(frozen=True, eq=False)
class Induction:
    """Both halves of what makes an induction head: where it looks, and what it says of what it sees."""

    heads: tuple[HeadId, ...]
    prefix_matching: Float[np.ndarray, " head"]  #: attention to the token after the earlier copy
    copying: Float[np.ndarray, " head"]  #: share of the raised logits on the token read; nan where not known
    why_no_copying: str  #: empty if it is known
    n_tokens: int  #: of the sequence that is repeated
    n_sequences: int


def induction(
    model: Any, *, n_tokens: int = 25, n_sequences: int = 4, part: str | None = None, rng: Any = 0
) -> Induction:
    """Run a causal model on random tokens, said twice, and score every head (after Olsson et al. 2022).

    Parameters
    ----------
    model : str, path or torch.nn.Module
        One that reads tokens and looks only back.
    n_tokens : int
        Length of the random sequence, all different; cut to what context and vocabulary allow.
    n_sequences : int
        Number of sequences, each with one more token between its copies; scores are means over them.
    part : str, optional
        As in `capture`.
    rng : int or numpy Generator
        Source of the tokens.

    Notes
    -----
    The sequence is said twice, with 0, 1, 2, … other tokens between, so that a head that looks a fixed number of
    places back does not count. *Prefix matching*: the attention of a token of the second copy to the one that
    followed it in the first, mean over these tokens. *Copying*: the state of each token of the first copy goes
    through W_V W_O and the unembedding; of the rise of the sequence's logits above their mean, the share on the
    token itself, corrected so that 0 is chance and 1 is all of it. Norms after the head are left out.
    """
    n_tokens = _checks.at_least_one(n_tokens, "n_tokens")
    n_sequences = _checks.at_least_one(n_sequences, "n_sequences")
    generator = _checks.generator(rng)
    view = as_view(model)
    said = repeated_tokens(view.model, n_tokens, n_sequences, generator)
    is_named = facts.accepts(view.model, "input_ids")
    prepared = view.prepare(inputs={"input_ids": said.ids} if is_named else said.ids, kind="probs", part=part)
    read: dict[int, list[Tensor | None]] = {}
    atts = prepared.run(also=lambda call, site: read.setdefault(site, []).append(call.entering))
    matching = np.mean([_prefix_matching(att, said, i) for i, att in enumerate(atts)], axis=0)
    try:
        copying, reason = _copying(prepared, said, [_states(read[site], len(atts)) for site in read]), ""
    except HeadtreeError as error:
        copying, reason = np.full(len(atts[0].heads), np.nan), str(error)
    return Induction(atts[0].heads, matching, copying, reason, said.n_tokens, n_sequences)


@dataclass(frozen=True, eq=False)
class RepeatedTokens:
    """Inputs in which a sequence of random tokens stands twice, at another distance in each.

    Input i begins with some other tokens, then comes the sequence, i other tokens, and the sequence again. A head
    that looks a fixed number of places back cannot pass for an induction head.
    """

    ids: Int[Tensor, "input token"]
    n_tokens: int

    def first(self, i: int) -> Int[np.ndarray, " token"]:
        """Places of the sequence's first copy."""
        return np.arange(self.n_tokens) + len(self.ids) - 1 - i

    def second(self) -> Int[np.ndarray, " token"]:
        """Places of its second copy, the last ones."""
        return np.arange(self.n_tokens) + self.ids.shape[1] - self.n_tokens


def repeated_tokens(model: nn.Module, n_tokens: int, n_sequences: int, rng: np.random.Generator) -> RepeatedTokens:
    """Different random tokens, none of them special, twice in the same order."""
    table = facts.token_embedding(model)
    if table is None or facts.is_encoder_decoder(model):
        raise InvalidValueError(
            f"{type(model).__name__} does not read one sequence of tokens; induction is defined for models that do"
        )
    special = facts.special_tokens(model)
    words = np.array([word for word in range(table.num_embeddings) if word not in special])
    context = facts.context_length(model)
    n_others = n_sequences - 1
    n_tokens = min(n_tokens, len(words) - n_others, n_tokens if context is None else (context - n_others) // 2)
    if n_tokens < _FEWEST:
        raise InvalidValueError(
            f"{type(model).__name__} has room for {max(0, n_tokens)} different tokens said twice; induction needs "
            f"{_FEWEST}"
        )
    rows = []
    for gap in range(n_sequences):
        drawn = rng.choice(words, n_tokens + n_others, replace=False)
        once, others = drawn[:n_tokens], drawn[n_tokens:]
        rows.append(np.concatenate([others[gap:], once, others[:gap], once]))
    return RepeatedTokens(torch.from_numpy(np.stack(rows)), n_tokens)


def _prefix_matching(att: AttentionTensor, said: RepeatedTokens, i: int) -> Float[np.ndarray, " head"]:
    """Mean attention of tokens of the second copy to the one after themselves in the first."""
    places = query_positions(att.queries, att.keys)
    if places is None:
        raise InvalidValueError("its queries and keys are not the same sequence of tokens; induction needs that")
    queries, targets = said.second(), places[said.first(i) + 1]
    ahead = torch.from_numpy(np.arange(att.shape[2]) > places[:, None])
    scores = []
    for block in head_blocks(att):
        if (block.allowed & ahead).any():
            raise InvalidValueError(
                "its attention looks ahead (an encoder); induction is defined for models that look only back"
            )
        scores.append(block.probs[:, queries, targets].double().mean(dim=1))
    return np.asarray(torch.cat(scores).numpy())


def _states(batches: list[Tensor | None], n_inputs: int) -> Float[Tensor, "input token width"]:
    """What entered a layer's attention, all inputs together, wherever a batch has its axis of inputs."""
    states = [x if x is None or len(batches) > 1 or x.shape[0] == n_inputs else x.transpose(0, 1) for x in batches]
    found = [x for x in states if x is not None]
    if len(found) != len(batches) or sum(len(x) for x in found) != n_inputs:
        got = [None if x is None else tuple(x.shape) for x in batches]
        raise InvalidValueError(f"its layers do not pass on states (input, token, width), but {got[0]}")
    return torch.cat(found)


def _copying(
    prepared: PreparedInputs, said: RepeatedTokens, states: list[Float[Tensor, "input token width"]]
) -> Float[np.ndarray, " head"]:
    words = facts.unembedding(prepared.model)
    if words is None:
        raise InvalidValueError(
            f"{type(prepared.model).__name__} does not say how states become logits; load it with its "
            "language-model head"
        )
    with prepared.view.ready():
        weights = weights_of(prepared)
    result = []
    for i in range(len(prepared.items)):
        layers, sequence = [], said.ids[i, said.first(i)]
        for entering, layer in zip(states, weights, strict=True):
            x = entering[i, -said.ids.shape[1] :][said.first(i)].double()
            if x.shape[1] != layer.value.shape[1] or layer.output.shape[2] != words.shape[1]:
                raise InvalidValueError(
                    "its heads read or write states of another width than its logits are made of"
                )
            written = x @ layer.value.cpu().double() @ layer.output.cpu().double()
            layers.append(copied_share(written @ words[sequence].cpu().double().T))
        result.append(torch.cat(layers))
    return np.asarray(torch.stack(result).mean(dim=0).numpy())


def copied_share(logits: Float[Tensor, "head read said"]) -> Float[Tensor, " head"]:
    """Of the rise of each row above its mean, the share on the diagonal, 0 by chance and 1 if it is all there."""
    rise = (logits - logits.mean(dim=2, keepdim=True)).clamp(min=0)
    total = rise.sum(dim=2)
    chance = 1 / logits.shape[2]
    own = rise.diagonal(dim1=1, dim2=2)
    share = torch.where(total > 0, own / torch.where(total > 0, total, 1), chance)  # no rise, no preference
    return ((share - chance) / (1 - chance)).mean(dim=1)
