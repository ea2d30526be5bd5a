"""The main findings of a run, in a few lines and as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from headtree.report.words.numbers import number_words
from headtree.runs.run import Run

_SHOWN = 3
_FAMILIES = 5


def summarized(run: Run) -> dict[str, Any]:
    """The main findings of a run as plain data."""
    if run.kind == "array":
        return _of_array(run)
    table, measures = run.heads, run.measures
    falling = table.sort_values("entropy_rank")
    stability = measures.get("stability")
    return {
        "run": str(run.path),
        "model": run.settings.source.get("model") or run.settings.source.get("file"),
        "kind": run.kind,
        "inputs": list(run.inputs),
        "notes": list(run.record.notes),
        "heads": len(table),
        "layers": len(run.layers),
        "most_active": _named(falling.head(_SHOWN)),
        "least_active": _named(falling.tail(_SHOWN).iloc[::-1]),
        "largest_effects": _largest_effects(table),
        "families": _families(run),
        "heads_without_family": int((table["family"] < 0).sum()),
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
        "sparsity_gain": run.measures.sparsity.gain,
        "tables": {name: _existing(run, f"{name}.csv") for name in org.names},
        "figures": len(run.figures),
    }


def _named(rows: Any) -> list[dict[str, Any]]:
    return [{"name": str(row["name"]), "entropy": float(row["entropy"])} for row in rows.to_dict(orient="records")]


def _largest_effects(table: Any) -> list[dict[str, Any]] | None:
    """The heads without which the loss grows most; None if effects were not measured."""
    if "effect" not in table:
        return None
    rows = table.sort_values("effect", ascending=False).head(_SHOWN).to_dict(orient="records")
    return [
        {"name": str(row["name"]), "effect": float(row["effect"]), "error": float(row["effect_error"])}
        for row in rows
    ]


def _families(run: Run) -> list[dict[str, Any]]:
    layer = dict(zip(run.heads["name"], run.heads["layer"], strict=True))

    def layers(heads: Sequence[str]) -> list[int]:
        return [int(pick(layer[name] for name in heads)) for pick in (min, max)]

    return [
        {
            "family": i,
            "size": len(family.heads),
            "support": family.support,
            "heads": list(family.heads),
            "layers": layers(family.heads),
        }
        for i, family in enumerate(run.measures.consensus.families)
    ]


def _existing(run: Run, name: str) -> str | None:
    return str(run.path / name) if (run.path / name).exists() else None


def in_words(found: Mapping[str, Any]) -> str:
    """The lines that a command prints at its end."""
    return _array_words(found) if found["kind"] == "array" else _network_words(found)


def _network_words(found: Mapping[str, Any]) -> str:
    lines = [
        f"{found['model']}: {found['heads']} heads in {found['layers']} layers, {found['kind']} on "
        f"{len(found['inputs'])} input{'s' * (len(found['inputs']) != 1)}",
        *(f"  note                {note}" for note in found["notes"]),
        f"  most active heads   {_heads(found['most_active'])}  (mean Haar entropy)",
        f"  least active heads  {_heads(found['least_active'])}",
        *_effect_lines(found),
        *_family_lines(found),
    ]
    correlation = found["rank_correlation"]
    if correlation is not None:
        low, high = found["rank_correlation_interval"]
        interval = "" if low is None else f", 95 % interval {low:.2f} to {high:.2f}"
        alike = "similar" if correlation >= 0.7 else "partly similar" if correlation >= 0.3 else "not similar"
        lines.append(
            f"  across inputs       the heads' rankings are {alike}: correlation {correlation:.2f}{interval}"
        )
    lines += [f"  sparsity            {_gain(found['sparsity_gain'])}", f"  look at             {_where(found)}"]
    return "\n".join(lines)


def _array_words(found: Mapping[str, Any]) -> str:
    shape = " × ".join(f"{n} {name}" for n, name in zip(found["shape"], found["axes"], strict=True))
    missing = f", {found['missing']} entries missing" if found["missing"] else ""
    lines = [f"{found['file']}: {shape}{missing}; {found['status']}"]
    lines += [f"  {name:10} folders by level: {_counts(counts)}" for name, counts in found["folders"].items()]
    lines += [
        f"  sparsity   {_gain(found['sparsity_gain'])}",
        f"  look at    {found['run']}: {', '.join(f'{name}.csv' for name in found['axes'])}"
        f"{', figures/' if found['figures'] else ''}; in Python: headtree.open_run({found['run']!r})",
    ]
    return "\n".join(lines)


def _counts(counts: Sequence[int]) -> str:
    shown = [str(n) for n in counts]
    return " ".join(shown if len(shown) <= 12 else [*shown[:6], "…", *shown[-3:]])


def _heads(heads: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(f"{head['name']} {number_words(head['entropy'])}" for head in heads)


def _effect_lines(found: Mapping[str, Any]) -> list[str]:
    if not found["largest_effects"]:
        return []
    heads = [
        f"{head['name']} {number_words(head['effect'])} ± {number_words(head['error'])}"
        for head in found["largest_effects"]
    ]
    return [f"  largest effects     {', '.join(heads)}  (change of loss without the head)"]


def _family_lines(found: Mapping[str, Any]) -> list[str]:
    families = found["families"]
    if not families:
        return ["  families            none: the heads do not fall into groups"]
    lines = []
    for i, family in enumerate(families[:_FAMILIES]):
        low, high = family["layers"]
        layers = f"layer {low}" if low == high else f"layers {low} to {high}"
        support = "" if family["support"] is None else f", support {family['support']:.2f}"
        some = ", ".join(family["heads"][:4]) + (", …" if family["size"] > 4 else "")
        title = "families of heads" if i == 0 else ""
        lines.append(f"  {title:18}  {family['family']}: {family['size']} heads in {layers}{support} ({some})")
    if len(families) > _FAMILIES:
        lines.append(f"  {'':18}  and {len(families) - _FAMILIES} more")
    supports = [family["support"] for family in families if family["support"] is not None]
    if supports:
        meaning = "how often both halves of the inputs group exactly these heads, beyond chance"
        warning = "" if any(supports) else "; it is 0 for all, so other inputs would give other families"
        lines.append(f"  {'':18}  (support: {meaning}{warning})")
    return lines


def _gain(gain: float) -> str:
    if not np.isfinite(gain):
        return "nothing to compare: the tensor is zero"
    if abs(gain - 1) < 0.005:
        return "organized and in the original order, equally many Haar coefficients hold 99 % of the energy"
    if gain > 1:
        return (
            f"organizing helps: {gain:.2f} times fewer Haar coefficients hold 99 % of the energy than in the "
            "original order"
        )
    return (
        f"organizing does not help here: {1 / gain:.2f} times more Haar coefficients hold 99 % of the energy than "
        "in the original order"
    )


def _where(found: Mapping[str, Any]) -> str:
    files = ", ".join(name for name in (found["report"], found["table"]) if name is not None)
    return f"{files}; in Python: headtree.open_run({found['run']!r})"
