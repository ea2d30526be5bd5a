"""What a run costs after capture, step by step, beside the paper's code on a tensor of the same size."""

from __future__ import annotations

import tempfile
from pathlib import Path

#: Seconds of the paper's public code on one such input, on two cores: questionnaire, head and network entropies.
PAPER = 810


def main(check: bool = False) -> None:
    from headtree.models.bundled.bundle import load_bundled
    from headtree.models.view import capture
    from headtree.pipeline.make import make_run
    from headtree.pipeline.sources import TensorSource

    network = load_bundled("txl")
    first = {name: values[:, :16] if check else values for name, values in network.inputs[0].items()}
    source = TensorSource(capture(network.model, inputs=[first]))
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
    print(f"the bundled txl, 16×8 heads, 256 tokens, after capture and without drawing: {total:.2f} s", end="")
    print(f" (target 3; the paper's code {PAPER} s): " + ", ".join(f"{k} {v:.2f}" for k, v in best.items()))
