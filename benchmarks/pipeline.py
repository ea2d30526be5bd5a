"""Cost of each step of a run after capture, compared with the paper's code, and the number of forward passes."""

from __future__ import annotations

import tempfile
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

#: Seconds of the paper's public code on one such input, on two cores: questionnaire, head and network entropies.
PAPER = 810


#: Why each forward pass of a run is needed, by step.
REASONS = {
    "capture": "2 to probe how the model attends (plain and watched), then 1 per input",
    "diagnose": "1 traced for weights and stream, 1 for induction on random tokens, then per input 1 with "
    "gradients (relevance) and 1 for the residual stream",
}


@contextmanager
def counted_passes(kind: type):
    """Count the forward passes of all modules of a class while the block runs."""
    import torch

    passes: Counter[str] = Counter()
    passes["step"] = 0

    def count(module, args):
        if isinstance(module, kind):
            passes["step"] += 1

    handle = torch.nn.modules.module.register_module_forward_pre_hook(count)
    try:
        yield passes
    finally:
        handle.remove()


def print_passes(n_inputs: int) -> None:
    """Number of forward passes of each step of a run of the bundled Transformer-XL."""
    from headtree.models.bundled.transformer_xl import TransformerXL
    from headtree.pipeline.make_run import make_run
    from headtree.pipeline.model_source import ModelSource

    by_step: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as folder, counted_passes(TransformerXL) as passes:

        def say(step: str, seconds: float) -> None:
            by_step[step] = passes["step"] - sum(by_step.values())

        make_run(ModelSource(model="txl", inputs=n_inputs, tokens=256), Path(folder, "run"), draw=False, say=say)
    listing = ", ".join(f"{step} {n}" for step, n in by_step.items() if n)
    print(f"forward passes of a run of {n_inputs} inputs: {sum(by_step.values())} ({listing})")
    for step, reason in REASONS.items():
        print(f"  {step}: {reason}")


def main(check: bool = False) -> None:
    from headtree.models.bundled.bundle import load_bundled
    from headtree.models.capture import capture
    from headtree.pipeline.make_run import make_run
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
    print_passes(2)
    total = sum(seconds for name, seconds in best.items() if name != "capture")
    print(f"the bundled txl, 16×8 heads, 256 tokens, after capture and without drawing: {total:.2f} s", end="")
    print(f" (target 3; the paper's code {PAPER} s): " + ", ".join(f"{k} {v:.2f}" for k, v in best.items()))
