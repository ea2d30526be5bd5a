"""The function of the ViT's heads, from thousands of pictures: worth a machine with a GPU.

    python -m headtree.study.similarities.vit_effects PICTURES OUT.npz --device cuda

PICTURES is an .npz with the arrays x (picture, 3, 32, 32; bytes) and y (classes), or a folder with CIFAR-10, whose
test pictures are used. Put OUT.npz into ``measured/vit/effects.npz`` of the folder of `headtree reproduce
--similarities`, which then does not measure it again.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from headtree.errors import InvalidValueError
from headtree.models.bundled import vit
from headtree.models.bundled.bundle import BundledNetwork, load_bundled
from headtree.models.view import ModelView
from headtree.study.similarities.functional_truth import FunctionalTruth, output_changes, truth_of
from headtree.study.similarities.similarity_settings import BATCH_CPU, BATCH_GPU, FEWEST_PICTURES, MOST_PICTURES


def vit_effects(
    network: BundledNetwork, pictures: UInt8[Tensor, "picture 3 row column"], device: str = "cpu"
) -> FunctionalTruth:
    """Zero each head alone: correlation of the changes of the centred logits; halves are every other picture."""
    model = network.model.to(device)
    try:
        return _effects(model, pictures, 224 if network.images is None else _size(network), device)
    finally:
        model.to("cpu")


def _size(network: BundledNetwork) -> int:
    return int(network.inputs[0]["pixel_values"].shape[-1])


def _effects(model: Any, pictures: Tensor, size: int, device: str) -> FunctionalTruth:
    step = BATCH_CPU if device == "cpu" else BATCH_GPU
    batches = [
        {"pixel_values": vit.pixel_values(pictures[i : i + step], size).to(device)}
        for i in range(0, len(pictures), step)
    ]
    view = ModelView(model)
    prepared = view.prepare(inputs=[{"pixel_values": batches[0]["pixel_values"][:1]}], kind="probs")

    def centred_logits(outputs: list[Any]) -> Tensor:
        logits = torch.cat([output.logits for output in outputs])
        return (logits - logits.mean(dim=1, keepdim=True)).flatten()

    changes = output_changes(view, batches, centred_logits, prepared.selection.head_ids())
    picture = np.repeat(np.arange(len(pictures)), changes.shape[1] // len(pictures))
    in_half = np.stack([picture % 2 == 0, picture % 2 == 1])
    what = f"changes of the centred logits of {len(pictures):,} CIFAR-10 test pictures that are no samples"
    return truth_of(changes, in_half, what)


def other_pictures(
    pictures: UInt8[Tensor, "picture 3 row column"], samples: UInt8[Tensor, "sample 3 row column"]
) -> UInt8[Tensor, "other 3 row column"]:
    """The pictures that are not among the samples, at most 10,000; fewer than 500 are refused."""
    known = {sample.numpy().tobytes() for sample in samples}
    others = [i for i, picture in enumerate(pictures) if picture.numpy().tobytes() not in known][:MOST_PICTURES]
    if len(others) < FEWEST_PICTURES:
        raise InvalidValueError(
            f"pictures must hold at least {FEWEST_PICTURES} that are no samples of the network, got {len(others)}; "
            "of fewer, the functional similarity of heads does not replicate. Pass all of CIFAR-10"
        )
    return pictures[others]


def read_pictures(path: Path) -> UInt8[Tensor, "picture 3 row column"]:
    """The test pictures of CIFAR-10, from a folder as `headtree train vit` reads it, or from an .npz with x."""
    if path.suffix == ".npz":
        with np.load(path) as file:
            return torch.from_numpy(file["x"])
    from headtree.study.training.datasets import data_folder, read_cifar10

    return read_cifar10(data_folder(path)).test_images


def write_truth(path: Path, truth: FunctionalTruth) -> None:
    """Store a functional similarity."""
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, similarity=truth.similarity, halves=truth.halves, what=np.array(truth.what))


def read_truth(path: Path) -> FunctionalTruth:
    """Read what `write_truth` stored."""
    try:
        with np.load(path) as file:
            return FunctionalTruth(file["similarity"], file["halves"], str(file["what"]))
    except (OSError, ValueError, KeyError) as error:
        raise InvalidValueError(
            f"{path} must be a file that headtree.study.similarities.vit_effects wrote, but {error}; remove it, or "
            "measure it again"
        ) from error


def main() -> None:
    """Measure the function of the bundled ViT's heads and store it."""
    parser = argparse.ArgumentParser(description="Functional similarity of the heads of the bundled ViT.")
    parser.add_argument("pictures", type=Path, help="an .npz with x, or a folder with CIFAR-10")
    parser.add_argument("output", type=Path, help="the .npz to write")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args()
    network = load_bundled("vit")
    if network.images is None:
        raise InvalidValueError("the bundled ViT has no sample pictures; install 'headtree[demo]' again")
    truth = vit_effects(network, other_pictures(read_pictures(given.pictures), network.images), given.device)
    write_truth(given.output, truth)
    print(f"{truth.what}; reliability {truth.reliability:.3f}")


if __name__ == "__main__":
    main()
