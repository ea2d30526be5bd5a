"""Every head of any transformer on some inputs, as labelled tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, get_args

import torch
from torch import nn

from headtree.errors import InvalidTypeError, InvalidValueError
from headtree.models import facts
from headtree.models.inputs import checked_texts, image_inputs, ready_inputs, text_inputs
from headtree.models.source import Source, provenance
from headtree.models.watching.collect import CaptureJob, on_device
from headtree.models.watching.memory import check_memory
from headtree.models.watching.probe import make_plan, settled
from headtree.models.watching.select import Window, parse_window, select
from headtree.tensor.attention_tensor import AttentionTensor, Kind

_DTYPES = {"float16": torch.float16, "float32": torch.float32, "float64": torch.float64}


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
        What the model's forward takes: mappings of its arguments, or tensors for the first one, with a batch
        axis; a batch of n gives n inputs.
    kind : {"scores", "probs"}
        Everything finite that enters softmax, before the mask; or what leaves it.
    part : str, optional
        Which attention of a model that has several: "encoder", "decoder" or "cross", or the name of a tower.
    layers : list of int, optional
        Which layers of the part, counted from 0 in the order they are called; all without it.
    heads : list of int or of (layer, head), optional
        Which heads, in every layer or each by its layer; all without it.
    tokens : int, optional
        Tokens of an input, special ones included: longer texts are cut into several inputs, a rest that does
        not fill one is left out, shorter texts are an error.
    window : (start, stop), optional
        Keep these queries and keys only; the model still reads everything. A pair of such pairs gives queries
        and keys different windows.
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
        Bytes the capture may take beyond the model; 80 % of what is free without it. What would take more is
        refused before it is run.

    Returns
    -------
    list of AttentionTensor
        In the order of the inputs; heads in layer order.

    Notes
    -----
    Models that use transformers' attention registry are seen through it, and what is seen is checked on the
    spot: softmax of the captured scores, applied to the values, must give the model's own attention output.
    Other models are watched as they call softmax, `scaled_dot_product_attention` or
    `torch.nn.MultiheadAttention`, and held against the attentions they return. Attention that is no softmax of
    anything seen gives `probs` only. Fused kernels (flash, flex) never hold scores: sdpa runs in their place,
    and torch's fused encoder layer runs unfused, which agrees to rounding.
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
    if texts is not None:
        texts = checked_texts(texts, "texts")  # before the tokenizer, which may be missing as well
    source = Source(model, revision, trust_remote_code)
    if modality == "texts" and tokenizer is None:
        tokenizer = source.load_tokenizer()  # a missing one is found before the weights are read
    module = facts.select_tower(source.load_model(device), modality)
    with on_device(module, device), settled(module):
        if texts is not None:
            items = text_inputs(module, texts, targets, tokens, tokenizer, source)
        elif images is not None:
            items = image_inputs(module, images, processor, source)
        else:
            items = ready_inputs(module, inputs, tokenizer)
        plan = make_plan(module, items[0])
        if plan.from_outputs and kind == "scores":
            raise InvalidValueError(
                f"the scores of {type(module).__name__} cannot be had: its attentions are not softmax of "
                "anything it was seen to compute; kind='probs' is obtainable, or tell headtree the scores with "
                "register_attention"
            )
        job = CaptureJob(
            model=module,
            items=tuple(items),
            plan=plan,
            selection=select(plan, part, layers, heads),
            kind=kind,
            dtype=_value_dtype(module, dtype),
            window=parse_window(window),
            batch_size=batch_size,
            device=device,
            about={**provenance(module, source), "part": part, "seen_by": plan.way},
        )
        job.check_window()
        return job


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
