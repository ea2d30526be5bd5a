"""`run.json`: what a run is, what it was made from, and which steps are done."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from headtree._files import exists, older_format, read_json
from headtree.errors import InvalidValueError

FORMAT = "headtree.run/3"
NAME = "run.json"


class NotARunError(InvalidValueError):
    """A folder that is not a run, or not one that this version of headtree can use."""


@dataclass(frozen=True)
class Step:
    """One step of a run: what it wrote and how long that took."""

    status: str = "waiting"  #: waiting, running or done
    seconds: float = 0.0
    files: tuple[str, ...] = ()  #: paths in the run folder, including those that a running step will write


@dataclass(frozen=True)
class Record:
    """The contents of run.json."""

    kind: str  #: scores, probs, or array for a run without attention
    settings: dict[str, Any]
    headtree: str  #: version that made the run
    created: str = ""
    versions: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)
    inputs: tuple[dict[str, Any], ...] = ()  #: name and hash of each input, known after capture
    notes: tuple[str, ...] = ()  #: what the user should know about the inputs, known after capture
    steps: dict[str, Step] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)  #: SHA-256 of every file that a finished step wrote

    def is_done(self, step: str) -> bool:
        """Whether a step is done."""
        return step in self.steps and self.steps[step].status == "done"

    def with_step(self, name: str, step: Step) -> Record:
        """The record with the state of one step replaced."""
        return replace(self, steps={**self.steps, name: step})

    def running(self, name: str, files: tuple[str, ...]) -> Record:
        """The record while a step writes `files`: those of them that another step wrote have no hash for now."""
        others = [step for each, step in self.steps.items() if each != name and step.status == "done"]
        written_twice = [file for file in self.files if _writes(Step(files=files), [file])]
        written_twice = [file for file in written_twice if any(_writes(step, [file]) for step in others)]
        known = {file: hash_ for file, hash_ in self.files.items() if file not in written_twice}
        return replace(self.with_step(name, Step("running", 0.0, files)), files=known)

    def with_files(self, hashes: dict[str, str]) -> Record:
        """The record with the hashes of some more files."""
        return replace(self, files={**self.files, **hashes})

    def without(self, files: Collection[str]) -> Record:
        """The record without some files, and without the steps that write them."""
        steps = {name: step for name, step in self.steps.items() if not _writes(step, files)}
        return replace(
            self, steps=steps, files={name: hash_ for name, hash_ in self.files.items() if name not in files}
        )

    def to_json(self) -> str:
        """The text of the file."""
        steps = {
            name: {"status": step.status, "seconds": round(step.seconds, 3), "files": list(step.files)}
            for name, step in self.steps.items()
        }
        content = {
            "format": FORMAT,
            "headtree": self.headtree,
            "created": self.created,
            "kind": self.kind,
            "settings": self.settings,
            "versions": self.versions,
            "model": self.model,
            "inputs": list(self.inputs),
            "notes": list(self.notes),
            "steps": steps,
            "files": self.files,
        }
        return json.dumps(signed(content), indent=1, ensure_ascii=False) + "\n"


def _writes(step: Step, files: Collection[str]) -> bool:
    """Whether a step writes one of some files, or a folder that contains one."""
    return any(file == name or file.startswith(f"{name}/") for name in step.files for file in files)


def signed(content: dict[str, Any]) -> dict[str, Any]:
    """The contents of run.json with their checksum, the SHA-256 of the rest."""
    rest = {name: value for name, value in content.items() if name != "sha256"}
    return {**rest, "sha256": hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()}


def read_record(folder: Path) -> Record:
    """The record of a run folder."""
    path, content = _read(folder)
    if content.get("sha256") != signed(content)["sha256"]:
        raise NotARunError(
            f"{path} was changed since it was written, or is damaged: its checksum does not match; restore it from "
            "a copy, or run again with --force"
        )
    return _from_dict(path, content)


def recorded_files(folder: Path) -> tuple[dict[str, str], tuple[str, ...]]:
    """Hashes that a run.json of any version lists, whether it is damaged or not, and the other files it names."""
    try:
        content = read_json(folder / NAME)
        hashes = {str(name): str(hash_) for name, hash_ in content.get("files", {}).items()}
        named = [str(name) for step in content["steps"].values() for name in step["files"]]
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return {}, ()
    return hashes, tuple(named)


def _read(folder: Path) -> tuple[Path, dict[str, Any]]:
    if not exists(folder):
        raise NotARunError(f"path must name the folder of a run, but {folder} does not exist; check the spelling")
    path = folder / NAME
    if not folder.is_dir() or not exists(path):
        raise NotARunError(
            f"{folder} is not a run: it {'has no ' + NAME if folder.is_dir() else 'is a file'}; name a folder that "
            "`headtree run` made"
        )
    try:
        content = read_json(path)
        found = content["format"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise NotARunError(
            f"{path} cannot be read as the record of a run ({type(error).__name__}: {error}); run again with "
            "--force"
        ) from error
    if found != FORMAT:
        raise NotARunError(
            older_format(folder, found, FORMAT)
            or f"{folder} was made by another version of headtree ({content.get('headtree', 'unknown')}, format "
            f"{found!r}; this one reads {FORMAT!r}); use that version, or run again with --force"
        )
    return path, content


def _from_dict(path: Path, content: dict[str, Any]) -> Record:
    try:
        return Record(
            kind=content["kind"],
            settings=content["settings"],
            headtree=content["headtree"],
            created=content["created"],
            versions=content["versions"],
            model=content["model"],
            inputs=tuple(content["inputs"]),
            notes=tuple(content.get("notes", ())),
            steps={
                name: Step(step["status"], float(step["seconds"]), tuple(step["files"]))
                for name, step in content["steps"].items()
            },
            files=dict(content["files"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise NotARunError(
            f"{path} is damaged ({type(error).__name__}: {error}); run again with --force"
        ) from error
