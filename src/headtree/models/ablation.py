"""Heads that write nothing, their mean, or what they wrote on another input, while a block runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from headtree import _checks
from headtree._checks import generator
from headtree.errors import HeadtreeError, InvalidTypeError, InvalidValueError
from headtree.models.graph.edit_outputs import intercepting, is_unedited, replaced
from headtree.models.graph.output_sites import Edit, OutputSite
from headtree.models.inputs import ModelInput
from headtree.models.module_stack import is_watched
from headtree.models.watching.collect import PreparedInputs
from headtree.models.watching.probe import AttentionPlan, run
from headtree.models.watching.select import Selection, select

if TYPE_CHECKING:
    from headtree.models.view import ModelView

How = Literal["zero", "mean", "resample"]

#: Outputs of the ablated heads on one reference input, by site and number of the output.
_Outputs = dict[tuple[int, int], Float[Tensor, "token head feature"]]


@contextmanager
def ablation(
    view: ModelView, heads: Any, how: How, reference: Any, rng: int | np.random.Generator, part: str | None
) -> Iterator[None]:
    """The context of `ModelView.ablated`."""
    check_how(how, reference)
    pairs = head_pairs(heads)
    prepared = None if reference is None else prepared_reference(view, reference, part)
    tower = view if prepared is None else prepared.view
    plan = prepared.plan if prepared is not None else tower.latest_plan()
    edits = _edits_for(how, prepared, generator(rng))
    with _whole_inputs(tower) if how == "resample" else nullcontext():
        if plan is not None:
            with intercepting_heads(tower, plan, pairs, part, edits):
                yield
        else:
            with _located_at_first_call(tower, pairs, part, edits):
                yield


@contextmanager
def _whole_inputs(view: ModelView) -> Iterator[None]:
    """Refuse passes that continue a key-value cache: reference outputs are taken from the first position on."""

    def check(_: Any, __: Any, kwargs: Mapping[str, Any]) -> None:
        cache: Any = kwargs.get("past_key_values")
        n_cached = cache.get_seq_length() if hasattr(cache, "get_seq_length") else int(cache is not None)
        if n_cached:
            raise InvalidValueError(
                f"how='resample' needs whole inputs, but this pass continues a cache of {n_cached} tokens; pass "
                "use_cache=False, or how='mean'"
            )

    handle = view.model.register_forward_pre_hook(check, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


def head_pairs(heads: Any) -> list[tuple[int, int]]:
    """Heads as (layer, head) pairs: a list of pairs or HeadIds, or a single one, which is no list."""
    items = [heads] if isinstance(heads, tuple) and _is_pair(heads) else heads
    is_several = isinstance(items, Sequence | set | frozenset) or (isinstance(items, np.ndarray) and items.ndim > 0)
    if isinstance(items, str) or not is_several:
        raise InvalidTypeError(f"heads must be a list of pairs (layer, head), got {heads!r}")
    pairs = list(items)
    for pair in pairs:
        if not _is_pair(pair):
            raise InvalidTypeError(
                f"heads must be pairs (layer, head), got {pair!r} among them; for head 1 of layer 0 pass [(0, 1)]"
            )
    return list(dict.fromkeys((int(layer), int(head)) for layer, head in pairs))


def _is_pair(value: Any) -> bool:
    return (
        isinstance(value, tuple | list | np.ndarray)
        and len(value) == 2
        and all(isinstance(number, int | np.integer) and not isinstance(number, bool) for number in value)
    )


def check_how(how: str, reference: Any) -> None:
    """Raise an error unless `how` is known and has reference inputs just if it needs them."""
    _checks.one_of(how, "how", How)
    if how != "zero" and reference is None:
        raise InvalidTypeError(
            f"how={how!r} needs reference inputs to take the heads' outputs from; pass reference=… (a list of "
            "texts, or the arguments of capture, such as {'inputs': …})"
        )
    if how == "zero" and reference is not None:
        raise InvalidTypeError("how='zero' uses no reference inputs; leave reference out, or pass how='mean'")


def prepared_reference(view: ModelView, reference: Any, part: str | None) -> PreparedInputs:
    """Reference inputs as `ModelView.ablated` takes them, prepared."""
    if isinstance(reference, str) or (
        isinstance(reference, list | tuple) and all(isinstance(text, str) for text in reference)
    ):
        reference = {"texts": reference}
    elif not (isinstance(reference, Mapping) and {"texts", "images", "inputs"} & set(reference)):
        reference = {"inputs": reference}
    return view.prepare(**{"part": part, **reference, "kind": "probs", "of_one_shape": False})


#: Makes the edits of all sites of a selection, by the number of the site.
_EditMaker = Callable[[Selection, Mapping[int, OutputSite]], dict[int, Edit]]


def _edits_for(how: How, prepared: PreparedInputs | None, rng: np.random.Generator) -> _EditMaker:
    def make(selection: Selection, sites: Mapping[int, OutputSite]) -> dict[int, Edit]:
        if prepared is None:
            return {i: _replacing(i, heads, None) for i, heads in selection.heads.items()}
        outputs = reference_outputs(replace(prepared, selection=selection), how)
        if how == "mean":
            means = mean_outputs(outputs)
            return {i: _replacing(i, heads, means) for i, heads in selection.heads.items()}
        draw = _Draws(outputs, rng)
        return {i: draw.edit(i, heads, sites[i]) for i, heads in selection.heads.items()}

    return make


@contextmanager
def intercepting_heads(
    view: ModelView,
    plan: AttentionPlan,
    pairs: Sequence[tuple[int, int]],
    part: str | None,
    make: _EditMaker,
    *,
    is_running: bool = False,
) -> Iterator[None]:
    """Pass the outputs of some heads through the edits of a maker while the block runs."""
    if not pairs:
        yield
        return
    selection = select(plan, part, None, pairs, of_one_shape=False)
    with view.ready():
        sites = view.output_sites(plan, selection.sites)
        edits = make(selection, sites)
    with intercepting(view.model, sites, edits, is_running=is_running):
        yield


@contextmanager
def _located_at_first_call(
    view: ModelView, pairs: list[tuple[int, int]], part: str | None, make: _EditMaker
) -> Iterator[None]:
    """Find the heads with the arguments of the model's first call, then ablate them from that call on."""
    active: list[Any] = []
    running: list[bool] = []  # not empty inside the model's forward method

    def activate(plan: AttentionPlan) -> None:
        view.when_planned.remove(activate)
        context = intercepting_heads(view, plan, pairs, part, make, is_running=bool(running))
        context.__enter__()
        active.append(context)

    def locate(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if is_unedited() or active:  # the probe calls the model again
            return
        if is_watched(view.model):
            raise InvalidValueError(
                "the heads of this block are not found yet, and another view is already watching the model; "
                "capture with the view of the block first"
            )
        running.append(True)
        try:
            plan = _plan_from_call(view, args, kwargs)
            if not active:  # another context made the plan
                activate(plan)
        finally:
            running.clear()

    view.when_planned.append(activate)
    handle = view.model.register_forward_pre_hook(locate, with_kwargs=True, prepend=True)
    try:
        yield
        if not active:
            raise InvalidValueError(
                f"the heads were never found, because {type(view.model).__name__} itself was not called in this "
                "block; call the whole model, or capture with this view before"
            )
    finally:
        handle.remove()
        if activate in view.when_planned:
            view.when_planned.remove(activate)
        for context in active:
            context.__exit__(None, None, None)


def _plan_from_call(view: ModelView, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> AttentionPlan:
    try:
        return view.plan(ModelInput(*_first_of_batch(args, kwargs)))
    except HeadtreeError:
        raise
    except Exception as error:
        raise InvalidValueError(
            f"the heads cannot be found from the arguments of this call ({type(error).__name__}: {error}); capture "
            "plain inputs with this view before"
        ) from error


def _first_of_batch(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    def first(value: Any) -> Any:
        return value[:1] if isinstance(value, Tensor) and value.ndim > 0 else value

    return tuple(map(first, args)), {name: first(value) for name, value in kwargs.items()}


def reference_outputs(prepared: PreparedInputs, how: How) -> list[_Outputs]:
    """What the selected heads write on each prepared input, before W_O.

    Padding does not count; that which a model appends itself has positions of its own, and only no share of a mean.
    """
    found: list[_Outputs] = []
    with prepared.view.ready():
        sites = prepared.view.output_sites(prepared.plan, prepared.selection.sites)
        for item in prepared.items:
            kept: _Outputs = {}
            edits = {i: _reader(kept, i, heads) for i, heads in prepared.selection.heads.items()}
            with intercepting(prepared.model, sites, edits):
                run(prepared.model, [item])
            padded = [i for i in sites if how == "mean" and sites[i].n_padding]
            in_decoder = prepared.selection.part in ("decoder", "cross")
            found.append({(i, n): _without_padding(z, item, i in padded, in_decoder) for (i, n), z in kept.items()})
    return found


def _reader(kept: _Outputs, i: int, heads: tuple[int, ...]) -> Edit:
    def read(z: Tensor, number: int) -> None:
        kept[i, number] = z[0][:, list(heads)].detach().clone()

    return read


def _without_padding(
    z: Float[Tensor, "token head feature"], item: ModelInput, is_appended: bool, in_decoder: bool
) -> Float[Tensor, "present head feature"]:
    """The outputs at the tokens of an input that are no padding, its own or, if so, appended by the model."""
    lengths = item.lengths()
    if is_appended and lengths is not None:
        z = z[: lengths[0]]
    present = item.present(len(z), in_decoder=in_decoder)
    return z if present is None else z[present.to(z.device)]


def mean_outputs(outputs: Sequence[_Outputs]) -> dict[tuple[int, int], Float[Tensor, "head feature"]]:
    """Mean output of each head over all tokens of all reference inputs, by site and number of the output."""
    return {key: torch.cat([each[key] for each in outputs]).mean(dim=0) for key in outputs[0]}


def _replacing(i: int, heads: tuple[int, ...], values: Mapping[tuple[int, int], Tensor] | None) -> Edit:
    """Replaces outputs of heads by values, by site and number of the output; None: by zeros."""

    def edit(z: Tensor, number: int) -> Tensor:
        return replaced(z, heads, torch.zeros(()) if values is None else values[i, number])

    return edit


def first_tokens(
    reference: Float[Tensor, "token head feature"], n_tokens: int, site: OutputSite
) -> Float[Tensor, "first head feature"]:
    """The outputs of a reference input at the positions of an input with n tokens."""
    if len(reference) < n_tokens or (len(reference) > n_tokens and not site.is_sequence):
        rule = "at least" if site.is_sequence else "exactly"
        raise InvalidValueError(
            f"reference inputs must have {rule} as many tokens as the input, got {len(reference)} and {n_tokens}; "
            f"pass {'longer' if site.is_sequence else 'other'} reference inputs, or how='mean'"
        )
    return reference[:n_tokens]


@dataclass
class _Draws:
    """Draws one reference input for each input of a batch, the same for all heads of a forward pass."""

    outputs: list[_Outputs]
    rng: np.random.Generator

    def __post_init__(self) -> None:
        self._first, _ = min(self.outputs[0])
        self._drawn = np.zeros(0, dtype=np.int64)

    def edit(self, i: int, heads: tuple[int, ...], site: OutputSite) -> Edit:
        def edit(z: Tensor, number: int) -> Tensor:
            if i == self._first and number == 0:  # sites run in call order
                self._drawn = self.rng.integers(len(self.outputs), size=z.shape[0])
            rows = [first_tokens(self.outputs[k][i, number], z.shape[1], site) for k in self._drawn]
            return replaced(z, heads, torch.stack(rows))

        return edit
