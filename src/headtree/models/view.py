"""A model one can look into, and the functions that are short cuts to it."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from os import PathLike
from typing import Any, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from headtree.errors import InvalidTypeError, InvalidValueError
from headtree.models import facts
from headtree.models.graph.forward_graph import Trace, trace
from headtree.models.graph.head_weights import HeadWeights, weights_of
from headtree.models.graph.read_stream import locate_stream, read_stream
from headtree.models.inputs import ModelInput, checked_texts, image_inputs, ready_inputs, text_inputs
from headtree.models.relevance import Relevance, Target, relevance_of
from headtree.models.source import ModelFiles, provenance
from headtree.models.watching.collect import PreparedInputs
from headtree.models.watching.memory import check_memory
from headtree.models.watching.probe import AttentionPlan, evaluating, make_plan, on_device, probe_of
from headtree.models.watching.select import Window, parse_window, select
from headtree.tensor.attention_tensor import AttentionTensor, Kind

_DTYPES = {"float16": torch.float16, "float32": torch.float32, "float64": torch.float64}

#: What `ModelView` takes beside the model; the short cuts pass these on and everything else to its methods.
_OF_THE_VIEW = ("tokenizer", "processor", "revision", "trust_remote_code", "device")


class ModelView:
    """A model one can look into: loaded, probed and hashed once, however often it is looked at.

    What is seen is verified on the spot: the softmax of the captured scores, applied to the values, must equal the
    attention output that the model itself computes.

    Parameters
    ----------
    model : str, path or torch.nn.Module
        A hub id, a folder that `save_pretrained` wrote, or a loaded module.
    tokenizer, processor : optional
        Instead of the model's own.
    revision : str, optional
        Branch, tag or commit on the hub.
    trust_remote_code : bool
        Whether to run Python code that comes with the model.
    device : optional
        Where the model runs; by default where it is. Results are on the CPU.

    Notes
    -----
    The model runs as it is: same code, same weights, same outputs. It is left as it was, also after an error. Make
    a new view after changing its weights.

    Examples
    --------
    >>> import headtree as ht
    >>> network = ht.load_bundled("vit")
    >>> view = ht.ModelView(network.model)
    >>> (att,) = view.capture(inputs=network.inputs[0], kind="probs")
    >>> att.shape
    (144, 197, 197)
    >>> len(view.weights(inputs=network.inputs[0]))  # one HeadWeights per layer
    12
    >>> view.residual(inputs=network.inputs[0])[0].shape  # before the first layer and after each
    torch.Size([13, 197, 192])
    """

    def __init__(
        self,
        model: str | PathLike[str] | nn.Module,
        *,
        tokenizer: Any = None,
        processor: Any = None,
        revision: str | None = None,
        trust_remote_code: bool = False,
        device: str | torch.device | None = None,
    ) -> None:
        self.files = ModelFiles(model, revision, trust_remote_code)
        self.device = device
        self._tokenizer, self._processor = tokenizer, processor
        self._plans: dict[Any, AttentionPlan] = {}
        self._traced: tuple[AttentionPlan, Trace] | None = None
        self._towers: dict[int, ModelView] = {}

    @cached_property
    def model(self) -> nn.Module:
        """The module itself, loaded when it is first needed."""
        return self.files.load_model(self.device)

    @property
    def tokenizer(self) -> Any:
        """The tokenizer that was given, or the model's own."""
        if self._tokenizer is None:
            self._tokenizer = self.files.load_tokenizer()
        return self._tokenizer

    @cached_property
    def provenance(self) -> Mapping[str, Any]:
        """Name, revision, hash of the weights, and the versions of the libraries."""
        return provenance(self.model, self.files)

    def capture(
        self,
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
        batch_size: int | None = None,
        dtype: str | None = None,
        memory_limit: float | None = None,
    ) -> list[AttentionTensor]:
        """What every attention head does, one tensor per input; the arguments are those of `headtree.capture`."""
        prepared = self.prepare(
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
            batch_size=batch_size,
            dtype=dtype,
        )
        check_memory(prepared.estimate(), memory_limit, prepared.batch_size or 2, prepared.advice())
        return prepared.run()

    def weights(
        self, *, texts: Any = None, images: Any = None, inputs: Any = None, part: str | None = None, **options: Any
    ) -> list[HeadWeights]:
        """W_Q, W_K, W_V and W_O of every head, one `HeadWeights` per layer.

        The model runs once on the first input, and each head's features are followed through its code: fused,
        grouped, interleaved and transposed projections come out alike.
        """
        given = {"texts": texts, "images": images, "inputs": inputs, "part": part}
        prepared = self.prepare(kind="probs", **given, **options)
        with prepared.view.ready():
            return weights_of(prepared)

    def residual(
        self, *, texts: Any = None, images: Any = None, inputs: Any = None, part: str | None = None, **options: Any
    ) -> list[Float[Tensor, "depth token width"]]:
        """The residual stream before the first layer and after each, one tensor per input."""
        given = {"texts": texts, "images": images, "inputs": inputs, "part": part}
        prepared = self.prepare(kind="probs", **given, **options)
        with prepared.view.ready():
            located = locate_stream(prepared)
            streams = [read_stream(located, [item]) for item in prepared.items]
        return [torch.stack([depth[0] for depth in stream]).detach().cpu() for stream in streams]

    def relevance(
        self,
        *,
        texts: Any = None,
        images: Any = None,
        inputs: Any = None,
        target: Target = None,
        part: str | None = None,
        **options: Any,
    ) -> list[Relevance]:
        """Which tokens and heads one output rests on; the arguments are those of `attention_relevance`."""
        given = {"texts": texts, "images": images, "inputs": inputs, "part": part}
        prepared = self.prepare(kind="probs", **given, **options)
        return [relevance_of(prepared, item, target) for item in prepared.items]

    # -- what these share ------------------------------------------------------------------------------------

    def prepare(
        self,
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
        batch_size: int | None = None,
        dtype: str | None = None,
    ) -> PreparedInputs:
        """Check what `capture` was given, and find the attention calls and heads that were asked for."""
        modality = _one_of({"texts": texts, "images": images, "inputs": inputs})
        _check_options(kind, batch_size, dtype, modality, tokens, targets)
        if texts is not None:
            texts = checked_texts(texts, "texts")  # before the tokenizer, which may be missing as well
            self.tokenizer  # noqa: B018  (a missing one is found before the weights are read)
        view = self._reading(modality)
        with view.ready():
            if texts is not None:
                items = text_inputs(view.model, texts, targets, tokens, self._tokenizer, self.files)
            elif images is not None:
                items = image_inputs(view.model, images, self._processor, self.files)
            else:
                items = ready_inputs(view.model, inputs, self._tokenizer)
            plan = view.plan(items[0])
        _check_scores(view.model, plan, kind)
        prepared = PreparedInputs(
            view=view,
            items=tuple(items),
            plan=plan,
            selection=select(plan, part, layers, heads),
            kind=kind,
            dtype=_value_dtype(view.model, dtype),
            window=parse_window(window),
            batch_size=batch_size,
            part=part,
        )
        prepared.check_window()
        return prepared

    def plan(self, item: ModelInput) -> AttentionPlan:
        """How the model attends on inputs of this layout, found by a short run the first time it is asked."""
        layout = probe_of(item).layout()
        if layout not in self._plans:
            self._plans[layout] = make_plan(self.model, item)
        return self._plans[layout]

    def traced(self, plan: AttentionPlan) -> Trace:
        """The forward pass on the plan's probe as a graph; the last one is remembered."""
        if self._traced is None or self._traced[0] is not plan:
            self._traced = plan, trace(self.model, plan.probe)
        return self._traced[1]

    @contextmanager
    def ready(self) -> Iterator[None]:
        """The model in evaluation mode, on the view's device and without fused kernels; then as it was."""
        with on_device(self.model, self.device), evaluating(self.model):
            yield

    def _reading(self, modality: str) -> ModelView:
        """The view itself, or that of the tower that reads this kind of input (CLIP)."""
        tower = facts.select_tower(self.model, modality)
        if tower is self.model:
            return self
        if id(tower) not in self._towers:
            view = copy.copy(self)
            view.__dict__.pop("provenance", None)
            view.__dict__["model"] = tower
            view._plans, view._traced, view._towers = {}, None, {}
            self._towers[id(tower)] = view
        return self._towers[id(tower)]


