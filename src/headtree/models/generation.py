"""Attention while a model writes: greedily, with its cache, one token at a time."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headtree.errors import HeadtreeWarning, InvalidTypeError, InvalidValueError
from headtree.models import facts
from headtree.models.graph.forward_graph import logits_of
from headtree.models.inputs import ModelInput
from headtree.models.watching.collect import PreparedInputs, token_labels
from headtree.models.watching.logits import Block
from headtree.models.watching.probe import arguments, run, watching
from headtree.models.watching.query_choice import chosen_queries
from headtree.models.watching.unchanged import unchanged
from headtree.models.watching.watch import AttentionCall
from headtree.progress import progress
from headtree.tensor.attention_tensor import AttentionTensor
from headtree.tensor.hidden_mask import future_keys

#: Logits of the last token with and without the cache may differ by this share of the largest; more for halves.
_TOLERANCE, _HALF_TOLERANCE = 1e-3, 5e-2


class NoCacheError(RuntimeError):
    """A model writes in a way in which its cache cannot be watched."""


@dataclass(frozen=True, eq=False)
class Written:
    """A text and what a model wrote after it."""

    item: ModelInput  #: everything, as one input
    n_before: int  #: tokens that the model, or its decoder, read before it wrote
    ids: tuple[int, ...]  #: what it wrote
    logits: Float[Tensor, " word"]  #: after the last token
    cached: bool = True


def prompt_of(model: nn.Module, item: ModelInput, generate: int) -> ModelInput:
    """The input with which a model starts to write, or an error if it cannot."""
    lengths = item.lengths()
    if lengths is None or item.args or item.has_state():
        raise InvalidTypeError(
            "generate applies to texts, or to inputs with input_ids and without a cache; leave generate out"
        )
    name = type(model).__name__
    can_generate = getattr(model, "can_generate", None)
    if can_generate is not None and not can_generate():
        raise InvalidValueError(
            f"{name} has no head that predicts the next token, so it cannot generate; load a causal or "
            "encoder-decoder language model with its head, as transformers' AutoModelForCausalLM does"
        )
    kwargs = dict(item.kwargs)
    if facts.is_encoder_decoder(model):
        kwargs["decoder_input_ids"] = torch.tensor([[facts.decoder_start(model)]])
        return replace(item, kwargs=kwargs, targets=None if item.targets is None else item.targets[:1])
    limit = facts.context_length(model)
    if limit is not None and lengths[0] + generate > limit:
        raise InvalidValueError(
            f"generate must leave room for the text: {lengths[0]} tokens of it and {generate} more exceed the "
            f"model's context of {limit}; pass generate={max(0, limit - lengths[0])} or less, or a shorter text"
        )
    return item


def written_tensors(prepared: PreparedInputs) -> list[AttentionTensor]:
    """Let the model write after every prepared input, and capture its attention meanwhile."""
    found = []
    with prepared.view.ready(), progress("generating", len(prepared.items)) as step:
        for i, item in enumerate(prepared.items):
            found.append(_written_tensor(prepared, item, i))
            step(f"input {i + 1} of {len(prepared.items)}")
    return found


def written_items(prepared: PreparedInputs) -> list[ModelInput]:
    """The prepared inputs with what the model writes after them, each as one input."""
    with prepared.view.ready():
        return [_write(prepared, item, None).item for item in prepared.items]


def _written_tensor(prepared: PreparedInputs, item: ModelInput, i: int) -> AttentionTensor:
    rows = _WrittenRows(prepared, item)
    try:
        written = _write(prepared, item, rows)
        att = rows.tensor(written)
    except NoCacheError:
        written = _write_without_cache(prepared, item)
        n, n_all = len(written.ids), written.n_before + len(written.ids)
        again = replace(prepared, items=(written.item,), generate=None, queries=list(range(n_all - n, n_all)))
        (att,) = again.run()
        own = {name: value for name, value in att.provenance.items() if name != "query_positions"}
        att = replace(att, provenance=own)
    if prepared.queries is not None:
        att = _some_queries(att, chosen_queries(prepared.queries, att.queries, i))
    return replace(att, provenance={**att.provenance, **written.item.about, **_causal(att)})


def _some_queries(att: AttentionTensor, chosen: list[int]) -> AttentionTensor:
    mask = None if att.mask is None else att.mask[:, chosen]
    positions = [att.shape[2] - att.shape[1] + row for row in chosen]
    return replace(
        att,
        values=att.values[:, chosen],
        queries=tuple(att.queries[row] for row in chosen),
        mask=None if mask is None or not mask.any() else mask,
        provenance={**att.provenance, "query_positions": positions},
    )


def _causal(att: AttentionTensor) -> dict[str, bool]:
    future = future_keys(*att.shape[1:])
    is_whole = "query_positions" not in att.provenance
    return {"causal": True} if is_whole and att.mask is not None and bool((att.mask | ~future).all()) else {}


# -- writing -------------------------------------------------------------------------------------------------------


def _write(prepared: PreparedInputs, item: ModelInput, rows: _WrittenRows | None) -> Written:
    """Let the model write with its cache, watched by `rows`; without a cache if it has none and nobody watches."""
    model, n = prepared.model, prepared.generate or 0
    if not facts.can_keep_a_cache(model) or prepared.plan.from_outputs:
        if rows is not None:
            raise NoCacheError
        return _write_without_cache(prepared, item)
    args, kwargs = arguments(model, [item])
    ids: list[int] = []
    listen: Callable[[AttentionCall], None] = (lambda call: None) if rows is None else rows.listen
    try:
        with torch.no_grad(), unchanged(model), watching(model, prepared.plan, listen, 1):
            output = model(*args, **{**kwargs, "use_cache": True})
            for number in range(n):
                ids.append(_likeliest(model, output))
                if rows is not None:
                    rows.begin(number)
                output = model(**_following(model, kwargs, output, ids))
    except NoCacheError:
        if rows is not None:
            raise
        return _write_without_cache(prepared, item)
    written = _joined(prepared, item, ids, _last_logits(model, output))
    _check_cache(prepared, written)
    return written


def _write_without_cache(prepared: PreparedInputs, item: ModelInput) -> Written:
    model = prepared.model
    ids: list[int] = []
    current = item
    for _ in range(prepared.generate or 0):
        ids.append(_likeliest(model, run(model, [current])))
        current = _joined(prepared, item, ids, torch.empty(0)).item
    return _joined(prepared, item, ids, torch.empty(0), cached=False)


def _likeliest(model: nn.Module, output: Any) -> int:
    return int(_last_logits(model, output).argmax())


def _last_logits(model: nn.Module, output: Any) -> Float[Tensor, " word"]:
    logits = logits_of(output)
    if logits is None or logits.ndim != 3:
        raise InvalidValueError(
            f"{type(model).__name__} has no head that predicts the next token, so it cannot generate: it returns "
            "no logits (batch, token, word); load a language model with its head"
        )
    return logits[0, -1].detach()


def _following(model: nn.Module, kwargs: dict[str, Any], output: Any, ids: Sequence[int]) -> dict[str, Any]:
    """Arguments of the pass that reads the token written last."""
    cache = getattr(output, "past_key_values", None)
    if cache is None:
        raise NoCacheError
    device = kwargs["input_ids"].device
    new = torch.tensor([[ids[-1]]], device=device)
    following = {"past_key_values": cache, "use_cache": True}
    if facts.is_encoder_decoder(model):
        given = {name: kwargs[name] for name in ("attention_mask",) if name in kwargs}
        return {**given, **following, "decoder_input_ids": new, "encoder_outputs": _encoded(output)}
    if "attention_mask" in kwargs:
        n_keys = kwargs["input_ids"].shape[1] + len(ids)
        following["attention_mask"] = torch.ones(1, n_keys, dtype=torch.long, device=device)
    return {**following, "input_ids": new}


def _encoded(output: Any) -> Any:
    from transformers.modeling_outputs import BaseModelOutput

    return BaseModelOutput(last_hidden_state=output.encoder_last_hidden_state)


def _joined(
    prepared: PreparedInputs, item: ModelInput, ids: Sequence[int], logits: Tensor, cached: bool = True
) -> Written:
    """A text and what was written after it, as one input."""
    model = prepared.model
    name = "decoder_input_ids" if facts.is_encoder_decoder(model) else "input_ids"
    before: Tensor = item.kwargs[name]
    kwargs = {**item.kwargs, name: torch.cat([before, torch.tensor([list(ids)], dtype=before.dtype)], dim=1)}
    if name == "input_ids":
        kwargs.pop("token_type_ids", None)
        if "attention_mask" in kwargs:
            kwargs["attention_mask"] = torch.ones_like(kwargs[name])
    labels = item.targets if name == "decoder_input_ids" else item.tokens
    tokenizer = None if labels is None else prepared.view.tokenizer_or_none()
    if labels is not None and tokenizer is not None:
        labels = (*labels, *map(str, tokenizer.convert_ids_to_tokens(list(ids))))
    n_before = int(before.shape[1])
    about = {**item.about, "generated": _about(model, tokenizer, before[0].tolist(), ids, cached)}
    known = labels if tokenizer is not None else None
    tokens, targets = (known, item.targets) if name == "input_ids" else (item.tokens, known)
    whole = replace(item, kwargs=kwargs, about=about, tokens=tokens, targets=targets)
    return Written(whole, n_before, tuple(ids), logits, cached)


def _about(model: nn.Module, tokenizer: Any, before: list[int], ids: Sequence[int], cached: bool) -> dict[str, Any]:
    """What a reader of the tensor wants to know about the text."""
    ends = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    ends = ends if isinstance(ends, list) else [ends]
    end = next((i for i, token in enumerate(ids) if token in ends), None)
    texts = {"prompt": _text(tokenizer, before), "text": _text(tokenizer, ids)} if tokenizer is not None else {}
    return {"n_before": len(before), "ids": list(ids), "end": end, "cached": cached, **texts}


def _text(tokenizer: Any, ids: Sequence[int]) -> str:
    if hasattr(tokenizer, "decode"):
        return str(tokenizer.decode(list(ids)))
    return " ".join(map(str, tokenizer.convert_ids_to_tokens(list(ids))))


def _check_cache(prepared: PreparedInputs, written: Written) -> None:
    """Compare the last logits with those of one pass over the same tokens."""
    whole = _last_logits(prepared.model, run(prepared.model, [written.item])).float()
    is_half = written.logits.dtype.itemsize < 4
    tolerance = (_HALF_TOLERANCE if is_half else _TOLERANCE) * max(1.0, float(whole.abs().max()))
    if not bool((whole - written.logits.float()).abs().max() <= tolerance):
        warnings.warn(
            f"{type(prepared.model).__name__} computes other logits with its cache than in one pass over the same "
            "tokens; its attention is captured in one pass",
            HeadtreeWarning,
            stacklevel=2,
        )
        raise NoCacheError


# -- watching ------------------------------------------------------------------------------------------------------


class _WrittenRows:
    """Collects the attention of each token that a model writes, one row of every head at a time."""

    def __init__(self, prepared: PreparedInputs, item: ModelInput) -> None:
        self.prepared, self.n = prepared, prepared.generate or 0
        n_before, n_read = item.kwargs.get("decoder_input_ids", item.kwargs["input_ids"]).shape[1], item.length()
        self.is_cross = prepared.selection.part == "cross"
        self.n_before = n_before
        n_keys = n_read if self.is_cross else n_before + self.n
        n_heads = sum(map(len, prepared.selection.heads.values()))
        self.values = torch.zeros(n_heads, self.n, n_keys, dtype=prepared.dtype)
        self.mask = torch.ones(n_heads, self.n, n_keys, dtype=torch.bool)
        self.sinks: dict[int, Tensor] = {}
        self.number: int | None = None  # of the token that is read now; None: the text before
        self.counts: dict[str, int] = {}
        self.sites = self._sites()

    def _sites(self) -> dict[tuple[str, int], int]:
        """The selected sites by name and number of the call; encoders are not called again for each token."""
        counts: dict[str, int] = {}
        sites = {}
        chosen = self.prepared.selection.site_of_call(self.prepared.plan)
        for call, site in enumerate(self.prepared.plan.watched):
            nth = counts[site.name] = counts.get(site.name, -1) + 1
            if call in chosen:
                sites[site.name, nth] = chosen[call]
        return sites

    def begin(self, number: int) -> None:
        """The next pass reads this token."""
        self._check_complete()
        self.number, self.counts = number, {}

    def _check_complete(self) -> None:
        seen = {(name, nth) for name, last in self.counts.items() for nth in range(last + 1)}
        if self.number is not None and not self.sites.keys() <= seen:
            raise NoCacheError

    def listen(self, call: AttentionCall) -> None:
        """Store the selected heads of a call."""
        if self.number is None:
            return
        nth = self.counts[call.name] = self.counts.get(call.name, -1) + 1
        site = self.sites.get((call.name, nth))
        if site is None:
            return
        logits, selection = call.logits, self.prepared.selection
        n_keys, end = logits.shape[3], self.values.shape[2] if self.is_cross else self.n_before + self.number + 1
        if logits.shape[2] != 1 or n_keys > end:
            raise NoCacheError
        heads = selection.heads[site]
        block = Block(0, slice(None) if len(heads) == logits.shape[1] else heads)
        values, missing = logits.scores(block), logits.missing(block)
        if self.prepared.kind != "scores":
            values = logits.probs(values, missing, block.heads)
        rows = slice(selection.start(site), selection.start(site) + len(heads))
        keys = slice(end - n_keys, end)  # layers with a window forget the first keys
        self.values[rows, self.number, keys] = values[:, 0].to("cpu", self.values.dtype)
        self.mask[rows, self.number, keys] = False if missing is None else missing[:, 0].cpu()
        if logits.sinks is not None:
            self.sinks[site] = logits.sinks[list(heads)].float().cpu()

    def tensor(self, written: Written) -> AttentionTensor:
        """The finished tensor."""
        self._check_complete()
        prepared = self.prepared
        if not torch.isfinite(self.values[~self.mask]).all():
            raise InvalidValueError(
                "the attention of the written tokens has NaN or infinite values; check the model's weights"
            )
        if prepared.kind == "weighted":
            self.values *= prepared.view.value_norms(prepared, written.item)[:, None].to(self.values)
        is_shared = bool((self.mask == self.mask[:1]).all())
        mask = self.mask[:1] if is_shared else self.mask
        sizes = (written.n_before + self.n, self.values.shape[2])
        queries, keys = token_labels(prepared, written.item, sizes)
        return AttentionTensor(
            values=self.values.masked_fill(self.mask, 0),
            heads=prepared.selection.head_ids(),
            queries=queries[written.n_before :],
            keys=keys,
            kind=prepared.kind,
            mask=mask if mask.any() else None,
            provenance=prepared.provenance,
            sinks=self._all_sinks(),
        )

    def _all_sinks(self) -> Tensor | None:
        if not self.sinks:
            return None
        chosen = self.prepared.selection.heads
        return torch.cat(
            [self.sinks.get(site, torch.full((len(heads),), -torch.inf)) for site, heads in chosen.items()]
        )
