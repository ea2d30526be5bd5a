"""Pruning the bundled networks: time of the criteria, of surgery and of a curve, and latency before and after."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import headtree as ht


def main(check: bool = False) -> None:
    _importance(check)
    _surgery(check)
    _curve(check)


def _timed(what: str, compute: Callable[[], Any], target: str = "") -> Any:
    start, used = time.perf_counter(), time.process_time()
    result = compute()
    seconds, used = time.perf_counter() - start, time.process_time() - used
    print(f"{what}: {seconds:.1f} s{target}, processor {used:.1f} s")
    return result


def _importance(check: bool) -> None:
    """Each criterion that needs nothing but attention, on ten pictures of 197 tokens."""
    network = ht.load_bundled("vit")
    inputs = list(network.inputs[: 1 if check else 10])
    options = {"layers": [0]} if check else {}
    for name in ("confidence",) if check else ("confidence", "shannon", "haar_probs", "haar_scores", "family"):
        measure = partial(ht.head_importance, network.model, name, inputs=inputs, **options)
        _timed(f"vit, importance of 144 heads by {name}, {len(inputs)} inputs", measure, " (target 30 s)")


def _surgery(check: bool) -> None:
    network = ht.load_bundled("vit")
    half = [(layer, head) for layer in range(12) for head in range(1 if check else 6)]
    pruned = _timed("vit, surgery", lambda: ht.prune_heads(network.model, half))
    before, after = ht.model_cost(network.model, pruned, inputs=network.inputs[0], n_runs=1 if check else 20)
    print(
        f"parameters {before.n_parameters:,} and {after.n_parameters:,}; latency "
        f"{after.seconds / before.seconds:.2f} of the whole network's"
    )


def _curve(check: bool) -> None:
    """The sample pictures over and over: only their number matters for the time."""
    network = ht.load_bundled("vit")
    n, sizes = (6, {"steps": 1, "n_random": 1}) if check else (500, {"steps": 10})
    chosen = [i % len(network.inputs) for i in range(n)]
    inputs = [network.inputs[i] for i in chosen]
    labels = [int(network.labels[i]) for i in chosen]  # type: ignore[index]
    found = _timed(
        f"vit, one-shot curve of confidence on {n} pictures",
        lambda: ht.prune_curve(network.model, ["confidence"], inputs=inputs, labels=labels, **sizes),
        "" if check else " (target 300 s)",
    )
    print(found)
