"""A run of 20 inputs on two workers compared with one: warm, single-threaded, from capture to diagnose."""

from __future__ import annotations

import tempfile
import time
import warnings
from dataclasses import replace
from pathlib import Path

import torch

#: Ratio that two workers must reach.
TARGET = 1.7
_STEPS = ("capture", "organize", "compare", "measure", "diagnose")


def main(check: bool = False) -> None:
    """Print the ratio; with `check`, make one tiny run only to see that everything works."""
    from headtree.pipeline.model_source import ModelSource

    inputs, tokens = (1, 8) if check else (20, 64)
    source = ModelSource(model="txl", inputs=inputs, tokens=tokens, layers=[0] if check else None)
    before = torch.get_num_threads()
    warnings.simplefilter("ignore")  # few inputs
    torch.set_num_threads(1)  # of this process; workers of a local cluster share its threads
    try:
        times = {n: _seconds(source, n, warm=not check) for n in ((1,) if check else (1, 2))}
    finally:
        torch.set_num_threads(before)
    if check:
        print("runs")
        return
    whole = {n: sum(steps.values()) for n, (steps, _) in times.items()}
    least = {n: seconds for n, (_, seconds) in times.items()}
    print(
        f"the bundled txl, 16×8 heads, {inputs} inputs of {tokens} tokens: {whole[1]:.1f} s on one worker, "
        f"{whole[2]:.1f} s on two: ratio {whole[1] / whole[2]:.2f} (target {TARGET})"
    )
    print("  by step: " + ", ".join(f"{step} {times[1][0][step] / times[2][0][step]:.2f}" for step in _STEPS))
    print(
        f"  processor time of this process and the busier worker: {least[1]:.1f} s and {least[2]:.1f} s, ratio "
        f"{least[1] / least[2]:.2f}; what an idle machine would show if they never overlapped"
    )


def _seconds(source, n: int, *, warm: bool) -> tuple[dict[str, float], float]:
    """Seconds of each step on `n` workers, after a short run that loads the model and the kernels.

    The second result is the processor time of this process and of the worker that took most.
    """
    from headtree.pipeline.make_run import Measures, make_run
    from headtree.pipeline.workers import open_workers

    with open_workers(f"local:{n}") as workers, tempfile.TemporaryDirectory() as folder:
        if warm:
            first = replace(source, inputs=2 * n)
            make_run(first, Path(folder, "warm"), measures=Measures(bootstrap=5), draw=False, workers=workers)
        before = _processor_times(workers)
        start = time.perf_counter()
        run = make_run(source, Path(folder, "run"), draw=False, workers=workers)
        steps = {name: step.seconds for name, step in run.record.steps.items()}
        steps["diagnose"] += time.perf_counter() - start - sum(steps.values())  # opening and closing of the run
        spent = [after - earlier for after, earlier in zip(_processor_times(workers), before, strict=True)]
        return steps, spent[0] + max(spent[1:])


def _processor_times(workers) -> list[float]:
    """Seconds of this process, and of each worker."""
    return [time.process_time(), *workers._client.run(time.process_time).values()]
