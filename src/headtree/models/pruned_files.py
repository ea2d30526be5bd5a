"""Pruned models in files: weights in safetensors, and in JSON what was cut."""

from __future__ import annotations

import json
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headtree._extras import require
from headtree._files import atomic, checked_path, exists, read_json, unusable, write_text
from headtree._json import from_json, to_json
from headtree.errors import InvalidTypeError, InvalidValueError
from headtree.models.bundled.transformer_xl import TransformerXL, TransformerXLConfig
from headtree.models.cuts import Cuts, apply_cuts, cuts_of

RECORD = "headtree-pruned.json"
WEIGHTS = "pruned.safetensors"
_CONFIG = "config.json"
_FORMAT = "headtree.pruned/1"


def save_pruned(
    model: nn.Module, folder: str | PathLike[str], *, tokenizer: Any = None, processor: Any = None
) -> None:
    """Write a model that `prune_heads` made to a folder; `load_pruned` reads it.

    Parameters
    ----------
    model : torch.nn.Module
        A result of `prune_heads`, possibly trained further since.
    folder : path
        A new folder, or one with a pruned model, which is replaced.
    tokenizer, processor : optional
        Saved beside the model, so that headtree's commands can read texts or images with it.

    Examples
    --------
    >>> import tempfile
    >>> import headtree as ht
    >>> network = ht.load_bundled("txl")
    >>> pruned = ht.prune_heads(network.model, [(0, 1), (15, 7)])
    >>> folder = tempfile.mkdtemp() + "/small"
    >>> ht.save_pruned(pruned, folder)
    >>> again = ht.load_pruned(folder)
    >>> sum(p.numel() for p in again.parameters()) == sum(p.numel() for p in pruned.parameters())
    True
    """
    require("models", "saving a pruned model", "safetensors")
    from safetensors.torch import save_model

    path = checked_path(folder)
    if not isinstance(model, nn.Module):
        raise InvalidTypeError(f"model must be a module that prune_heads returned, got {type(model).__name__}")
    if not cuts_of(model):
        raise InvalidValueError(
            f"model must come from prune_heads, got a {type(model).__name__} without removed heads; save it with "
            "its own save_pretrained"
        )
    for name, companion in (("tokenizer", tokenizer), ("processor", processor)):
        if companion is not None and not hasattr(companion, "save_pretrained"):
            raise InvalidTypeError(f"{name} must have save_pretrained, as those of transformers, got {companion!r}")
    if exists(path) and not (path.is_dir() and (is_pruned(path) or not any(path.iterdir()))):
        raise InvalidValueError(f"folder must be new, empty, or hold a pruned model, got {path}; choose another")
    config: Any = getattr(model, "config", None)
    record = {
        "format": _FORMAT,
        "class": type(model).__name__,
        "library": type(model).__module__.partition(".")[0],
        "config_class": type(config).__name__,
        "cuts": to_json(cuts_of(model)),
    }
    try:
        with atomic(path) as draft:
            draft.mkdir()
            save_model(model, str(draft / WEIGHTS))
            write_text(draft / RECORD, json.dumps(record))
            if hasattr(config, "to_json_string"):
                write_text(draft / _CONFIG, config.to_json_string())
            elif isinstance(config, TransformerXLConfig):
                write_text(draft / _CONFIG, json.dumps(config.to_dict(), indent=1))
            for companion in (tokenizer, processor):
                if companion is not None:
                    companion.save_pretrained(str(draft))
    except OSError as error:
        raise unusable(path, "written", error) from error


def load_pruned(folder: str | PathLike[str], model: nn.Module | None = None) -> nn.Module:
    """Read a model that `save_pruned` wrote, in evaluation mode.

    Parameters
    ----------
    folder : path
        The folder.
    model : torch.nn.Module, optional
        A model of the same class before pruning, with any weights; it stays as it is. It is needed for classes that
        are neither of transformers nor of headtree.

    Examples
    --------
    >>> import tempfile
    >>> import headtree as ht
    >>> network = ht.load_bundled("vit")
    >>> folder = tempfile.mkdtemp() + "/small"
    >>> ht.save_pruned(ht.prune_heads(network.model, [(0, 1)]), folder)
    >>> ht.load_pruned(folder).vit.layers[0].attention.q_proj
    Linear(in_features=192, out_features=176, bias=True)
    """
    require("models", "loading a pruned model", "safetensors")
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = checked_path(folder)
    record = _record(path)
    built = _built(path, record) if model is None else _copied(model, record)
    try:
        cuts = from_json(tuple[Cuts, ...], record["cuts"])
        for each in cuts:
            apply_cuts(built, each)
        weights = load_file(path / WEIGHTS)
    except OSError as error:
        raise unusable(path, "read", error) from error
    except (KeyError, TypeError, AttributeError, IndexError, SafetensorError, InvalidValueError) as error:
        raise InvalidValueError(
            f"{path} does not hold the cuts and weights of a {record['class']} ({type(error).__name__}: {error}); "
            "save the pruned model again"
        ) from error
    _load(built, weights, path)
    return built.eval()


