"""The command `headtree depth`; `headtree.cli.app` registers it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headtree.cli.run_commands import answering

if TYPE_CHECKING:
    from headtree.section import Section


def depth(
    model: Annotated[
        str | None, typer.Argument(help="A Hugging Face model id, a folder with one, or txl or vit.")
    ] = None,
    text: Annotated[Path | None, typer.Option(help="A text file, cut into inputs of --tokens tokens.")] = None,
    images: Annotated[Path | None, typer.Option(help="A folder of images.")] = None,
    inputs: Annotated[int, typer.Option(help="How many inputs, or as many as there are.")] = 8,
    tokens: Annotated[int, typer.Option(help="Tokens of an input; [RC] takes 128.")] = 128,
    part: Annotated[str | None, typer.Option(help="Of a model with several: encoder or decoder.")] = None,
    fresh: Annotated[bool, typer.Option(help="Whether to measure an untrained network as well.")] = True,
    tasks: Annotated[bool, typer.Option("--tasks", help="Train the small tasks of [RC] (minutes).")] = False,
    seeds: Annotated[int, typer.Option(help="Networks for each task.")] = 5,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for tables and figures.")] = Path("depth"),
) -> None:
    """Measure how fast a network's tokens become alike with depth, and what its paths of each length carry.

    \b
    headtree depth bert-base-uncased --text book.txt -o depth-bert
    headtree depth vit -o depth-vit
    headtree depth --tasks

    Writes figures/, sections/depth.json, layers.csv, residual.csv and paths.csv.
    """  # noqa: D301
    with answering("depth"):
        if model is None and not tasks:
            from headtree.errors import InvalidTypeError

            raise InvalidTypeError("name a model, or ask for --tasks")
        if model is not None:
            _model(model, text, images, inputs, tokens, part, fresh, output)
        if tasks:
            _tasks(seeds, output)


def _model(
    model: str,
    text: Path | None,
    images: Path | None,
    inputs: int,
    tokens: int,
    part: str | None,
    fresh: bool,
    output: Path,
) -> None:
    from headtree._files import write_text
    from headtree.pipeline.model_source import ModelSource
    from headtree.report.words.depth_section import depth_content
    from headtree.section import Section

    length = tokens if text is not None else None
    source = ModelSource(
        model=model, text=text, images=images, batches=inputs, tokens=length, kind="probs", part=part
    )
    content = depth_content(source.begin().job, output / "figures", fresh=fresh)
    section = Section.from_dict(content.section)
    write_text(output / "sections" / "depth.json", section.to_json())
    write_text(output / "layers.csv", content.layers.to_csv(index=False))
    write_text(output / "residual.csv", content.residual.table().to_csv(index=False))
    if content.paths is not None:
        write_text(output / "paths.csv", content.paths.table().to_csv(index=False))
    _say(section, output)


def _tasks(seeds: int, output: Path) -> None:
    from headtree._files import write_text
    from headtree.report.words.depth_section import tasks_content
    from headtree.section import Section
    from headtree.study.collapse.circle import circle_runs
    from headtree.study.collapse.path_tasks import TASKS, task_paths

    measured = [task_paths(name, n_seeds=seeds) for name in TASKS]
    section = Section.from_dict(tasks_content(measured, circle_runs(n_seeds=seeds), output / "figures"))
    write_text(output / "sections" / "depth_tasks.json", section.to_json())
    _say(section, output)


def _say(section: Section, output: Path) -> None:
    for paragraph in section.text:
        typer.echo(paragraph)
    typer.echo(f"figures and tables in {output}")
