"""Load models, tokenizers and image processors by hub id or folder, and record what identifies them."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from headtree._extras import require, require_packages
from headtree._files import checked_path, exists
from headtree._version import __version__
from headtree.errors import HeadtreeError, InvalidTypeError, InvalidValueError, first_line
from headtree.models.pruned_files import is_pruned, load_pruned
from headtree.models.quantized import packed_weights, plain_tensors

#: Seconds to wait for the hub before reporting that it cannot be reached; transformers tries for half a minute.
_HUB_TIMEOUT = 5.0

#: What to do about a part of a model that its files lack.
_REMEDIES = {
    "tokenizer": "save it in the model's folder with tokenizer.save_pretrained, or in Python pass tokenizer=… or "
    "token ids as inputs=…",
    "processor": "save it in the model's folder with processor.save_pretrained, or in Python pass processor=… or "
    "the model's arguments as inputs=…",
}

#: What names of files have in them.
_FILES = {"tokenizer": ("token", "vocab", "merges", ".model", ".spm"), "processor": ("processor",)}

_T = TypeVar("_T")


class ModelFiles:
    """A model's origin, located once and then used to load the model, its tokenizer and its image processor."""

    def __init__(self, model: Any, revision: str | None, trust_remote_code: bool) -> None:
        if not isinstance(model, str | Path | nn.Module):
            raise InvalidTypeError(
                f"model must be a hub id, a folder or a loaded module, got {type(model).__name__}; "
                "pass for example 'openai-community/gpt2'"
            )
        if revision is not None and not isinstance(revision, str):
            raise InvalidTypeError(f"revision must be the name of a version on the hub, got {revision!r}")
        self.module = model if isinstance(model, nn.Module) else None
        name = (
            getattr(getattr(model, "config", None), "_name_or_path", "") if self.module is not None else str(model)
        )
        self.name = str(name or "")
        self.revision = revision
        self.commit: str | None = None  # the commit that the revision points to on the hub
        self.options: dict[str, Any] = {"trust_remote_code": trust_remote_code}
        self._origin = self.name  # what transformers loads from: for a GGUF file, its folder
        self._gguf: dict[str, str] = {}  # options for a GGUF file
        self._base: str | None = None  # the model that an adapter belongs to
        if self.module is None:
            self._locate()

    def _locate(self) -> None:
        """Find the folder or query the hub, and fail early if neither has the model."""
        require("models", "loading a model by name")
        folder = checked_path(self.name).expanduser()
        exists(folder)  # or an error with the cause if the system refuses the name
        if folder.is_dir() or is_gguf(folder):
            self.name = self._origin = str(folder)
            if self.revision is not None:
                raise InvalidValueError(
                    f"revision selects a version on the hub, but {folder} is local; leave it out"
                )
            (self._locate_folder if folder.is_dir() else self._locate_gguf)(folder)
            return
        if folder.is_file():
            raise InvalidValueError(
                f"model must be a folder, a GGUF file or a hub id, but {self.name!r} is a file of another kind; "
                "name the folder it is in"
            )
        if self.name.startswith((".", "/", "~")) or self.name.count("/") > 1:
            raise InvalidValueError(
                f"model must be an existing folder or a hub id, but there is no folder {self.name!r}; check "
                "the path"
            )
        self.options["revision"] = self.revision
        self._ask_hub()

    def _locate_folder(self, folder: Path) -> None:
        if (folder / "adapter_config.json").is_file():
            require_packages(f"the adapter in {folder}", "peft")
            self._base = json.loads((folder / "adapter_config.json").read_text()).get("base_model_name_or_path")
        elif not (folder / "config.json").is_file():
            raise InvalidValueError(
                f"model must be a folder written by save_pretrained, but {folder} has no config.json; "
                "pass the loaded module instead"
            )

    def _locate_gguf(self, file: Path) -> None:
        require_packages(f"the GGUF file {file.name}", "gguf", "accelerate")
        self._origin, self._gguf = str(file.parent), {"gguf_file": file.name}

    def _ask_hub(self) -> None:
        from huggingface_hub import HfApi, constants, try_to_load_from_cache
        from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError, RevisionNotFoundError

        try:
            cached = try_to_load_from_cache(self.name, "config.json", revision=self.revision)
            if not constants.is_offline_mode():
                self.commit = HfApi().model_info(self.name, revision=self.revision, timeout=_HUB_TIMEOUT).sha
                return
            reason = "HF_HUB_OFFLINE is set"
        except HFValidationError as error:
            raise InvalidValueError(f"model must be a hub id or a folder, got {self.name!r}: {error}") from None
        except RevisionNotFoundError:
            raise InvalidValueError(
                f"revision {self.revision!r} of {self.name!r} is not on the hub; check its name"
            ) from None
        except RepositoryNotFoundError:
            raise InvalidValueError(
                f"there is no model {self.name!r} on the hub, or it is private, and no local folder of that name; "
                "check the spelling, or log in with `hf auth login`"
            ) from None
        except Exception as error:  # the hub client raises many kinds of errors without a network
            reason = f"{type(error).__name__}: {error}"
        if isinstance(cached, str):
            self.options["local_files_only"] = True  # use the earlier download
            self.commit = Path(cached).parent.name
            return
        raise InvalidValueError(
            f"model {self.name!r} is not a local folder, not in the local cache, and the hub cannot be reached "
            f"({reason}); connect to the network, or pass a folder or a loaded module"
        )

    def load_model(self, device: torch.device | None, dtype: torch.dtype | None) -> nn.Module:
        """Load the model, in evaluation mode."""
        if self.module is not None:
            return self.module
        if is_pruned(Path(self.name)):
            model = load_pruned(self.name)
            model = model if dtype is None else model.to(dtype)
            return model if device is None else model.to(device)
        import transformers

        options = {**self.options, **self._gguf} | ({} if dtype is None else {"dtype": dtype})

        def load(kind: Any) -> Any:
            return kind.from_pretrained(self._origin, weights_only=True, output_loading_info=True, **options)

        try:
            model, info = self._quietly(load, transformers.AutoModel)
        except ValueError as error:
            kind = self._own_class() if "Unrecognized configuration class" in str(error) else None
            if kind is None:
                raise _load_error(self.name, "model", error) from error
            model, info = self._guarded("model", load, kind)
        except Exception as error:
            raise _load_error(self.name, "model", error) from error
        missing = sorted(key for key in info["missing_keys"] if "pooler" not in key)
        if missing:
            raise InvalidValueError(
                f"the weights of {self.name!r} do not match its configuration: {len(missing)} tensors are missing "
                f"and would be random, the first {missing[0]!r}; load the model with the class it was saved from, "
                "and pass the module"
            )
        _zero(model, info["missing_keys"])
        return model.eval() if device is None else model.eval().to(device)  # type: ignore[no-any-return]

    def load_with_head(self, loaded: nn.Module) -> nn.Module | None:
        """Load the class that the configuration names, with the output head that AutoModel leaves out.

        None if there is no such head, its weights are not in the files, or a module was given.
        """
        if self.module is not None or self._gguf or is_pruned(Path(self.name)):
            return None
        kind = self._own_class()
        if kind is None or kind is type(loaded):
            return None
        number = next((p for p in loaded.parameters() if p.is_floating_point()), None)
        options = self.options | ({} if number is None else {"dtype": number.dtype})

        def load() -> Any:
            return kind.from_pretrained(self._origin, weights_only=True, output_loading_info=True, **options)

        model, info = self._guarded("model", load)
        if any("pooler" not in key for key in info["missing_keys"]):
            return None
        _zero(model, info["missing_keys"])
        return model.eval() if number is None else model.eval().to(number.device)  # type: ignore[no-any-return]

    def load_tokenizer(self) -> Any:
        """Load the tokenizer saved with the model."""
        require("models", "loading a tokenizer")
        import transformers

        is_beside = (Path(self._origin) / "tokenizer_config.json").is_file()
        if self._base is not None and not is_beside:
            return ModelFiles(self._base, None, self.options["trust_remote_code"]).load_tokenizer()
        # a tokenizer saved beside a GGUF file is the original of the one in it
        options = {} if is_beside else self._gguf
        found = self._companion("tokenizer", transformers.AutoTokenizer, **options)
        if not set(found.get_vocab()) - set(found.all_special_tokens):
            raise InvalidValueError(
                f"{self.name!r} has no tokenizer, only the names of special tokens; {_REMEDIES['tokenizer']}"
            )
        return found

    def load_processor(self) -> Any:
        """Load the image processor saved with the model."""
        require("models", "loading an image processor")
        import transformers

        return self._companion("processor", transformers.AutoImageProcessor)

    def _companion(self, what: str, kind: Any, **options: str) -> Any:
        if not self.name or (self.module is not None and not Path(self.name).is_dir()):
            if self.module is not None and self.name:
                return self._companion_by_name(what, kind)
            raise InvalidValueError(f"{what} must be given for a model that was not loaded by name: pass {what}=…")
        try:
            return self._quietly(lambda: kind.from_pretrained(self._origin, **self.options, **options))
        except Exception as error:
            remedy = (
                f"check that the GGUF file is whole, or pass {what}=… in Python" if options else _REMEDIES[what]
            )
            found = f"usable {what} ({first_line(error)})" if options or self._has_files_of(what) else what
            raise InvalidValueError(f"{self.name!r} has no {found}; {remedy}") from error

    def _has_files_of(self, what: str) -> bool:
        """Whether a model's folder has files from which a companion could be loaded; any other origin may."""
        folder = Path(self._origin)
        return not folder.is_dir() or any(part in path.name for path in folder.iterdir() for part in _FILES[what])

    def _companion_by_name(self, what: str, kind: Any) -> Any:
        """Load from the folder or hub id that a loaded module remembers, which may be gone or unreachable."""
        try:
            source = ModelFiles(self.name, self.revision, self.options["trust_remote_code"])
        except HeadtreeError as error:
            raise InvalidValueError(
                f"{what} must be given, because the model's origin is no longer available: {error}; pass {what}=…"
            ) from error
        return source._companion(what, kind)

    def _own_class(self) -> Any:
        """The class that the configuration names, for models that AutoModel does not support."""
        import transformers

        options = {**self.options, **self._gguf}
        config = self._quietly(lambda: transformers.AutoConfig.from_pretrained(self._origin, **options))
        names = getattr(config, "architectures", None) or [""]
        return getattr(transformers, names[0], None)

    def _guarded(self, what: str, function: Callable[..., _T], *args: Any) -> _T:
        try:
            return self._quietly(function, *args)
        except Exception as error:
            raise _load_error(self.name, what, error) from error

    def _quietly(self, function: Callable[..., _T], *args: Any) -> _T:
        with _quiet_transformers():
            return function(*args)


