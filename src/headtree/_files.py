"""Paths that callers give."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from headtree.errors import InvalidTypeError, InvalidValueError


def checked_path(path: Any) -> Path:
    """`path` as a Path that the system can be asked about."""
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(text, str):
        raise InvalidTypeError(f"path must be a string or a pathlib.Path, got {path!r}")
    if "\0" in text:
        raise InvalidValueError(f"path must not contain null characters, got {text!r}; choose another name")
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


def unusable(path: Path, how: str, error: OSError) -> InvalidValueError:
    """What to raise for what the system said."""
    return InvalidValueError(
        f"path cannot be {how}: {path} ({error.strerror or error}); choose another path, or mend the cause"
    )
