"""`ModelView`, a model to look into, and the functions that are shortcuts to its methods."""

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

#: Options of `ModelView` itself; the shortcut functions pass all other options to its methods.
_VIEW_OPTIONS = ("tokenizer", "processor", "revision", "trust_remote_code", "device")


class ModelView:
    """A model to look into: loaded, probed and hashed once, whatever is then measured on it.

    Captured attention is verified: the softmax of the captured scores times the values must equal the output of the
    attention module.

    Parameters
    ----------
    model : str, path or torch.nn.Module
        A hub id, a folder written by `save_pretrained`, or a loaded module.
    tokenizer, processor : optional
        Used instead of the model's own.
    revision : str, optional
        Branch, tag or commit on the hub.
    trust_remote_code : bool
        Whether to run Python code that comes with the model files.
    device : optional
        Where the model runs; by default the device it is on. Results are on the CPU.

    Notes
    -----
    The model runs unchanged: same code, same weights, same outputs. It is restored afterwards, even after an error.
    If you change its weights, make a new view.

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
        """The module itself, loaded when first needed."""
        return self.files.load_model(self.device)

    @property
    def tokenizer(self) -> Any:
        """The tokenizer passed to the view, or else the model's own."""
        if self._tokenizer is None:
            self._tokenizer = self.files.load_tokenizer()
        return self._tokenizer

    @cached_property
    def provenance(self) -> Mapping[str, Any]:
        """Name, revision and weight hash of the model, and the versions of the libraries."""
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
        """Capture the attention of every head, one tensor per input; for the arguments see `headtree.capture`."""
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
        """W_Q, W_K, W_V and W_O of every head, one `HeadWeights` per layer; see `headtree.head_weights`."""
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
        """Which tokens and heads an output depends on; for the arguments see `headtree.attention_relevance`."""
        given = {"texts": texts, "images": images, "inputs": inputs, "part": part}
        prepared = self.prepare(kind="probs", **given, **options)
        return [relevance_of(prepared, item, target) for item in prepared.items]

    # -- shared by the methods above ---------------------------------------------------------------------------

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
        """Check the arguments of `capture`, and find the selected attention calls and heads."""
        modality = _one_of({"texts": texts, "images": images, "inputs": inputs})
        _check_options(kind, batch_size, dtype, modality, tokens, targets)
        if texts is not None:
            texts = checked_texts(texts, "texts")  # before the tokenizer, which may also be missing
            self.tokenizer  # noqa: B018  (if it is missing, fail before loading the weights)
        view = self._for_modality(modality)
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
        """The attention calls that the model makes on inputs of this layout; probed once per layout."""
        layout = probe_of(item).layout()
        if layout not in self._plans:
            self._plans[layout] = make_plan(self.model, item)
        return self._plans[layout]

    def traced(self, plan: AttentionPlan) -> Trace:
        """The graph of a forward pass on the plan's probe; the most recent one is cached."""
        if self._traced is None or self._traced[0] is not plan:
            self._traced = plan, trace(self.model, plan.probe)
        return self._traced[1]

    @contextmanager
    def ready(self) -> Iterator[None]:
        """Put the model in evaluation mode, on the view's device and without fused kernels; then restore it."""
        with on_device(self.model, self.device), evaluating(self.model):
            yield

    def _for_modality(self, modality: str) -> ModelView:
        """The view itself, or for a two-tower model (CLIP) the view of the tower that reads this kind of input."""
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
    """Make a view of a model; a view is returned unchanged."""
    if not isinstance(model, ModelView):
        return ModelView(model, **given)
    named = [name for name, value in given.items() if value not in (None, False)]
    if named:
        raise InvalidTypeError(
            f"{', '.join(named)} must be given to ModelView itself, but model is already a view; leave "
            f"{'it' if len(named) == 1 else 'them'} out"
        )
    return model


