"""The function of the ViT's heads, from thousands of pictures: a minute on a GPU, two hours on two cores.

    python -m headtree.study.similarities.vit_effects PICTURES OUT.npz --device cuda
    python -m headtree.study.similarities.vit_effects PICTURES OUT.npz --dtype bfloat16

PICTURES is an .npz with the arrays x (picture, 3, 32, 32; bytes) and y (classes), or a folder with CIFAR-10, whose
test pictures are used. Put OUT.npz into ``measured/vit/effects.npz`` of the folder of `headtree reproduce
--similarities`, which then does not measure it again.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from headtree.errors import InvalidValueError
from headtree.models.bundled import vit
from headtree.models.bundled.bundle import BundledNetwork, load_bundled
from headtree.models.model_files import weights_hash
from headtree.models.view import ModelView
from headtree.study.similarities.functional_truth import FunctionalTruth, output_changes, truth_of
from headtree.study.similarities.similarity_settings import (
    AT_ONCE,
    BATCH_CPU,
    BATCH_GPU,
    FEWEST_PICTURES,
    MOST_PICTURES,
)


def vit_effects(
    network: BundledNetwork,
    pictures: UInt8[Tensor, "picture 3 row column"],
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    parts: Path | None = None,
) -> FunctionalTruth:
    """Zero each head alone: correlation of the changes of the centred logits; halves are every other picture.

    Bfloat16 is twice as fast on a CPU that has it; on 60 pictures its similarities had a rank correlation of .994
    with those of float32. What was found on every few hundred pictures is kept in the folder `parts`, so that an
    interrupted measurement can be continued.
    """
    model = deepcopy(network.model).to(device=device, dtype=dtype)
    size = 224 if network.images is None else int(network.inputs[0]["pixel_values"].shape[-1])
    found = []
    for first in range(0, len(pictures), AT_ONCE):  # at 224 × 224 pixels, all of them would be several GB
        some = pictures[first : first + AT_ONCE]
        print(f"pictures {first + 1} to {first + len(some)} of {len(pictures)}", file=sys.stderr, flush=True)
        found.append(_kept(parts, model, some, partial(_changes, model, some, size, device, dtype)))
    changes = np.concatenate(found, axis=1)
    in_half = np.arange(len(pictures)) % 2 == np.array([[0], [1]])
    what = f"changes of the centred logits of {len(pictures):,} CIFAR-10 test pictures that are no samples" + (
        "" if dtype == torch.float32 else f", in {str(dtype).removeprefix('torch.')}"
    )
    return truth_of(changes.reshape(len(changes), -1), np.repeat(in_half, changes.shape[2], axis=1), what)


def _changes(
    model: Any, pictures: Tensor, size: int, device: str, dtype: torch.dtype
) -> Float[np.ndarray, "head picture class"]:
    """How zeroing each head changes the centred logits of some pictures."""
    inputs = [{"pixel_values": values[None].to(dtype)} for values in vit.pixel_values(pictures, size)]

    def centred_logits(output: Any) -> Float[Tensor, "picture class"]:
        logits: Tensor = output.logits.float()
        return logits - logits.mean(dim=1, keepdim=True)

    batch_size = BATCH_CPU if device == "cpu" else BATCH_GPU
    return output_changes(ModelView(model), inputs, centred_logits, batch_size)[1]


def _kept(
    parts: Path | None, model: Any, pictures: Tensor, measure: Callable[[], Float[np.ndarray, "..."]]
) -> Float[np.ndarray, "..."]:
    """What an earlier start found with the same weights, pictures and device, or else what is measured now."""
    if parts is None:
        return measure()
    path = parts / f"{_key(model, pictures)}.npy"
    if not path.exists():
        parts.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f"draft-{path.name}")
        np.save(draft, measure())
        draft.replace(path)
    found: np.ndarray = np.load(path)
    return found


def _key(model: Any, pictures: Tensor) -> str:
    where = next(model.parameters()).device.type
    return sha256(f"{where} {weights_hash(model)}".encode() + pictures.numpy().tobytes()).hexdigest()[:16]


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
    parser.add_argument("--most", type=int, default=MOST_PICTURES, help="take the first so many pictures at most")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    given = parser.parse_args()
    network = load_bundled("vit")
    if network.images is None:
        raise InvalidValueError("the bundled ViT has no sample pictures; install 'headtree[demo]' again")
    pictures = other_pictures(read_pictures(given.pictures), network.images)[: given.most]
    if given.most < FEWEST_PICTURES:
        parser.error(f"--most must be at least {FEWEST_PICTURES}, got {given.most}: fewer do not replicate")
    parts = given.output.with_suffix(".parts")
    truth = vit_effects(network, pictures, given.device, getattr(torch, given.dtype), parts)
    write_truth(given.output, truth)
    for piece in parts.glob("????????????????.npy"):
        piece.unlink()
    with suppress(OSError):  # somebody else's files are there too
        parts.rmdir()
    print(f"{truth.what}; reliability {truth.reliability:.3f}")


if __name__ == "__main__":
    main()
