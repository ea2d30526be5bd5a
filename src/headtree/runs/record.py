"""`run.json`: what a run is, what it was made from, and which steps are done."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from headtree._files import exists, older_format
from headtree.errors import InvalidValueError

FORMAT = "headtree.run/2"
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

    def is_done(self, step: str) -> bool:
        """Whether a step is done."""
        return step in self.steps and self.steps[step].status == "done"

    def with_step(self, name: str, step: Step) -> Record:
        """The record with the state of one step replaced."""
        return replace(self, steps={**self.steps, name: step})

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
        }
        return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def read_record(folder: Path) -> Record:
    """The record of a run folder."""
    if not exists(folder):
        raise NotARunError(f"path must name the folder of a run, but {folder} does not exist; check the spelling")
    path = folder / NAME
    if not folder.is_dir() or not exists(path):
        raise NotARunError(
            f"{folder} is not a run: it {'has no ' + NAME if folder.is_dir() else 'is a file'}; name a folder that "
            "`headtree run` made"
        )
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
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
    return _from_dict(path, content)


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
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise NotARunError(
            f"{path} is damaged ({type(error).__name__}: {error}); run again with --force"
        ) from error
