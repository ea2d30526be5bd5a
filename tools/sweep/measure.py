"""One row of the sweep: a family's captured attention beside the attention that the model itself reports."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

import headtree as ht
from headtree.models.inputs import ready_inputs
from headtree.models.watching.attention_sites import parts_of
from tools.sweep import families
from tools.sweep.own_attention import (
    TOLERANCE,
    ModelState,
    OwnAttention,
    are_uniform,
    as_reported,
    draws_random_numbers,
    largest_difference,
    outputs,
    same_tensors,
    softmax_of,
)
from tools.sweep.readings import readings, words_for

#: A model that is larger is not tiny: a size in its configuration has a name that the sweep does not know.
_MOST_PARAMETERS = 30_000_000


def _ablated(view: ht.ModelView, inputs: dict[str, Any], part: str | None) -> None:
    """Run the model without one head; it must do without it, and have it again afterwards."""
    before = outputs(view.model, inputs)
    with view.ablated([(0, 0)], part=part):
        without = outputs(view.model, inputs)
    if not same_tensors(before, outputs(view.model, inputs)):
        raise RuntimeError("the output is another one after the block")
    if same_tensors(before, without):
        raise NoEffectError


def _cached(view: ht.ModelView, inputs: dict[str, Any], part: str | None) -> None:
    """Read every array of a cache; all numbers must be finite."""
    cache = view.cache(inputs=inputs, part=part)[-1]
    for name in cache:
        if not np.isfinite(cache[name].values).all():
            raise RuntimeError(f"{name} has values that are not finite")


def _weighted(view: ht.ModelView, inputs: dict[str, Any], part: str | None) -> None:
    """Attention weighted by what values write, ‖a·v·W_O‖, must be just that."""
    found = view.capture(inputs=inputs, part=part, kind="weighted")[-1].values.double().numpy()
    probs = view.capture(inputs=inputs, part=part, kind="probs")[-1].values.double().numpy()
    written = view.cache(inputs=inputs, part=part)[-1]["ov"].values.astype(np.float64)
    expected = probs * np.linalg.norm(written, axis=-1)[:, None, -probs.shape[-1] :]
    if not np.allclose(found, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max()):
        raise RuntimeError("weighted attention is not attention times the norm of v·W_O")


#: What builds on capture, one column each: called with a view, inputs and a part.
USES: dict[str, Callable[[ht.ModelView, dict[str, Any], str | None], Any]] = {
    "weights": lambda view, inputs, part: view.weights(inputs=inputs, part=part),
    "residual": lambda view, inputs, part: view.residual(inputs=inputs, part=part),
    "cache": _cached,
    "weighted": _weighted,
    "ablated": _ablated,
}

Row = dict[str, Any]


class NoEffectError(Exception):
    """The output is the same without a head."""


class NoTinyModelError(Exception):
    """The sweep has no tiny model of a family that runs here."""


def measured(name: str) -> Row:
    """The row of one family.

    A family that differs is measured again in ways that tell why: in double precision, where rounding cannot be the
    reason, and loaded with eager attention, in case the model's own implementations disagree.
    """
    warnings.simplefilter("ignore")
    row: Row = {"family": name}
    try:
        case = families.case(name)
        row["class"] = case.model
        eager, inputs = runnable(case)
        model = built(case)
    except Exception as error:
        return {**row, "outcome": "cannot be built here", "why": in_short(error)}
    row["reads"] = words_for(inputs)
    found = judged(model, inputs, eager)
    if found["outcome"] == "differs":
        found = _judged_again(case, inputs, found)
    return {**row, **found}


def _judged_again(case: Any, inputs: Mapping[str, Any], found: Row) -> Row:
    doubled = {
        key: value.double() if torch.is_tensor(value) and value.is_floating_point() else value
        for key, value in inputs.items()
    }
    ways = {
        "in double precision": lambda: judged(built(case).double(), doubled, built(case, "eager").double()),
        "loaded with eager attention": lambda: judged(built(case, "eager"), inputs, built(case, "eager")),
    }
    by = f", else by {found['probs']:.0e}" if isinstance(found["probs"], float) else ""
    for way, judge in ways.items():
        try:
            again = judge()
        except Exception:  # not every model runs in every way
            continue
        if again["outcome"] in ("agrees", "refused in part"):
            return {**again, "why": "; ".join(filter(None, [again["why"], way + by]))}
    return found


def judged(model: nn.Module, inputs: Mapping[str, Any], eager: nn.Module) -> Row:
    """What headtree says about a model, compared with what an eager model that never met headtree says."""
    if draws_random_numbers(eager, inputs):
        return {"outcome": "not compared", "why": "it draws random numbers"}
    own, before, view = OwnAttention(eager, inputs), ModelState(model, inputs), ht.ModelView(model)
    try:
        with view.ready():
            plan = view.plan(ready_inputs(model, dict(inputs), None)[0])
        parts = list(parts_of(plan.sites))
        found = [compared(view, inputs, part, own) for part in parts]
    except ht.HeadtreeError as error:
        none = "no attention was found" in str(error) and not own.returned
        return {"outcome": "no attention" if none else "refused", "why": in_short(error)}
    except Exception as error:
        return {"outcome": "fails", "why": in_short(error)}
    row: Row = {"parts": ", ".join(part or "all" for part in parts), "seen by": plan.seen_by}
    row |= {key: "; ".join(dict.fromkeys(part[key] for part in found if part.get(key))) for key in ("shape", "own")}
    row |= {key: _largest([part.get(key, "") for part in found]) for key in ("probs", "scores")}
    row |= _verdict(found)
    for title, use in USES.items():
        row[title], trouble = works(use, view, inputs, parts)
        row["why"] = row["why"] or (f"{title}: {trouble}" if trouble else "")
    return {**row, "unchanged": before.unchanged()}


def compared(view: ht.ModelView, inputs: Mapping[str, Any], part: str, own: OwnAttention) -> Row:
    """Shape and largest differences of one part of a model's attention."""
    try:
        atts = view.capture(inputs=dict(inputs), kind="probs", part=part or None)
    except ht.HeadtreeError as error:
        return {"refused": in_short(error)}
    row: Row = {"shape": "×".join(map(str, atts[0].shape))}
    reported, row["own"] = own.of(part, [att.values for att in atts])
    if reported is not None:
        probs, form = as_reported([att.values for att in atts], atts[0], reported)
        row |= {"probs": largest_difference(probs, reported), "own": row["own"] + form}
        row["uniform"] = are_uniform(reported)
    try:
        scores = view.capture(inputs=dict(inputs), kind="scores", part=part or None)
    except ht.HeadtreeError:
        return {**row, "scores": "refused"}
    if reported is not None:
        probs, _ = as_reported([softmax_of(att) for att in scores], scores[0], reported)
        row["scores"] = largest_difference(probs, reported)
    return row


