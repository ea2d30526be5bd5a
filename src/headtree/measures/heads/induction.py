"""Induction heads: how the heads of a language model respond to repeated random tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from headtree import _checks
from headtree.errors import HeadtreeError, InvalidValueError
from headtree.measures.heads.token_relations import query_positions
from headtree.models import facts
from headtree.models.given_model import as_view
from headtree.models.graph.head_weights import weights_of
from headtree.models.quantized import dequantized
from headtree.models.watching.collect import PreparedInputs
from headtree.tensor.attention_tensor import AttentionTensor, HeadId
from headtree.tensor.probabilities import head_blocks

#: Minimum length of the repeated sequence.
_MIN_TOKENS = 4


@dataclass(frozen=True, eq=False)
class Induction:
    """The two properties of an induction head: where it attends, and what it writes about what it attends to.

    Examples
    --------
    >>> import headtree as ht
    >>> network = ht.load_bundled("txl")
    >>> found = ht.induction(network.model, n_tokens=8, n_sequences=2)
    >>> found.prefix_matching.shape, found.copying.shape  # 16 layers of 8 heads
    ((128,), (128,))
    """

    heads: tuple[HeadId, ...]
    prefix_matching: Float[np.ndarray, " head"]  #: attention to the token after the earlier copy of the current one
    copying: Float[np.ndarray, " head"]  #: share of the raised logits on the attended token; nan if unknown
    why_no_copying: str  #: why `copying` is unknown; empty if it is known
    n_tokens: int  #: length of the repeated sequence
    n_sequences: int


def induction(
    model: Any, *, n_tokens: int = 25, n_sequences: int = 4, part: str | None = None, rng: Any = 0
) -> Induction:
    """Score every head of a causal language model as an induction head (after Olsson et al. 2022).

    Parameters
    ----------
    model : str, path, torch.nn.Module or ModelView
        A model that reads tokens and attends only to earlier ones.
    n_tokens : int
        Length of the random sequence of distinct tokens; reduced if context or vocabulary are too small.
    n_sequences : int
        Number of sequences, each with one more token between its copies. Scores are means over them.
    part : str, optional
        As in `capture`.
    rng : int or numpy Generator
        Random source of the tokens.

    Notes
    -----
    The sequence appears twice, with 0, 1, 2, … other tokens in between, so a head that attends a fixed number of
    positions back does not score. *Prefix matching* is the attention of each token in the second copy to the token
    that followed it in the first copy, averaged over these tokens. *Copying* maps the state of each token in the
    first copy through W_V W_O and the unembedding. Of the logits' rise above their mean over the sequence, it is
    the share on the token itself, rescaled such that 0 is chance and 1 is everything. Norms after the head are
    ignored.

    Examples
    --------
    >>> import headtree as ht
    >>> network = ht.load_bundled("txl")
    >>> found = ht.induction(network.model, n_tokens=8, n_sequences=2)
    >>> best = found.prefix_matching.argmax()
    >>> found.heads[best], round(float(found.prefix_matching[best]), 2)
    (HeadId(layer=5, head=5), 0.26)
    """
    n_tokens = _checks.at_least_one(n_tokens, "n_tokens")
    n_sequences = _checks.at_least_one(n_sequences, "n_sequences")
    generator = _checks.generator(rng)
    view = as_view(model)
    repeated = repeated_tokens(view.model, n_tokens, n_sequences, generator)
    is_named = facts.accepts(view.model, "input_ids")
    prepared = view.prepare(
        inputs={"input_ids": repeated.ids} if is_named else repeated.ids, kind="probs", part=part
    )
    read: dict[int, list[Tensor | None]] = {}
    atts = prepared.run(on_call=lambda call, site: read.setdefault(site, []).append(call.entering))
    matching = np.mean([_prefix_matching(att, repeated, i) for i, att in enumerate(atts)], axis=0)
    try:
        copying, reason = _copying(prepared, repeated, [_states(read[site], len(atts)) for site in read]), ""
    except HeadtreeError as error:
        copying, reason = np.full(len(atts[0].heads), np.nan), str(error)
    return Induction(atts[0].heads, matching, copying, reason, repeated.n_tokens, n_sequences)


@dataclass(frozen=True, eq=False)
class RepeatedTokens:
    """Inputs that contain a sequence of random tokens twice, at a different distance in each input.

    Input i consists of some filler tokens, the sequence, i more filler tokens, and the sequence again. A head that
    attends a fixed number of positions back cannot pass for an induction head.
    """

    ids: Int[Tensor, "input token"]
    n_tokens: int

    def first(self, i: int) -> Int[np.ndarray, " token"]:
        """Positions of the first copy of the sequence."""
        return np.arange(self.n_tokens) + len(self.ids) - 1 - i

    def second(self) -> Int[np.ndarray, " token"]:
        """Positions of the second copy, at the end."""
        return np.arange(self.n_tokens) + self.ids.shape[1] - self.n_tokens


def repeated_tokens(model: nn.Module, n_tokens: int, n_sequences: int, rng: np.random.Generator) -> RepeatedTokens:
    """Draw distinct random tokens, none of them special, and repeat them in the same order."""
    table = facts.token_embedding(model)
    if table is None or facts.is_encoder_decoder(model):
        raise InvalidValueError(
            f"{type(model).__name__} does not read a single sequence of tokens, for which induction is defined; "
            "pass a causal language model"
        )
    special = facts.special_tokens(model)
    words = np.array([word for word in range(table.num_embeddings) if word not in special])
    context = facts.context_length(model)
    n_fillers = n_sequences - 1
    n_tokens = min(n_tokens, len(words) - n_fillers, n_tokens if context is None else (context - n_fillers) // 2)
    if n_tokens < _MIN_TOKENS:
        raise InvalidValueError(
            f"{type(model).__name__} has room for only {max(0, n_tokens)} distinct repeated tokens, but induction "
            f"needs {_MIN_TOKENS}; use a larger context or vocabulary, or a smaller n_sequences"
        )
    rows = []
    for gap in range(n_sequences):
        drawn = rng.choice(words, n_tokens + n_fillers, replace=False)
        sequence, fillers = drawn[:n_tokens], drawn[n_tokens:]
        rows.append(np.concatenate([fillers[gap:], sequence, fillers[:gap], sequence]))
    return RepeatedTokens(torch.from_numpy(np.stack(rows)), n_tokens)


def _prefix_matching(att: AttentionTensor, repeated: RepeatedTokens, i: int) -> Float[np.ndarray, " head"]:
    """Mean attention of the tokens in the second copy to their successors in the first copy."""
    key_of_query = query_positions(att.queries, att.keys)
    if key_of_query is None:
        raise InvalidValueError(
            "induction needs queries and keys from the same sequence of tokens, which this model does not have"
        )
    queries, targets = repeated.second(), key_of_query[repeated.first(i) + 1]
    ahead = torch.from_numpy(np.arange(att.shape[2]) > key_of_query[:, None])
    scores = []
    for block in head_blocks(att):
        if (block.allowed & ahead).any():
            raise InvalidValueError(
                "the attention looks ahead, as in an encoder; induction is defined for models that attend only to "
                "earlier tokens"
            )
        scores.append(block.probs[:, queries, targets].double().mean(dim=1))
    return np.asarray(torch.cat(scores).numpy())


def _states(batches: list[Tensor | None], n_inputs: int) -> Float[Tensor, "input token width"]:
    """Hidden states that enter a layer's attention, for all inputs, whichever axis the batch is on."""
    states = [x if x is None or len(batches) > 1 or x.shape[0] == n_inputs else x.transpose(0, 1) for x in batches]
    found = [x for x in states if x is not None]
    if len(found) != len(batches) or sum(len(x) for x in found) != n_inputs:
        got = [None if x is None else tuple(x.shape) for x in batches]
        raise InvalidValueError(
            f"the attention layers must receive states (input, token, width), got shape {got[0]}"
        )
    return torch.cat(found)


