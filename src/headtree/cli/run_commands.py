"""The commands that make and redraw runs: `demo`, `run`, `organize` and `report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headtree._extras import require
from headtree.cli.common import (
    Dask,
    Device,
    Draw,
    Dtype,
    Force,
    Images,
    Inputs,
    Json,
    Kind,
    Memory,
    Model,
    Output,
    Raw,
    Similarity,
    Text,
    cli_errors,
    finish,
    require_extras,
    step_printer,
)
from headtree.cli.selection import parse_heads, parse_layers
from headtree.errors import InvalidTypeError


def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the two runs.")] = Path("runs"),
    inputs: Annotated[int, typer.Option(help="Number of sample inputs for each network, 1 to 40.")] = 10,
    draw: Draw = True,
    force: Force = False,
    json: Json = False,
) -> None:
    """Organize the two bundled networks: a Transformer-XL and a ViT.

    Makes runs/demo-txl and runs/demo-vit in less than two minutes, offline: the attention of every head on 10
    passages of 64 words and on 10 pictures, its organization, measures, tables, figures and an interactive page. If
    it is interrupted, the same command continues; if everything is done, it only prints the results again.
    """
    with cli_errors("demo"):
        require_extras("the demo", draw=draw, also="demo")
        from headtree.pipeline.demo import demo_sources
        from headtree.pipeline.make_run import make_run

        sources = demo_sources(inputs)
        runs = [
            make_run(
                source, output / f"demo-{name}", draw=draw, force=force, say=step_printer(f"demo-{name}", json)
            )
            for name, source in sources.items()
        ]
        finish(runs, json)


def run(
    model: Model,
    text: Text = None,
    images: Images = None,
    prompt: Annotated[
        list[str] | None, typer.Option(help="A text itself; give the option again for more inputs.")
    ] = None,
    generate: Annotated[
        int | None,
        typer.Option(
            help="Tokens that the model writes after each --prompt; its attention while it writes is used."
        ),
    ] = None,
    inputs: Inputs = 20,
    tokens: Annotated[
        int | None, typer.Option(help="Tokens per input.", show_default="64, or the model's context")
    ] = None,
    kind: Kind = "scores",
    part: Annotated[
        str | None,
        typer.Option(help="Which attention of a model with several: encoder, decoder, cross, or a tower's name."),
    ] = None,
    layers: Annotated[
        str | None, typer.Option(help="Layers to keep, counted from 0, such as 0-3,8.", show_default="all")
    ] = None,
    heads: Annotated[
        str | None,
        typer.Option(
            help="Heads to keep: by name, such as L3H5,L4H2 (layer 3, head 5, …), or by number in every layer, "
            "such as 0-3.",
            show_default="all",
        ),
    ] = None,
    device: Device = None,
    dtype: Dtype = None,
    batch_size: Annotated[
        int | None,
        typer.Option(
            help="How many inputs go through the model at once. More is faster on a GPU and needs more memory; the "
            "last digits of the values then depend on which inputs run together.",
            show_default="1",
        ),
    ] = None,
    similarity: Similarity = "attention",
    raw: Raw = False,
    output: Output = None,
    revision: Annotated[
        str | None,
        typer.Option(help="Branch, tag or commit on the hub; of txl and vit a stage of training, such as early."),
    ] = None,
    depth: Annotated[
        bool, typer.Option("--depth", help="Also measure how similar tokens become with depth.")
    ] = False,
    effects: Annotated[
        bool,
        typer.Option("--effects", help="Also measure how the loss changes without each head (one pass per head)."),
    ] = False,
    sensitivity: Annotated[
        bool,
        typer.Option("--sensitivity", help="Also repeat the organization with each setting changed (minutes)."),
    ] = False,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run Python code that comes with the model.")
    ] = False,
    dask: Dask = None,
    memory: Memory = None,
    draw: Draw = True,
    force: Force = False,
    json: Json = False,
) -> None:
    """Organize the attention of any transformer on your own inputs.

    \b
    headtree run bert-base-uncased --text book.txt
    headtree run ./my-model --text book.txt --inputs 40 --tokens 128 -o runs/mine
    headtree run google/vit-base-patch16-224 --images photos --kind probs
    headtree run llama.gguf --text book.txt --layers 0-7 --device cuda --dtype bfloat16
    headtree run bert-base-uncased --text book.txt --dask local:4
    headtree run gpt2 --prompt "Once upon a time" --generate 64

    The same command finishes an interrupted run, and does nothing if the run is complete.
    """  # noqa: D301
    with cli_errors("run"):
        require_extras(
            f"running the model {model!r}",
            draw=draw or depth or sensitivity,
            model=model,
            images=images,
            also=None if dask is None else "cluster",
        )
        from headtree.pipeline.make_run import default_folder, make_run
        from headtree.pipeline.model_source import ModelSource
        from headtree.pipeline.workers import open_workers

        source = ModelSource(
            model=model,
            text=text,
            images=images,
            prompts=prompt or (),
            generate=generate,
            inputs=inputs,
            tokens=tokens,
            kind=kind,  # type: ignore[arg-type]  # checked there
            part=part,
            layers=parse_layers(layers),
            heads=parse_heads(heads),
            device=device,
            dtype=dtype,
            batch_size=batch_size,
            revision=revision,
            trust_remote_code=trust_remote_code,
        )
        folder = output or default_folder(Path(model).name)
        say = step_printer(str(folder), json)
        with open_workers(dask) as workers:
            result = make_run(
                source,
                folder,
                similarity=similarity,  # type: ignore[arg-type]  # checked there
                raw=raw,
                depth=depth,
                effects=effects,
                sensitivity=sensitivity,
                draw=draw,
                force=force,
                say=say,
                workers=workers,
                memory=memory,
            )
        finish([result], json)


def organize(
    file: Annotated[
        Path, typer.Argument(help="An array: .npy, .npz, .safetensors, .pt, .mat, .csv, .tsv, or a Zarr folder.")
    ],
    name: Annotated[str | None, typer.Option(help="Which array, if the file holds several.")] = None,
    axes: Annotated[
        str | None,
        typer.Option(help="Names of the axes, separated by commas: sensor,time,trial.", show_default="axis0,…"),
    ] = None,
    attention: Annotated[
        str | None,
        typer.Option(
            help="The array is attention, with these axes: h heads, q queries, k keys, l layers; for example hqk."
        ),
    ] = None,
    heads_per_layer: Annotated[
        int | None, typer.Option(help="Heads per layer, for --attention without an axis l.")
    ] = None,
    kind: Kind = "scores",
    alpha: Annotated[float, typer.Option(help="A folder's weight is 2**(-alpha · level) …")] = 0.0,
    beta: Annotated[float, typer.Option(help="… times its share of the slices to the power beta.")] = 1.0,
    iterations: Annotated[int, typer.Option(help="How many times each axis is organized.")] = 3,
    tree: Annotated[
        str, typer.Option(help="flexible: folder sizes follow the data; binary: each folder is split in two.")
    ] = "flexible",
    landmarks: Annotated[
        int | None,
        typer.Option(
            help="Compare at most this many slices of an axis, of attention the queries and the keys; the others "
            "join the nearest.",
            show_default="all slices",
        ),
    ] = None,
    similarity: Similarity = "attention",
    raw: Raw = False,
    output: Output = None,
    memory: Memory = None,
    draw: Draw = True,
    force: Force = False,
    json: Json = False,
) -> None:
    """Organize any array with two or more axes: trees, affinities, coordinates and a table for each axis.

    \b
    headtree organize measurement.npy --axes sensor,time,trial
    headtree organize table.csv
    headtree organize heads.npz --name scores --attention lhqk -o runs/mine

    Missing entries are nan (empty cells in a table); of attention scores, so are those that are -inf.
    """  # noqa: D301
    with cli_errors("organize"):
        if attention is None:
            _refuse(
                **{
                    "--heads-per-layer": heads_per_layer is not None,
                    "--kind": kind != "scores",
                    "--similarity": similarity != "attention",
                    "--raw": raw,
                }
            )
        if file.suffix.lower() == ".safetensors":
            require("models", f"reading {file.name}", "safetensors")
        require_extras("drawing (without --no-draw)", draw=draw)
        from headtree.pipeline.array_run import ArrayFile
        from headtree.pipeline.make_run import default_folder, make_array_run, make_run
        from headtree.pipeline.sources import tensor_file
        from headtree.questionnaire.settings import Questionnaire

        settings = Questionnaire(
            alpha=alpha,
            beta=beta,
            n_iter=iterations,
            tree=tree,  # type: ignore[arg-type]  # checked there
            landmarks=landmarks if attention is None or landmarks is None else (None, landmarks, landmarks),
        )
        folder = output or default_folder(file.stem)
        say = step_printer(str(folder), json)
        if attention is None:
            source = ArrayFile(file, name, None if axes is None else axes.split(","))
            result = make_array_run(
                source, folder, questionnaire=settings, draw=draw, force=force, say=say, memory=memory
            )
        else:
            tensor = tensor_file(file, attention, name=name, kind=kind, heads_per_layer=heads_per_layer)
            result = make_run(
                tensor,
                folder,
                questionnaire=settings,
                similarity=similarity,  # type: ignore[arg-type]  # checked there
                raw=raw,
                draw=draw,
                force=force,
                say=say,
                memory=memory,
            )
        finish([result], json)


def _refuse(**is_given: bool) -> None:
    """Refuse options that say something of attention only."""
    given = [option for option, there in is_given.items() if there]
    if given:
        raise InvalidTypeError(
            f"{given[0]} is for attention; name the axes of the array with --attention, for example hqk, or leave "
            "it out"
        )


def report(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    json: Json = False,
) -> None:
    """Draw the figures and the page of a run again, and print its results."""
    with cli_errors("report"):
        require_extras("drawing a run", draw=True)
        from headtree.pipeline.make_run import redraw

        finish([redraw(run, say=step_printer(str(run), json))], json)
