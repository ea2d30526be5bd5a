"""The page of the sweep: counts, and one row per family."""

from __future__ import annotations

import platform
from collections import Counter
from importlib.metadata import version
from typing import Any

from tools.sweep.measure import USES
from tools.sweep.own_attention import TOLERANCE

Row = dict[str, Any]

#: Outcomes in the order of the counts, and what each means.
_OUTCOMES = {
    "agrees": f"in every part that the model reports, no entry differs by more than {TOLERANCE:.0e}",
    "refused": "headtree says why it cannot give one matrix per head",
    "refused in part": "some parts are refused; those that are not agree, or are not reported",
    "differs": "captured and reported attention are not the same",
    "fails": "another error than one of headtree's own; a fault",
    "not compared": "the model reports no attention or a nearly uniform one, or it draws random numbers",
    "no attention": "capture found no attention, and the model reports none",
    "cannot be built here": "no tiny model that runs: a library is missing, or sizes or inputs are unusual",
}
_APART = ("no attention", "cannot be built here")

#: Title of a column, and its key in a row; further uses of a captured model are added to `USES`.
_COLUMNS = {
    "family": "family",
    "class": "class",
    "reads": "reads",
    "parts": "parts",
    "heads × queries × keys": "shape",
    "seen by": "seen by",
    "compared with": "own",
    "probs": "probs",
    "softmax of scores": "scores",
    "outcome": "outcome",
    "unchanged": "unchanged",
    **{use: use for use in USES},
}

_PAGE = """# Model families

What `headtree.capture` sees in {n_run} model families of transformers. `make sweep` writes this page.

Each family is a tiny model with random weights, made from the default configuration of its model type
(`tools/sweep/tiny_settings.py`, `tools/sweep/overrides.py`) or taken from the tests (`tests/models/zoo.py`). Its
attention is captured twice, as probabilities and as scores, and compared with the attention that a second copy of
the model reports, which never met headtree. That copy is loaded with `attn_implementation="eager"` and run with
`output_attentions=True`.

{libraries}; {date}; {minutes:.0f} minutes on {n_workers} processes.

| outcome | families | |
|---|---|---|
{counts}

{shades}

## How to read the table

- *parts*: the stacks of attention that `part=…` chooses between; "all" if there is one.
- *heads × queries × keys*: the shape of one input's tensor, part by part.
- *seen by*: transformers' attention registry, or calls of softmax, `scaled_dot_product_attention` or
  `MultiheadAttention`.
- *compared with*: the model's outputs, or for towers whose attention is not among them what their modules return.
  "without sinks": the model reports attention without the share of its sinks. "as bands": it reports attention by
  the distance of keys. "means over heads": it reports the mean of a layer's heads for each of them.
- *probs*, *softmax of scores*: the largest difference of an entry.
- *unchanged*: outputs, weights, modules, hooks and settings of the model are bit for bit what they were before.
- *outcome*: "in double precision": single precision differs by more, as rounding errors grow from layer to layer.
  "loaded with eager attention": as loaded by default, the model itself computes something else.
- {uses}: whether `view.weights(…)` and its like work; "encoder only":
  for this part. "refused": an error that says why. "fails": an error that is not one of headtree's own, a fault.
  A cache must have finite numbers in every array that it names, and weighted attention (`kind="weighted"`) must be
  probabilities times the norms of `ov` in the cache. Ablated is head 0 of layer 0, on all inputs in one batch:
  the output must be another one, and afterwards bit for bit as before; "no effect": it is the same without the
  head. PaliGemma does not use what the pooling attention of its image tower (part "cross") computes, and Xcodec
  returns whole numbers, the codes of a sound, which one head of a tiny model does not change.

| {titles} |
|{rule}|
{table}

## No attention found

Convolutions and state-space layers only, or attention in a form that capture does not recognize: {without}.

## Not built here

| family | why |
|---|---|
{unbuilt}
"""


def page(rows: list[Row], seconds: float, n_workers: int, date: str) -> str:
    """The text of docs/families.md."""
    rows = sorted(rows, key=lambda row: row["family"])
    run = [row for row in rows if row["outcome"] not in _APART]
    counts = Counter(row["outcome"] for row in rows)
    libraries = [f"{name} {version(name)}" for name in ("headtree", "transformers", "torch")]
    return _PAGE.format(
        n_run=len(run),
        libraries=", ".join([*libraries, f"Python {platform.python_version()}"]),
        date=date,
        minutes=seconds / 60,
        n_workers=n_workers,
        counts="\n".join(_line([name, counts[name], meaning]) for name, meaning in _OUTCOMES.items()),
        shades=_shades(rows),
        uses=", ".join(f"*{use}*" for use in USES),
        titles=" | ".join(_COLUMNS),
        rule="---|" * (len(_COLUMNS) - 1) + "---",
        table="\n".join(_line(_cell(row, key) for key in _COLUMNS.values()) for row in run),
        without=", ".join(row["family"] for row in rows if row["outcome"] == "no attention") or "none",
        unbuilt="\n".join(
            _line([row["family"], row["why"]]) for row in rows if row["outcome"] == "cannot be built here"
        ),
    )


def _shades(rows: list[Row]) -> str:
    """How many families agree in one way or another."""
    agree = [row for row in rows if row["outcome"] == "agrees"]

    def count(key: str, word: str) -> int:
        return sum(word in str(row.get(key, "")) for row in agree)

    return (
        f"Of those that agree, {count('why', 'double precision')} do so in double precision only and "
        f"{count('why', 'eager')} only when loaded with eager\nattention; {count('own', ', ')} report attention in "
        f"another form, {count('own', 'none returned')} do not report all of their parts, and\n"
        f"{count('scores', 'refused')} have probabilities only, no scores."
    )


def _cell(row: Row, key: str) -> str:
    value = row.get(key, "")
    if key == "outcome" and row["why"]:
        return f"{value}: {row['why']}"
    return (f"{value:.0e}" if value else "0") if isinstance(value, float) else str(value)


def _line(cells: Any) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|").replace("*", "\\*") for cell in cells) + " |"


def summary(rows: list[Row]) -> str:
    """The counts in one line."""
    counts = Counter(row["outcome"] for row in rows)
    return ", ".join(f"{counts[name]} {name}" for name in _OUTCOMES if counts[name])
