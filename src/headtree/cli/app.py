"""The command line: `headtree --help` lists what there is; the commands themselves live in their packages."""

from __future__ import annotations

from typing import Annotated

import typer

import headtree as ht
from headtree.cli.depth_command import depth
from headtree.cli.run_commands import demo, organize, report, reproduce, run
from headtree.cli.train_command import train

_HELP = """Show how a transformer's attention, or any array, is organized.

\b
headtree demo                                       two trained networks, offline, in about a minute
headtree run bert-base-uncased --text book.txt      any transformer on your text
headtree run ./my-vit --images photos --kind probs  … or on your images
headtree organize measurement.npy                   any array of two or more axes
headtree report runs/demo-txl                       draw a run again
headtree depth bert-base-uncased --text book.txt    how fast tokens become alike with depth
headtree reproduce                                  what the Organized Attention paper shows and says, tested

A run is a folder: attention.zarr and organization.zarr (open with xarray), heads.csv, layers.csv, measures.json,
figures/, report.html, and run.json with everything that is needed to make it again. In Python:
headtree.open_run("runs/demo-txl"). Whatever stops a command, the same command goes on where it stopped.

Exit codes: 0 done; 2 the input is wrong; 3 the output folder is in use or holds something else; 4 the system
refused (full disk, missing rights); 130 interrupted.
"""

app = typer.Typer(
    name="headtree",
    help=_HELP,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
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


for _command in (demo, run, organize, report, reproduce, depth, train):
    app.command()(_command)


def main() -> None:
    """Entry point of the `headtree` command."""
    app()
