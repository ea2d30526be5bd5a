"""Files and folders written whole or not at all, and checks of paths that callers pass."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path
from typing import Any

from headtree.errors import InvalidTypeError, InvalidValueError


@contextmanager
def atomic(path: Path, *, drafts: Path | None = None) -> Iterator[Path]:
    """A path to write a file or folder at, moved to `path` in one step when the block ends without an error.

    Until then, and after an error, whatever is at `path` stays as it is. What was written is on disk before it is
    moved. A file replaces a file, a folder replaces a folder.

    Parameters
    ----------
    path : Path
        The file or folder to write. Its parent folders are made.
    drafts : Path, optional
        Folder on the same disk for unfinished work, which its owner clears. Without it, drafts are hidden files
        beside `path`, and those that a killed process left are removed the next time `path` is written.

    Examples
    --------
    >>> import tempfile
    >>> target = Path(tempfile.mkdtemp()) / "a.txt"
    >>> with atomic(target) as draft:
    ...     _ = draft.write_text("all of it")
    ...     target.exists()
    False
    >>> target.read_text()
    'all of it'
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if drafts is None:
        _sweep(path)
    else:
        drafts.mkdir(parents=True, exist_ok=True)
    draft = _sibling((drafts or path.parent) / path.name, "partial")
    try:
        yield draft
        _flush(draft)
        _move(draft, path)
    except BaseException:
        with suppress(OSError):
            remove(draft)
        raise


def read_json(path: Path) -> Any:
    """What a JSON file holds; a ValueError if it is no JSON, or nested too deeply to be read."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except RecursionError:
        raise ValueError("its lists are nested too deeply") from None


def write_text(path: Path, text: str, *, drafts: Path | None = None) -> None:
    """Write a text file in UTF-8, whole or not at all."""
    with atomic(path, drafts=drafts) as draft:
        # names of files may have bytes that are no UTF-8; in JSON, what is written for them is read back as it was
        draft.write_text(text, encoding="utf-8", errors="backslashreplace", newline="\n")


def remove(path: Path) -> None:
    """Remove a file, a link or a folder with everything in it; nothing happens if it does not exist."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _sibling(path: Path, role: str) -> Path:
    """A hidden name beside `path` that tells which process uses it."""
    return path.with_name(f".{path.name}.{role}-{os.getpid()}-{uuid.uuid4().hex[:8]}")


def _flush(draft: Path) -> None:
    """Wait until every file is on disk."""
    for file in [path for path in draft.rglob("*") if path.is_file()] if draft.is_dir() else [draft]:
        with file.open("rb+") as opened:
            os.fsync(opened.fileno())


def _move(draft: Path, path: Path) -> None:
    if not (draft.is_dir() and path.is_dir()):
        os.replace(draft, path)
        return
    old = _sibling(draft.with_name(path.name), "old")  # a folder with contents cannot be replaced in one step
    os.replace(path, old)
    try:
        os.replace(draft, path)
    except BaseException:
        os.replace(old, path)
        raise
    with suppress(OSError):
        remove(old)


def _sweep(path: Path) -> None:
    """Clean up after processes that were killed while they wrote `path`."""
    for leftover in path.parent.glob(f".{escape(path.name)}.*-*-*"):
        role, owner, _ = leftover.name[len(path.name) + 2 :].split("-", 2)
        if role not in ("partial", "old") or not owner.isdigit() or _is_running(int(owner)):
            continue
        with suppress(OSError):
            if role == "old" and not path.exists():
                os.replace(leftover, path)  # killed between the two moves
            else:
                remove(leftover)


def _is_running(pid: int) -> bool:
    if os.name == "nt":
        return True  # nobody can ask there without touching the process
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


# -- paths that callers pass -------------------------------------------------------------------------------------


def checked_path(path: Any) -> Path:
    """`path` as a Path that the system accepts."""
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(text, str):
        raise InvalidTypeError(f"path must be a string or a pathlib.Path, got {path!r}")
    if "\0" in text:
        raise InvalidValueError(f"path must not contain null characters, got {text!r}; choose another name")
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        raise InvalidValueError(
            f"path must be a name that the file system can encode, got {text!r}; choose another name"
        ) from None
    return Path(text)


def exists(path: Path) -> bool:
    """Whether there is something at `path`; an error with the cause if the system cannot tell."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise unusable(path, "read", error) from error
    return True


def is_model_folder(path: str | Path) -> bool:
    """Whether a folder holds a model or an adapter, as `save_pretrained` writes them."""
    return any(Path(path, name).is_file() for name in ("config.json", "adapter_config.json"))


def unusable(path: Path, how: str, error: OSError) -> InvalidValueError:
    """The error to raise when the system refuses to read or write `path`."""
    return InvalidValueError(
        f"path cannot be {how}: {path} ({error.strerror or error}); choose another path or fix the cause"
    )


def older_format(path: Path, found: object, current: str) -> str | None:
    """A line for the error if `found` names an older format than `current`; None if it does not."""
    name, _, number = str(found).partition("/")
    family, _, version = current.partition("/")
    is_retired = name in _RETIRED
    if not (is_retired or (name == family and number.isdigit() and int(number) < int(version))):
        return None
    return f"{path} was made by an older format ({found}); run again what made it, with --force to replace a run"


#: Formats that have another name today.
_RETIRED = ("headtree.run.attention",)
