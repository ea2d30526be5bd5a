"""The command `compare`: how different networks are, and what changed between checkpoints of one."""

from __future__ import annotations

import json as jsonlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headtree._files import is_model_folder
from headtree.cli.common import Draw, Images, Json, Text, check_output, cli_errors, require_extras, step_printer
from headtree.errors import InvalidTypeError, InvalidValueError

if TYPE_CHECKING:
    from headtree.comparison.compare_networks import Comparison
    from headtree.pipeline.model_source import ModelSource


#: What is written beside comparison.json.
_FILES = ("comparison.html", "distances.csv", "changed_heads.csv", "families.csv", "figures")


def compare(
    runs: Annotated[
        list[Path] | None, typer.Argument(help="Folders of two or more runs.", metavar="RUN RUN …")
    ] = None,
    checkpoints: Annotated[
        str | None,
        typer.Option(
            help="Compare all runs in this folder, in the order of the numbers in their names. If it holds models, "
            "as trainers write them, a run of each is made first, with --text or --images. txl and vit are the "
            "five stages of the bundled networks.",
            metavar="DIR",
        ),
    ] = None,
    text: Text = None,
    images: Images = None,
    inputs: Annotated[int, typer.Option(help="Inputs of the runs that --checkpoints makes.")] = 10,
    tokens: Annotated[
        int | None, typer.Option(help="Tokens per input of these runs.", show_default="64, or the model's context")
    ] = None,
    kind: Annotated[
        str | None, typer.Option(help="Values of these runs: scores, probs or weighted.", show_default="scores")
    ] = None,
    permutations: Annotated[int, typer.Option(help="Random divisions of the inputs, for p-values.")] = 999,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the page, tables and figures.")] = Path(
        "comparison"
    ),
    draw: Draw = True,
    json: Json = False,
) -> None:
    """Compare networks by where their heads look, whatever their numbers of heads and tokens.

    \b
    headtree compare runs/demo-txl runs/bert -o compared
    headtree compare runs/base runs/tuned runs/merged
    headtree compare --checkpoints trainer-output --text book.txt -o training
    headtree compare --checkpoints vit -o training-vit

    Writes comparison.html, comparison.json, distances.csv, figures/, and for runs with the same heads
    changed_heads.csv and families.csv.
    """  # noqa: D301
    with cli_errors("compare"):
        chosen = list(runs or [])
        if checkpoints is not None and chosen:
            raise InvalidTypeError("name either runs or --checkpoints, not both")
        is_made = checkpoints in ("txl", "vit") or text is not None or images is not None
        model = checkpoints if is_made else None
        require_extras("comparing networks", draw=draw, model=model, images=images, also="compare")
        check_output(output, _FILES, "comparison.json")
        from headtree.comparison.compare_networks import compare as compared

        names = None
        if checkpoints is not None:
            chosen = _checkpoints(checkpoints, output, text, images, inputs, tokens, kind, json)
            names = [path.name for path in chosen]
        found = compared(*chosen, names=names, n_permutations=permutations)
        said = _said(found, output)
        _write(found, said, output, draw)
        _print(said, output, draw, json)


def _checkpoints(
    given: str,
    output: Path,
    text: Path | None,
    images: Path | None,
    inputs: int,
    tokens: int | None,
    kind: str | None,
    json: bool,
) -> list[Path]:
    """The runs of a folder in order, or of its models; these are made unless they are there already."""
    from headtree.pipeline.make_run import make_run
    from headtree.pipeline.model_source import ModelSource

    folder = Path(given)
    sources: dict[str, ModelSource]
    if given in ("txl", "vit") and not folder.is_dir():
        from headtree.models.bundled.bundle import STAGES

        own = kind or ("scores" if given == "txl" else "probs")
        sources = {
            stage: ModelSource(
                model=given,
                revision=stage,
                text=text,
                images=images,
                inputs=inputs,
                tokens=tokens,
                kind=own,  # type: ignore[arg-type]
            )
            for stage in STAGES
        }
    else:
        inside = _inside(folder)
        found = [path for path in inside if (path / "run.json").is_file()]
        if found:
            return found
        models = [path for path in inside if is_model_folder(path)]
        if not models:
            raise InvalidValueError(
                f"checkpoints must name a folder of runs or of models, but {folder} holds neither; make a run of "
                "each model with headtree run MODEL -o FOLDER/NAME"
            )
        sources = {
            path.name: ModelSource(
                model=str(path),
                text=text,
                images=images,
                inputs=inputs,
                tokens=tokens,
                kind=kind or "scores",  # type: ignore[arg-type]
            )
            for path in models
        }
    paths = []
    for name, source in sources.items():
        paths.append(output / "runs" / name)
        make_run(source, paths[-1], draw=False, say=step_printer(name, json))
    return paths


