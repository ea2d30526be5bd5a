"""A run folder while it is being written: who may write in it, and what is cleaned up."""

from __future__ import annotations

import json
import os
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from headtree._files import atomic, checked_path, exists, remove, write_text
from headtree._version import __version__
from headtree.errors import HeadtreeError, HeadtreeWarning, InvalidValueError
from headtree.runs import record as records
from headtree.runs.checksums import damaged_files, hashes_of, is_inside, is_own
from headtree.runs.contents import OWN_FILES, OWN_FOLDERS
from headtree.runs.kept import KeptPiece
from headtree.runs.record import NotARunError, Record, Step, read_record, recorded_files
from headtree.runs.run import Run

#: Folder for unfinished work, removed when the run is done.
WORK = ".headtree-work"

#: Lock file of the process that writes in the folder.
LOCK = ".headtree-lock"

#: Added to the name of a file that is not as headtree wrote it, before another is written there.
_ASIDE = ".changed"


#: Flag of os.open that refuses links; Windows has none.
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)


class OtherSettingsError(InvalidValueError):
    """The folder holds a run with other settings, or one made by another version of headtree."""


class RunInUseError(InvalidValueError):
    """Another process is writing in this run folder."""


@dataclass
class RunWriter:
    """A run folder that only this process may write to, and its workers, which write `kept` pieces."""

    path: Path
    record: Record
    is_new: bool
    _run: Run | None = field(default=None, init=False, repr=False)

    @property
    def run(self) -> Run:
        """The run in its current state; a change of the record discards what was read before."""
        if self._run is None or self._run.record is not self.record:
            self._run = Run(self.path, self.record)
        return self._run

    @property
    def identity(self) -> str:
        """A hash of everything that determines the arrays: runs with equal hashes have equal arrays."""
        import hashlib

        text = json.dumps([self.record.settings, self.record.headtree], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def part(self, name: str) -> Path:
        """Path for a finished piece of a step, such as one input of several."""
        folder = self._no_link(self.path / WORK / "parts")
        folder.mkdir(parents=True, exist_ok=True)
        return folder / name

    def kept(self, name: str) -> KeptPiece:
        """Where to keep a finished piece of a step; workers in other folders can write it too.

        Runs with other settings have another folder: a worker may still be busy with one that was replaced.
        """
        folder = self._no_link(self.part(self.identity[:16]))
        folder.mkdir(exist_ok=True)
        return KeptPiece(self._no_link(folder / name).absolute(), self.drafts.absolute())

    @property
    def drafts(self) -> Path:
        """Folder for unfinished files."""
        return self._no_link(self.path / WORK / "drafts")

    def _no_link(self, target: Path) -> Path:
        """A path in the run folder to which no link leads: through one, files elsewhere would be overwritten."""
        if not is_inside(self.path, target.relative_to(self.path).as_posix()):
            raise NotARunError(
                f"{target} is a link, or in a folder that is one, so nothing is written there; replace the link by "
                "what it leads to, or choose another folder for the run"
            )
        return target

    def whole(self, target: Path) -> AbstractContextManager[Path]:
        """A path to write a file or folder at, moved to `target` in one step when the block ends."""
        return atomic(self._no_link(target), drafts=self.drafts)

    def move(self, file: Path, name: str) -> None:
        """Move a finished file into the run."""
        target = self._no_link(self.path / name)
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(file, target)

    @contextmanager
    def aside(self) -> Iterator[Path]:
        """An empty folder that is removed when the block ends."""
        self.drafts.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self.drafts) as folder:
            yield Path(folder).absolute()

    def write_text(self, name: str, text: str) -> None:
        """Write a text file of the run, whole or not at all."""
        write_text(self._no_link(self.path / name), text, drafts=self.drafts)

    def save(self, record: Record) -> None:
        """Replace run.json."""
        self.record = record
        self.write_text(records.NAME, record.to_json())

    @contextmanager
    def step(self, name: str, files: tuple[str, ...]) -> Iterator[None]:
        """Record in run.json that a step is running and which files it writes, and in the end that it is done."""
        start = time.perf_counter()
        self.announce(name, files)
        yield
        written = self.record.steps[name].files  # the step may have announced other files
        self.record = self.record.with_files(hashes_of(self.path, written))
        self.save(self.record.with_step(name, Step("done", time.perf_counter() - start, written)))

    def announce(self, name: str, files: tuple[str, ...]) -> None:
        """Record which files a running step will write."""
        self.save(self.record.running(name, files))

    def remember(self, name: str) -> None:
        """Record the hash of a file of a running step, which need not be made again after an interruption."""
        self.save(self.record.with_files(hashes_of(self.path, (name,))))

    def has(self, name: str) -> bool:
        """Whether a file is there as it was recorded."""
        return is_own(self.path, name, self.record.files)

    def sweep(self) -> None:
        """Remove unfinished work and what finished steps no longer need."""
        remove(self.path / WORK)


