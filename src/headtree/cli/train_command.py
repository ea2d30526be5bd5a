"""The command `headtree train`; `headtree.cli.app` registers it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headtree.errors import HeadtreeError


def train(
    network: Annotated[str, typer.Argument(help="txl (Transformer-XL on WikiText) or vit (ViT on CIFAR-10).")],
    output: Annotated[Path, typer.Option(help="Folder for checkpoints, history.csv and curve.svg.")],
    config: Annotated[str, typer.Option(help="small (minutes on a GPU) or paper (needs a GPU).")] = "small",
    data: Annotated[Path | None, typer.Option(help="Folder with WikiText's files or CIFAR-10, for small.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint in the folder.")] = False,
    device: Annotated[str | None, typer.Option(help="cuda or cpu; a GPU if there is one.")] = None,
    steps: Annotated[int | None, typer.Option(help="Instead of the configuration's.")] = None,
    seed: Annotated[int | None, typer.Option(help="Instead of the configuration's, 0.")] = None,
    fast: Annotated[bool, typer.Option("--fast", help="Compile first: half the time on a GPU.")] = False,
) -> None:
    """Train one of the paper's networks, with checkpoints and exact resume."""
    from headtree.study.training.train import train as run_training

    try:
        run = run_training(
            network,
            config,
            output=output,
            data=data,
            resume=resume,
            device=device,
            steps=steps,
            seed=seed,
            fast=fast,
        )
    except HeadtreeError as error:
        typer.echo(f"headtree train: {error}", err=True)
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        typer.echo("\nstopped; the last checkpoint is whole, go on with --resume", err=True)
        raise typer.Exit(130) from None
    for row in run.history:
        measures = " ".join(f"{name} {row[name]:.4g}" for name in row if name.startswith("valid_"))
        typer.echo(f"step {row['step']:>7} {measures} mixed {row['mixed_difference']:.4g}")
    for name, value in (run.test or {}).items():
        typer.echo(f"test {name} {value:.4f}")
    typer.echo(f"checkpoints and curve in {run.folder}")
