"""Checksums of the files of a run: what was changed or lost since it was written, and what is headtree's own."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from headtree.errors import DamagedFileError

#: Chunks of Zarr arrays have their own checksums, which are checked when they are read.
_CHUNK = re.compile(r"[^/]+\.zarr/.*c(/\d+)*")


def hashes_of(folder: Path, names: Sequence[str]) -> dict[str, str]:
    """SHA-256 of files, and of every file in folders, by their path in `folder`."""
    return {name: _hash(folder / name) for name in _files(folder, names)}


def check(folder: Path, recorded: Mapping[str, str], name: str) -> None:
    """Raise an error that names the file if a file or folder of a run is not as it was written.

    Of chunks, which are checked as they are read, only their presence is checked.
    """
    for each in _below(recorded, name):
        problem = _problem(folder, each, recorded[each], quickly=True)
        if problem is not None:
            raise DamagedFileError(
                f"{folder / each} {problem}; run the command that made the run again, which makes this file again"
            )


def damaged_files(folder: Path, recorded: Mapping[str, str]) -> dict[str, str]:
    """What is wrong with each file that is not as it was written."""
    found = {name: _problem(folder, name, hash_) for name, hash_ in recorded.items()}
    return {name: problem for name, problem in found.items() if problem is not None}


def is_own(folder: Path, name: str, recorded: Mapping[str, str]) -> bool:
    """Whether there is a file at this path in the folder, no link leads to it, and it is as it was recorded."""
    return name in recorded and _problem(folder, name, recorded[name]) is None


def is_inside(folder: Path, name: str) -> bool:
    """Whether a name stays in the folder: a path without "..", and without links on the way or at its end."""
    path = Path(name)
    if not path.parts or path.is_absolute() or path.drive or ".." in path.parts:
        return False
    return not any((folder / Path(*path.parts[:n])).is_symlink() for n in range(1, len(path.parts) + 1))


def _problem(folder: Path, name: str, recorded: str, *, quickly: bool = False) -> str | None:
    if not is_inside(folder, name):
        return "is a link, or leads out of the run"
    if not (folder / name).is_file():
        return "is gone"
    if quickly and _CHUNK.fullmatch(name):
        return None
    return None if _hash(folder / name) == recorded else "was changed since it was written"


def _below(recorded: Mapping[str, str], name: str) -> list[str]:
    return [each for each in recorded if each == name or each.startswith(f"{name}/")]


def _files(folder: Path, names: Sequence[str]) -> Iterator[str]:
    for name in names:
        if not (folder / name).is_dir():
            yield name
            continue
        for inside, _, files in os.walk(folder / name):
            for file in sorted(files):
                yield (Path(inside) / file).relative_to(folder).as_posix()


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
