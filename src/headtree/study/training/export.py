"""Export a training to a few small files: ``python -m headtree.study.training.export RUN FOLDER``.

It may run during training. `headtree.study.training.make_bundle` turns the exported files into a bundle.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from headtree.errors import InvalidValueError
from headtree.models.bundled.bundle import packed
from headtree.models.bundled.vit import lasting_name
from headtree.study.training import checkpoint as disk

EARLIER = ("early", "middle", "late")
_EXPORTED = ("settings", "config", "history", "seconds", "device", "torch", "step")


def export(run: Path, folder: Path) -> Path:
    """Write the last weights in half precision and those of existing earlier stages in 8 bits; returns `folder`.

    The metadata of weights.safetensors contain the settings, history and test results as JSON.
    """
    from safetensors.torch import save_file

    found = disk.checkpoints(run)
    if not found:
        raise InvalidValueError(f"run {run} holds no checkpoint; check the path")
    folder.mkdir(parents=True, exist_ok=True)
    last = disk.load(found[max(found)])
    about = {name: last.about[name] for name in _EXPORTED}
    result = run / "result.json"
    if result.is_file() and last.step == about["settings"]["steps"]:
        about |= json.loads(result.read_text(encoding="utf-8"))
    save_file(_named(packed(last.weights, 16)), folder / "weights.safetensors", {"about": json.dumps(about)})
    stages = sorted(round(share * about["settings"]["steps"]) for share in about["settings"]["stages"])
    for name, step in zip(EARLIER, stages[1:], strict=False):  # the initial weights are drawn again from the seed
        if step in found:
            save_file(_named(packed(disk.load(found[step]).weights, 8)), folder / f"{name}.safetensors")
    return folder


def read_about(folder: Path) -> dict[str, Any]:
    """The metadata of exported weights."""
    from safetensors import SafetensorError, safe_open

    path = folder / "weights.safetensors"
    try:
        with safe_open(path, "pt") as file:
            return json.loads(file.metadata()["about"])  # type: ignore[no-any-return]
    except (OSError, SafetensorError, TypeError, KeyError) as error:
        raise InvalidValueError(
            f"{path} is not an exported training ({type(error).__name__}: {error}); export the run"
        ) from error


def _named(tensors: dict[str, Any]) -> dict[str, Any]:
    return {lasting_name(name): tensor for name, tensor in tensors.items()}


def main(arguments: list[str]) -> None:
    """Export a run and print its progress."""
    about = read_about(export(Path(arguments[0]), Path(arguments[1])))
    print(
        f"step {about['step']} of {about['settings']['steps']}, {about['seconds']:.0f} s; test {about.get('test')}"
    )
    for row in about["history"][-3:]:
        print("  " + " ".join(f"{key} {value:.5g}" for key, value in row.items() if value is not None))


if __name__ == "__main__":
    main(sys.argv[1:])
