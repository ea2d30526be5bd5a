"""The main findings of a run, in a few lines and as plain data."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from headtree.report.words.answers import (
    answers,
    families_found,
    induction_found,
    largest_effects,
    roles_found,
)
from headtree.report.words.array_answers import array_answers, beyond_noise
from headtree.runs.run import Run
from headtree.tensor.slice_names import DEPTH

#: What each answer is called at the left of its line; families are listed below the first line on them.
_TITLES = {
    "roles": "roles",
    "induction": "induction",
    "families": "families",
    "effects": "effects",
    "inputs": "more inputs",
    "ranking": "ranking",
    "unusual": "unusual",
    "sparsity": "sparsity",
    "found": "found",
    "order": "order",
}

_INDENT, _WIDTH = 22, 118


def summarized(run: Run) -> dict[str, Any]:
    """The main findings of a run as plain data."""
    if run.kind == "array":
        return _of_array(run)
    table, measures = run.heads, run.measures
    stability = measures.get("stability")
    about = measures.consensus
    return {
        "run": str(run.path),
        "model": run.settings.source.get("model") or run.settings.source.get("file"),
        "kind": run.kind,
        "values": run.values_words,
        "similarity": about.kind,
        "similarities": list(run.similarities),
        "inputs": list(run.inputs),
        "notes": list(run.record.notes),
        "slices": run.slices,
        "heads": len(table),
        "layers": len(run.layers),
        "answers": [answer.to_dict() for answer in answers(run)],
        "roles": roles_found(table),
        "induction": induction_found(table),
        "families": families_found(run),
        "coverage": about.coverage,
        "replication": None if about.replication is None else dict(about.replication),
        "growth": [dict(step) for step in about.get("growth") or ()],
        "heads_without_family": int((table["family"] < 0).sum()),
        "largest_effects": largest_effects(table),
        "rank_correlation": None if stability is None else stability.mean_correlation,
        "rank_correlation_interval": None if stability is None else list(stability.interval),
        "sparsity_gain": measures.sparsity.median_gain,
        "report": _existing(run, "report.html"),
        "table": _existing(run, "heads.csv"),
        "figures": len(run.figures),
    }


def _of_array(run: Run) -> dict[str, Any]:
    org = run.organization[0]
    return {
        "run": str(run.path),
        "file": run.inputs[0],
        "kind": run.kind,
        "shape": list(org.shape),
        "axes": list(org.names),
        "folders": {name: [int(n) for n in org.trees[name].n_folders] for name in org.names},
        "settled": org.status.settled,
        "status": str(org.status),
        "missing": run.measures.missing,
        "beyond_noise": beyond_noise(run),
        "answers": [answer.to_dict() for answer in array_answers(run)],
        "sparsity_gain": run.measures.sparsity.gain,
        "report": _existing(run, "report.html"),
        "tables": {name: _existing(run, f"{name}.csv") for name in org.names},
        "figures": len(run.figures),
    }


def _existing(run: Run, name: str) -> str | None:
    return str(run.path / name) if (run.path / name).exists() else None


def in_words(found: Mapping[str, Any]) -> str:
    """The lines that a command prints at its end."""
    return _array_words(found) if found["kind"] == "array" else _network_words(found)


def _network_words(found: Mapping[str, Any]) -> str:
    layers = "" if found["slices"] == DEPTH else f" in {_many(found['layers'], 'layer')}"
    lines = [
        f"{found['model']}: {_many(found['heads'], found['slices'])}{layers}, "
        f"{found['values']} on {_many(len(found['inputs']), 'input')}",
        *(f"  note                {note}" for note in found["notes"]),
    ]
    for answer in found["answers"]:
        lines += _wrapped(_TITLES.get(answer["about"], ""), answer["text"])
    return "\n".join([*lines, f"  {'look at':20}{_where(found)}"])


def _many(n: int, what: str) -> str:
    return f"{n} {what}{'s' * (n != 1)}"


def _wrapped(title: str, text: str) -> list[str]:
    """A line with its title at the left; what does not fit goes on below the text."""
    first, rest = f"  {title:20}", " " * _INDENT
    lines = textwrap.wrap(
        text.replace(" %", "\u00a0%"),  # a percentage is not torn
        _WIDTH,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace("\u00a0%", " %") for line in lines]


def _array_words(found: Mapping[str, Any]) -> str:
    shape = " × ".join(f"{n} {name}" for n, name in zip(found["shape"], found["axes"], strict=True))
    missing = f", {found['missing']} entries missing" if found["missing"] else ""
    lines = [f"{found['file']}: {shape}{missing}; {found['status']}"]
    for answer in found["answers"]:
        lines += _wrapped(_TITLES.get(answer["about"], ""), answer["text"])
    if found["beyond_noise"] is not False:
        for name, counts in found["folders"].items():
            lines += _wrapped("", f"{name}: folders by level {_counts(counts)}")
    files = ", ".join(f"{name}.csv" for name in found["axes"])
    pages = f"{found['report']}, " if found["report"] else ""
    where = f"{pages}{found['run']}: {files}{', figures/' if found['figures'] else ''}"
    return "\n".join([*lines, f"  {'look at':20}{where}; in Python: headtree.open_run({found['run']!r})"])


def _counts(counts: Sequence[int]) -> str:
    shown = [str(n) for n in counts]
    return " ".join(shown if len(shown) <= 12 else [*shown[:6], "…", *shown[-3:]])


def _where(found: Mapping[str, Any]) -> str:
    files = ", ".join(name for name in (found["report"], found["table"]) if name is not None)
    return f"{files}; in Python: headtree.open_run({found['run']!r})"