def _copying(
    prepared: PreparedInputs, repeated: RepeatedTokens, states: list[Float[Tensor, "input token width"]]
) -> Float[np.ndarray, " head"]:
    words = facts.unembedding(prepared.model)
    if words is None:
        raise InvalidValueError(
            f"the unembedding of {type(prepared.model).__name__} is unknown; load it with its language-model head"
        )
    words = dequantized(words)
    with prepared.view.ready():
        weights = weights_of(prepared)
    result = []
    for i in range(len(prepared.items)):
        layers, sequence = [], repeated.ids[i, repeated.first(i)]
        for entering, layer in zip(states, weights, strict=True):
            x = entering[i, -repeated.ids.shape[1] :][repeated.first(i)].double()
            if x.shape[1] != layer.value.shape[1] or layer.output.shape[2] != words.shape[1]:
                raise InvalidValueError("the heads read or write states of a different width than the unembedding")
            written = x @ layer.value.cpu().double() @ layer.output.cpu().double()
            layers.append(copied_share(written @ words[sequence].cpu().double().T))
        result.append(torch.cat(layers))
    return np.asarray(torch.stack(result).mean(dim=0).numpy())


def copied_share(logits: Float[Tensor, "head read written"]) -> Float[Tensor, " head"]:
    """Share of the diagonal in the rise of each row above its mean, rescaled: 0 is chance, 1 is everything."""
    rise = (logits - logits.mean(dim=2, keepdim=True)).clamp(min=0)
    total = rise.sum(dim=2)
    chance = 1 / logits.shape[2]
    own = rise.diagonal(dim1=1, dim2=2)
    share = torch.where(total > 0, own / torch.where(total > 0, total, 1), chance)  # no rise: chance
    return ((share - chance) / (1 - chance)).mean(dim=1)
