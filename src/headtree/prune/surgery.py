"""Remove heads from a model: a copy with smaller matrices that computes what the ablated model computes."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from headtree.errors import InvalidValueError
from headtree.models.ablation import head_pairs, prepared_reference
from headtree.models.cuts import apply_cuts
from headtree.models.given_model import view_and_options
from headtree.models.objective import main_output
from headtree.models.view import ModelView
from headtree.models.watching.collect import PreparedInputs
from headtree.models.watching.probe import arguments
from headtree.models.watching.select import select
from headtree.prune.example_input import example_input
from headtree.prune.find_cuts import N_READINGS, CutFinder
from headtree.prune.refit import check_one_size, refitted

#: Largest difference of the outputs from those of the ablated model, relative to the largest output if that is > 1.
_TOLERANCE = 1e-5
_TOLERANCE_HALF = 3e-2


def prune_heads(
    model: Any,
    heads: Any,
    *,
    texts: Any = None,
    images: Any = None,
    inputs: Any = None,
    refit: Any = None,
    **options: Any,
) -> nn.Module:
    """Remove heads from a model: a copy with smaller matrices, the model itself stays as it is.

    The copy computes what the model computes while these heads are ablated with zeros (`ModelView.ablated`). This
    is checked before it is returned. Layers may have different numbers of heads afterwards, or none. A query head
    of grouped-query attention is removed alone; its keys and values go when no other head uses them.

    Parameters
    ----------
    model : str, path, torch.nn.Module or ModelView
        As in `headtree.capture`. An id or a folder is loaded with its output head, if its files have one.
    heads : list of (layer, head)
        The heads to remove: pairs, or `HeadId`. Not all heads of the model.
    texts, images, inputs : optional
        Inputs on which the model is run, as in `headtree.capture`; by default random tokens or pixels.
    refit : list of texts, or mapping, optional
        Calibration inputs, all of one size, as `reference` of `ModelView.ablated`. With them, the output projection
        and bias of every layer are fitted again, by ridge regression and layer by layer, such that the residual
        stream after attention becomes that of the whole network. Some ten thousand tokens are enough; use others
        than for ranking and for testing.
    **options
        Further arguments of `headtree.capture`, such as part and tokenizer.

    Notes
    -----
    What belongs to a head is found by following what the model computes, so most models with linear layers around
    their heads can be cut, whatever their names. Layers that share their weights (ALBERT) cannot, nor can models in
    which something outside the layer depends on the number of heads, such as ALiBi or the position biases of T5.

    Attention without heads runs as a single head that has no weights and writes zeros; only the bias of its output
    projection remains. Where groups of heads become unequal, keys and values are copied once per head while the
    model runs, so a key-value cache has an entry per remaining head.

    Examples
    --------
    >>> import headtree as ht
    >>> network = ht.load_bundled("vit")
    >>> pruned = ht.prune_heads(network.model, [(0, 1), (0, 2), (5, 11)])
    >>> [pruned.vit.layers[layer].attention.q_proj.out_features // 16 for layer in (0, 1, 5)]
    [10, 12, 11]
    """
    view, others = view_and_options(model, options)
    view = view.headed
    given = {"texts": texts, "images": images, "inputs": inputs}
    if all(value is None for value in given.values()):
        given["inputs"] = example_input(view.model)
    pairs = head_pairs(heads)
    prepared = view.prepare(kind="probs", of_one_shape=False, **given, **others)
    if refit is not None and pairs:
        calibration = prepared_reference(view, refit, prepared.part)
        check_one_size(calibration)
        checked = _without(prepared, pairs)
        fitted = _found(lambda: refitted(calibration, pairs), checked.model)
        prepared = ModelView(fitted).prepare(
            kind="probs",
            of_one_shape=False,
            inputs=[dict(item.kwargs) for item in prepared.items[:1]],
            part=prepared.part,
        )
    return pruned_copy(prepared, pairs)


def pruned_copy(prepared: PreparedInputs, pairs: Sequence[tuple[int, int]]) -> nn.Module:
    """A copy of the prepared model without some heads, checked on the first prepared input."""
    prepared = _without(prepared, pairs)
    model = prepared.model
    if not pairs:
        return copy.deepcopy(model)
    with prepared.view.ready():
        expected = _ablated_output(prepared, pairs)
        finder = _found(lambda: CutFinder(prepared), model)
        problem = ""
        for reading in range(N_READINGS):
            cuts = _found(lambda reading=reading: finder.cuts(dict(prepared.selection.heads), reading), model)
            pruned = copy.deepcopy(model)
            apply_cuts(pruned, cuts)
            difference = _difference(pruned, prepared, expected)
            if not difference:
                return pruned
            problem = problem or difference
    raise _unsupported(model, problem)


def _without(prepared: PreparedInputs, pairs: Sequence[tuple[int, int]]) -> PreparedInputs:
    """The prepared inputs with the heads to remove selected; an error if they do not exist, or are all heads."""
    everything = select(prepared.plan, prepared.part, None, None, of_one_shape=False)
    selection = select(prepared.plan, prepared.part, None, pairs, of_one_shape=False) if pairs else everything
    if len(pairs) == len(everything.head_ids()):
        raise InvalidValueError(
            f"heads must leave at least one head, got all {len(pairs)} heads of the model; leave some out"
        )
    return replace(prepared, selection=selection)


def _found(find: Any, model: nn.Module) -> Any:
    try:
        return find()
    except InvalidValueError as error:
        raise _unsupported(model, str(error)) from None


def _unsupported(model: nn.Module, reason: str) -> InvalidValueError:
    return InvalidValueError(
        f"heads cannot be removed from {type(model).__name__}: {reason}; ablate them instead, which gives the same "
        "outputs: ModelView(model).ablated(heads)"
    )


def _ablated_output(prepared: PreparedInputs, pairs: Sequence[tuple[int, int]]) -> Tensor:
    with prepared.view.ablated(pairs, part=prepared.part):
        return _output(prepared.model, prepared)


def _output(model: nn.Module, prepared: PreparedInputs) -> Tensor:
    args, kwargs = arguments(model, [prepared.items[0]])
    with torch.no_grad():
        return main_output(model(*args, **kwargs))


def _difference(pruned: nn.Module, prepared: PreparedInputs, expected: Tensor) -> str:
    """How the output of a copy differs from what is expected; empty if it does not."""
    try:
        found = _output(pruned, prepared)
    except Exception as error:  # a model's own code may raise anything if the heads do not fit
        first = (str(error).strip().splitlines() or [""])[0]
        return (
            "something outside the weights of its heads depends on their number (the copy without them fails "
            f"with {type(error).__name__}: {first[:150]})"
        )
    half = expected.dtype.itemsize < 4
    scale = max(1.0, float(expected.abs().max()))
    difference = float((found - expected).abs().max()) if found.shape == expected.shape else float("inf")
    if difference <= (_TOLERANCE_HALF if half else _TOLERANCE) * scale:
        return ""
    return (
        "its other heads depend on those that are removed, as through a norm of all heads together or a bias by "
        f"head (the copy without them differs by {difference:.1g} from the ablated model)"
    )
