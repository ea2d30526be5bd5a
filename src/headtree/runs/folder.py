"""A run folder while it is being made: what may be written where, and what is swept."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from headtree._files import checked_path, exists
from headtree._version import __version__
from headtree.errors import InvalidValueError
from headtree.runs import lock
from headtree.runs import record as records
from headtree.runs.record import NotARunError, Record, Step, read_record
from headtree.runs.run import Run

#: Where unfinished things are; all of it is ours, and gone when the run is done.
WORK = ".headtree-work"

#: What a run may hold at the top of its folder, beside tables.
_OWN = (
    "attention.zarr",
    "array.zarr",
    "organization.zarr",
    "measures.json",
    "report.html",
    "heads.csv",
    "layers.csv",
    "overlap.csv",
)
_OWN_FOLDERS = ("figures", "measured", "sections", "samples")


class OtherSettingsError(InvalidValueError):
    """The run that is there was made with other settings, or by another version."""


@dataclass
class Workplace:
    """A run folder that this process alone writes in."""

    path: Path
    record: Record
    is_new: bool
    _run: Run | None = field(default=None, init=False, repr=False)

    @property
    def run(self) -> Run:
        """The run as its record has it now; what it has read is read again when the record changes."""
        if self._run is None or self._run.record is not self.record:
            self._run = Run(self.path, self.record)
        return self._run

    @property
    def identity(self) -> str:
        """A name for what the settings lead to: the same settings, the same arrays."""
        import hashlib

        text = json.dumps([self.record.settings, self.record.headtree], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def part(self, name: str) -> Path:
        """Where a step keeps a finished part, such as one input of several."""
        folder = self.path / WORK / "parts"
        folder.mkdir(parents=True, exist_ok=True)
        return folder / name

    @contextmanager
    def whole(self, target: Path) -> Iterator[Path]:
        """A path to write a file or folder at; it is moved to `target` in one step when the block is done."""
        drafts = self.path / WORK / "drafts"
        drafts.mkdir(parents=True, exist_ok=True)
        draft = drafts / target.name
        _remove(draft)
        yield draft
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.is_dir():  # of a step that was done again: a folder that is not empty cannot be replaced
            _remove(drafts / "old")
            target.rename(drafts / "old")
        os.replace(draft, target)
        _remove(drafts / "old")

    @contextmanager
    def aside(self, name: str) -> Iterator[Path]:
        """An empty folder for the block, gone after it."""
        folder = self.path / WORK / "drafts" / name
        _remove(folder)
        folder.mkdir(parents=True)
        yield folder
        _remove(folder)

    def write_text(self, name: str, text: str) -> None:
        """Write a small file of the run, whole or not at all."""
        with self.whole(self.path / name) as draft, draft.open("w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())

    def save(self, record: Record) -> None:
        """Replace run.json."""
        self.record = record
        self.write_text(records.NAME, record.to_json())

    @contextmanager
    def step(self, name: str, files: tuple[str, ...]) -> Iterator[None]:
        """Note in run.json that a step runs, what it is about to write, and that it is done."""
        start = time.perf_counter()
        self.save(self.record.with_step(name, Step("running", 0.0, files)))
        yield
        written = self.record.steps[name].files  # which the step may have announced
        self.save(self.record.with_step(name, Step("done", time.perf_counter() - start, written)))

    def announce(self, name: str, files: tuple[str, ...]) -> None:
        """Files a running step turns out to write."""
        self.save(self.record.with_step(name, Step("running", 0.0, files)))

    def sweep(self) -> None:
        """Remove what is unfinished and what finished steps left behind."""
        _remove(self.path / WORK)


@contextmanager
def workplace(path: Any, kind: str, settings: Mapping[str, Any], *, force: bool = False) -> Iterator[Workplace]:
    """The folder of a run with these settings: new, or the one that was begun with them.

    Parameters
    ----------
    path : path
        The folder. One that holds anything but a run is refused, also with `force`.
    kind, settings
        What the run is; they must be JSON.
    force : bool
        Remove a run of other settings, or of another version, that is there.
    """
    folder = checked_path(path)
    if folder.name in ("", ".."):
        raise InvalidValueError(f"path must end in the name of the folder to make, got {str(path)!r}; add a name")
    made = _make_folders(folder)
    try:
        with _system_errors(folder), lock.locked(folder):
            place = _opened(folder, kind, json.loads(json.dumps(settings)), force)
            try:
                yield place
            except Exception:
                if place.is_new and not _has_results(place):
                    _remove_own(folder, place.record)  # nothing was achieved: leave no trace
                raise
    finally:
        _remove_if_empty(made)


@contextmanager
def reopened(path: Any) -> Iterator[Workplace]:
    """The folder of a run that is there, with the settings it has."""
    folder = checked_path(path)
    read_record(folder)  # nothing is locked or written in a folder that is no run
    with _system_errors(folder), lock.locked(folder):
        yield Workplace(folder, read_record(folder), is_new=False)


def _make_folders(folder: Path) -> list[Path]:
    """Make the folder; returns what had to be made, innermost first."""
    if exists(folder) and not folder.is_dir():
        raise NotARunError(f"{folder} is a file, so no run can be written there; choose another folder")
    if folder.is_dir():
        # without a lock yet: the folder of something else is left untouched
        _refuse_strangers(folder)
    made = []
    for parent in (folder, *folder.parents):
        if exists(parent):
            break
        made.append(parent)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        _remove_if_empty(made)
        raise _refused(folder, error) from error
    return made


def _refuse_strangers(folder: Path) -> None:
    names = {item.name for item in folder.iterdir()}
    if records.NAME not in names and names - {WORK, lock.NAME}:
        first = sorted(names - {WORK, lock.NAME})[0]
        raise NotARunError(
            f"{folder} exists and is not a run: it holds {first!r} and no {records.NAME}; choose another folder"
        )


def _opened(folder: Path, kind: str, settings: dict[str, Any], force: bool) -> Workplace:
    _refuse_strangers(folder)
    if exists(folder / records.NAME):
        try:
            record = read_record(folder)
            _check_same(folder, record, kind, settings)
        except InvalidValueError:
            if not force:
                raise
            _remove_own(folder, _readable(folder))
        else:
            place = Workplace(folder, record, is_new=False)
            _remove(folder / WORK / "drafts")
            return place
    created = datetime.now(UTC).isoformat(timespec="seconds")
    place = Workplace(folder, Record(kind, settings, __version__, created, _versions()), is_new=True)
    _remove(folder / WORK)
    place.save(place.record)
    return place


def _check_same(folder: Path, record: Record, kind: str, settings: dict[str, Any]) -> None:
    there, here = _flat({"kind": record.kind, **record.settings}), _flat({"kind": kind, **settings})
    differing = [name for name in {**there, **here} if there.get(name) != here.get(name)]
    if differing:
        listing = ", ".join(
            f"{name} is {there.get(name)!r} there and {here.get(name)!r} here" for name in differing[:5]
        )
        raise OtherSettingsError(
            f"{folder} holds a run with other settings: {listing}; choose another folder, or replace it "
            "with --force"
        )
    if record.headtree != __version__:
        raise OtherSettingsError(
            f"{folder} was made by headtree {record.headtree}, and this is {__version__}; choose another folder, "
            "or replace it with --force"
        )


def _flat(settings: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, value in settings.items():
        result |= _flat(value, f"{above}{name}.") if isinstance(value, Mapping) else {f"{above}{name}": value}
    return result


def _versions() -> dict[str, Any]:
    import platform
    from importlib.metadata import PackageNotFoundError, version

    found: dict[str, Any] = {"python": platform.python_version()}
    for name in ("torch", "numba", "numpy", "scipy", "transformers", "zarr", "xarray", "pandas", "matplotlib"):
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def _readable(folder: Path) -> Record | None:
    try:
        return read_record(folder)
    except InvalidValueError:
        return None


def _remove_own(folder: Path, record: Record | None) -> None:
    """Remove a run and nothing else that stands in its folder; run.json last: until then it is a run."""
    recorded = [name for step in record.steps.values() for name in step.files] if record is not None else []
    for name in [*recorded, *_OWN, WORK]:
        target = folder / name
        if not target.is_symlink() and target.resolve().is_relative_to(folder.resolve()):
            _remove(target)
    _remove_if_empty([folder / name for name in _OWN_FOLDERS])
    _remove(folder / records.NAME)


def _has_results(place: Workplace) -> bool:
    parts = place.path / WORK / "parts"
    return any(step.status == "done" for step in place.record.steps.values()) or (
        parts.is_dir() and any(parts.iterdir())
    )


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _remove_if_empty(folders: list[Path]) -> None:
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()


@contextmanager
def _system_errors(folder: Path) -> Iterator[None]:
    """What the system refuses, in words that say what to do."""
    try:
        yield
    except OSError as error:
        if isinstance(error, InvalidValueError):
            raise
        raise _refused(folder, error) from error


class SystemRefusedError(InvalidValueError):
    """The system refused to write: a full disk, missing rights."""


def _refused(folder: Path, error: OSError) -> SystemRefusedError:
    where = f" ({error.filename})" if error.filename and str(error.filename) != str(folder) else ""
    return SystemRefusedError(f"{folder} cannot be written: {error.strerror or error}{where}; {_remedy(error)}")


def _remedy(error: OSError) -> str:
    import errno

    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return "free some space, then give the same command again: it goes on where it stopped"
    return "mend the cause or choose another folder, then give the same command again"
