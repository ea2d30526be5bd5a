"""What a model is measured by: its loss at every token, or how far its output moves.

The objective is chosen by what the model does, not by its name: the next token for a causal language model or a
decoder, masked tokens for another model with a logit per word, labels where they are given, and otherwise the
distance of the output from what it is with all heads.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from headtree._checks import generator
from headtree.errors import InvalidTypeError, InvalidValueError
from headtree.models.graph.forward_graph import logits_of
from headtree.models.inputs import ModelInput
from headtree.models.module_stack import tensors_of
from headtree.models.watching.probe import run

if TYPE_CHECKING:
    from headtree.models.watching.collect import PreparedInputs

#: Share of tokens that are masked, as in the training of BERT.
_MASKED_SHARE = 0.15

#: The label of tokens that do not count, as in transformers.
_NO_LABEL = -100

#: Losses of one input: one for each predicted token, or a single one.
Losses = list[Float[Tensor, " token"]]

#: A user's loss: called with the model's output and its arguments, for one input; returns losses in any shape.
LossFunction = Callable[[Any, Mapping[str, Any]], Tensor]


@dataclass(frozen=True, eq=False)
class Objective:
    """Losses of a model on some inputs.

    Examples
    --------
    >>> import headtree as ht
    >>> network = ht.load_bundled("vit")
    >>> prepared = ht.ModelView(network.model).prepare(inputs=network.inputs[0])
    >>> choose_objective(prepared, labels=[int(network.labels[0])]).name
    'cross entropy of labels'
    """

    name: str  #: in words
    items: tuple[ModelInput, ...]  #: the inputs as the model reads them, with masked tokens
    #: the losses of some inputs, by number, in the output of one pass; the last argument is the unablated output
    losses: Callable[[Any, Sequence[int], Any], Losses]
    is_distance: bool = False  #: zero with all heads, and so is its gradient
    single: bool = False  #: inputs must run one at a time


def choose_objective(
    prepared: PreparedInputs,
    *,
    labels: Any = None,
    loss: LossFunction | None = None,
    rng: int | np.random.Generator = 0,
) -> Objective:
    """The objective for some prepared inputs; the view must be ready."""
    items = prepared.items
    if loss is not None:
        return _own_loss(items, loss, labels)
    logits = logits_of(run(prepared.model, [prepared.plan.probe]))
    if labels is not None:
        return _labelled(items, labels, logits, type(prepared.model).__name__)
    if logits is None or logits.ndim != 3 or any(not _is_text(_ids(item)) for item in items):
        return _distance(items)
    if logits.shape[-1] <= max(int(_ids(item).max()) for item in items):
        return _distance(items)  # logits of classes, not of words
    if logits.shape[1] != _ids(prepared.plan.probe).shape[1]:
        return _distance(items)  # not of every token
    if _is_causal(prepared, logits):
        return Objective("cross entropy of the next token", items, _next_token(items))
    return _distance(items) if _has_decoder(items[0]) else _masked_token(prepared, generator(rng))


def _has_decoder(item: ModelInput) -> bool:
    return "decoder_input_ids" in item.kwargs


def _is_text(ids: Any) -> bool:
    return isinstance(ids, Tensor) and ids.ndim == 2 and not ids.is_floating_point()


def _ids(item: ModelInput) -> Any:
    """What should be the tokens whose logits the model returns: those of the decoder, if it has one."""
    name = "decoder_input_ids" if _has_decoder(item) else "input_ids"
    return item.kwargs.get(name, item.args[0] if item.args else None)


def _with_ids(item: ModelInput, ids: Tensor) -> ModelInput:
    name = "decoder_input_ids" if _has_decoder(item) else "input_ids"
    if name in item.kwargs:
        return replace(item, kwargs={**item.kwargs, name: ids})
    return replace(item, args=(ids, *item.args[1:]))


def _present(item: ModelInput, n_tokens: int) -> Bool[Tensor, " token"] | None:
    return item.present(n_tokens, in_decoder=_has_decoder(item))


def _is_causal(prepared: PreparedInputs, logits: Tensor) -> bool:
    """Whether the last token of the probe leaves the logits of all tokens before it unchanged."""
    probe = prepared.plan.probe
    ids = _ids(probe).clone()
    ids[:, -1] = (ids[:, -1] + 1) % logits.shape[-1]
    changed = logits_of(run(prepared.model, [_with_ids(probe, ids)]))
    if changed is None or logits.shape[1] < 2:
        raise InvalidValueError("inputs must have at least 2 tokens, or none can be predicted; pass longer inputs")
    return torch.allclose(logits[:, :-1], changed[:, :-1], rtol=1e-4, atol=1e-4)


def _cross_entropy(logits: Float[Tensor, "... word"], targets: Tensor) -> Tensor:
    logits = logits.float() if logits.dtype.itemsize < 4 else logits
    picked = logits.gather(-1, targets[..., None].to(logits.device))[..., 0]
    return logits.logsumexp(dim=-1) - picked


def _next_token(items: Sequence[ModelInput]) -> Callable[[Any, Sequence[int], Any], Losses]:
    def losses(output: Any, batch: Sequence[int], _: Any) -> Losses:
        logits = _logits(output)
        found = []
        for row, i in enumerate(batch):
            loss = _cross_entropy(logits[row, :-1], _ids(items[i])[0, 1:])
            present = _present(items[i], logits.shape[1])
            found.append(loss if present is None else loss[(present[1:] & present[:-1]).to(loss.device)])
        return found

    return losses


def _logits(output: Any) -> Tensor:
    logits = logits_of(output)
    if logits is None:
        raise RuntimeError("a model with logits returned none")
    return logits


def _masked_token(prepared: PreparedInputs, rng: np.random.Generator) -> Objective:
    view = prepared.view
    mask_id = getattr(view.tokenizer_or_none(), "mask_token_id", None)
    if mask_id is None:
        raise InvalidValueError(
            f"{type(prepared.model).__name__} predicts masked tokens, but its tokenizer with the mask token is not "
            "known; pass tokenizer=…, labels=…, or a loss of your own as loss=…"
        )
    special = set(getattr(view.tokenizer_or_none(), "all_special_ids", ()))
    items, positions = [], []
    for item in prepared.items:
        ids = _ids(item).clone()
        content = [j for j, token in enumerate(ids[0].tolist()) if token not in special]
        if not content:
            raise InvalidValueError("an input has only special tokens, so none can be masked; leave it out")
        chosen = np.sort(rng.choice(content, size=max(1, round(_MASKED_SHARE * len(content))), replace=False))
        ids[0, chosen] = int(mask_id)
        items.append(_with_ids(item, ids))
        positions.append(torch.from_numpy(chosen))
    originals = prepared.items

    def losses(output: Any, batch: Sequence[int], _: Any) -> Losses:
        logits = _logits(output)
        return [
            _cross_entropy(logits[row, positions[i].to(logits.device)], _ids(originals[i])[0, positions[i]])
            for row, i in enumerate(batch)
        ]

    return Objective("cross entropy of masked tokens", tuple(items), losses)


def _labelled(items: tuple[ModelInput, ...], labels: Any, logits: Tensor | None, model: str) -> Objective:
    if logits is None:
        raise InvalidValueError(f"labels need a model with logits, but {model} has none; leave labels out")
    try:
        given = [torch.as_tensor(label) for label in labels]
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidTypeError(f"labels must be a list of whole numbers, got {labels!r}: {error}") from None
    if len(given) != len(items):
        raise InvalidValueError(f"labels must have one entry per input, got {len(given)} for {len(items)} inputs")
    n_classes = logits.shape[-1]
    for i, label in enumerate(given):
        is_known = bool(((label < n_classes) & ((label >= 0) | (label == _NO_LABEL))).all())
        if label.is_floating_point() or label.ndim != logits.ndim - 2 or not is_known:
            what = "a class" if logits.ndim == 2 else "a class for every token"
            raise InvalidValueError(
                f"labels[{i}] must be {what}, whole numbers from 0 to {n_classes - 1}, got {label.tolist()}"
            )

    def losses(output: Any, batch: Sequence[int], _: Any) -> Losses:
        found = []
        for row, i in enumerate(batch):
            logits = _logits(output)[row]
            if logits.shape[:-1] != given[i].shape:
                raise InvalidValueError(
                    f"labels[{i}] must have a label for each of the {logits.shape[0]} tokens, got {len(given[i])}"
                )
            loss = _cross_entropy(logits, given[i].clamp(min=0)).reshape(-1)
            found.append(loss[given[i].reshape(-1).to(loss.device) >= 0])
        return found

    return Objective("cross entropy of labels", items, losses)


def _own_loss(items: tuple[ModelInput, ...], loss: Any, labels: Any) -> Objective:
    if not callable(loss) or not _takes_two(loss):
        raise InvalidTypeError(
            "loss must be a function of two arguments, the model's output and the arguments of its forward method, "
            f"got {loss!r}"
        )
    if labels is not None:
        raise InvalidTypeError("give either labels or a loss of your own, not both")

    def losses(output: Any, batch: Sequence[int], _: Any) -> Losses:
        found = loss(output, items[batch[0]].kwargs)
        if not isinstance(found, Tensor) or not found.is_floating_point():
            raise InvalidTypeError(
                f"loss must return a tensor of floating-point losses, got {type(found).__name__}"
            )
        return [found.reshape(-1)]

    return Objective("given loss", items, losses, single=True)


def _takes_two(loss: Callable[..., Any]) -> bool:
    try:
        inspect.signature(loss).bind(None, None)
    except TypeError:
        return False
    except ValueError:  # a function whose arguments cannot be known
        return True
    return True


def _distance(items: tuple[ModelInput, ...]) -> Objective:
    def losses(output: Any, batch: Sequence[int], unablated: Any) -> Losses:
        ours, whole = main_output(output).float(), main_output(unablated).float().detach()
        found = []
        for row, i in enumerate(batch):
            size = whole[row].square().sum(dim=-1).mean().clamp(min=1e-30)
            moved = ((ours[row] - whole[row]).square().sum(dim=-1) / size).reshape(-1)
            present = _present(items[i], len(moved))
            found.append(moved if present is None else moved[present.to(moved.device)])
        return found

    return Objective("squared change of the output, relative to its square", items, losses, is_distance=True)


def main_output(output: Any) -> Tensor:
    """The logits of a model's output, or else its first floating-point tensor."""
    logits = logits_of(output)
    found = logits if logits is not None else next((x for x in tensors_of(output) if x.is_floating_point()), None)
    if found is None or found.ndim < 2:
        raise InvalidValueError(
            "the model returns no tensor of outputs to compare; pass a loss of your own as loss=…"
        )
    return found