def is_pruned(folder: Path) -> bool:
    """Whether a folder holds a pruned model."""
    return exists(folder / RECORD) and (folder / RECORD).is_file()


def _record(path: Path) -> Mapping[str, Any]:
    if not is_pruned(path):
        raise InvalidValueError(
            f"folder must hold a pruned model, but {path} has no {RECORD}; make one with save_pruned"
        )
    try:
        record = read_json(path / RECORD)
    except OSError as error:
        raise unusable(path, "read", error) from error
    except ValueError as error:
        raise InvalidValueError(f"{path / RECORD} is damaged ({error}); save the pruned model again") from None
    known = isinstance(record, dict) and record.get("format") == _FORMAT
    if not known or not all(isinstance(record.get(name), str) for name in ("class", "library", "config_class")):
        raise InvalidValueError(f"{path / RECORD} must have the format {_FORMAT}; save the pruned model again")
    return record  # type: ignore[no-any-return]


def _built(path: Path, record: Mapping[str, Any]) -> nn.Module:
    """The unpruned model, with weights that are replaced later."""
    if record["class"] == TransformerXL.__name__ and record["library"] == "headtree":
        return TransformerXL(TransformerXLConfig.from_dict(read_json(path / _CONFIG)))
    if record["library"] != "transformers":
        raise InvalidTypeError(
            f"model must be given, because headtree cannot build a {record['class']}: pass a model of that class "
            "before pruning"
        )
    require("models", "loading a pruned model")
    import transformers

    kind: Any = getattr(transformers, record["class"], None)
    config: Any = getattr(transformers, record["config_class"], None)
    is_known = _is_kind_of(kind, transformers.PreTrainedModel)
    if not is_known or not _is_kind_of(config, transformers.PretrainedConfig):
        raise InvalidValueError(
            f"the installed transformers has no {record['class']} with a {record['config_class']}; upgrade it, or "
            "pass a model of that class before pruning"
        )
    with torch.random.fork_rng(devices=[]):
        built: nn.Module = kind(config.from_json_file(path / _CONFIG))
    return built


def _is_kind_of(value: Any, kind: type) -> bool:
    return isinstance(value, type) and issubclass(value, kind)


def _copied(model: nn.Module, record: Mapping[str, Any]) -> nn.Module:
    import copy

    if type(model).__name__ != record["class"] or cuts_of(model):
        raise InvalidTypeError(
            f"model must be an unpruned {record['class']}, got a {'pruned ' * bool(cuts_of(model))}"
            f"{type(model).__name__}"
        )
    return copy.deepcopy(model)


def _load(model: nn.Module, weights: Mapping[str, Tensor], path: Path) -> None:
    """Set all weights of a model; those that it shares are stored once."""
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    wrong = [name for name, value in weights.items() if shapes.get(name) != tuple(value.shape)]
    shared = _shared_names(model)
    missing = [name for name in shapes if name not in weights and not shared.get(name, set()) & set(weights)]
    if wrong or missing:
        what = f"{wrong[0]} does not fit" if wrong else f"{missing[0]} is missing"
        raise InvalidValueError(
            f"the weights in {path} are not those of its pruned model: {what}; save the pruned model again"
        )
    stored = {
        name: next(weights[one] for one in (name, *shared.get(name, ())) if one in weights) for name in shapes
    }
    model.load_state_dict(stored, assign=True)
    tie: Any = getattr(model, "tie_weights", None)
    if tie is not None:
        tie()


def _shared_names(model: nn.Module) -> dict[str, set[str]]:
    """For every weight that has several names, all of them."""
    by_storage: dict[int, set[str]] = {}
    for name, value in model.state_dict().items():
        by_storage.setdefault(value.data_ptr() or id(value), set()).add(name)
    return {name: names for names in by_storage.values() if len(names) > 1 for name in names}
