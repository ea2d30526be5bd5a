"""What all commands share: options, exit codes, errors in one line, progress, and the closing summary."""

from __future__ import annotations

import json as jsonlib
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headtree._extras import require
from headtree._files import exists, is_model_folder
from headtree.errors import HeadtreeError, HeadtreeWarning, InvalidValueError

if TYPE_CHECKING:
    from headtree.runs.run import Run

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
Force = Annotated[bool, typer.Option("--force", help="Replace an existing run that has other settings.")]
Draw = Annotated[
    bool, typer.Option(help="Whether to draw the figures and the page; `headtree report` can do it later.")
]
Similarity = Annotated[
    str,
    typer.Option(
        help="What makes heads a family: attention (they look alike), function (they do alike: attention and "
        "values), questionnaire (as in the paper), cosine, jensen-shannon or l1."
    ),
]
Raw = Annotated[
    bool,
    typer.Option(
        "--raw",
        help="Organize and measure scores as they are, as the paper does. By default each row is centred, since "
        "softmax ignores constants in rows.",
    ),
]
Kind = Annotated[
    str,
    typer.Option(
        help="scores: what goes into the softmax; probs: what comes out of it; weighted: probs times the norm of "
        "what each key contributes, ‖v·W_O‖."
    ),
]
MODEL_HELP = "A Hugging Face model id, a local model folder, a GGUF file, or the bundled txl or vit."
Model = Annotated[str, typer.Argument(help=MODEL_HELP)]
Text = Annotated[Path | None, typer.Option(help="A text file; it is cut into inputs of --tokens tokens.")]
Images = Annotated[Path | None, typer.Option(help="A folder of images.")]
Inputs = Annotated[int, typer.Option(help="Number of inputs; fewer if the text or folder is short.")]
Device = Annotated[
    str | None, typer.Option(help="Where the model runs: cpu, cuda, cuda:1, mps, …", show_default="cpu")
]
Dtype = Annotated[
    str | None,
    typer.Option(
        help="Type of number the model computes in: float16, bfloat16, float32 or float64. Less precise types need "
        "less memory; what is captured is stored as float32, or float64 for a float64 model.",
        show_default="that of the model's files",
    ),
]
Dask = Annotated[
    str | None,
    typer.Option(
        help="Spread the inputs, or the heads of few inputs, over the workers of a Dask cluster: local:N for N "
        "processes on this machine, or the address of a scheduler, tcp://HOST:PORT. The result is the same.",
        show_default="this process",
    ),
]
Memory = Annotated[
    str | None,
    typer.Option(
        help="The most memory to take, such as 2GB. Tensors that need more stay on disk and are read by blocks, "
        "with the same result; the output folder needs room for copies of them meanwhile.",
        show_default="no limit",
    ),
]
Output = Annotated[
    Path | None, typer.Option("--output", "-o", help="Folder of the run.", show_default="runs/NAME of the input")
]

#: Exit codes other than 0, as `headtree --help` lists them.
BAD_INPUT, REFUSED, SYSTEM, INTERRUPTED = 2, 3, 4, 130


@contextmanager
def cli_errors(
    command: str, stopped: str = "finished steps are saved; run the same command to continue"
) -> Iterator[None]:
    """Print an error as one line and exit with the code of its kind.

    Parameters
    ----------
    command : str
        Name of the command, which starts the line.
    stopped : str
        What to tell a user who interrupts the command.
    """
    try:
        with _warnings_in_a_line(command):
            yield
    except HeadtreeError as error:
        typer.echo(f"headtree {command}: {error}", err=True)
        raise typer.Exit(_code(error)) from None
    except OSError as error:
        problem = (error.strerror or str(error)) + (f": {error.filename}" if error.filename else "")
        typer.echo(f"headtree {command}: {problem}; fix this, then run the command again", err=True)
        raise typer.Exit(SYSTEM) from None
    except KeyboardInterrupt:
        typer.echo(f"\nstopped: {stopped}", err=True)
        raise typer.Exit(INTERRUPTED) from None


@contextmanager
def _warnings_in_a_line(command: str) -> Iterator[None]:
    """Print headtree's own warnings as one line each on standard error, without the place in the code."""
    with warnings.catch_warnings():
        show = warnings.showwarning

        def show_line(message: Warning | str, category: type[Warning], *where: Any, **also: Any) -> None:
            if issubclass(category, HeadtreeWarning):
                typer.echo(f"headtree {command}: note: {message}", err=True)
            else:
                show(message, category, *where, **also)

        warnings.showwarning = show_line
        yield


def _code(error: HeadtreeError) -> int:
    if isinstance(error, ImportError):  # known before the modules below, some of them slow, are imported
        return BAD_INPUT
    from headtree.pipeline.workers import ClusterError
    from headtree.runs.folder import OtherSettingsError, RunInUseError, SystemRefusedError
    from headtree.runs.record import NotARunError

    if isinstance(error, SystemRefusedError | ClusterError):
        return SYSTEM
    return REFUSED if isinstance(error, RunInUseError | OtherSettingsError | NotARunError) else BAD_INPUT


def require_extras(
    purpose: str, *, draw: bool, model: str | None = None, images: Path | None = None, also: str | None = None
) -> None:
    """Check before any work that the optional packages of a command are installed.

    Parameters
    ----------
    purpose : str
        What the user asked for, as the subject of a sentence.
    draw : bool
        Whether figures are drawn.
    model : str, optional
        The model that is loaded: a name or folder needs transformers, txl and vit need the data package.
    images : path, optional
        The folder of images that is read.
    also : str, optional
        Another extra that is needed.
    """
    extras = [also] if also else []
    if model is not None:
        extras.append("demo" if model in ("txl", "vit") and not is_model_folder(model) else "models")
    if draw:
        extras.append("report")
    if extras:
        require(",".join(dict.fromkeys(extras)), purpose)
    if images is not None:
        require("models", "reading images", "PIL")


def check_output(folder: Path, files: Sequence[str], *made_with: str) -> None:
    """Refuse to write into a run, or over files and folders that the same command has not written.

    Parameters
    ----------
    folder : path
        The output folder; it need not exist.
    files : sequence of str
        The files and folders that the command writes.
    *made_with : str
        Other files, which only this command writes: where one of them is, the rest is its own.
    """
    if exists(folder / "run.json"):
        raise InvalidValueError(f"{folder} is a run; write into another folder with --output")
    foreign = [name for name in files if exists(folder / name)]
    if foreign and not any(exists(folder / name) for name in made_with):
        raise InvalidValueError(
            f"{folder / foreign[0]} would be replaced, but without {' or '.join(made_with)} in {folder}, it may "
            "not be of this command; move it, or write into another folder with --output"
        )


def finish(runs: list[Run], json: bool) -> None:
    """Print what was found."""
    from headtree.report.words.summary import in_words, summarized

    found = [summarized(run) for run in runs]
    if json:
        typer.echo(jsonlib.dumps(found[0] if len(found) == 1 else {"runs": found}, indent=1))
        return
    for item in found:
        typer.echo(f"\n{in_words(item)}")


def step_printer(name: str, json: bool = False) -> Callable[[str, float], None]:
    """A function that prints a line for each finished step; with `json`, on standard error."""
    start = time.perf_counter()

    def say(step: str, seconds: float) -> None:
        line = f"{name:12} {step:10} {seconds:6.1f} s   (after {time.perf_counter() - start:.0f} s)"
        typer.echo(line, file=sys.stderr if json else sys.stdout)

    return say
