"""The command line: the only module that prints."""

from __future__ import annotations

import time
from typing import Annotated

import typer

import headtree as ht
from headtree.networks.cli import train

app = typer.Typer(
    name="headtree",
    help="Show how a transformer's attention, or any array, is organized.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"headtree {ht.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


@app.command()
def demo() -> None:
    """Organize an array whose hidden order is known, and say what was found."""
    from headtree.attention.synthetic import planted_array

    names = ("sensor", "time", "trial")
    planted = planted_array((96, 128, 64), branching=(4, 3), noise=0.5)
    typer.echo(
        "A 3-way measurement, 96 sensors × 128 times × 64 trials. On every axis 12 families in 4 groups were\n"
        "planted, the slices shuffled, and noise added. headtree sees only the shuffled array."
    )
    start = time.perf_counter()
    org = ht.organize_array(planted.values, names=names)
    seconds = time.perf_counter() - start
    typer.echo(f"\nOrganized in {seconds:.2f} s; {org.status}.\n")
    for axis, name in enumerate(names):
        found = {
            folder.tobytes()
            for level in range(org.trees[axis].n_levels)
            for folder in org.trees[axis].folders(level)
        }
        counts = []
        for level, word in ((1, "groups"), (2, "families")):
            folders = planted.trees[axis].folders(level)
            counts.append(
                f"{sum(folder.tobytes() in found for folder in folders)} of {len(folders)} planted {word}"
            )
        typer.echo(f"  {name:7} {' and '.join(counts)} are folders of the tree found")
    typer.echo("\nYour own array: headtree.organize_array(x).trees; see README.md.")


app.command()(train)


def main() -> None:
    """Entry point of the `headtree` command."""
    app()
