"""A model as users pass it to a function: an id, a folder, a module, or a view of one, with options."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import signature
from typing import Any

from headtree.errors import InvalidTypeError
from headtree.models.capture_options import check_not_given
from headtree.models.view import ModelView
from headtree.models.watching.collect import PreparedInputs

#: Options of `ModelView` itself; the shortcut functions pass all other options to its methods.
_VIEW_OPTIONS = ("tokenizer", "processor", "revision", "trust_remote_code", "device", "model_dtype")


def as_view(model: Any, **given: Any) -> ModelView:
    """Make a view of a model; a view is returned unchanged."""
    if not isinstance(model, ModelView):
        return ModelView(model, **given)
    check_not_given(given)
    return model


def view_and_options(model: Any, options: Mapping[str, Any]) -> tuple[ModelView, dict[str, Any]]:
    """A view of the model, and those options of `headtree.capture` that are not about the view itself."""
    known = {*_VIEW_OPTIONS, *signature(ModelView.prepare).parameters} - {"self", "of_one_shape"}
    unknown = [name for name in options if name not in known]
    if unknown:
        raise InvalidTypeError(f"{unknown[0]} is not an option here; the options are {', '.join(sorted(known))}")
    view = as_view(model, **{name: value for name, value in options.items() if name in _VIEW_OPTIONS})
    return view, {name: value for name, value in options.items() if name not in _VIEW_OPTIONS}


def prepare(model: Any, **options: Any) -> PreparedInputs:
    """Prepare inputs on a model or a view of one; the options are those of `headtree.capture`."""
    view, others = view_and_options(model, options)
    return view.prepare(**others)
