"""The command `prune`: the loss without more and more heads, by several criteria."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headtree._files import is_model_folder
from headtree.cli.common import Device, Dtype, Force, Model, cli_errors, require_extras
from headtree.errors import InvalidTypeError


def prune(
    model: Model,
    data: Annotated[
        Path | None,
        typer.Option(
            help="A text file, which is cut into inputs of --tokens tokens, or a folder of images.",
            show_default="the samples of a bundled network",
        ),
    ] = None,
    labels: Annotated[
        Path | None, typer.Option(help="A file with the class number of each image, one per line.")
    ] = None,
    criterion: Annotated[
        str,
        typer.Option(
            help="all, or some of effect, gradient, compensated, confidence, shannon, haar_probs, haar_scores, "
            "output_norm, family, pairs and random, separated by commas."
        ),
    ] = "all",
    steps: Annotated[int, typer.Option(help="Steps from no head removed to all but one.")] = 10,
    inputs: Annotated[
        int, typer.Option(help="Number of inputs; a third ranks heads, the rest tests (with --refit a third fits).")
    ] = 30,
    tokens: Annotated[int | None, typer.Option(help="Tokens per input of text.", show_default="64")] = None,
    orders: Annotated[int, typer.Option(help="Number of random orders.")] = 10,
    iterative: Annotated[
        bool, typer.Option("--iterative", help="Rank the heads again after each step, without those removed.")
    ] = False,
    refit: Annotated[
        bool, typer.Option("--refit", help="Fit the output projections again after each step, on other inputs.")
    ] = False,
    part: Annotated[str | None, typer.Option(help="Which attention of a model with several: encoder, …")] = None,
    device: Device = None,
    dtype: Dtype = None,
    batch_size: Annotated[int | None, typer.Option(help="How many inputs go through the model at once.")] = None,
    seed: Annotated[int, typer.Option(help="Of random orders.")] = 0,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder for the results.", show_default="prune-MODEL")
    ] = None,
    force: Force = False,
) -> None:
    """Remove heads in the order of several criteria, and measure the loss on inputs that ranked nothing.

    \b
    headtree prune txl --criterion confidence,random --steps 5
    headtree prune bert-base-uncased --data book.txt --tokens 128 --inputs 60
    headtree prune vit --data images/ --labels labels.txt --criterion all --refit

    Writes prune.csv, comparisons.csv (every two criteria at every step), orders.json (in which order heads go),
    sections/prune.json and figures/.
    """  # noqa: D301
    with cli_errors("prune"):
        images = data if data is not None and data.is_dir() else None
        require_extras("pruning", draw=True, model=model, images=images)
        from headtree.models.bundled.bundle import N_WORDS, NAMES
        from headtree.pipeline.model_source import ModelSource
        from headtree.pipeline.prune_run import PruneSettings, make_prune_run, read_labels
        from headtree.prune.importance import CRITERIA, check_criterion

        if data is None and (model not in NAMES or is_model_folder(model)):
            raise InvalidTypeError(
                f"{model} needs inputs whose loss is measured: name a text file or a folder of images with --data"
            )
        names = list(CRITERIA) if criterion == "all" else [name.strip() for name in criterion.split(",")]
        for name in names:
            check_criterion(name)
        if data is None and tokens is None:
            tokens = N_WORDS
        source = ModelSource(
            model=model,
            text=data if images is None else None,
            images=images,
            inputs=inputs,
            tokens=tokens,
            kind="probs",
            part=part,
            device=device,
            dtype=dtype,
            batch_size=batch_size,
        )
        settings = PruneSettings(
            criteria=names, steps=steps, n_random=orders, iterative=iterative, refit=refit, rng=seed
        )
        folder = output or Path(f"prune-{Path(model).name}")
        given = None if labels is None else read_labels(labels)
        _, section = make_prune_run(folder, source, settings, labels=given, force=force)
        for paragraph in section.text:
            typer.echo(paragraph)
        typer.echo(f"figures and tables in {folder}")