@contextmanager
def writing_run(path: Any, kind: str, settings: Mapping[str, Any], *, force: bool = False) -> Iterator[RunWriter]:
    """The folder of a run with these settings: a new one, or one that was started with them.

    Parameters
    ----------
    path : path
        The folder. A folder that holds anything other than a run is refused, even with `force`.
    kind, settings
        Kind and settings of the run, as JSON values.
    force : bool
        Replace a run with other settings, or one made by another version of headtree.
    """
    folder = checked_path(path)
    if folder.name in ("", ".."):
        raise InvalidValueError(f"path must end in the name of a folder, got {str(path)!r}; add a name")
    made = _make_folders(folder)
    try:
        with _system_errors(folder), locked(folder):
            writer = _opened(folder, kind, json.loads(json.dumps(settings)), force)
            try:
                yield writer
            except Exception:
                if writer.is_new and not _has_results(writer):
                    _remove_own(folder)  # nothing was computed: leave no files behind
                raise
    finally:
        _remove_if_empty(made)


@contextmanager
def rewriting_run(path: Any) -> Iterator[RunWriter]:
    """The folder of an existing run, with its own settings."""
    folder = checked_path(path)
    read_record(folder)  # raises for a folder that is not a run, before anything is locked or written
    with _system_errors(folder), locked(folder):
        yield RunWriter(folder, read_record(folder), is_new=False)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a run folder during the block.

    The system releases the lock when the process ends, even if it is killed; a lock file that is left over has no
    effect.
    """
    from filelock import FileLock, Timeout

    path = folder / LOCK
    if path.is_symlink():
        raise NotARunError(
            f"{path} is a link, and locking would overwrite what it leads to; remove the link, or choose another "
            "folder"
        )
    lock = FileLock(path, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise RunInUseError(
            f"{folder} is in use by another process{_owner(path)}; wait until it is done, or stop it first"
        ) from None
    try:
        _write_owner(path)
        yield
    finally:
        with suppress(OSError):  # still locked, so no other process can hold it
            path.unlink()
        lock.release()


def _write_owner(path: Path) -> None:
    """Write the number of this process into its lock file, for the message that others get."""
    with (
        suppress(OSError),  # Windows does not allow writing to a locked file
        open(os.open(path, os.O_WRONLY | os.O_TRUNC | _NO_LINK), "w", encoding="ascii") as file,
    ):
        file.write(str(os.getpid()))


def _owner(path: Path) -> str:
    try:
        number = path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""
    return f" (process ID {number})" if number.isdigit() else ""


def _make_folders(folder: Path) -> list[Path]:
    """Make the folder; returns the folders that were created, innermost first."""
    if exists(folder) and not folder.is_dir():
        raise NotARunError(f"{folder} is a file; a run needs a folder: choose another path")
    if folder.is_dir():
        # check before locking, so a folder that is not a run stays untouched
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
    if records.NAME not in names and names - {WORK, LOCK}:
        first = sorted(names - {WORK, LOCK})[0]
        raise NotARunError(
            f"{folder} exists and is not a run: it holds {first!r} and no {records.NAME}; choose another folder"
        )


def _opened(folder: Path, kind: str, settings: dict[str, Any], force: bool) -> RunWriter:
    _refuse_strangers(folder)
    if exists(folder / records.NAME):
        try:
            record = read_record(folder)
            _check_same(folder, record, kind, settings)
        except InvalidValueError:
            if not force:
                raise
            _remove_own(folder)
        else:
            writer = RunWriter(folder, record, is_new=False)
            remove(writer.drafts)
            _discard_damaged(writer)
            return writer
    created = datetime.now(UTC).isoformat(timespec="seconds")
    writer = RunWriter(folder, Record(kind, settings, __version__, created, _versions()), is_new=True)
    remove(folder / WORK)
    writer.save(writer.record)
    return writer


def _check_same(folder: Path, record: Record, kind: str, settings: dict[str, Any]) -> None:
    _check_names(folder, record.settings.get("source", {}), settings.get("source", {}))
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
            f"{folder} was made by headtree {record.headtree}, and this is version {__version__}; choose another "
            "folder, or replace it with --force"
        )


def _check_names(folder: Path, there: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    """Raise an error for a run of an earlier version, whose settings had other names."""
    if there.get("type") != here.get("type") or set(there) == set(here):
        return
    old, new = (", ".join(sorted(set(a) - set(b))) or "none" for a, b in ((there, here), (here, there)))
    raise OtherSettingsError(
        f"{folder} was made by another version of headtree, whose settings have other names (only there: {old}; "
        f"only here: {new}), so it cannot be continued, but it can still be opened and drawn; choose another "
        "folder, or replace it with --force"
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


def _discard_damaged(writer: RunWriter) -> None:
    """Forget the steps whose files were changed or lost; they are done again. What was changed is set aside."""
    damaged = damaged_files(writer.path, writer.record.files)
    if not damaged:
        return
    for name in damaged:
        _set_aside(writer.path, name)
    first = next(iter(damaged))
    others = f" and {len(damaged) - 1} other files" if len(damaged) > 1 else ""
    warnings.warn(
        f"{writer.path / first}{others}: {damaged[first]}; made again, and what was changed is now NAME{_ASIDE}",
        HeadtreeWarning,
        stacklevel=4,
    )
    writer.save(writer.record.without(damaged))


def _set_aside(folder: Path, name: str) -> None:
    """Rename a file that is not as headtree wrote it; links and what is outside the folder stay as they are."""
    target = folder / name
    if is_inside(folder, name) and target.exists():
        number = 1
        while (free := target.with_name(f"{target.name}{_ASIDE}{number if number > 1 else ''}")).exists():
            number += 1
        os.replace(target, free)


def _remove_own(folder: Path) -> None:
    """Remove the files that headtree wrote, by their hashes, and nothing else; run.json is last.

    Other files under the names of a run are set aside, since the next run may write there.
    """
    hashes, named = recorded_files(folder)
    for name in hashes:
        if is_own(folder, name, hashes):
            remove(folder / name)
            _remove_if_empty([parent for parent in (folder / name).parents if parent.is_relative_to(folder)][:-1])
    for name in dict.fromkeys([*named, *OWN_FILES]):
        target = folder / name
        if is_inside(folder, name) and target.is_dir():
            _remove_empty_folders(target)
        _set_aside(folder, name)
    if not (folder / WORK).is_symlink():
        remove(folder / WORK)
    _remove_if_empty([folder / name for name in OWN_FOLDERS])
    remove(folder / records.NAME)


def _remove_empty_folders(folder: Path) -> None:
    for inside, _, _ in os.walk(folder, topdown=False):
        _remove_if_empty([Path(inside)])


def _has_results(writer: RunWriter) -> bool:
    parts = writer.path / WORK / "parts"
    return any(step.status == "done" for step in writer.record.steps.values()) or (
        parts.is_dir() and any(parts.iterdir())
    )


def _remove_if_empty(folders: list[Path]) -> None:
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()


@contextmanager
def _system_errors(folder: Path) -> Iterator[None]:
    """Replace system errors by errors that name a remedy."""
    try:
        yield
    except OSError as error:
        if isinstance(error, HeadtreeError):
            raise
        raise _refused(folder, error) from error


class SystemRefusedError(InvalidValueError):
    """The system refused to write, for example because of a full disk or missing permissions."""


def _refused(folder: Path, error: OSError) -> SystemRefusedError:
    where = f" ({error.filename})" if error.filename and str(error.filename) != str(folder) else ""
    return SystemRefusedError(f"{folder} cannot be written: {error.strerror or error}{where}; {_remedy(error)}")


def _remedy(error: OSError) -> str:
    import errno

    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return "free some space, then run the same command again: it continues where it stopped"
    return "fix the cause or choose another folder, then run the same command again"
