"""The commands `demo`, `run`, `organize`, `report` and `reproduce`; `headtree.cli.app` registers them."""

from __future__ import annotations

import json as jsonlib
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headtree.errors import HeadtreeError

if TYPE_CHECKING:
    from headtree.runs.run import Run

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of words.")]
Force = Annotated[bool, typer.Option("--force", help="Replace a run of other settings that is there.")]
Draw = Annotated[bool, typer.Option(help="Whether to draw figures and the page; headtree report does it later.")]
Kind = Annotated[str, typer.Option(help="scores: what enters softmax; probs: what leaves it.")]
Output = Annotated[
    Path | None, typer.Option("--output", "-o", help="Folder of the run.", show_default="runs/NAME of the input")
]

#: Exit codes beside 0, as `headtree --help` says them.
BAD_INPUT, REFUSED, SYSTEM, INTERRUPTED = 2, 3, 4, 130


def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="Where the two runs go.")] = Path("runs"),
    inputs: Annotated[int, typer.Option(help="How many sample inputs of each network, 1 to 10.")] = 6,
    draw: Draw = True,
    force: Force = False,
    json: Json = False,
) -> None:
    """Organize the two networks that come with headtree: a Transformer-XL and a ViT.

    Makes runs/demo-txl and runs/demo-vit in about a minute, without a network connection: attention of every head
    on six inputs, its organization, measures, tables, figures and an interactive page. Interrupted, it goes on
    where it stopped; done, it does nothing but repeat what was found.
    """
    with answering("demo"):
        from headtree.pipeline.demo import demo_sources
        from headtree.pipeline.make import make_run

        sources = demo_sources(inputs)
        finish(
            [
                make_run(source, output / f"demo-{name}", draw=draw, force=force, say=_teller(json, f"demo-{name}"))
                for name, source in sources.items()
            ],
            json,
        )


def run(
    model: Annotated[str, typer.Argument(help="A Hugging Face model id, a folder with one, or txl or vit.")],
    text: Annotated[Path | None, typer.Option(help="A text file, cut into inputs of --tokens tokens.")] = None,
    images: Annotated[Path | None, typer.Option(help="A folder of images.")] = None,
    batches: Annotated[int, typer.Option(help="How many inputs, or as many as there are.")] = 10,
    tokens: Annotated[
        int | None, typer.Option(help="Tokens of an input.", show_default="256, or the model's context")
    ] = None,
    kind: Kind = "scores",
    part: Annotated[
        str | None, typer.Option(help="Of a model with several: encoder, decoder, cross, or a tower's name.")
    ] = None,
    output: Output = None,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit on the hub.")] = None,
    depth: Annotated[
        bool, typer.Option("--depth", help="Also measure how tokens become alike with depth.")
    ] = False,
    sensitivity: Annotated[
        bool, typer.Option("--sensitivity", help="Also organize with every setting changed (minutes).")
    ] = False,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run Python code that comes with the model.")
    ] = False,
    draw: Draw = True,
    force: Force = False,
    json: Json = False,
) -> None:
    """Organize the attention of any transformer on your own inputs.

    \b
    headtree run bert-base-uncased --text book.txt
    headtree run ./my-model --text book.txt --batches 20 --tokens 128 -o runs/mine
    headtree run google/vit-base-patch16-224 --images photos --kind probs

    The same command again finishes what was interrupted, and does nothing when all is done.
    """  # noqa: D301
    with answering("run"):
        from headtree.pipeline.make import default_folder, make_run
        from headtree.pipeline.model_source import ModelSource

        source = ModelSource(
            model=model,
            text=text,
            images=images,
            batches=batches,
            tokens=tokens,
            kind=kind,  # type: ignore[arg-type]  # checked there
            part=part,
            revision=revision,
            trust_remote_code=trust_remote_code,
        )
        folder = output or default_folder(Path(model).name)
        say = _teller(json, str(folder))
        result = make_run(source, folder, depth=depth, sensitivity=sensitivity, draw=draw, force=force, say=say)
        finish([result], json)