def _zero(model: nn.Module, names: Iterable[str]) -> None:
    """Set weights that are not in the files, those of a pooler, to 0: random ones would differ in every process."""
    weights = model.state_dict()
    with torch.no_grad():
        for name in names:
            if name in weights:
                weights[name].zero_()


def is_gguf(path: Path) -> bool:
    """Whether a path is a file in the GGUF format."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(4) == b"GGUF"


@contextmanager
def _quiet_transformers() -> Iterator[None]:
    """Silence progress bars and loading reports; what matters in them is raised as an error here."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _load_error(name: str, what: str, error: Exception) -> HeadtreeError:
    text = str(error)
    if "trust_remote_code" in text:
        return InvalidValueError(
            f"{name!r} comes with its own Python code, which is not run by default; read the code, then pass "
            "trust_remote_code=True"
        )
    if "does not recognize this architecture" in text or "Unrecognized model" in text:
        return InvalidValueError(
            f"{name!r} has an architecture that the installed transformers does not know: {first_line(error)}; "
            "upgrade transformers or pass a loaded module"
        )
    return InvalidValueError(
        f"the {what} {name!r} cannot be loaded: {type(error).__name__}: {first_line(error)}; the files may be "
        "incomplete or damaged, download them again"
    )


def provenance(model: nn.Module, source: ModelFiles) -> dict[str, Any]:
    """What identifies a model: name, revision, hash of its weights, and the versions of the libraries."""
    config = getattr(model, "config", None)
    return {
        "model": source.name or type(model).__name__,
        "class": type(model).__name__,
        "revision": source.commit or source.revision or getattr(config, "_commit_hash", None),
        "weights_sha256": weights_hash(model),
        "versions": {
            "headtree": __version__,
            "python": platform.python_version(),
            **{name: _version(name) for name in ("torch", "transformers", "tokenizers")},
        },
    }


def weights_hash(model: nn.Module) -> str:
    """SHA-256 over the names, types, shapes and bytes of all parameters and buffers."""
    whole = {**packed_weights(model), **dict(model.named_parameters()), **dict(model.named_buffers())}
    named = [item for name, value in sorted(whole.items()) for item in plain_tensors(name, value)]

    def digest(item: tuple[str, torch.Tensor]) -> bytes:
        name, tensor = item
        data = tensor.detach().cpu().contiguous()
        head = f"{name} {data.dtype} {tuple(data.shape)}".encode()
        return hashlib.sha256(head + b"\n").digest() + hashlib.sha256(_bytes(data)).digest()

    with ThreadPoolExecutor(max_workers=8) as pool:  # hashlib releases the GIL
        return hashlib.sha256(b"".join(pool.map(digest, named))).hexdigest()


def _bytes(data: torch.Tensor) -> memoryview:
    if data.numel() == 0:
        return memoryview(b"")
    return data.reshape(-1).view(torch.uint8).numpy().data


@cache
def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