def _largest(values: list[Any]) -> Any:
    numbers = [value for value in values if isinstance(value, float)]
    return max(numbers) if numbers else next((value for value in values if value), "")


def _verdict(found: list[Row]) -> Row:
    """The outcome for all parts of a model, and its reason where there is one."""
    refused = [part["refused"] for part in found if "refused" in part]
    differences = [part[key] for part in found for key in ("probs", "scores") if isinstance(part.get(key), float)]
    if not all(difference <= TOLERANCE for difference in differences):
        return {"outcome": "differs", "why": ""}
    if any(part.get("own") == "other shapes" for part in found):
        return {"outcome": "differs", "why": "the model reports attention of another shape"}
    if refused:
        return {"outcome": "refused" if len(refused) == len(found) else "refused in part", "why": refused[0]}
    if not differences:
        return {"outcome": "not compared", "why": "it reports no attention"}
    if all(part["uniform"] for part in found if "uniform" in part):
        return {"outcome": "not compared", "why": "its attention is nearly uniform, in which errors hide"}
    return {"outcome": "agrees", "why": ""}


def works(
    use: Callable[..., Any], view: ht.ModelView, inputs: Mapping[str, Any], parts: list[str]
) -> tuple[str, str]:
    """Whether something that builds on capture works on every part of a model, and the error of one that fails."""
    done = []
    for part in parts:
        try:
            use(view, dict(inputs), part or None)
        except ht.HeadtreeError:
            continue
        except NoEffectError:
            return "no effect", ""
        except Exception as error:  # headtree should have refused
            return "fails", in_short(error)
        done.append(part)
    if len(done) == len(parts):
        return "yes", ""
    return (f"{', '.join(done)} only" if done else "refused"), ""


def built(case: Any, implementation: str | None = None) -> nn.Module:
    """The model of a case, if it is tiny."""
    import transformers

    config = getattr(transformers, case.config)(**case.settings)
    with torch.device("meta"):
        hollow = getattr(transformers, case.model)._from_config(config)
    n = sum(parameter.numel() for parameter in hollow.parameters())
    if n > _MOST_PARAMETERS:
        raise NoTinyModelError(f"{n / 1e6:.0f} million parameters")
    return case.build(implementation)


def runnable(case: Any) -> tuple[nn.Module, dict[str, Any]]:
    """A model with eager attention, and inputs that it can read."""
    model = built(case, "eager")
    error: Exception | None = None
    for inputs in [case.read()] if case.read() else readings(model):
        try:
            outputs(model, inputs)
        except Exception as failure:
            error = error or failure
            continue
        return model, inputs
    raise error or NoTinyModelError("the sweep knows no inputs for it")


def in_short(error: Exception) -> str:
    """The first 100 characters of a message."""
    text = " ".join(str(error).split()) or type(error).__name__
    text = text if isinstance(error, ht.HeadtreeError | NoTinyModelError) else f"{type(error).__name__}: {text}"
    return text if len(text) <= 100 else text[:99] + "…"
