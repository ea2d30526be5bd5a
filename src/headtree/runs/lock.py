"""One writer at a time in a run folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from headtree.errors import InvalidValueError

NAME = ".headtree-lock"


class RunInUseError(InvalidValueError):
    """Another process writes in this run folder."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock while the block runs.

    The system keeps the lock for the process and takes it back when that ends, however it ends: a file that a
    killed process left does not lock anything.
    """
    import fcntl

    path = folder / NAME
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(file, 32).decode("ascii", "replace").strip()
            os.close(file)
            raise RunInUseError(
                f"{folder} is in use by another process{f', number {owner}' if owner else ''}; wait until it is "
                "done, or stop it first"
            ) from None
        if _is_same_file(file, path):
            break
        os.close(file)  # the last owner removed it between our opening and locking
    try:
        os.truncate(file, 0)
        os.write(file, str(os.getpid()).encode())
        yield
    finally:
        with suppress(OSError):
            path.unlink()
        os.close(file)


def _is_same_file(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False
