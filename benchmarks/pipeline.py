"""What a run costs after capture, step by step, beside the paper's code on a tensor of the same size."""

from __future__ import annotations

import tempfile
from pathlib import Path

#: Seconds of the paper's public code on one such input, on two cores: questionnaire, head and network entropies.
PAPER = 810


def main(check: bool = False) -> None:
    import torch

    from headtree.attention.capture import capture
    from headtree.networks.transformer_xl import TransformerXL, TransformerXLConfig
    from headtree.pipeline.make import make_run
    from headtree.pipeline.sources import TensorSource

    n_layers, n_heads, n_tokens = (2, 2, 16) if check else (16, 8, 256)
    sizes = {"n_layers": n_layers, "n_heads": n_heads, "width": 16 * n_heads, "inner": 64, "embedding": 32}
    torch.manual_seed(0)
    model = TransformerXL(TransformerXLConfig(vocabulary=100, memory=n_tokens, **sizes)).eval()
    inputs = {"input_ids": torch.randint(0, 100, (1, n_tokens))}
    source = TensorSource(capture(model, inputs=inputs))
    best: dict[str, float] = {}
    for _ in range(1 if check else 3):
        with tempfile.TemporaryDirectory() as folder:
            run = make_run(source, Path(folder, "run"), draw=False)
            for name, step in run.record.steps.items():
                best[name] = min(step.seconds, best.get(name, step.seconds))
    if check:
        print("runs")
        return
    total = sum(seconds for name, seconds in best.items() if name != "capture")
    print(
        f"{n_layers}×{n_heads} heads, {n_tokens} tokens, after capture and without drawing: {total:.2f} s", end=""
    )
    print(f" (target 3; the paper's code {PAPER} s): " + ", ".join(f"{k} {v:.2f}" for k, v in best.items()))