def prepare(model: Any, **options: Any) -> PreparedInputs:
    """Prepare inputs for a model or view; for the options see `headtree.capture`."""
    view_options = {name: options.pop(name) for name in _VIEW_OPTIONS if name in options}
    return as_view(model, **view_options).prepare(**options)


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
    """Run a model and capture the attention of its heads, one tensor per input.

    A shortcut for ``ModelView(model).capture(...)``. To measure one model in several ways, make the view once.

    Parameters
    ----------
    model : str, path, torch.nn.Module or ModelView
        A hub id, a folder written by `save_pretrained`, a loaded module, or a view.
    texts : list of str, optional
        Tokenized with the model's tokenizer. Give exactly one of `texts`, `images` and `inputs`.
    images : list, optional
        Files, PIL images or uint8 arrays, which go through the model's image processor; or float arrays
        (channel, row, column), which are used unchanged.
    inputs : list, mapping or tensor, optional
        Arguments of the model's forward, with a batch axis: mappings by name, or tensors for the first argument.
        A batch of n gives n inputs.
    kind : {"scores", "probs"}
        The input of softmax without the mask, or its output.
    part : str, optional
        Which attention to capture if the model has several kinds: "encoder", "decoder", "cross", or the name of a
        tower.
    layers : list of int, optional
        Layers to capture, counted from 0 in the order of their calls; all by default.
    heads : list of int or of (layer, head), optional
        Heads to capture, in every layer or as (layer, head) pairs; all by default.
    tokens : int, optional
        Tokens per input, special tokens included. Longer texts are cut into several inputs and the remainder is
        dropped; shorter texts are an error.
    window : (start, stop), optional
        Range of queries and keys to capture; the model still reads the whole input. Pass two such pairs to give
        queries and keys different ranges.
    targets : list of str, optional
        Texts that the decoder of an encoder-decoder reads; by default the input text, shifted by one token.
    tokenizer, processor, revision, trust_remote_code, device
        As in `ModelView`.
    batch_size : int, optional
        Number of inputs of equal shape to run together; by default chosen from their length.
    dtype : {"float16", "float32", "float64"}, optional
        Type of the captured values; by default float32, or float64 for models with float64 weights.
    memory_limit : float, optional
        Bytes that the capture may use in addition to the model; by default 80 % of the free memory. A capture that
        would need more is refused before it runs.

    Returns
    -------
    list of AttentionTensor
        In the order of the inputs. Heads are in layer order.

    Notes
    -----
    Attention is captured through transformers' attention registry where a model uses it, and verified: the softmax
    of the captured scores times the values must equal the output of the attention module. In other models, calls of
    softmax, `scaled_dot_product_attention` and `torch.nn.MultiheadAttention` are watched and compared with the
    attentions that the model returns. If these are not the softmax of any watched scores, only `probs` are
    available. Fused kernels (flash, flex) never compute scores, so sdpa runs instead; torch's fused encoder layer
    runs unfused. Both agree with the original up to rounding.

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

    A shortcut for ``ModelView(model).weights(...)``. The model runs once on the first input, and each head's
    features are followed through the operations it runs. This works for separate, fused, grouped, interleaved and
    transposed projections alike.

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

    A shortcut for ``ModelView(model).relevance(...)``. Starting from ``R = I``, each layer updates ``R ← R + Ā R``,
    where ``Ā`` is the mean over heads of ``(∇A ⊙ A)⁺``. A head's share is the sum of its ``(∇A ⊙ A)⁺`` divided by
    the sum over all heads.

    Parameters
    ----------
    model, texts, images, inputs, part, **options
        As in `headtree.capture`. The model runs with eager attention and gradients, and is restored afterwards.
    target : int or function, optional
        The output to explain: the index of a class or word among the logits (of the last token, if every token has
        logits), or a function that maps the model's output to a scalar. By default the largest logit.

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
            f"the scores of {type(model).__name__} are not available: the attentions it returns are not the "
            "softmax of any scores it computes; use kind='probs', or describe the scores with register_attention"
        )


def _value_dtype(model: nn.Module, dtype: str | None) -> torch.dtype:
    if dtype is not None:
        return _DTYPES[dtype]
    is_double = any(parameter.dtype == torch.float64 for parameter in model.parameters())
    return torch.float64 if is_double else torch.float32
