"""Every head of any transformer on some inputs, as labelled tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from typing import Any, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from headtree.attention import anatomy
from headtree.attention.inputs import ModelInput, image_inputs, ready_inputs, text_inputs
from headtree.attention.logits import Block
from headtree.attention.memory import MemoryEstimate, check_memory, working_bytes
from headtree.attention.models import Source, provenance
from headtree.attention.plan import Plan, make_plan, returned_attentions, run, settled, watching
from headtree.attention.recorder import AttentionCall
from headtree.attention.selection import Selection, Window, parse_window, select
from headtree.attention.tensor import AttentionTensor, Kind
from headtree.errors import InvalidTypeError, InvalidValueError
from headtree.progress import progress

_DTYPES = {"float16": torch.float16, "float32": torch.float32, "float64": torch.float64}

#: Tokens that run together by default: short inputs gain from company, long ones only take memory.
_TOKENS_AT_ONCE = 1024


def capture(
    model: str | PathLike[str] | nn.Module,
    *,
    texts: Sequence[str] | None = None,
    images: Sequence[Any] | None = None,
    inputs: Any = None,
    kind: Kind = "scores",
    part: str | None = None,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | Sequence[tuple[int, int]] | None = None,
    tokens: int | None = None,
    window: Window | None = None,
    targets: Sequence[str] | None = None,
    tokenizer: Any = None,
    processor: Any = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
    batch_size: int | None = None,
    dtype: str | None = None,
    device: str | torch.device | None = None,
    memory_limit: float | None = None,
) -> list[AttentionTensor]:
    """Run a model and collect what its attention heads do, one tensor per input.

    The model runs as it is: same code, same weights, same outputs. It is left as it was, also after an error.

    Parameters
    ----------
    model : str, path or torch.nn.Module
        A hub id, a folder that `save_pretrained` wrote, or a loaded module.
    texts : list of str, optional
        Read through the model's tokenizer. Exactly one of `texts`, `images` and `inputs` is given.
    images : list, optional
        Files, PIL images or uint8 arrays, read through the model's image processor; float arrays
        (channel, row, column) go in as they are.
    inputs : list, mapping or tensor, optional
        What the model's forward takes: mappings of its arguments, or tensors for the first one, with a batch axis; a
        batch of n gives n inputs.
    kind : {"scores", "probs"}
        Everything finite that enters softmax, before the mask; or what leaves it.
    part : str, optional
        Which attention of a model that has several: "encoder", "decoder" or "cross", or the name of a tower.
    layers : list of int, optional
        Which layers of the part, counted from 0 in the order they are called; all without it.
    heads : list of int or of (layer, head), optional
        Which heads, in every layer or each by its layer; all without it.
    tokens : int, optional
        Tokens of an input, special ones included: longer texts are cut into several inputs, a rest that does not fill
        one is left out, shorter texts are an error.
    window : (start, stop), optional
        Keep these queries and keys only; the model still reads everything. A pair of such pairs gives queries and keys
        different windows.
    targets : list of str, optional
        What the decoder of an encoder-decoder reads; the text itself, one place later, without it.
    tokenizer, processor : optional
        Instead of the model's own.
    revision : str, optional
        Branch, tag or commit on the hub.
    trust_remote_code : bool
        Whether to run Python code that comes with the model.
    batch_size : int, optional
        How many inputs of equal shape run together; found from their length without it.
    dtype : {"float16", "float32", "float64"}, optional
        Of the values; float32 without it, float64 for models that compute in it.
    device : optional
        Where the model runs; where it is without it. The results are on the CPU.
    memory_limit : float, optional
        Bytes the capture may take beyond the model; 80 % of what is free without it. What would take more is refused
        before it is run.

    Returns
    -------
    list of AttentionTensor
        In the order of the inputs; heads in layer order.

    Notes
    -----
    Models that use transformers' attention registry are seen through it, and what is seen is checked on the spot: softmax
    of the captured scores, applied to the values, must give the model's own attention output. Other models are watched
    as they call softmax, `scaled_dot_product_attention` or `torch.nn.MultiheadAttention`, and held against the attentions
    they return. Attention that is no softmax of anything seen gives `probs` only. Fused kernels (flash, flex) never hold
    scores: sdpa runs in their place, and torch's fused encoder layer runs unfused, which agrees to rounding.
    """
    job = prepare(
        model,
        texts=texts,
        images=images,
        inputs=inputs,
        kind=kind,
        part=part,
        layers=layers,
        heads=heads,
        tokens=tokens,
        window=window,
        targets=targets,
        tokenizer=tokenizer,
        processor=processor,
        revision=revision,
        trust_remote_code=trust_remote_code,
        batch_size=batch_size,
        dtype=dtype,
        device=device,
    )
    check_memory(job.estimate(), memory_limit, job.batch_size or 2, job.advice())
    return job.run()


@dataclass(frozen=True, eq=False)
class CaptureJob:
    """A capture that has been checked and found possible, but not run."""

    model: nn.Module
    items: tuple[ModelInput, ...]
    plan: Plan
    selection: Selection
    kind: Kind
    dtype: torch.dtype
    window: tuple[slice, slice]
    batch_size: int | None
    device: Any
    about: Mapping[str, Any] = field(default_factory=dict)

    def estimate(self) -> MemoryEstimate:
        """Memory of the whole job, from the shapes the short run saw and the sizes of the inputs."""
        result = masks = working = 0
        n_heads = sum(len(chosen) for chosen in self.selection.heads.values())
        for batch in self.batches():
            n_queries, n_keys = self._call_size(self.items[batch[0]])
            kept = [len(range(*w.indices(n))) for w, n in zip(self.window, (n_queries, n_keys), strict=True)]
            entries = len(batch) * math.prod(kept)
            result += n_heads * entries * self.dtype.itemsize
            masks += (n_heads if self.selection.mask_varies else 1) * entries
            widest = max(site.shape[1] for site in self.plan.sites)
            # the model's own pass builds each call's scores once if it attends without a fused kernel
            own = len(batch) * widest * n_queries * n_keys
            output = self.plan.output_bytes * len(batch) * self._growth(self.items[batch[0]])
            working = max(working, working_bytes(own, self.kind, math.ceil(output)))
        if self.plan.from_outputs:
            working += result // max(1, len(self.batches()))
        return MemoryEstimate(result, masks, working)

    def advice(self) -> str:
        """What would make it smaller, most of all."""
        longest = max(item.length() for item in self.items)
        return f"halving the {longest} tokens of an input would quarter it: tokens=…" if longest > 64 else "use less"

    def batches(self) -> list[list[int]]:
        """The numbers of inputs that run together, all of one shape."""
        groups: dict[Any, list[int]] = {}
        for i, item in enumerate(self.items):
            groups.setdefault(item.shapes() if item.can_join() else i, []).append(i)
        batches = []
        for members in groups.values():
            length = max(self._call_size(self.items[members[0]]))
            size = self.batch_size or max(1, _TOKENS_AT_ONCE // length)
            batches += [members[start : start + size] for start in range(0, len(members), size)]
        return sorted(batches)

    def run(self) -> list[AttentionTensor]:
        """Run the model on every batch."""
        results: list[AttentionTensor | None] = [None] * len(self.items)
        batches = self.batches()
        with _on_device(self.model, self.device), settled(self.model), progress("capturing", len(batches)) as step:
            for batch in batches:
                for i, tensor in zip(batch, self._run_batch(batch), strict=True):
                    results[i] = tensor
                step(f"input {batch[-1] + 1} of {len(self.items)}")
        return [result for result in results if result is not None]

    def _run_batch(self, batch: list[int]) -> list[AttentionTensor]:
        items = [self.items[i] for i in batch]
        collectors = [_Collector(self) for _ in items]
        places = self.selection.places(self.plan)
        count = 0

        def listen(call: AttentionCall) -> None:
            nonlocal count
            site = places.get(count)
            count += 1
            if site is None:
                return
            if call.logits.shape[0] != len(items):
                raise InvalidValueError(_windows_message(call.logits.shape[0] / len(items), call.name))
            for item, collector in enumerate(collectors):
                collector.take(call, item, site)

        with watching(self.model, self.plan, listen, len(items)):
            output = run(self.model, items, **({"output_attentions": True} if self.plan.from_outputs else {}))
        if self.plan.from_outputs:
            for site, (_, weights) in enumerate(returned_attentions(self.model, output)):
                for item, collector in enumerate(collectors):
                    collector.take_weights(weights[item], site)
        return [collector.tensor(item) for item, collector in zip(items, collectors, strict=True)]

    def _call_size(self, item: ModelInput) -> tuple[int, int]:
        """How many queries and keys a chosen call has on this input."""
        _, _, n_queries, n_keys = self.plan.sites[self.selection.sites[0]].shape
        before, now = self.plan.probe.lengths(), item.lengths()
        if before is None or now is None:
            growth = self._growth(item)
            return math.ceil(n_queries * growth), math.ceil(n_keys * growth)
        read, written = now[0] - before[0], now[1] - before[1]
        part = self.selection.part
        is_decoder = part in ("decoder", "cross")
        return n_queries + (written if is_decoder else read), n_keys + (written if part == "decoder" else read)

    def _growth(self, item: ModelInput) -> float:
        return item.size() / max(1, self.plan.probe.size())


class _Collector:
    """The tensor of one input while the model runs."""

    def __init__(self, job: CaptureJob) -> None:
        self.job = job
        self.values: Tensor | None = None
        self.masks: list[Bool[Tensor, "#head query key"] | None] = []
        self.which: dict[int, int] = {}
        self.sinks: dict[int, Tensor] = {}
        self.sizes = (0, 0)

    def take(self, call: AttentionCall, item: int, site: int) -> None:
        """Keep the chosen heads of a call."""
        job, logits = self.job, call.logits
        heads = job.selection.heads[site]
        picked = slice(None) if len(heads) == logits.shape[1] else heads
        queries, keys = job.window
        # softmax needs every key; scores are wanted for the window alone
        block = Block(item, picked, queries, keys if job.kind == "scores" else slice(None))
        values, missing = logits.scores(block), logits.missing(block)
        if job.kind == "probs":
            values = logits.probs(values, missing, picked)[:, :, keys]
            missing = None if missing is None else missing[:, :, keys]
        self._put(values, missing, site, logits.shape[2:])
        if logits.sinks is not None:
            self.sinks[site] = logits.sinks[list(heads)].float().cpu()

    def take_weights(self, weights: Float[Tensor, "head query key"], site: int) -> None:
        """Keep the chosen heads of weights the model returned; what is zero in every head was forbidden."""
        if site not in self.job.selection.heads:
            return
        hidden = (weights == 0).all(dim=0, keepdim=True)
        queries, keys = self.job.window
        values = weights[list(self.job.selection.heads[site])][:, queries, keys]
        self._put(values, hidden[:, queries, keys] if hidden.any() else None, site, tuple(weights.shape[1:]))

    def _put(self, values: Tensor, missing: Tensor | None, site: int, sizes: tuple[int, int]) -> None:
        selection = self.job.selection
        n_heads = sum(len(chosen) for chosen in selection.heads.values())
        if self.values is None:
            self.values = torch.empty((n_heads, *values.shape[1:]), dtype=self.job.dtype)
            self.sizes = sizes
        if values.shape[1:] != self.values.shape[1:]:
            raise InvalidValueError(_unequal_message([tuple(self.values.shape[1:]), tuple(values.shape[1:])]))
        start = selection.start(site)
        self.values[start : start + values.shape[0]] = values
        self.which[site] = self._known_mask(missing)

    def _known_mask(self, missing: Tensor | None) -> int:
        for i, mask in enumerate(self.masks):
            both = mask is not None and missing is not None
            if (mask is None and missing is None) or (both and torch.equal(mask, missing)):  # type: ignore[arg-type]
                return i
        self.masks.append(missing if missing is None else missing.cpu().clone())
        return len(self.masks) - 1

    def tensor(self, item: ModelInput) -> AttentionTensor:
        """The finished tensor."""
        job = self.job
        if self.values is None or len(self.which) < len(job.selection.heads):
            raise InvalidValueError(
                f"the model made {len(self.which)} of the {len(job.selection.heads)} attention calls that the first look "
                "saw; its layers change from input to input, so pass layers=… it always runs"
            )
        queries, keys = _labels(job, item, self.sizes)
        return AttentionTensor(
            values=self.values,
            heads=job.selection.head_ids(),
            queries=queries[job.window[0]],
            keys=keys[job.window[1]],
            kind=job.kind,
            mask=self._mask(),
            provenance={**job.about, **item.about},
            sinks=self._all_sinks(),
        )

    def _mask(self) -> Tensor | None:
        """One slice for all heads where they agree, which is nearly always."""
        if len(self.masks) == 1 and (self.masks[0] is None or self.masks[0].shape[0] == 1):
            return self.masks[0]
        if self.values is None:
            return None
        full = torch.zeros(self.values.shape, dtype=torch.bool)
        for site, which in self.which.items():
            mask = self.masks[which]
            if mask is not None:
                start = self.job.selection.start(site)
                full[start : start + len(self.job.selection.heads[site])] = mask
        return full

    def _all_sinks(self) -> Tensor | None:
        if not self.sinks:
            return None
        without = {site: torch.full((len(heads),), -torch.inf) for site, heads in self.job.selection.heads.items()}
        return torch.cat(list({**without, **self.sinks}.values()))


def prepare(
    model: Any,
    *,
    texts: Any = None,
    images: Any = None,
    inputs: Any = None,
    kind: Kind = "scores",
    part: str | None = None,
    layers: Any = None,
    heads: Any = None,
    tokens: int | None = None,
    window: Window | None = None,
    targets: Any = None,
    tokenizer: Any = None,
    processor: Any = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
    batch_size: int | None = None,
    dtype: str | None = None,
    device: Any = None,
) -> CaptureJob:
    """Check everything that `capture` was given, load the model and look at how it attends."""
    modality = _one_of({"texts": texts, "images": images, "inputs": inputs})
    _check_options(kind, batch_size, dtype, modality, tokens, targets)
    source = Source(model, revision, trust_remote_code)
    if modality == "texts" and tokenizer is None:
        tokenizer = source.load_tokenizer()  # a missing one is found before the weights are read
    module = anatomy.select_tower(source.load_model(device), modality)
    with _on_device(module, device), settled(module):
        if texts is not None:
            items = text_inputs(module, texts, targets, tokens, tokenizer, source)
        elif images is not None:
            items = image_inputs(module, images, processor, source)
        else:
            items = ready_inputs(module, inputs, tokenizer)
        plan = make_plan(module, items[0])
        if plan.from_outputs and kind == "scores":
            raise InvalidValueError(
                f"the scores of {type(module).__name__} cannot be had: its attentions are not softmax of anything it was "
                "seen to compute; kind='probs' is obtainable, or tell headtree the scores with register_attention"
            )
        return CaptureJob(
            model=module,
            items=tuple(items),
            plan=plan,
            selection=select(plan, part, layers, heads),
            kind=kind,
            dtype=_value_dtype(module, dtype),
            window=parse_window(window),
            batch_size=batch_size,
            device=device,
            about={**provenance(module, source), "part": part, "kind": kind},
        )


def _one_of(given: Mapping[str, Any]) -> str:
    names = [name for name, value in given.items() if value is not None]
    if len(names) != 1:
        raise InvalidTypeError(
            f"exactly one of texts, images and inputs must be given, got {' and '.join(names) or 'none of them'}"
        )
    return names[0]


def _check_options(
    kind: str, batch_size: int | None, dtype: str | None, modality: str, tokens: Any, targets: Any
) -> None:
    if kind not in get_args(Kind):
        raise InvalidValueError(f"kind must be one of {get_args(Kind)}, got {kind!r}")
    if dtype is not None and dtype not in _DTYPES:
        raise InvalidValueError(f"dtype must be one of {tuple(_DTYPES)}, got {dtype!r}")
    if batch_size is not None and (not isinstance(batch_size, int) or batch_size < 1):
        raise InvalidValueError(f"batch_size must be a whole number of at least 1, got {batch_size!r}")
    for name, value in (("tokens", tokens), ("targets", targets)):
        if value is not None and modality != "texts":
            raise InvalidTypeError(f"{name} applies to texts, not to {modality}; leave it out")


def _value_dtype(model: nn.Module, dtype: str | None) -> torch.dtype:
    if dtype is not None:
        return _DTYPES[dtype]
    is_double = any(parameter.dtype == torch.float64 for parameter in model.parameters())
    return torch.float64 if is_double else torch.float32


class _on_device:  # noqa: N801 - used as a function
    """The model on another device for a while."""

    def __init__(self, model: nn.Module, device: Any) -> None:
        self.model, self.device = model, device
        self.home = next((parameter.device for parameter in model.parameters()), None)

    def __enter__(self) -> None:
        if self.device is not None:
            self.model.to(self.device)

    def __exit__(self, *_: object) -> None:
        if self.device is not None and self.home is not None:
            self.model.to(self.home)


def _labels(job: CaptureJob, item: ModelInput, sizes: tuple[int, int]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of the queries and keys: tokens, patches, or plain positions where neither fits."""
    part = job.selection.part
    targets = item.targets if item.targets is not None else item.tokens
    names = {"cross": (targets, item.tokens), "decoder": (targets, targets)}.get(part, (item.tokens, item.tokens))

    def fitting(known: tuple[str, ...] | None, n: int) -> tuple[str, ...]:
        if known is not None and len(known) == n:
            return known
        if item.pixels is not None:
            return tuple(anatomy.patch_labels(job.model, item.pixels, n))
        return tuple(str(i) for i in range(n))

    return fitting(names[0], sizes[0]), fitting(names[1], sizes[1])


def _windows_message(factor: float, name: str) -> str:
    return (
        f"{name} attends within {factor:g} windows of each input, not over all of it, so that its heads have no single "
        "(query, key) matrix per input; choose other layers with layers=…"
    )


def _unequal_message(shapes: Sequence[tuple[int, ...]]) -> str:
    return (
        f"the chosen layers have heads of unequal shapes (queries, keys): {', '.join(map(str, shapes))}; a tensor needs one, "
        "so choose layers of one shape with layers=…"
    )
