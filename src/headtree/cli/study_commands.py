"""The commands of the study behind headtree: `reproduce` the paper's claims and `train` its networks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from headtree.cli.common import cli_errors, require_extras, step_printer
from headtree.errors import InvalidValueError


def reproduce(
    networks: Annotated[
        str | None,
        typer.Option(
            help="bundled, or a list separated by commas: txl, vit, minilm, and folders of runs; with "
            "--similarities also rxnmapper, but no folders.",
            show_default="bundled; with --similarities txl,vit,minilm,rxnmapper",
        ),
    ] = None,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", help="Folder for the results and all that was measured."),
    ] = Path("runs/reproduce"),
    inputs: Annotated[int, typer.Option(help="Number of inputs for each run that is made.")] = 6,
    sensitivity: Annotated[
        bool,
        typer.Option("--sensitivity", help="Also repeat each organization with each setting changed (minutes)."),
    ] = False,
    into: Annotated[
        list[Path] | None,
        typer.Option(
            help="A Markdown file; the results replace its text between two marks. May be given several times.",
            metavar="<path>",
            show_default=False,
        ),
    ] = None,
    similarities: Annotated[
        bool,
        typer.Option(
            "--similarities", help="Compare similarities of heads instead: which is best for which question."
        ),
    ] = False,
    tokens: Annotated[
        bool,
        typer.Option("--tokens", help="Compare methods that say which tokens matter instead, by removing tokens."),
    ] = False,
    pictures: Annotated[
        Path | None,
        typer.Option(
            help="With --similarities: a folder with CIFAR-10, to measure the function of the ViT's heads."
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="With --pictures: where the ViT runs, cpu or cuda.")] = "cpu",
) -> None:
    """Test the claims of the Organized Attention paper (arXiv 2506.15541) on your networks, and draw its figures.

    \b
    headtree reproduce
    headtree reproduce --networks txl,runs/mine -o runs/claims
    headtree reproduce --similarities -o runs/similarities
    headtree reproduce --tokens --inputs 12 -o runs/tokens

    Every claim becomes one number with an interval and a verdict by a fixed rule: agrees, differs, or cannot be
    decided. With --similarities, every similarity of heads is measured by how it replicates, what it knows of
    function and roles, and what it costs.
    """  # noqa: D301
    if similarities:
        _similarities(networks, output, into or [], pictures, device)
        return
    if tokens:
        _tokens(networks, output, into or [], inputs)
        return
    with cli_errors("reproduce"):
        if pictures is not None:
            raise InvalidValueError("pictures are for similarities only; add --similarities, or leave them out")
        networks = networks or "bundled"
        names = [name.strip() for name in networks.split(",") if name.strip()]
        bundled = None if all(Path(name).is_dir() for name in names) else "demo"
        require_extras("testing the paper's claims", draw=True, also=bundled)
        from headtree.study import reproduce as reproducing
        from headtree.study.claims_report import claim_parts
        from headtree.study.marked_parts import write_parts

        claims = reproducing.reproduce(
            names, output, n_inputs=inputs, sensitivity=sensitivity, say=step_printer(str(output))
        )
        parts = claim_parts(claims.read_text(encoding="utf-8"))
        write_parts(parts, into or [])
        typer.echo(f"\n{parts['claims'].rstrip()}\n\nAll results: {claims}")


def _similarities(
    networks: str | None, output: Path, into: Sequence[Path], pictures: Path | None, device: str
) -> None:
    with cli_errors("reproduce", stopped="what was measured is kept; the same command continues"):
        require_extras("comparing similarities of heads", draw=False, also="demo")
        from headtree.study.marked_parts import write_parts
        from headtree.study.similarities import compare_similarities as comparing
        from headtree.study.similarities.evidence_networks import NETWORKS

        names = [name.strip() for name in (networks or ",".join(NETWORKS)).split(",") if name.strip()]
        found = comparing.compare(names, output, pictures=pictures, device=device, say=step_printer(str(output)))
        written = comparing.write_similarities(found, output)
        text = written.read_text(encoding="utf-8")
        write_parts({"similarities": text}, into)
        short = text.split("## ")[1].split("\n", 1)[1].strip()
        typer.echo(f"\n{short}\n\nAll results: {written}")


def _tokens(networks: str | None, output: Path, into: Sequence[Path], inputs: int) -> None:
    with cli_errors("reproduce", stopped="what was measured is kept; the same command continues"):
        require_extras("comparing which tokens matter", draw=False, also="demo")
        from headtree.study import perturbation_study as perturbing
        from headtree.study.marked_parts import write_parts

        names = [name.strip() for name in (networks or ",".join(perturbing.NETWORKS)).split(",") if name.strip()]
        found = perturbing.perturb(names, output, n_inputs=inputs, say=step_printer(str(output)))
        written = perturbing.write_perturbation(found, output)
        write_parts(perturbing.perturbation_parts(found), into)
        short = written.read_text(encoding="utf-8").split("## ")[0].split("\n", 1)[1].strip()
        typer.echo(f"\n{short}\n\nAll results: {written}")


def train(
    network: Annotated[str, typer.Argument(help="txl (Transformer-XL on WikiText) or vit (ViT on CIFAR-10).")],
    output: Annotated[Path, typer.Option(help="Folder for checkpoints, history.csv and curve.svg.")],
    config: Annotated[str, typer.Option(help="small (minutes on a GPU) or paper (needs a GPU).")] = "small",
    data: Annotated[
        Path | None, typer.Option(help="Folder with the WikiText files or CIFAR-10, for the configuration small.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue from the last checkpoint in the folder.")
    ] = False,
    device: Annotated[str | None, typer.Option(help="cuda or cpu.", show_default="a GPU if there is one")] = None,
    steps: Annotated[int | None, typer.Option(help="Overrides the configuration's number of steps.")] = None,
    seed: Annotated[int | None, typer.Option(help="Overrides the configuration's seed, 0.")] = None,
    fast: Annotated[bool, typer.Option("--fast", help="Compile first: half the time on a GPU.")] = False,
) -> None:
    """Train one of the paper's two networks, with checkpoints and exact resume."""
    with cli_errors("train", stopped="the last checkpoint is complete; continue with --resume"):
        downloads = config == "paper" and data is None
        require_extras("training", draw=False, also="models,train" if downloads else "models")
        from headtree.study.training.train import train as run_training

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
        for row in run.history:
            measures = " ".join(f"{name} {row[name]:.4g}" for name in row if name.startswith("valid_"))
            typer.echo(f"step {row['step']:>7} {measures} mixed {row['mixed_difference']:.4g}")
        for name, value in (run.test or {}).items():
            typer.echo(f"test {name} {value:.4f}")
        typer.echo(f"checkpoints and curve in {run.folder}")
