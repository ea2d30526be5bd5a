"""Effects of all heads of the bundled networks: time, the share saved by resuming passes, and reliability.

`python -m benchmarks.effects cuda` measures the ViT on a GPU. If the environment variable HEADTREE_TEXT names a
text file, reliability is measured on it (19 inputs of 256 tokens ablated, 200 for the control variate).
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path


def main(check: bool = False) -> None:
    _transformer_xl(check)
    _resuming(check)
    if not check and "HEADTREE_TEXT" in os.environ:
        _reliability(Path(os.environ["HEADTREE_TEXT"]))


def _transformer_xl(check: bool) -> None:
    import headtree as ht

    network = ht.load_bundled("txl")
    n_tokens, n_inputs = (16, 2) if check else (256, 18)
    ids = [item["input_ids"][:, :n_tokens] for item in network.inputs]
    inputs = [{"input_ids": ids[i % len(ids)].roll(i // len(ids), dims=1)} for i in range(n_inputs)]
    options = {"layers": [15]} if check else {}
    start = time.perf_counter()
    found = ht.head_effects(network.model, inputs=inputs, n_ablated=n_inputs, **options)
    taken = time.perf_counter() - start
    n = found.changes.shape[1]
    print("runs" if check else f"txl: {len(found.heads)} heads on {n} tokens in {taken:.0f} s (target 180 s)")


def _resuming(check: bool) -> None:
    """The same passes from the start and resumed at the head's layer, in turn."""
    import headtree as ht
    from headtree.measures.heads import loss_changes

    network = ht.load_bundled("vit")
    inputs, labels = list(network.inputs[: 1 if check else 4]), network.labels[: 1 if check else 4]
    heads = [(layer, 0) for layer in ((11,) if check else range(12))]
    times = {}
    original = loss_changes.block_paths
    for name, paths in (("resumed", original), ("from the start", lambda names: None)):
        loss_changes.block_paths = paths
        try:
            ht.head_effects(network.model, inputs=inputs, labels=labels, heads=heads[:1], control=False)
            start = time.perf_counter()
            ht.head_effects(network.model, inputs=inputs, labels=labels, heads=heads, control=False)
            times[name] = time.perf_counter() - start
        finally:
            loss_changes.block_paths = original
    ratio = times["from the start"] / times["resumed"]
    print("runs" if check else f"vit: passes from the start take {ratio:.2f}x the time of resumed ones")


def _reliability(file: Path) -> None:
    import headtree as ht

    network = ht.load_bundled("txl")
    text = " ".join(file.read_text(encoding="utf-8").split()[: 256 * 200])
    start = time.perf_counter()
    found = ht.head_effects(network.model, texts=[text], tokens=256, tokenizer=network.tokenizer, n_ablated=19)
    print(
        f"txl on {file.name}: {found.changes.shape[1]} tokens ablated, {found.n_inputs} inputs in all; reliability "
        f"{found.reliability:.2f}, of raw differences {found.raw_reliability:.2f}; "
        f"{time.perf_counter() - start:.0f} s"
    )


def on_gpu() -> None:
    import torch

    import headtree as ht

    network = ht.load_bundled("vit")
    pixels = torch.cat([item["pixel_values"] for item in network.inputs]).repeat(50, 1, 1, 1)
    pixels = pixels + 0.1 * torch.randn(pixels.shape, generator=torch.Generator().manual_seed(0))
    inputs = [{"pixel_values": pixels[i : i + 1]} for i in range(len(pixels))]
    labels = network.labels.repeat(50)
    view = ht.ModelView(network.model, device="cuda")
    ht.head_effects(view, inputs=inputs[:8], labels=labels[:8], layers=[11])
    start = time.perf_counter()
    found = ht.head_effects(view, inputs=inputs, labels=labels, n_ablated=500)
    torch.cuda.synchronize()
    print(f"vit: {len(found.heads)} heads on 500 pictures in {time.perf_counter() - start:.1f} s (target 60 s)")
    print(found.table().head(5), f"reliability {found.reliability:.2f}")


if __name__ == "__main__":
    on_gpu() if "cuda" in sys.argv else main("--check" in sys.argv)