def _inside(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise InvalidValueError(
            f"checkpoints must name a folder of runs or of models, or txl or vit, but {folder} is not a folder; "
            "check the path"
        )
    if (folder / "run.json").is_file():
        raise InvalidValueError(f"{folder} is a run itself; name the folder that holds the runs of all checkpoints")
    return sorted((path for path in folder.iterdir() if path.is_dir()), key=_by_numbers)


def _by_numbers(path: Path) -> list[tuple[int, int, str]]:
    """checkpoint-500 comes before checkpoint-1000."""
    pieces = re.split(r"(\d+)", path.name)
    return [(0, int(piece), "") if piece.isdigit() else (1, 0, piece) for piece in pieces if piece]


def _write(found: Comparison, said: dict[str, Any], output: Path, draw: bool) -> None:
    import pandas as pd

    from headtree._files import write_text
    from headtree.pipeline.tables import csv_text

    write_text(output / "comparison.json", jsonlib.dumps(said, indent=1) + "\n")
    write_text(output / "distances.csv", csv_text(found.table()))
    if found.changes:
        heads, families = [], []
        for change in found.changes:
            between = {"first": found.names[change.first], "second": found.names[change.second]}
            heads.append(change.table().assign(**between))
            families += [{**between, **_family_row(item)} for item in change.families]
        write_text(output / "changed_heads.csv", csv_text(pd.concat(heads)))
        columns = ["first", "second", "event", "before", "after", "shared"]
        write_text(output / "families.csv", csv_text(pd.DataFrame(families, columns=columns)))
    if draw:
        from headtree.report.comparison_page import write_comparison
        from headtree.report.figures import save
        from headtree.report.figures.comparison_figures import comparison_figures

        for name, (figure, _) in comparison_figures(found).items():
            save(figure, output / "figures", name)
        write_comparison(found, output / "comparison.html")


def _family_row(item: Any) -> dict[str, Any]:
    return {
        "event": item.event,
        "before": " ".join(map(str, item.before)),
        "after": " ".join(map(str, item.after)),
        "shared": item.shared,
    }


def _said(found: Comparison, output: Path) -> dict[str, Any]:
    """What was found, as JSON accepts it."""
    from headtree.report.words.comparison_words import change_sentence, pair_sentence

    last = len(found.names) - 1
    pairs = [
        (i, j)
        for i in range(last + 1)
        for j in range(i + 1, last + 1)
        if last < 3 or j == i + 1 or (i, j) == (0, last)
    ]
    lines = [pair_sentence(found, *pair) for pair in pairs]
    lines += [change_sentence(found, change) for change in found.changes]
    table = found.table().astype(object)
    return {
        "names": found.names,
        "distances": table.where(table.notna(), None).to_dict("records"),
        "sentences": lines,
        "notes": found.notes,
        "folder": str(output),
    }


def _print(found: dict[str, Any], output: Path, draw: bool, json: bool) -> None:
    if json:
        typer.echo(jsonlib.dumps(found, indent=1))
        return
    for line in [*found["sentences"], *(f"note: {note}" for note in found["notes"])]:
        typer.echo(f"\n{line}")
    typer.echo(f"\n{'page' if draw else 'tables'}: {output / ('comparison.html' if draw else 'distances.csv')}")
