"""`ModelView`, a model to look into."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from os import PathLike
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from xarray import DataArray

from headtree._checks import checked_device
from headtree.errors import HeadtreeError
from headtree.models import facts, register
from headtree.models.ablation import How, ablation
from headtree.models.activation_cache import ActivationCache, caches_of
from headtree.models.capture_options import check_options, check_scores, the_one_given, value_dtype
from headtree.models.functional_similarity import check_is_function, functional_similarity
from headtree.models.generation import prompt_of
from headtree.models.graph.edit_outputs import unedited
from headtree.models.graph.forward_graph import Trace, trace
from headtree.models.graph.gates import without_gates
from headtree.models.graph.head_weights import HeadWeights, weights_of
from headtree.models.graph.output_sites import OutputSite, find_output_sites
from headtree.models.graph.read_stream import locate_stream, read_stream
from headtree.models.inputs import ModelInput, checked_texts, model_inputs
from headtree.models.logit_attribution import LogitAttribution, attributions_of
from headtree.models.logit_lens import lenses_of
from headtree.models.model_dtype import check_not_loaded, checked_model_dtype
from headtree.models.model_files import ModelFiles, provenance
from headtree.models.relevance import Relevance, Target, relevance_of
from headtree.models.token_tensor import TokenTensor, token_tensors
from headtree.models.value_norms import value_norms
from headtree.models.watching.collect import PreparedInputs, Store
from headtree.models.watching.memory import check_memory
from headtree.models.watching.probe import AttentionPlan, evaluating, make_plan, on_device, probe_of
from headtree.models.watching.query_choice import Queries, check_rows
from headtree.models.watching.select import Window, parse_window, select
from headtree.similarity.head_similarity import HeadSimilarity
from headtree.tensor.attention_tensor import AttentionTensor, CapturedKind


class ModelView:
    """A model to look into: loaded, probed and hashed once, whatever is then measured on it.

    Captured attention is verified: the softmax of the captured scores times the values must equal the output of the
    attention module.

    Parameters
    ----------
    model : str, path or torch.nn.Module
        A hub id, a folder of `save_pretrained`, a GGUF file, a folder with a PEFT adapter, or a loaded module.
    tokenizer, processor : optional
        Used instead of the model's own.
    revision : str, optional
        Branch, tag or commit on the hub.
    trust_remote_code : bool
        Whether to run Python code that comes with the model files.
    device : optional
        Where the model runs, such as "cuda"; by default the device it is on. Results are on the CPU.
    model_dtype : {"float16", "bfloat16", "float32", "float64"}, optional
        Type that the model is loaded and computes in; by default the type of its files. Convert a loaded module
        with its own method `to`. The `dtype` of `capture` is the type of the captured values instead.

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
        model_dtype: str | None = None,
    ) -> None:
        self.device, self.model_dtype = checked_device(device), checked_model_dtype(model_dtype)
        check_not_loaded(model, model_dtype)
        self.files = ModelFiles(model, revision, trust_remote_code)
        self._tokenizer, self._processor = tokenizer, processor
        self._plans: dict[Any, AttentionPlan] = {}
        self._traced: tuple[AttentionPlan, Trace] | None = None
        self._output_sites: dict[AttentionPlan, dict[int, OutputSite]] = {}
        self._towers: dict[int, ModelView] = {}
        self.when_planned: list[Callable[[AttentionPlan], None]] = []  #: called with the next plan

    @cached_property
    def model(self) -> nn.Module:
        """The module itself, loaded when first needed."""
        return self.files.load_model(self.device, self.model_dtype)

    @cached_property
    def headed(self) -> ModelView:
        """The model with its output head, which an id or a folder is loaded without; the view itself if none."""
        model = self.files.load_with_head(self.model)
        return self if model is None else self._of(model)

    @property
    def tokenizer(self) -> Any:
        """The tokenizer passed to the view, or else the model's own."""
        if self._tokenizer is None:
            self._tokenizer = self.files.load_tokenizer()
        return self._tokenizer

    def tokenizer_or_none(self) -> Any:
        """The tokenizer; None if there is none."""
        try:
            return self.tokenizer
        except HeadtreeError:
            return None

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
        kind: CapturedKind = "scores",
        part: str | None = None,
        layers: Sequence[int] | None = None,
        heads: Sequence[int] | Sequence[tuple[int, int]] | None = None,
        tokens: int | None = None,
        window: Window | None = None,
        queries: Queries | None = None,
        generate: int | None = None,
        targets: Sequence[str] | None = None,
        batch_size: int | None = None,
        dtype: str | None = None,
        store: Store = "dense",
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
            queries=queries,
            generate=generate,
            targets=targets,
            batch_size=batch_size,
            dtype=dtype,
        ).stored_as(store)
        check_memory(prepared.estimate(), memory_limit, prepared.batch_size or 2, prepared.advice())
        return prepared.run()

    def cache(
        self, *, texts: Any = None, images: Any = None, inputs: Any = None, part: str | None = None, **options: Any
    ) -> list[ActivationCache]:
        """What heads read and write and the residual stream around them, one `ActivationCache` per input.

        The arguments are those of `headtree.capture`.
        """
        given = {"texts": texts, "images": images, "inputs": inputs, "part": part}
        return caches_of(self.prepare(kind="probs", **given, **options))

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
            located = locate_stream(prepared, chunked=True)
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

    def logit_attribution(
        self,
        *,
        texts: Any = None,
        images: Any = None,
        inputs: Any = None,
        target: int | None = None,
        position: int | None = None,
        part: str | None = None,
        **options: Any,
    ) -> list[LogitAttribution]:
        """One logit as the sum of what heads, MLPs and the embedding contribute, one `LogitAttribution` per input.

        Contributions are direct: through the residual stream alone, in which norms keep their scale. They are
        checked to add up to the logit.

        Parameters
        ----------
        texts, images, inputs, part, **options
            As in `headtree.capture`.
        target : int, optional
            Index of the logit: a class or a word; by default the largest.
        position : int, optional
            The token whose logits these are; by default the last.
        """
        given = {"texts": texts, "images": images, "inputs": inputs, "part": part}
        return attributions_of(self.prepare(kind="probs", **given, **options), target, position)

    def logit_lens(
        self, *, texts: Any = None, images: Any = None, inputs: Any = None, part: str | None = None, **options: Any
    ) -> list[DataArray]:
        """The logit lens: logits that follow from the residual stream at every depth, one array per input.

        The axes are (depth, token, logit), or (depth, logit) for a model with one row of logits. The last depth has
        the model's own logits. A depth is computed when it is read. The arguments are those of `headtree.capture`.

        Examples
        --------
        >>> import headtree as ht
        >>> network = ht.load_bundled("vit")
        >>> (lens,) = ht.ModelView(network.model).logit_lens(inputs=network.inputs[0])
        >>> lens.dims, lens.shape
        (('depth', 'logit'), (13, 10))
        """
        given = {"texts": texts, "images": images, "inputs": inputs, "part": part}
        return lenses_of(self.prepare(kind="probs", **given, **options))

    def token_tensor(
        self,
        *,
        texts: Any = None,
        images: Any = None,
        inputs: Any = None,
        memory_limit: float | None = None,
        **options: Any,
    ) -> list[TokenTensor]:
        """What of the residual stream at each token comes from each input token, one `TokenTensor` per input.

        The network is frozen on the input: attention probabilities, scales of norms, gates, and of activation
        functions the ratio of result to argument. Each token then goes through it alone (TensorLens, arXiv
        2601.17958). A model with another operation that is not linear then is refused.

        Parameters
        ----------
        texts, images, inputs, **options
            As in `headtree.capture`.
        memory_limit : float, optional
            Bytes that may be used in addition to the model; by default 80 % of the free memory. Tokens go through
            the network in batches within this limit. An input that would need more is refused before it runs.
        """
        given = {"texts": texts, "images": images, "inputs": inputs}
        return token_tensors(self.prepare(kind="probs", **given, **options), memory_limit)

    def head_similarity(
        self, *, texts: Any = None, images: Any = None, inputs: Any = None, kind: str = "function", **options: Any
    ) -> HeadSimilarity:
        """Which heads *do alike*: look at the same tokens and would write the same of them.

        Two kernels are averaged over inputs: cosines of the heads' attention probabilities, and cosines of their
        values times their output projection, v·W_O. From each the mean head is taken out; both are scaled alike and
        added. See `headtree.consensus` for families of such heads, and `headtree.head_similarity` for heads that
        *look* alike, which needs attention only.

        Parameters
        ----------
        texts, images, inputs, **options
            As in `headtree.capture`.
        kind : {"function"}
            Other kinds compare captured tensors.

        Examples
        --------
        >>> import headtree as ht
        >>> network = ht.load_bundled("vit")
        >>> found = ht.ModelView(network.model).head_similarity(inputs=network.inputs[:2])
        >>> found, found.distance.shape
        (HeadSimilarity('function', 144 heads, 2 inputs), (1, 144, 144))
        """
        check_is_function(kind)
        given = {"texts": texts, "images": images, "inputs": inputs}
        return functional_similarity(self.prepare(kind="probs", **given, **options))

    def ablated(
        self,
        heads: Sequence[tuple[int, int]],
        how: How = "zero",
        *,
        reference: Any = None,
        rng: int | np.random.Generator = 0,
        part: str | None = None,
    ) -> AbstractContextManager[None]:
        """A context without the work of some heads; the model is as it was afterwards, even after an error.

        The model runs its own code. Only what the heads hand to the output projection is replaced, so the bias of
        that projection stays. Contexts can be nested.

        Parameters
        ----------
        heads : list of (layer, head)
            Pairs, or `HeadId` as in `AttentionTensor.heads`.
        how : {"zero", "mean", "resample"}
            What the heads hand over: zeros, their mean over all tokens of the reference inputs, or their outputs at
            the same positions of a reference input that is drawn for each input of each forward pass.
        reference : list of texts, or mapping, optional
            Reference inputs for "mean" and "resample": texts, or arguments of `capture`, such as
            ``{"images": […]}`` or ``{"texts": […], "tokens": 64}``; anything else is taken as ``inputs``.
            They run as the model is then: inside another context, without its heads.
        rng : int or numpy generator
            Draws reference inputs.
        part : str, optional
            Of a model with several kinds of attention; as in `capture`.

        Examples
        --------
        >>> import torch
        >>> import headtree as ht
        >>> network = ht.load_bundled("vit")
        >>> view = ht.ModelView(network.model)
        >>> with torch.no_grad():
        ...     before = network.model(**network.inputs[0]).logits
        ...     with view.ablated([(3, 5), (7, 0)]):
        ...         without = network.model(**network.inputs[0]).logits
        ...     after = network.model(**network.inputs[0]).logits
        >>> bool((without - before).abs().max() > 0.01), torch.equal(before, after)
        (True, True)
        """
        return ablation(self, heads, how, reference, rng, part)

    # -- shared by the methods above ---------------------------------------------------------------------------

    def prepare(
        self,
        *,
        texts: Any = None,
        images: Any = None,
        inputs: Any = None,
        kind: CapturedKind = "scores",
        part: str | None = None,
        layers: Any = None,
        heads: Any = None,
        tokens: int | None = None,
        window: Window | None = None,
        queries: Queries | None = None,
        generate: int | None = None,
        targets: Any = None,
        batch_size: int | None = None,
        dtype: str | None = None,
        of_one_shape: bool = True,
    ) -> PreparedInputs:
        """Check the arguments of `capture`, and find the selected attention calls and heads.

        Unless `of_one_shape` is false, the layers must have attention of one shape, as capture needs.
        """
        modality = the_one_given({"texts": texts, "images": images, "inputs": inputs})
        check_options(kind, batch_size, dtype, modality, tokens, targets)
        check_rows(window, queries, generate)
        if texts is not None:
            texts = checked_texts(texts, "texts")  # before the tokenizer, which may also be missing
            self.tokenizer  # noqa: B018  (if it is missing, fail before loading the weights)
        view = (self if generate is None else self.headed).for_modality(modality)
        with view.ready():
            readers = self._tokenizer, self._processor, self.files
            items = model_inputs(view.model, texts, images, inputs, targets, tokens, *readers)
            if generate is not None:
                items = [prompt_of(view.model, item, generate) for item in items]
            plan = view.plan(items[0])
            selection = select(plan, part, layers, heads, of_one_shape=of_one_shape)
            if kind == "weighted":
                sites = view.output_sites(plan, selection.sites)
                for i in selection.sites:
                    sites[i].check_rows()  # refuse before any work what cannot be weighted
        check_scores(view.model, plan, kind)
        prepared = PreparedInputs(
            view=view,
            items=tuple(items),
            plan=plan,
            selection=selection,
            kind=kind,
            dtype=value_dtype(view.model, dtype),
            window=parse_window(window),
            queries=queries,
            generate=generate,
            batch_size=batch_size,
            part=part,
        )
        prepared.check_window()
        return prepared

    def plan(self, item: ModelInput) -> AttentionPlan:
        """The attention calls that the model makes on inputs of this layout; probed once per layout."""
        for is_short, probe in ((True, probe_of(item)), (False, item)):
            key = register.n_changes(), is_short, *probe.layout()
            if key in self._plans:
                return self._plans[key]
        with unedited():
            plan = without_gates(make_plan(self.model, item), self.model)
        is_short = plan.probe is not item  # else it holds for inputs of this length only
        self._plans[register.n_changes(), is_short, *plan.probe.layout()] = plan
        for activate in list(self.when_planned):
            activate(plan)
        return plan

    def latest_plan(self) -> AttentionPlan | None:
        """The plan that was made last; None if the model was not probed yet."""
        return next(reversed(self._plans.values()), None)

    def traced(self, plan: AttentionPlan) -> Trace:
        """The graph of a forward pass on the plan's probe; the most recent one is cached."""
        if self._traced is None or self._traced[0] is not plan:
            with unedited():
                self._traced = plan, trace(self.model, plan.probe)
        return self._traced[1]

    def output_sites(self, plan: AttentionPlan, chosen: Iterable[int]) -> Mapping[int, OutputSite]:
        """Where the heads of the chosen attention calls, at least, hand over outputs; the view must be ready."""
        known = self._output_sites.setdefault(plan, {})
        missing = [i for i in chosen if i not in known]
        if missing:
            with unedited():
                known |= find_output_sites(self.traced(plan), plan, self.model, missing)
        return known

    def value_norms(self, prepared: PreparedInputs, item: ModelInput) -> Float[Tensor, "head key"]:
        """‖v·W_O‖ of every selected head and every key on one prepared input; the view must be ready."""
        return value_norms(prepared, item)

    @contextmanager
    def ready(self) -> Iterator[None]:
        """Put the model in evaluation mode, on the view's device and without fused kernels; then restore it."""
        with on_device(self.model, self.device), evaluating(self.model):
            yield

    def for_modality(self, modality: str) -> ModelView:
        """The view itself, or for a two-tower model (CLIP) the view of the tower that reads this kind of input."""
        tower = facts.select_tower(self.model, modality)
        if tower is self.model:
            return self
        if id(tower) not in self._towers:
            self._towers[id(tower)] = self._of(tower)
        return self._towers[id(tower)]

    def _of(self, model: nn.Module) -> ModelView:
        """A view of another module from the same files."""
        view = copy.copy(self)
        for name in ("provenance", "headed"):
            view.__dict__.pop(name, None)
        view.model = model
        view._plans, view._traced, view._output_sites, view._towers, view.when_planned = {}, None, {}, {}, []
        return view