def as_view(model: Any, **given: Any) -> ModelView:
    """A view of whatever a function was given as its model: the view itself, or a new one."""
    if not isinstance(model, ModelView):
        return ModelView(model, **given)
    named = [name for name, value in given.items() if value not in (None, False)]
    if named:
        raise InvalidTypeError(
            f"{', '.join(named)} must be given to ModelView itself, got a view that is made already; leave "
            f"{'it' if len(named) == 1 else 'them'} out"
        )
    return model


def prepare(model: Any, **options: Any) -> PreparedInputs:
    """Prepare inputs on a model or a view of one; the options are those of `headtree.capture`."""
    of_view = {name: options.pop(name) for name in _OF_THE_VIEW if name in options}
    return as_view(model, **of_view).prepare(**options)


def capture(
    model: str | PathLike[str] | nn.Module | ModelView,
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

    A short cut for ``ModelView(model).capture(...)``. To look at one model in several ways, make the view once.

    Parameters
    ----------
    model : str, path, torch.nn.Module or ModelView
        A hub id, a folder that `save_pretrained` wrote, a loaded module, or a view of one.
    texts : list of str, optional
        Read through the model's tokenizer. Exactly one of `texts`, `images` and `inputs` must be given.
    images : list, optional
        Files, PIL images or uint8 arrays, read through the model's image processor; float arrays
        (channel, row, column) are passed on unchanged.
    inputs : list, mapping or tensor, optional
        What the model's forward takes: mappings of its arguments, or tensors for the first one, with a batch
        axis; a batch of n gives n inputs.
    kind : {"scores", "probs"}
        Everything finite that enters softmax, before the mask; or what leaves it.
    part : str, optional
        Which attention of a model that has several: "encoder", "decoder" or "cross", or the name of a tower.
    layers : list of int, optional
        Layers to keep, counted from 0 in the order they are called; all by default.
    heads : list of int or of (layer, head), optional
        Heads to keep, in every layer or each with its layer; all by default.
    tokens : int, optional
        Tokens per input, special ones included. Longer texts are cut into several inputs, a remainder that does
        not fill one is dropped, and shorter texts are an error.
    window : (start, stop), optional
        Keep only these queries and keys; the model still reads everything. A pair of such pairs gives queries
        and keys different windows.
    targets : list of str, optional
        What the decoder of an encoder-decoder reads; by default the text itself, shifted by one token.
    tokenizer, processor, revision, trust_remote_code, device
        As in `ModelView`.
    batch_size : int, optional
        How many inputs of equal shape run together; by default chosen from their length.
    dtype : {"float16", "float32", "float64"}, optional
        Of the values; by default float32, or float64 for models that compute in it.
    memory_limit : float, optional
        Bytes the capture may use beyond the model; by default 80 % of the free memory. A capture that would need
        more is refused before it runs.

    Returns
    -------
    list of AttentionTensor
        In the order of the inputs; heads in layer order.

    Notes
    -----
    Models that use transformers' attention registry are seen through it, and what is seen is verified on the spot:
    the softmax of the captured scores, applied to the values, must equal the model's own attention output. Other
    models are watched as they call softmax, `scaled_dot_product_attention` or `torch.nn.MultiheadAttention`, and
    compared with the attentions they return. Attention that is not a softmax of anything seen gives `probs` only.
    Fused kernels (flash, flex) never hold scores: sdpa runs instead, and torch's fused encoder layer runs unfused,
    which agrees to rounding.

    Examples
    --------
    >>> import headtree as ht
    >>> network = ht.load_bundled("txl")
    >>> atts = ht.capture(network.model, inputs=network.inputs[:2], tokenizer=network.tokenizer, layers=[0, 1])
    >>> len(atts), atts[0].shape, atts[0].kind
    (2, (16, 256, 256), 'scores')
    """
    view = as_view(
        model,
        tokenizer=tokenizer,
        processor=processor,
        revision=revision,
        trust_remote_code=trust_remote_code,
        device=device,
    )
    return view.capture(
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
        batch_size=batch_size,
        dtype=dtype,
        memory_limit=memory_limit,
    )


def head_weights(
    model: Any,
    *,
    texts: Any = None,
    images: Any = None,
    inputs: Any = None,
    part: str | None = None,
    **options: Any,
) -> list[HeadWeights]:
    """W_Q, W_K, W_V and W_O of every head of a model, one `HeadWeights` per layer.

    A short cut for ``ModelView(model).weights(...)``. The model runs once on the first input, and each head's
    features are followed through its code: fused, grouped, interleaved and transposed projections come out alike.

    Parameters
    ----------
    model, texts, images, inputs, part, **options
        As in `headtree.capture`.

    Examples
    --------
    >>> import headtree as ht
    >>> network = ht.load_bundled("vit")
    >>> first = ht.head_weights(network.model, inputs=network.inputs[0])[0]
    >>> first.query.shape, first.qk.shape
    (torch.Size([12, 192, 16]), torch.Size([12, 192, 192]))
    """
    prepared = prepare(model, texts=texts, images=images, inputs=inputs, part=part, **{"kind": "probs", **options})
    with prepared.view.ready():
        return weights_of(prepared)


def attention_relevance(
    model: Any,
    *,
    texts: Any = None,
    images: Any = None,
    inputs: Any = None,
    target: Target = None,
    part: str | None = None,
    **options: Any,
) -> list[Relevance]:
    """Relevance of tokens and heads for one output, one result per input (Chefer et al. 2021).

    A short cut for ``ModelView(model).relevance(...)``. ``Ā = mean over heads of (∇A ⊙ A)⁺`` for each layer,
    ``R ← R + Ā R`` from ``R = I``; a head's share is the sum of its (∇A ⊙ A)⁺ over that of all heads.

    Parameters
    ----------
    model, texts, images, inputs, part, **options
        As in `headtree.capture`; the model runs with eager attention and gradients, and is left as it was.
    target : int or function, optional
        The class or word whose logit is asked about, of the last token where every token has logits; or a function
        from the model's output to a single number. By default the largest logit.

    Examples
    --------
    >>> import headtree as ht
    >>> network = ht.load_bundled("vit")
    >>> (found,) = ht.attention_relevance(network.model, inputs=network.inputs[0])
    >>> found.tokens.shape, found.share.shape, round(float(found.share.sum()), 6)
    ((197, 197), (144,), 1.0)
    """
    prepared = prepare(model, texts=texts, images=images, inputs=inputs, kind="probs", part=part, **options)
    return [relevance_of(prepared, item, target) for item in prepared.items]


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


def _check_scores(model: nn.Module, plan: AttentionPlan, kind: Kind) -> None:
    if plan.from_outputs and kind == "scores":
        raise InvalidValueError(
            f"the scores of {type(model).__name__} are not available: its attentions are not the softmax of "
            "anything it was seen to compute; use kind='probs', or describe the scores with register_attention"
        )


def _value_dtype(model: nn.Module, dtype: str | None) -> torch.dtype:
    if dtype is not None:
        return _DTYPES[dtype]
    is_double = any(parameter.dtype == torch.float64 for parameter in model.parameters())
    return torch.float64 if is_double else torch.float32
