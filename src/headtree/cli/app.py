"""The command line: registers the commands of the other modules; `headtree --help` lists them."""

from __future__ import annotations

import io
import sys
from typing import Annotated

import typer

import headtree as ht
from headtree.cli.compare_command import compare
from headtree.cli.depth_command import depth
from headtree.cli.prune_command import prune
from headtree.cli.run_commands import demo, organize, report, run
from headtree.cli.study_commands import reproduce, train

_HELP = """Show how a transformer's attention, or any array, is organized.

\b
headtree demo                                       two trained networks, offline, in less than two minutes
headtree run bert-base-uncased --text book.txt      any transformer on your text
headtree run ./my-vit --images photos --kind probs  … or on your images
headtree organize measurement.npy                   any array with two or more axes
headtree report runs/demo-txl                       draw a run again
headtree depth bert-base-uncased --text book.txt    how fast tokens become alike with depth
headtree compare runs/base runs/tuned               which heads changed, and how different two networks are
headtree prune txl --criterion confidence,random    the loss without more and more heads
headtree reproduce                                  test the claims of the Organized Attention paper

A run is a folder: attention.zarr and organization.zarr (open them with xarray), heads.csv, layers.csv,
measures.json, figures/, report.html, and run.json with everything needed to repeat the run. In Python:
headtree.open_run("runs/demo-txl"). If a command is interrupted, the same command continues where it stopped.

Exit codes: 0 success; 2 wrong input, or an optional package is missing (the message gives the pip command);
3 the output folder is in use or holds something else; 4 the system refused (disk full, no permission);
130 interrupted.
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


for _command in (demo, run, organize, report, compare, prune, depth, reproduce, train):
    app.command()(_command)


def main() -> None:
    """Entry point of the `headtree` command."""
    for stream in (sys.stdout, sys.stderr):  # names of files may be no UTF-8, and terminals may know less
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    app()
