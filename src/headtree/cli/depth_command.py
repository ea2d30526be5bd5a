"""The command `depth`: rank collapse and paths through the layers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headtree.cli.common import (
    MODEL_HELP,
    Device,
    Dtype,
    Images,
    Inputs,
    Text,
    check_output,
    cli_errors,
    require_extras,
)
from headtree.cli.selection import parse_heads, parse_layers
from headtree.errors import InvalidTypeError

if TYPE_CHECKING:
    from headtree.pipeline.model_source import ModelSource
    from headtree.section import Section


#: What is written, but for the sections.
_FILES = ("layers.csv", "heads.csv", "residual.csv", "paths.csv", "figures")


def depth(
    model: Annotated[str | None, typer.Argument(help=MODEL_HELP)] = None,
    text: Text = None,
    images: Images = None,
    inputs: Inputs = 8,
    tokens: Annotated[
        int | None,
        typer.Option(
            help="Tokens per input; the rank collapse paper (arXiv 2103.03404) uses 128.",
            show_default="128, or the model's context, or the 256 words of txl's samples",
        ),
    ] = None,
    part: Annotated[
        str | None, typer.Option(help="Which attention of a model with several: encoder or decoder.")
    ] = None,
    layers: Annotated[
        str | None,
        typer.Option(
            help="Layers in layers.csv and heads.csv, such as 0-3,8; the model always runs whole.",
            show_default="all",
        ),
    ] = None,
    heads: Annotated[
        str | None,
        typer.Option(help="Heads in heads.csv: by name, such as L3H5,L4H2, or by number.", show_default="all"),
    ] = None,
    device: Device = None,
    dtype: Dtype = None,
    batch_size: Annotated[
        int | None,
        typer.Option(help="How many inputs go through the model at once.", show_default="chosen from their length"),
    ] = None,
    fresh: Annotated[bool, typer.Option(help="Whether to measure an untrained network as well.")] = True,
    tasks: Annotated[
        bool, typer.Option("--tasks", help="Train the small tasks of the rank collapse paper (minutes).")
    ] = False,
    seeds: Annotated[int, typer.Option(help="Number of networks trained for each task.")] = 5,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for tables and figures.")] = Path("depth"),
) -> None:
    """Measure how fast a network's tokens become alike with depth, and what its paths of each length contribute.

    \b
    headtree depth bert-base-uncased --text book.txt -o depth-bert
    headtree depth vit -o depth-vit
    headtree depth ./my-model --text book.txt --device cuda --layers 0-3
    headtree depth --tasks

    Writes figures/, sections/depth.json, layers.csv, heads.csv, residual.csv and paths.csv.
    """  # noqa: D301
    with cli_errors("depth"):
        if model is None and not tasks:
            raise InvalidTypeError("nothing to measure: name a model, or pass --tasks")
        require_extras("measuring depth", draw=True, model=model, images=images)
        check_output(output, _FILES, "sections/depth.json", "sections/depth_tasks.json")
        if model is not None:
            from headtree.models.bundled.bundle import N_WORDS
            from headtree.pipeline.model_source import ModelSource

            source = ModelSource(
                model=model,
                text=text,
                images=images,
                inputs=inputs,
                tokens=tokens,
                kind="probs",
                part=part,
                layers=parse_layers(layers),
                heads=parse_heads(heads),
                device=device,
                dtype=dtype,
                batch_size=batch_size,
                usual_tokens=N_WORDS if text is None else 128,
            )
            _model(source, fresh, output)
        if tasks:
            _tasks(seeds, output)


def _model(source: ModelSource, fresh: bool, output: Path) -> None:
    from headtree._files import write_text
    from headtree.depth.model_depth import measure_depth
    from headtree.pipeline.tables import csv_text
    from headtree.report.figures import draw_depth
    from headtree.report.words.depth_section import depth_section

    ready = source.begin()
    found = measure_depth(ready.whole(), fresh=fresh)
    shown = ready.prepared.selection.head_ids()
    draw_depth(found, output / "figures")
    section = depth_section(found)
    write_text(output / "sections" / "depth.json", section.to_json())
    layers, heads = found.layer_table(), found.head_table()
    write_text(output / "layers.csv", csv_text(layers[layers["layer"].isin([head.layer for head in shown])]))
    if heads is not None:
        write_text(output / "heads.csv", csv_text(heads[heads["name"].isin([str(head) for head in shown])]))
    write_text(output / "residual.csv", csv_text(found.residual.table()))
    if found.paths is not None:
        write_text(output / "paths.csv", csv_text(found.paths.table()))
    _print_section(section, output)


def _tasks(seeds: int, output: Path) -> None:
    from headtree._files import write_text
    from headtree.study.collapse.circle import circle_runs
    from headtree.study.collapse.collapse_section import collapse_section, draw_collapse
    from headtree.study.collapse.path_tasks import TASKS, task_paths

    tasks, circle = [task_paths(name, n_seeds=seeds) for name in TASKS], circle_runs(n_seeds=seeds)
    draw_collapse(tasks, circle, output / "figures")
    section = collapse_section(tasks, circle)
    write_text(output / "sections" / "depth_tasks.json", section.to_json())
    _print_section(section, output)


def _print_section(section: Section, output: Path) -> None:
    for paragraph in section.text:
        typer.echo(paragraph)
    typer.echo(f"figures and tables in {output}")