def organize(
    file: Annotated[
        Path, typer.Argument(help="An array: .npy, .npz, .safetensors, .pt, .mat, .csv, .tsv, or a Zarr folder.")
    ],
    name: Annotated[str | None, typer.Option(help="Which array, where the file holds several.")] = None,
    axes: Annotated[
        str | None, typer.Option(help="Names of the axes with commas: sensor,time,trial.", show_default="axis0,…")
    ] = None,
    attention: Annotated[
        str | None,
        typer.Option(help="The array is attention; its axes in order: h heads, q queries, k keys, l layers; hqk."),
    ] = None,
    heads_per_layer: Annotated[int | None, typer.Option(help="With --attention and no axis l.")] = None,
    kind: Kind = "scores",
    alpha: Annotated[float, typer.Option(help="Weight of a folder: 2**(-alpha · level) …")] = 0.0,
    beta: Annotated[float, typer.Option(help="… times its share of the slices to this power.")] = 1.0,
    iterations: Annotated[int, typer.Option(help="How often every axis is organized.")] = 3,
    tree: Annotated[str, typer.Option(help="flexible: folders as the data ask for; binary: halves.")] = "flexible",
    output: Output = None,
    draw: Draw = True,
    force: Force = False,
    json: Json = False,
) -> None:
    """Organize any array of two or more axes: trees, affinities, coordinates and a table for each axis.

    \b
    headtree organize measurement.npy --axes sensor,time,trial
    headtree organize table.csv
    headtree organize heads.npz --name scores --attention lhqk -o runs/mine

    Missing entries are nan (empty cells in a table).
    """  # noqa: D301
    with answering("organize"):
        from headtree.pipeline.array_run import ArrayFile
        from headtree.pipeline.make import default_folder, make_array_run, make_run
        from headtree.pipeline.sources import tensor_file
        from headtree.questionnaire.settings import Questionnaire

        settings = Questionnaire(alpha=alpha, beta=beta, n_iter=iterations, tree=tree)  # type: ignore[arg-type]
        folder = output or default_folder(file.stem)
        say = _teller(json, str(folder))
        if attention is None:
            source = ArrayFile(file, name, None if axes is None else axes.split(","))
            result = make_array_run(source, folder, questionnaire=settings, draw=draw, force=force, say=say)
        else:
            tensor = tensor_file(file, attention, name=name, kind=kind, heads_per_layer=heads_per_layer)
            result = make_run(tensor, folder, questionnaire=settings, draw=draw, force=force, say=say)
        finish([result], json)


def report(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    json: Json = False,
) -> None:
    """Draw the figures and the page of a run again, and repeat what was found; an array has figures only."""
    with answering("report"):
        from headtree.pipeline.make import redraw

        finish([redraw(run, say=_teller(json, str(run)))], json)


def reproduce(
    networks: Annotated[
        str, typer.Option(help="bundled, or with commas: txl, vit, minilm, and folders of runs.")
    ] = "bundled",
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder for claims.md, figures/ and runs/.")
    ] = Path("runs/reproduce"),
    inputs: Annotated[int, typer.Option(help="Inputs of each run that is made.")] = 6,
    sensitivity: Annotated[
        bool, typer.Option("--sensitivity", help="Also organize these with every setting changed (minutes).")
    ] = False,
    into: Annotated[
        Path | None, typer.Option(help="A Markdown file whose part between two marks is replaced by the claims.")
    ] = None,
) -> None:
    """Draw what the Organized Attention paper shows, and test what it says, on your networks.

    \b
    headtree reproduce
    headtree reproduce --networks txl,runs/mine -o runs/claims

    Every claim is one number with its interval and a verdict by rule: agrees, differs, cannot be decided.
    """  # noqa: D301
    with answering("reproduce"):
        from headtree.study import reproduce as reproducing

        names = [name.strip() for name in networks.split(",") if name.strip()]
        claims = reproducing.reproduce(
            names, output, n_inputs=inputs, sensitivity=sensitivity, say=_teller(False, str(output))
        )
        if into is not None:
            reproducing.into(into, claims)
        typer.echo(f"\n{claims.read_text(encoding='utf-8').split('## ')[0].rstrip()}\n\nAll of it: {claims}")


# -- what all commands share -----------------------------------------------------------------------------------


@contextmanager
def answering(command: str) -> Iterator[None]:
    """Errors in one line, and an exit code that says which kind it was."""
    try:
        yield
    except HeadtreeError as error:
        typer.echo(f"headtree {command}: {error}", err=True)
        raise typer.Exit(_code(error)) from None
    except OSError as error:
        typer.echo(
            f"headtree {command}: {error.strerror or error}: {error.filename}; mend that, try again", err=True
        )
        raise typer.Exit(SYSTEM) from None
    except KeyboardInterrupt:
        typer.echo("\nstopped; what is done is kept, give the same command again to go on", err=True)
        raise typer.Exit(INTERRUPTED) from None


def _code(error: HeadtreeError) -> int:
    from headtree.runs.folder import OtherSettingsError, RunInUseError, SystemRefusedError
    from headtree.runs.record import NotARunError

    if isinstance(error, SystemRefusedError):
        return SYSTEM
    return REFUSED if isinstance(error, RunInUseError | OtherSettingsError | NotARunError) else BAD_INPUT


def finish(runs: list[Run], json: bool) -> None:
    """Say what was found."""
    from headtree.report.words.summary import in_words, summarized

    found = [summarized(run) for run in runs]
    if json:
        typer.echo(jsonlib.dumps(found[0] if len(found) == 1 else {"runs": found}, indent=1))
        return
    for item in found:
        typer.echo(f"\n{in_words(item)}")


def _teller(json: bool, name: str) -> Callable[[str, float], None]:
    """A line for each finished step; on standard error where standard output is for a program."""
    begun = time.perf_counter()

    def say(step: str, seconds: float) -> None:
        line = f"{name:12} {step:10} {seconds:6.1f} s   (after {time.perf_counter() - begun:.0f} s)"
        typer.echo(line, file=sys.stderr if json else sys.stdout)

    return say
